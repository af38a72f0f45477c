"""What the command line promises about crashes, signals and other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, PATIENCE_SECONDS, Project, eventually


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def test_after_kill_9_resume_needs_nothing_but_the_database(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "killed")
    project.wait_for("attempt-1")
    run.kill()
    run.wait()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shown = project.cli("show", "killed", "--db", project.url, cwd=elsewhere)
    assert "no engine drives it now; to continue: holdfast resume killed --db sqlite:////" in shown.stdout
    (elsewhere / "go").touch()  # the body looks in its working directory, and so do its marks
    done = project.cli("resume", "killed", "--db", project.url, "--json", cwd=elsewhere)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["result"] == 6
    assert "3 steps reused; runs again: gated (attempt 2)" in done.stderr
    assert "taken over after a crash" in done.stderr
    assert project.marks("adds") == 3
    assert len((elsewhere / "adds").read_text()) == 3


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_orderly_stop_loses_no_attempt(project: Project, how: signal.Signals) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "stopped", "--grace-seconds", "0.1")
    project.wait_for("attempt-1")
    run.send_signal(how)
    code, out, err = ended(run)
    assert code == 130
    assert out == ""
    assert "holdfast resume stopped" in err
    project.open_gate()
    resumed = project.cli("resume", "stopped", "--json")
    shown = json.loads(resumed.stdout)
    assert resumed.returncode == 0
    assert "3 steps reused; continues: gated" in resumed.stderr
    assert shown["result"] == 6
    assert shown["nodes"][0]["attempt"] == 1
    assert shown["recoveries"] == 0
    assert project.marks("adds") == 6


DEAF = """
import asyncio

import holdfast as hf


@hf.node
async def deaf(before: int) -> int:
    open("began", "w").close()
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass


@hf.node(timeout=0.05)
async def slow() -> int:
    return await deaf.fn(1)


@hf.workflow
def stubborn() -> int:
    return deaf(1)


@hf.workflow
def limited() -> int:
    return slow()


if __name__ == "__main__":
    hf.run(limited)
