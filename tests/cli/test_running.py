"""run: results, JSON, exit codes, inputs, the same run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CHEAP, ORDER, Project

RUN_FIELDS = [
    "run_id", "workflow", "version", "status", "branch", "queue", "input", "result", "error", "waits", "nodes",
    "recoveries", "created_at", "started_at", "finished_at",
]  # fmt: skip
NODE_FIELDS = ["node", "path", "visit", "status", "attempt", "started_at", "finished_at", "output", "error"]


def test_a_completed_run_prints_its_result_and_progress_goes_to_stderr(project: Project) -> None:
    done = project.cli("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "order-42")
    assert done.returncode == 0
    assert json.loads(done.stdout.split("process\n")[1]) == {"receipt": "receipt-42", "label": "label-receipt-42"}
    assert "run order-42" in done.stderr
    assert "charge started" in done.stderr
    assert "ship completed" in done.stderr
    quiet = project.cli("run", "flows.py:fulfil", "--input", CHEAP, "--quiet")
    assert quiet.returncode == 0
    assert quiet.stderr == ""


def test_json_prints_the_run_and_nothing_else_on_stdout(project: Project) -> None:
    done = project.cli("run", "flows.py:fulfil", "--input", ORDER, "--json")
    shown = json.loads(done.stdout)
    assert "charging" in done.stderr
    assert "from a child process" in done.stderr
    assert list(shown) == RUN_FIELDS
    assert shown["status"] == "completed"
    assert shown["input"] == json.loads(ORDER)
    assert shown["result"] == {"receipt": "receipt-42", "label": "label-receipt-42"}
    assert [list(node) for node in shown["nodes"]] == [NODE_FIELDS, NODE_FIELDS]
    assert [(n["node"], n["path"], n["attempt"], n["output"]) for n in shown["nodes"]] == [
        ("charge", ".", 1, "receipt-42"),
        ("ship", ".", 1, "label-receipt-42"),
    ]


def test_a_failed_run_exits_1_and_shows_the_users_line(project: Project) -> None:
    done = project.cli("run", "flows.py:broken", "--input", ORDER, "--run-id", "bad", "--json")
    assert done.returncode == 1
    shown = json.loads(done.stdout)
    assert shown["status"] == "failed"
    assert list(shown["error"])[:6] == ["code", "message", "node", "path", "attempt", "retryable"]
    assert (shown["error"]["node"], shown["error"]["attempt"]) == ("decline", 2)
    assert "holdfast: run bad failed in decline, attempt 2: ValueError: no money for 42 \\x1b[31mred" in done.stderr
    assert "flows.py:" in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_timers_are_waited_for(project: Project) -> None:
    assert project.json("run", "flows.py:sleeper")["result"] == "awake"


def test_the_timeout_of_a_run_fails_it(project: Project) -> None:
    shown = project.json("run", "flows.py:gated", "--timeout", "200ms", "--grace-seconds", "0", exit_code=1)
    assert shown["error"]["code"] == "run_timeout"


def test_inputs_come_from_a_file_from_stdin_and_from_set(project: Project) -> None:
    (project.directory / "order.json").write_text(ORDER)
    from_file = project.json("run", "flows.py:fulfil", "--input", "@order.json", "--set", "order.amount=1")
    assert from_file["input"] == {"order": {"id": "42", "amount": 1}}
    from_stdin = project.cli("run", "flows.py:fulfil", "--input", "-", "-q", "--json", stdin=CHEAP)
    assert json.loads(from_stdin.stdout)["input"] == json.loads(CHEAP)
    text = project.json("run", "flows.py:named", "--set", "name=007", "--set", "times=2")
    assert text["result"] == "007 2"


def test_the_same_run_id_and_input_is_the_same_run_and_another_input_is_refused(project: Project) -> None:
    first = project.json("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "one")
    again = project.json("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "one")
    assert again == first
    other = project.json("run", "flows.py:fulfil", "--input", CHEAP, "--run-id", "one", exit_code=2)
    assert other["error"]["code"] == "run_exists"
    assert len(project.json("list")) == 1


def test_a_run_that_has_ended_already_is_said_to_have_and_is_not_told_again(project: Project) -> None:
    first = project.cli("run", "flows.py:named", "--set", "name=Ada", "--run-id", "one")
    again = project.cli("run", "flows.py:named", "--set", "name=Ada", "--run-id", "one")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert again.stderr == "run one has already completed; nothing runs again\n"
    detached = project.cli("run", "flows.py:named", "--set", "name=Ada", "--run-id", "one", "--detach")
    assert (detached.returncode, detached.stdout, detached.stderr) == (0, "one\n", again.stderr)
    assert project.json("run", "flows.py:named", "--set", "name=Ada", "--run-id", "one", "--detach").keys() == {
        "run_id",
        "pid",
        "log",
    }
    failing = ("run", "flows.py:broken", "--input", CHEAP, "--run-id", "two")
    assert (project.cli(*failing).returncode, project.cli(*failing).returncode) == (1, 1)
    assert project.cli(*failing).stderr.startswith("run two has already failed; nothing runs again\nholdfast: run two")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["flows.py:fulfil", "--input", "{bad"], "--input is not JSON"),
        (["flows.py:fulfil", "--input", "[1]"], "must be an object"),
        (["flows.py:fulfil", "--input", '{"order": NaN}'], "is not a JSON number"),
        (["flows.py:fulfil", "--input", "@nothing.json"], "there is no file"),
        (["flows.py:fulfil", "--set", "order"], "write key=value"),
        (["flows.py:fulfil", "--input", '{"order": 3}'], "input order: expected object"),
        (["flows.py:fulfil", "--input", '{"order": {"id": "1", "amount": "many"}}'], "order: amount: expected int"),
        (["flows.py:fulfil"], "missing order"),
        (["flows.py:fulfil", "--input", '{"run_id": "x"}'], "'run_id' cannot be an input"),
        (["flows.py:fulfil", "--input", ORDER, "--set", "other=1"], "unknown other"),
        (["flows.py:fulfill", "--input", ORDER], "Did you mean fulfil?"),
        (["flows.py", "--input", ORDER], "several workflows"),
        (["missing.py:fulfil"], "there is no file"),
        (["missing.json"], "there is no file"),
        (["fulfil.json"], "the document has no 'kind'; add `kind: ...`"),
        (["flows.py:fulfil", "--input", ORDER, "--run-id", "a\nb"], "not a run id"),
        (["flows.py:fulfil", "--input", ORDER, "--timeout", "soon"], "not a duration"),
        (
            ["flows.py:fulfil", "--input", ORDER, "--db", "mysql://me:secret@h/d"],
            "use sqlite:///file.db, a path, or postgresql://",
        ),
        (["flows.py:fulfil", "--input", ORDER, "--db", "missing/dir/x.db"], "there is no directory"),
        (["flows.py:fulfil", "--input", ORDER, "--db", "flows.py"], "is not a database"),
        (["flows.py:fulfil", "--frobnicate"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2_and_starts_nothing(
    project: Project, args: list[str], says: str
) -> None:
    before = (project.directory / "flows.py").read_bytes()
    (project.directory / "fulfil.json").write_text('{"name": "fulfil"}')
    done = project.cli("run", *args, "--json")
    if "there is no directory" not in says:
        assert done.returncode == 2, done
    assert says in done.stderr
    assert done.stderr.startswith("holdfast: ")
    assert "Traceback" not in done.stderr
    assert says in json.loads(done.stdout)["error"]["message"]
    assert project.cli("list", "-o", "id").stdout == ""
    assert (project.directory / "flows.py").read_bytes() == before


def test_a_file_that_cannot_be_imported_shows_the_line(project: Project) -> None:
    (project.directory / "wrong.py").write_text("import holdfast\nx = 1 / 0\n")
    done = project.cli("run", "wrong.py:flow")
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert "wrong.py:2" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_project_file_the_variable_and_the_flag_in_this_order(project: Project) -> None:
    (project.directory / "holdfast.toml").write_text(
        '[holdfast]\ndatabase_url = "sqlite:///file.db"\nlease_seconds = 3\n'
    )
    ids = {}
    for name, args, env in [
        ("file.db", [], {}),
        ("variable.db", [], {"HOLDFAST_DATABASE_URL": "sqlite:///variable.db"}),
        ("flag.db", ["--db", "flag.db"], {"HOLDFAST_DATABASE_URL": "sqlite:///variable.db"}),
    ]:
        ids[name] = project.json("run", "flows.py:named", "--set", "name=a", *args, **env)["run_id"]
    for name, run_id in ids.items():
        assert [run["run_id"] for run in project.json("list", "--db", name)] == [run_id]
    (project.directory / "holdfast.toml").write_text("[holdfast]\nlease_second = 3\n")
    wrong = project.cli("list")
    assert wrong.returncode == 2
    assert "unknown setting 'lease_second'" in wrong.stderr


def test_an_unexpected_error_is_one_line_unless_debug_is_asked_for(project: Project) -> None:
    broken = "from flows import named\nfrom holdfast.cli import driving\ndriving.open_engine = lambda *_, **__: 1 / 0\n"
    (project.directory / "broken.py").write_text(broken)
    done = project.cli("run", "broken.py:named", "--set", "name=a")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "HOLDFAST_DEBUG=1" in done.stderr
    debugged = project.cli("--debug", "run", "broken.py:named", "--set", "name=a")
    assert "Traceback" in debugged.stderr


def test_other_unfinished_runs_are_mentioned(project: Project, tmp_path: Path) -> None:
    left = project.start("run", "flows.py:gated", "--run-id", "left")
    project.wait_for("attempt-1")
    left.kill()
    left.wait()
    done = project.cli("run", "flows.py:named", "--set", "name=a")
    assert "there is 1 other unfinished run that no engine drives: `holdfast resume --all`" in done.stderr


def test_a_database_in_a_folder_that_is_not_there_is_a_mistake_of_usage(project: Project) -> None:
    done = project.cli("run", "flows.py:fulfil", "--input", CHEAP, "--db", "sqlite:///missing/runs.db")
    assert done.returncode == 2
    assert "there is no directory" in done.stderr
