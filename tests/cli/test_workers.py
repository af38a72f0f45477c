"""Workers in real processes: taking runs, sharing them, dying, stopping."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.urls import store_at
from tests.cli.conftest import CHEAP, Project, ask_to_stop, eventually
from tests.servers import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, project: Project) -> Project:
    """A project on a database that several processes share, of either kind."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        project.url = server.url(schema=f"workers_{abs(hash(request.node.name)):x}")
    (project.directory / "holdfast.toml").write_text(f'[holdfast]\ndatabase_url = "{project.url}"\n')
    return project


STUBBORN = """

@hf.node
def deaf() -> None:
    mark("stubborn")
    time.sleep(3600)


@hf.workflow
def stubborn():
    return deaf()
"""


class Worker:
    """A worker that has said that it works."""

    def __init__(self, project: Project, *options: str, **environment: str) -> None:
        self.process = project.start("worker", "flows.py", "--json", *options, **environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(how)
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output


def ended(project: Project, *run_ids: str) -> None:
    def all_have() -> bool:
        return all(project.json("show", run_id)["status"] == "completed" for run_id in run_ids)

    eventually(all_have, f"{run_ids} did not complete")


def owned(project: Project) -> dict[str, int]:
    return {engine["engine"]: engine["runs"] for engine in project.json("engines")}


def test_a_worker_drives_what_was_started_elsewhere(shared: Project) -> None:
    assert shared.cli("start", "flows.py:fulfil", "--input", CHEAP, "--run-id", "early").stdout == "early\n"
    assert shared.json("show", "early")["status"] == "created"
    worker = Worker(shared)
    assert shared.json("start", "flows.py:fulfil", "--input", CHEAP, "--run-id", "late")["run_id"] == "late"
    ended(shared, "early", "late")
    assert shared.events("early", "RunTakenOver") == [], "nobody had it before"
    code, output = worker.stop()
    assert code == 0
    assert json.loads(output.splitlines()[-1])["status"] == "stopped"
    assert shared.json("engines") == []


def test_engines_are_listed_with_their_life_load_and_code(shared: Project) -> None:
    worker = Worker(shared, "--concurrency", "7", "--queue", "default", "--queue", "slow")
    shared.json("start", "flows.py:gated", "--run-id", "held")
    shared.wait_for("attempt-1")
    (engine,) = shared.json("engines")
    assert engine["engine"] == worker.said["engine"]
    assert engine["pid"] == worker.process.pid
    assert (engine["life"], engine["runs"], engine["concurrency"]) == ("alive", 1, 7)
    assert engine["queues"] == ["default", "slow"]
    assert {"flows.charge", "flows.gated"} <= set(engine["handlers"])
    table = shared.cli("engines").stdout
    assert worker.said["engine"] in table
    assert "1/7" in table
    shared.open_gate()
    ended(shared, "held")
    worker.stop()


def test_a_worker_that_is_killed_is_noticed_and_another_goes_on_with_the_next_attempt(shared: Project) -> None:
    first = Worker(shared, "--lease-seconds", "2")
    shared.json("start", "flows.py:gated", "--run-id", "held")
    shared.wait_for("attempt-1")
    second = Worker(shared, "--lease-seconds", "2")
    first.process.send_signal(signal.SIGKILL)
    shared.wait_for("attempt-2")
    shared.open_gate()
    ended(shared, "held")
    assert shared.marks("adds") == 6  # three before the gate and three behind it: none was done again
    (taken,) = shared.events("held", "RunTakenOver")
    assert (taken["data"]["engine"], taken["data"]["previous"]) == (second.said["engine"], first.said["engine"])
    assert "graceful" not in taken["data"]
    second.stop()
    assert shared.cli("doctor", "--deep").returncode == 0


def test_a_worker_that_is_stopped_leaves_its_runs_at_once_with_no_attempt_lost(shared: Project) -> None:
    first = Worker(shared, "--drain", "0.2", "--lease-seconds", "600")
    shared.json("start", "flows.py:gated", "--run-id", "held")
    shared.wait_for("attempt-1")
    code, _ = first.stop()
    assert code == 0
    shared.open_gate()
    second = Worker(shared)
    ended(shared, "held")
    assert [event["data"]["attempt"] for event in shared.events("held", "NodeStarted")][-1] == 1
    (taken,) = shared.events("held", "RunTakenOver")
    assert (taken["data"]["previous"], taken["data"]["graceful"]) == (first.said["engine"], True)
    second.stop(signal.SIGINT)


def test_a_stopping_worker_lets_bodies_end_and_takes_nothing_new(shared: Project) -> None:
    worker = Worker(shared, "--drain", "60")
    shared.json("start", "flows.py:careful", "--run-id", "held")
    shared.wait_for("once")
    ask_to_stop(worker.process)
    shared.json("start", "flows.py:fulfil", "--input", CHEAP, "--run-id", "too late")
    shared.open_gate()
    worker.process.communicate(timeout=60)
    assert worker.process.returncode == 0
    assert shared.json("show", "held")["status"] == "completed"
    assert shared.json("show", "too late")["status"] == "created"


def test_workers_share_the_runs_and_none_runs_twice(shared: Project) -> None:
    workers = [Worker(shared, "--concurrency", "2") for _ in range(3)]
    names = [f"run-{n}" for n in range(12)]
    for name in names:
        shared.json("start", "flows.py:wide", "--run-id", name)
    ended(shared, *names)
    assert {worker.stop()[0] for worker in workers} == {0}
    store = store_at(shared.url)
    store.open()
    try:
        for name in names:
            row = store.run(name)
            assert row is not None
            assert row.recoveries == 0
    finally:
        store.close()
    assert shared.cli("doctor", "--deep").returncode == 0


def test_a_long_drain_gives_a_cancelled_body_no_more_time(project: Project) -> None:
    with (project.directory / "flows.py").open("a") as flows:
        flows.write(STUBBORN)
    worker = Worker(project, "--drain", "600", HOLDFAST_GRACE_SECONDS="0.2")
    project.json("start", "flows.py:stubborn", "--run-id", "stubborn")
    project.wait_for("stubborn")
    project.cli("cancel", "stubborn")
    eventually(lambda: project.json("show", "stubborn")["status"] == "cancelled", "it was not given up")
    worker.process.kill()


def test_the_numbers_of_a_worker_are_its_flags_else_variables_else_the_project_file(project: Project) -> None:
    def said(*options: str, **environment: str) -> int:
        worker = Worker(project, *options, **environment)
        assert worker.stop()[0] == 0
        number: int = worker.said["concurrency"]
        return number

    assert said() == 100
    (project.directory / "holdfast.toml").write_text("[holdfast]\nconcurrency = 1234567\n")
    assert said() == 1234567
    assert said(HOLDFAST_CONCURRENCY="5") == 5
    assert said("--concurrency", "7654321", HOLDFAST_CONCURRENCY="5") == 7654321


def test_without_code_a_worker_says_what_to_do(project: Project) -> None:
    done = project.cli("worker")
    assert done.returncode == 2
    assert "holdfast worker FILE.py" in done.stderr
    (project.directory / "empty.py").write_text("x = 1\n")
    done = project.cli("worker", "empty.py")
    assert done.returncode == 2
    assert "no workflow in empty.py" in done.stderr


def test_the_code_of_a_worker_may_stand_in_the_project_file(project: Project) -> None:
    (project.directory / "holdfast.toml").write_text('[holdfast]\ncode = ["flows.py"]\n')
    process: subprocess.Popen[str] = project.start("worker", "--json")
    assert process.stdout is not None
    assert "fulfil" in json.loads(process.stdout.readline())["workflows"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_worker_whose_database_cannot_be_opened_ends_with_one_line(project: Project, tmp_path: Path) -> None:
    done = project.cli("worker", "flows.py", "--db", "postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot be reached" in done.stderr


def test_a_worker_that_is_given_a_file_of_a_package_runs_what_a_program_started_by_importing_it(
    project: Project,
) -> None:
    package = project.directory / "app"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "orders.py").write_text((project.directory / "flows.py").read_text())
    program = f"""
import asyncio, holdfast as hf
from app.orders import fulfil, Order
async def main():
    async with hf.open({project.url!r}, drive=False) as client:
        await client.start(fulfil, run_id="o", order=Order("42", 1))
asyncio.run(main())
"""
    (project.directory / "web.py").write_text(program)
    subprocess.run([sys.executable, "web.py"], cwd=project.directory, check=True)
    project.start("worker", "app/orders.py")
    ended(project, "o")


def test_a_worker_names_the_handler_that_it_lacks_and_those_that_it_has(project: Project) -> None:
    project.cli("start", "flows.py:fulfil", "--input", CHEAP, "--run-id", "o")
    (project.directory / "moved.py").write_text((project.directory / "flows.py").read_text())
    process = project.start("worker", "moved.py")
    assert process.stderr is not None
    said = next(line for line in process.stderr if "missing_code" in line)
    assert "run o (and perhaps others) of workflow fulfil is not driven: it needs flows.charge" in said
    assert "loaded here: moved.charge" in said


def test_run_of_a_run_whose_code_was_moved_says_so_instead_of_waiting_for_ever(project: Project) -> None:
    project.cli("start", "flows.py:fulfil", "--input", CHEAP, "--run-id", "o")
    (project.directory / "moved.py").write_text((project.directory / "flows.py").read_text())
    done = project.cli("run", "moved.py:fulfil", "--input", CHEAP, "--run-id", "o")
    assert done.returncode == 2
    assert "run o of workflow fulfil needs flows.charge" in done.stderr


def test_a_worker_whose_database_is_taken_away_ends_with_a_code_after_which_it_is_started_again(
    project: Project,
) -> None:
    worker = Worker(project, "--lease-seconds", "0.5", "--db", "runs.db")
    (project.directory / "runs.db").unlink()
    output, complaint = worker.process.communicate(timeout=60)
    assert worker.process.returncode == 1
    assert json.loads(output.splitlines()[-1])["error"]["code"] == "store_gone"
    assert complaint.count("Put the database back") == 1, (
        "the command reports it, and the engine's log line is left out"
    )


@pytest.mark.parametrize("is_made", [True, False])
def test_a_worker_that_starts_on_a_read_only_file_system_is_started_again(project: Project, is_made: bool) -> None:
    """An error of the disk makes a file system read-only, and the worker that stops then is restarted before anybody
    has mounted it again."""
    place = project.directory / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        if is_made:
            assert project.cli("run", "flows.py:named", "--set", "name=x", "--db", "disk/runs.db").returncode == 0
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        done = project.cli("worker", "flows.py", "--json", "--db", "disk/runs.db")
    finally:
        subprocess.run(["umount", place], check=True)
    assert done.returncode == 1, "2 would be wrong usage, after which systemd gives up"
    assert json.loads(done.stdout)["error"]["code"] == "filesystem_read_only"


def test_a_worker_that_starts_while_the_server_takes_no_writes_is_started_again(
    project: Project, postgres: PostgresServer
) -> None:
    url = f"{postgres.url()}&default_transaction_read_only=on"
    done = project.cli("worker", "flows.py", "--json", "--db", url)
    assert done.returncode == 1, "2 would be wrong usage, after which systemd gives up"
    assert json.loads(done.stdout)["error"]["code"] == "server_read_only"
