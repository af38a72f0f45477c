"""`holdfast db copy` in real processes: runs go on in the other database, from where they were."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, ENVIRONMENT, Project
from tests.cli.terminals import CTRL_C, on_terminal
from tests.servers import PostgresServer
from tests.store.postgres_kit import sql

FLOWS = """
import os

import holdfast as hf


def mark(name):
    with open(name, "a") as f:
        f.write("x")


@hf.node
def prepare(ctx: hf.Context, n: int) -> int:
    mark("prepared")
    ctx.vars["doubled"] = 2 * n
    return n


@hf.node
def finish(ctx: hf.Context, n: int, answer: str) -> str:
    return f"{n} {answer} {ctx.vars['doubled']}"


@hf.workflow(variables={"doubled": int})
def moving_question(n: int = 4):
    return finish(prepare(n), hf.ask("Which?", schema=str))


@hf.workflow
async def moving_timer(ctx: hf.Context) -> str:
    await ctx.step(note)
    await ctx.sleep(1.5)
    return "awake"


async def note() -> str:
    mark("noted")
    return "noted"


@hf.workflow
async def moving_signal(ctx: hf.Context) -> list[int]:
    first = await ctx.receive("first", schema=int)
    return [first, await ctx.receive("second", schema=int)]


@hf.node
def before(n: int) -> int:
    mark("before")
    return n + 1


@hf.node
def fails(n: int) -> int:
    if not os.path.exists("repaired"):
        raise ValueError("broken")
    return n + 10


@hf.workflow
def moving_failure(n: int = 1):
    return fails(before(n))


@hf.node
async def hangs() -> str:
    mark("hangs")
    import asyncio
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return "came through"


@hf.workflow
def moving_crash():
    return hangs()
