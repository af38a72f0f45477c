"""The image: what it is built from is enough, nothing else gets in, and its command gets the signals."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import ENVIRONMENT
from tests.deploy.conftest import DEPLOY

ROOT = DEPLOY.parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def lines(instruction: str) -> list[str]:
    """What stands behind an instruction, for each time that it comes."""
    whole = DOCKERFILE.replace("\\\n", "")
    return re.findall(rf"^{instruction} (.+)$", whole, re.MULTILINE)


ENTRYPOINT: list[str] = json.loads(lines("ENTRYPOINT")[0])
WORKDIR = lines("WORKDIR")[-1]
COPIED = sorted(source for line in lines("COPY") for source in line.split()[:-1])


def test_only_what_the_build_copies_is_sent_to_it() -> None:
    rules = [line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] != "#"]
    assert rules[0] == "*"
    assert sorted(rule[1:] for rule in rules if rule.startswith("!")) == COPIED


def test_what_the_build_copies_is_enough_for_a_wheel_that_runs_workflows(tmp_path: Path) -> None:
    source, site = tmp_path / "src", tmp_path / "site"
    source.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, timeout=60)
    shutil.copy(ROOT / "examples/order.py", tmp_path)
    done = subprocess.run(
        [sys.executable, str(site / "bin" / ENTRYPOINT[0]), "run", "order.py:fulfil", "--json", "-q"],
        cwd=tmp_path, env=ENVIRONMENT | {"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["receipt"] == "receipt-42"


def test_the_command_is_no_child_of_a_shell_and_is_not_run_by_root() -> None:
    assert ENTRYPOINT == ["holdfast"]
    assert lines("STOPSIGNAL") == ["SIGTERM"]
    users = lines("USER")
    assert users == ["holdfast"]
    assert any(f"useradd --system --uid 10001 --no-create-home {users[-1]}" in line for line in lines("RUN"))
