"""Every verb on a PostgreSQL database, in real processes: only the address differs, and its password is nobody's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ORDER, Project, eventually
from tests.servers import PostgresServer
from tests.store.postgres_kit import columns

SECRET = "hush-hush"

CODE = ("--code", "flows.py")

WAITING = """

@hf.workflow
def approval(order: str = "lamp"):
    decision = hf.ask("Ship it?", schema=bool, assignee="ada", basket="finance", deadline="2d")
    return hf.text("{} {}", order, decision)


@hf.workflow
async def parcel(ctx: hf.Context) -> int:
    return await ctx.receive("packed", schema=int)


@hf.node
def stumble() -> str:
    if not os.path.exists("go"):
        raise ValueError("not yet")
    return "went"


@hf.workflow
def stumbling():
    return stumble()
"""


class Served(Project):
    """The same project; its database is on a server, and only the environment says so."""

    url: str

    def cli(self, *args: str, **options: Any) -> Any:
        return super().cli(*args, **{"HOLDFAST_DATABASE_URL": self.url, **options})

    def start(self, *args: str, **env: str) -> Any:
        return super().start(*args, **{"HOLDFAST_DATABASE_URL": self.url, **env})


@pytest.fixture
def served(project: Project, postgres: PostgresServer) -> Iterator[Served]:
    with (project.directory / "flows.py").open("a") as flows:
        flows.write(WAITING)
    made = Served(project.directory)
    made.url = postgres.url().replace("postgres@", f"postgres:{SECRET}@")
    made.started = project.started
    yield made
    assert list(project.directory.glob("*.db")) == []
    for log in project.directory.glob("*.log"):
        assert SECRET not in log.read_text()


def test_a_run_goes_through_its_life_with_every_verb_that_looks_at_it(served: Served) -> None:
    assert served.json("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "o")["result"]["receipt"] == "receipt-42"
    assert served.json("list")[0]["run_id"] == "o"
    assert served.json("show", "o")["status"] == "completed"
    assert [e["type"] for e in served.events("o")][-1] == "RunCompleted"
    assert "completed" in served.cli("why", "o").stdout
    assert "charge" in served.cli("graph", "o").stdout
    assert served.json("doctor", "--deep")["violations"] == []
    assert not served.json("recover", "o", "--no-run")["needed"]


def test_a_question_is_listed_reassigned_and_answered(served: Served) -> None:
    asked = served.cli("run", "flows.py:approval", "--run-id", "a")
    assert asked.returncode == 3
    (wait,) = served.json("inbox")
    served.json("reassign", wait["wait_id"], "--to", "bob")
    assert served.json("inbox", "--assignee", "bob")[0]["wait_id"] == wait["wait_id"]
    assert served.json("baskets")[0]["basket"] == "finance"
    served.json("respond", wait["wait_id"], "--input", "true")
    assert served.json("resume", "a", *CODE)["result"] == "lamp true"


def test_signals_pauses_and_cancellation(served: Served) -> None:
    assert served.cli("run", "flows.py:parcel", "--run-id", "p").returncode == 3
    served.json("pause", "p")
    served.json("signal", "p", "packed", "3")
    assert served.json("resume", "p", *CODE)["result"] == 3
    served.cli("run", "flows.py:parcel", "--run-id", "q")
    served.json("cancel", "q")
    assert served.json("show", "q")["status"] == "cancelled"


def test_branches_are_opened_drawn_and_compared(served: Served) -> None:
    assert served.cli("run", "flows.py:stumbling", "--run-id", "s").returncode == 1
    served.open_gate()
    assert served.json("retry", "s", *CODE)["result"] == "went"
    assert served.json("fork", "s", "--at", "stumble", *CODE)["result"] == "went"
    assert len(served.json("branches", "s")) == 3
    assert served.cli("diff", "s", "1", "2").returncode == 0


def test_a_run_whose_process_was_killed_is_resumed(served: Served) -> None:
    process = served.start("run", "flows.py:gated", "--run-id", "g", "--lease-seconds", "1")
    served.wait_for("attempt-1")
    process.send_signal(signal.SIGKILL)
    process.wait()
    served.open_gate()
    assert served.json("resume", "g", *CODE, HOLDFAST_LEASE_SECONDS="1")["result"] == 6
    assert served.marks("adds") == 6


def test_code_that_a_server_names_is_imported_only_by_a_user_who_has_allowed_it(served: Served, tmp_path: Path) -> None:
    """Another writer of the database must not choose which file is executed here."""
    served.cli("run", "flows.py:stumbling", "--run-id", "s")
    served.open_gate()
    file, colleague = str(served.directory / "flows.py"), {"XDG_STATE_HOME": str(tmp_path / "colleague")}
    refused = served.cli("retry", "s", **colleague)
    assert refused.returncode == 2
    assert "you have not allowed this database to have it imported" in refused.stderr
    assert f"`holdfast trust {file}`" in refused.stderr
    assert served.json("trust", "flows.py", **colleague)["file"] == file
    assert served.json("trust", **colleague)["files"] == [file]
    assert served.cli("retry", "s", **colleague).returncode == 0
    assert served.json("trust", "flows.py", "--remove", **colleague)["allowed"] is False
    assert served.cli("trust", "flows.py", "--remove", **colleague).returncode == 2


def test_a_detached_run_has_its_log_in_the_working_directory_and_no_password_on_its_command_line(
    served: Served,
) -> None:
    told = served.json("run", "flows.py:gated", "--run-id", "d", "--detach")
    served.wait_for("attempt-1")
    assert SECRET not in Path(f"/proc/{told['pid']}/cmdline").read_text()
    assert Path(told["log"]) == served.directory / "holdfast.log"
    served.open_gate()
    eventually(lambda: served.json("show", "d")["status"] == "completed", "it never ended")


@pytest.mark.parametrize("verb", [["list"], ["show", "x"], ["inbox"], ["doctor"], ["events", "x"], ["why", "x"]])
def test_verbs_that_only_read_make_no_database(served: Served, verb: list[str]) -> None:
    read = served.cli(*verb)
    assert "nothing of Holdfast is in the schema" in read.stderr
    assert SECRET not in read.stderr
    assert columns(served.url) == set()


def test_the_flag_and_both_schemes_lead_there(served: Served) -> None:
    done = served.cli("run", "flows.py:named", "--set", "name=Ada", "--run-id", "n")
    assert done.returncode == 0, done
    elsewhere = {"HOLDFAST_DATABASE_URL": "sqlite:///elsewhere/none.db"}
    for url in (served.url, served.url.replace("postgresql:", "postgres:")):
        assert served.json("show", "n", "--db", url, **elsewhere)["result"] == "Ada 1"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        (("?host=", "?host=/nowhere"), "cannot be reached"),
        (("&schema=", "&schema=NO"), "the schema name"),
        (("postgresql:", "mysql:"), "use sqlite:///file.db"),
        (("@/", "@host:port/"), "the address of the database cannot be read"),
    ],
)
def test_no_message_has_the_password(served: Served, change: tuple[str, str], said: str) -> None:
    url = served.url.replace(*change)
    for verb in (["list", "--json"], ["run", "flows.py:named", "--set", "name=Ada"], ["--debug", "show", "x"]):
        done = served.cli(*verb, HOLDFAST_DATABASE_URL=url)
        assert done.returncode != 0 or verb[0] == "list"
        assert said in done.stderr
        assert SECRET not in done.stdout + done.stderr


def test_hints_that_can_be_pasted_name_the_database_without_its_password(served: Served) -> None:
    asked = served.cli("run", "flows.py:approval", "--db", served.url, HOLDFAST_DATABASE_URL="")
    assert "holdfast respond" in asked.stderr
    assert "--db 'postgresql://postgres@/" in asked.stderr
    assert SECRET not in asked.stderr + asked.stdout


def test_a_password_in_a_file_is_found_and_not_shown(served: Served) -> None:
    secret = served.directory / "url"
    secret.write_text(served.url + "\n")
    os.chmod(secret, 0o600)
    done = served.cli(
        "run", "flows.py:broken", "--input", ORDER, HOLDFAST_DATABASE_URL="", HOLDFAST_DATABASE_URL_FILE=str(secret)
    )
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