"""


CODE = ("--code", "flows.py")
"""What is recorded on a server is not loaded by itself: others may write there."""


@pytest.fixture
def moving(project: Project) -> Project:
    (project.directory / "flows.py").write_text(FLOWS)
    return project


def set_out(project: Project, db: str) -> None:
    """One run each: that waits for an answer, for time, for a signal (the second came already); that failed and was
    forked; whose process was killed."""
    assert project.cli("run", "flows.py:moving_question", "--run-id", "question", "--db", db).returncode == 3
    timer = project.start("run", "flows.py:moving_timer", "--run-id", "timer", "--db", db)
    project.wait_for("noted")
    timer.send_signal(signal.SIGTERM)
    timer.wait()
    assert project.cli("run", "flows.py:moving_signal", "--run-id", "signal", "--db", db).returncode == 3
    project.json("signal", "signal", "second", "2", "--db", db)
    assert project.cli("run", "flows.py:moving_failure", "--run-id", "failure", "--db", db).returncode == 1
    assert project.cli("fork", "failure", "--at", "before", "--set", "input.n=5", "--db", db, *CODE).returncode == 1
    crash = project.start("run", "flows.py:moving_crash", "--run-id", "crash", "--db", db, "--lease-seconds", "1")
    project.wait_for("hangs")
    crash.kill()
    crash.wait()


def arrive(project: Project, db: str) -> None:
    """Bring each of them to its end."""
    (wait,) = project.json("inbox", "--db", db)
    project.json("respond", wait["wait_id"], "--input", "blue", "--db", db)
    assert project.json("resume", "question", "--db", db, *CODE)["result"] == "4 blue 8"
    assert project.marks("prepared") == 1
    assert project.json("resume", "timer", "--db", db, *CODE)["result"] == "awake"
    assert project.marks("noted") == 1
    project.json("signal", "signal", "first", "1", "--db", db)
    assert project.json("resume", "signal", "--db", db, *CODE)["result"] == [1, 2]
    (project.directory / "repaired").touch()
    assert project.json("retry", "failure", "--db", db, *CODE)["result"] == 16
    assert project.marks("before") == 2
    assert len(project.json("branches", "failure", "--db", db)) == 3
    project.open_gate()
    assert project.json("resume", "crash", "--db", db, *CODE)["result"] == "came through"
    taken_over = project.cli("events", "crash", "--db", db, "--json").stdout
    assert "RunTakenOver" in taken_over
    assert project.json("doctor", "--deep", "--db", db)["violations"] == []


def copied(project: Project, source: str, target: str) -> dict[str, Any]:
    found: dict[str, Any] = project.json("db", "copy", source, target, "--deep", HOLDFAST_LEASE_SECONDS="1")
    assert found["violations"] == []
    return found


def waited_for(project: Project, source: str) -> None:
    """A lease on a server runs out by itself."""
    while "its lease runs out" in project.cli("db", "copy", source, "sqlite:///waited.db").stderr:
        pass


def test_runs_go_on_on_a_server_where_they_were_in_a_file(moving: Project, postgres: PostgresServer) -> None:
    source, target = moving.url, postgres.url()
    set_out(moving, source)
    before = moving.cli("events", "failure", "--json").stdout
    copied(moving, source, target)
    assert moving.cli("events", "failure", "--db", target, "--json").stdout == before
    arrive(moving, target)
    assert moving.json("show", "question", "--db", source)["status"] == "suspended", "the source is as it was"


def test_runs_go_on_in_a_file_where_they_were_on_a_server(moving: Project, postgres: PostgresServer) -> None:
    source, target = postgres.url(), moving.url
    set_out(moving, source)
    waited_for(moving, source)
    copied(moving, source, target)
    arrive(moving, target)


def test_an_engine_at_work_is_named_and_nothing_is_copied(moving: Project, postgres: PostgresServer) -> None:
    target = postgres.url()
    moving.start("run", "flows.py:moving_crash", "--run-id", "crash")
    moving.wait_for("hangs")
    refused = moving.cli("db", "copy", moving.url, target)
    assert refused.returncode == 2
    assert f"(process {moving.started[0].pid} on " in refused.stderr
    moving.open_gate()
    moving.started[0].wait()
    copied(moving, moving.url, target)


def test_what_was_copied_is_told_table_by_table(moving: Project, postgres: PostgresServer) -> None:
    moving.cli("run", "flows.py:moving_question", "--run-id", "question")
    target = postgres.url().replace("postgres@", "postgres:hush@")
    done = moving.cli("db", "copy", moving.url, target)
    assert done.returncode == 0, done
    assert "run_state           1     " in done.stdout
    assert "read again, and found equal" in done.stdout
    assert done.stderr == ""
    assert "hush" not in done.stdout


def test_damage_that_was_copied_is_told(moving: Project, postgres: PostgresServer) -> None:
    source, target = postgres.url(), moving.url
    moving.cli("run", "flows.py:moving_question", "--run-id", "question", "--db", source)
    sql(source, "UPDATE holdfast.run_events SET at = at + 1 WHERE seq = 2")
    done = moving.cli("db", "copy", source, target, "--deep")
    assert done.returncode == 1
    assert "1 violation in it, as in its source: `holdfast doctor --db sqlite:///" in done.stderr


def test_half_a_copy_says_what_to_do_and_is_begun_anew(moving: Project, postgres: PostgresServer) -> None:
    target = postgres.url()
    moving.cli("run", "flows.py:moving_question", "--run-id", "question")
    copied(moving, moving.url, target)
    sql(target, "UPDATE holdfast.store_meta SET schema_version = 0", "DELETE FROM holdfast.run_events")
    for verb in (["list"], ["resume", "question"], ["run", "flows.py:moving_question"]):
        refused = moving.cli(*verb, "--db", target, "--json")
        assert refused.returncode == 2
        assert json.loads(refused.stdout)["error"]["code"] == "unfinished_copy"
        assert "--again" in refused.stderr
    assert moving.cli("db", "copy", moving.url, target).returncode == 2
    done = moving.cli("db", "copy", moving.url, target, "--again")
    assert done.returncode == 0, done
    assert moving.json("show", "question", "--db", target)["status"] == "suspended"


def test_progress_is_shown_on_a_terminal_and_ctrl_c_leaves_half_a_copy(
    moving: Project, postgres: PostgresServer
) -> None:
    target = postgres.url()
    moving.cli("run", "flows.py:moving_question", "--run-id", "question")
    assert moving.cli("run", "flows.py:moving_question", "--run-id", "gone", "--db", target).returncode == 3
    sql(
        target,
        "TRUNCATE holdfast.run_state, holdfast.run_node_state, holdfast.run_events, holdfast.run_waits,"
        " holdfast.run_timers, holdfast.run_inbox_messages, holdfast.workflow_versions",
        "CREATE FUNCTION holdfast.slowly() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(TG_ARGV[0]::float); RETURN NEW; END $$",
        "CREATE TRIGGER slowly BEFORE INSERT ON holdfast.run_events"
        " FOR EACH ROW EXECUTE FUNCTION holdfast.slowly('0.2')",
        "CREATE TRIGGER slowly BEFORE INSERT ON holdfast.run_state FOR EACH ROW EXECUTE FUNCTION holdfast.slowly('60')",
        "SELECT 1",
    )
    command = [*COMMAND, "db", "copy", moving.url, target]
    with on_terminal(command, moving.directory, ENVIRONMENT, term="xterm") as terminal:
        terminal.see("copying run_events: ")
        terminal.type(CTRL_C)
        terminal.see("is incomplete and cannot be opened; start over with --again")
        assert terminal.end() == 130
    assert moving.cli("list", "--db", target).returncode == 2
