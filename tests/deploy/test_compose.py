"""The Compose file: it passes the specification's own schema, and its workers do what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.cli.conftest import eventually
from tests.deploy.conftest import DEPLOY, Site
from tests.deploy.test_image import ENTRYPOINT, WORKDIR

COMPOSE = DEPLOY / "compose.yaml"


def interpolated(value: Any, variables: dict[str, str]) -> Any:
    """A value with its variables filled in, of which ours uses ${NAME:-default} and ${NAME:?what is missing}."""
    match value:
        case str():
            return re.sub(r"\$\{(\w+):(-|\?)([^}]*)\}", lambda found: variables.get(found[1]) or found[3], value)
        case list():
            return [interpolated(part, variables) for part in value]
        case dict():
            return {name: interpolated(part, variables) for name, part in value.items()}
    return value


FILE = interpolated(YAML(typ="safe").load(COMPOSE), {"POSTGRES_PASSWORD": "pa55word"})
POSTGRES, WORKER = FILE["services"]["postgres"], FILE["services"]["worker"]


def problems(file: Path) -> str:
    """What is wrong with a file under the Compose specification's schema, which check-jsonschema ships."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout if done.returncode else ""


def test_the_file_passes_the_schema_of_the_specification(tmp_path: Path) -> None:
    assert problems(COMPOSE) == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("stop_grace_period: 45s", "stop_grace_time: 45s"))
    assert "stop_grace_time" in problems(wrong)


def test_the_database_keeps_its_data_and_workers_wait_until_it_answers() -> None:
    (mount,) = POSTGRES["volumes"]
    assert mount.partition(":")[0] in FILE["volumes"]
    assert POSTGRES["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert WORKER["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert WORKER["deploy"]["replicas"] >= 2


def test_the_password_is_no_part_of_the_file_and_reaches_both_sides() -> None:
    assert COMPOSE.read_text().count("${POSTGRES_PASSWORD:?") == 2
    assert POSTGRES["environment"]["POSTGRES_PASSWORD"] == WORKER["environment"]["PGPASSWORD"] == "pa55word"
    assert WORKER["environment"]["HOLDFAST_DATABASE_URL"] == "postgresql://holdfast@postgres/holdfast"
    assert (POSTGRES["environment"]["POSTGRES_USER"], POSTGRES["environment"]["POSTGRES_DB"]) == ("holdfast",) * 2


def test_an_orderly_stop_is_given_more_time_than_draining_takes() -> None:
    drain = WORKER["command"][WORKER["command"].index("--drain") + 1]
    assert float(WORKER["stop_grace_period"].removesuffix("s")) >= float(drain) + 10


def test_the_image_is_built_from_this_project() -> None:
    context = DEPLOY / WORKER["build"]["context"]
    assert (context / WORKER["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert (context / "pyproject.toml").exists()


def test_the_workers_of_the_file_drive_a_run_and_stop_in_order(site: Site) -> None:
    code, inside, _ = WORKER["volumes"][0].split(":")
    assert inside == WORKDIR
    shutil.copytree(DEPLOY / code, site.directory / "app", ignore=shutil.ignore_patterns("__pycache__"))
    site.directory /= "app"
    workers = [
        site.serve([*ENTRYPOINT, *WORKER["command"]], WORKER["environment"])
        for _ in range(WORKER["deploy"]["replicas"])
    ]
    site.holdfast("start", "order.py:fulfil", "--run-id", "order")  # also on a database that nobody has used yet
    eventually(lambda: len(site.holdfast("engines")) == len(workers), "they do not work", 60)
    eventually(lambda: site.holdfast("show", "order")["status"] == "completed", "it was not driven", 60)
    for worker in workers:
        worker.terminate()
        worker.communicate(timeout=float(WORKER["stop_grace_period"].removesuffix("s")))
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    assert site.holdfast("engines") == []