"""


@pytest.mark.parametrize("verb", ["run", "worker"])
def test_a_body_that_catches_every_cancel_does_not_keep_its_process(project: Project, verb: str) -> None:
    (project.directory / "deaf.py").write_text(DEAF)
    if verb == "run":
        process = project.start("run", "deaf.py:stubborn", "--run-id", "deaf", "--grace-seconds", "0.1")
    else:
        project.cli("start", "deaf.py:stubborn", "--run-id", "deaf")
        process = project.start("worker", "deaf.py", "--drain", "0.1")
    project.wait_for("began")
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == (130 if verb == "run" else 0)
    assert "holdfast: stopped; run deaf is running" in err or "has stopped" in err
    assert "deaf ignored its cancellation; abandoning it" in err
    assert project.json("show", "deaf")["recoveries"] == 0


def test_a_body_that_catches_its_timeout_does_not_keep_a_program_that_called_run(project: Project) -> None:
    (project.directory / "deaf.py").write_text(DEAF)
    command = [sys.executable, "deaf.py"]
    environment = ENVIRONMENT | {"HOLDFAST_GRACE_SECONDS": "0.1"}
    done = subprocess.run(
        command, cwd=project.directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "slow ran longer than its timeout" in done.stderr


def test_a_second_ctrl_c_cancels_the_run(project: Project) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "twice", "--grace-seconds", "20", "--json")
    project.wait_for("attempt-1")
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    while "Ctrl-C again cancels the run" not in run.stderr.readline():
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    code, out, _ = ended(run)
    assert code == 4
    assert json.loads(out)["status"] == "cancelled"
    assert [e["type"] for e in project.events("twice")].count("RunCancelled") == 1


def test_cancel_reaches_a_run_of_another_process(project: Project) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "live")
    project.wait_for("attempt-1")
    cancelled = project.cli("cancel", "live", "--reason", "customer asked")
    assert cancelled.returncode == 0
    assert cancelled.stdout == "run live is cancelled\n"
    code, _, err = ended(run)
    assert code == 4
    assert "run live was cancelled: customer asked" in err


def test_cancel_works_with_no_engine_running_and_without_the_code(project: Project) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "dead")
    project.wait_for("attempt-1")
    run.kill()
    run.wait()
    (project.directory / "flows.py").unlink()
    shown = project.json("cancel", "dead", "--reason", "no more")
    assert (shown["status"], shown["reason"]) == ("cancelled", "no more")
    assert project.json("cancel", "dead")["status"] == "cancelled"  # a second one changes nothing


def test_a_cancel_that_nobody_ends_says_so_and_what_runs_its_compensations(project: Project) -> None:
    run = project.start("run", "flows.py:trip", "--run-id", "trip-1")
    project.wait_for("travelling")
    run.kill()
    run.wait()
    cancelled = project.cli("cancel", "trip-1", "--reason", "ill")
    assert (cancelled.returncode, cancelled.stdout) == (0, "run trip-1 is being cancelled\n")
    assert cancelled.stderr == "no engine drives run trip-1; `holdfast resume trip-1` continues it\n"
    assert "ending    being cancelled by command line: ill\n" in project.cli("show", "trip-1").stdout
    assert project.marks("unbooked") == 0
    assert project.cli("resume", "trip-1").returncode == 4
    assert project.marks("unbooked") == 1
    assert "being cancelled" not in project.cli("show", "trip-1").stdout


def test_a_completed_run_cannot_be_cancelled(project: Project) -> None:
    project.cli("run", "flows.py:named", "--set", "name=x", "--run-id", "done", "-q")
    refused = project.json("cancel", "done", exit_code=1)
    assert refused["error"]["code"] == "refused"


def test_detach_returns_when_the_run_is_committed_and_its_process_ends_with_it(project: Project) -> None:
    done = project.cli("run", "flows.py:gated", "--set", "steps=2", "--detach", "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert os.getsid(told["pid"]) == told["pid"]
    assert project.json("list")[0]["run_id"] == told["run_id"]
    following = project.start("events", told["run_id"], "--follow", "--json")
    project.open_gate()
    code, out, _ = ended(following)
    assert code == 0
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert (types[0], types[-1], types.count("StepCompleted")) == ("RunCreated", "RunCompleted", 4)
    eventually(lambda: not alive(told["pid"]), "the detached process did not end")
    assert "gated completed" in Path(told["log"]).read_text()
    assert Path(told["log"]) == project.directory / "holdfast.db.log"
    assert Path(told["log"]).stat().st_mode & 0o777 == 0o600


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_detach_tells_what_is_wrong_before_anything_runs(project: Project) -> None:
    done = project.cli("run", "flows.py:fulfil", "--detach", "--set", "order=1", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "invalid_input"
    assert project.cli("run", "missing.py:x", "--detach").returncode == 2


def test_resume_follows_a_run_of_another_engine_and_takes_over_when_that_dies(project: Project) -> None:
    first = project.start("run", "flows.py:gated", "--run-id", "shared")
    project.wait_for("attempt-1")
    second = project.start("resume", "shared")
    assert second.stderr is not None
    line = second.stderr.readline()
    assert f"(pid {first.pid} on " in line
    assert "following it" in line
    first.kill()
    first.wait()
    project.wait_for("attempt-2")
    project.open_gate()
    code, out, _ = ended(second)
    assert (code, out) == (0, "6\n")


def test_resume_all_drives_everything_that_was_left(project: Project) -> None:
    runs = [project.start("run", "flows.py:gated", "--run-id", f"r{i}") for i in range(2)]
    for i in range(2):
        eventually(lambda i=i: len(project.events(f"r{i}", "StepCompleted")) == 3, "the run did not begin")
    for run in runs:
        run.kill()
        run.wait()
    project.open_gate()
    done = project.cli("resume", "--all")
    assert done.returncode == 0, done
    assert {run["status"] for run in project.json("list")} == {"completed"}
    nothing = project.cli("resume", "--all")
    assert nothing.returncode == 0
    assert "nothing to resume" in nothing.stderr
    neither = project.cli("resume")
    assert neither.returncode == 2


def test_resume_with_the_code_gone_says_so_and_with_code_it_goes_on(project: Project) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "moved")
    project.wait_for("attempt-1")
    run.kill()
    run.wait()
    (project.directory / "new").mkdir()
    moved = project.directory / "new" / "flows.py"
    (project.directory / "flows.py").rename(moved)
    missing = project.json("resume", "moved", exit_code=2)
    assert missing["error"]["code"] == "missing_code"
    assert "--code FILE.py" in missing["error"]["message"]
    project.open_gate()
    assert project.json("resume", "moved", "--code", str(moved))["result"] == 6


def test_code_that_has_another_name_now_is_loaded_under_the_one_it_had(project: Project) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "renamed")
    project.wait_for("attempt-1")
    run.kill()
    run.wait()
    (project.directory / "flows.py").rename(project.directory / "shop.py")
    project.open_gate()
    assert project.json("resume", "renamed", "--code", "shop.py")["result"] == 6


@pytest.mark.parametrize("code", ["shop/flows.py", "shop.flows"])
def test_code_of_a_package_can_be_given_as_a_file_or_a_module(project: Project, code: str) -> None:
    (project.directory / "shop").mkdir()
    (project.directory / "shop" / "__init__.py").touch()
    (project.directory / "flows.py").rename(project.directory / "shop" / "flows.py")
    run = project.start("run", "shop.flows:gated", "--run-id", "packed")
    project.wait_for("attempt-1")
    run.kill()
    run.wait()
    project.directory.chmod(0o777)  # so that it is not loaded by itself
    assert "--code" in project.json("resume", "packed", exit_code=2)["error"]["message"]
    project.open_gate()
    assert project.json("resume", "packed", "--code", code)["result"] == 6


def test_resume_names_the_functions_that_are_not_there_any_more(project: Project) -> None:
    run = project.start("run", "flows.py:gated", "--run-id", "lost")
    project.wait_for("attempt-1")
    run.kill()
    run.wait()
    (project.directory / "empty.py").write_text("")
    missing = project.json("resume", "lost", "--code", "empty.py", exit_code=2)["error"]
    assert missing["code"] == "missing_code"
    assert "flows." in missing["message"]


def test_a_node_that_must_not_run_twice_suspends_the_run_until_a_person_says_whether_it_was_done(
    project: Project,
) -> None:
    run = project.start("run", "flows.py:careful", "--run-id", "careful")
    project.wait_for("once")
    run.kill()
    run.wait()
    held = project.cli("run", "flows.py:careful", "--run-id", "careful", "--json")
    assert held.returncode == 3
    shown = json.loads(held.stdout)
    assert shown["status"] == "suspended"
    (wait,) = shown["waits"]
    fields = "wait_id kind run_id workflow node path since until question about schema basket assignee name mode error"
    assert list(wait) == [*fields.split(), "child"]
    assert (wait["kind"], wait["question"]) == ("input", "once was running when its engine died. Was it done?")
    assert f"holdfast respond {wait['wait_id']}" in held.stderr
    project.open_gate()
    assert project.json("resume", "careful", exit_code=3)["waits"] == [wait]
    assert project.cli("respond", wait["wait_id"], "--input", '{"done": false}').returncode == 0
    assert project.json("resume", "careful")["result"] == "done"
