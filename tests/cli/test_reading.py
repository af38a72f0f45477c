"""list, show, events, graph, validate, version: what they print, and their bad input."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.cli.main import COMMANDS
from tests.cli.conftest import COMMAND, ENVIRONMENT, ORDER, Project


def test_list_shows_runs_in_three_forms_and_finds_by_status_and_workflow(project: Project) -> None:
    for i in range(2):
        project.cli("run", "flows.py:named", "--set", "name=x", "--run-id", f"named-{i}", "-q")
    project.cli("run", "flows.py:broken", "--input", ORDER, "--run-id", "broken-1", "-q")
    assert project.cli("list", "-o", "id").stdout == "broken-1\nnamed-1\nnamed-0\n"
    table = project.cli("list").stdout.splitlines()
    assert table[0].split() == ["RUN", "STATUS", "CREATED", "TOOK", "WORKFLOW"]
    assert table[1].split()[:2] == ["broken-1", "failed"]
    listed = project.json("list", "--status", "completed", "--workflow", "named", "--limit", "1")
    assert [run["run_id"] for run in listed] == ["named-1"]
    fields = "run_id workflow version status branch queue error waits recoveries created_at started_at finished_at"
    assert list(listed[0]) == fields.split()
    assert project.json("list", "-o", "json", "--status", "failed")[0]["error"]["node"] == "decline"
    assert project.json("list", "--status", "unfinished") == []
    assert project.cli("list", "--status", "done").returncode == 2
    assert project.cli("list", "-o", "xml").returncode == 2


def test_a_failed_run_opens_on_the_failure(project: Project) -> None:
    project.cli("run", "flows.py:broken", "--input", ORDER, "--run-id", "bad", "-q")
    shown = project.cli("show", "ba").stdout
    assert shown.index("✗ decline failed, attempt 2") < shown.index("input ")
    assert "ValueError: no money for 42 \\x1b[31mred" in shown
    assert "flows.py:" in shown
    assert 'order = {"id":"42","amount":1500}' in shown
    assert "run it again: holdfast run " in shown
    assert "\x1b" not in shown


def test_events_are_one_json_object_a_line(project: Project) -> None:
    project.cli("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "e", "-q")
    events = project.events("e")
    shape = ["seq", "branch", "type", "node", "path", "visit", "at", "data"]
    assert [list(event) for event in events] == [shape] * len(events)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    later = project.cli("events", "e", "--after", str(len(events) - 1)).stdout.splitlines()
    assert len(later) == 1
    assert "RunCompleted" in later[0]


def test_a_reader_that_leaves_is_not_an_error(project: Project) -> None:
    project.cli("run", "flows.py:wide", "--run-id", "w", "-q")
    command = " ".join([*COMMAND, "events", "w", "--json", "|", "head", "-n1"])
    done = subprocess.run(  # noqa: S602 - a real pipe, made of our own words
        command,
        shell=True,
        cwd=project.directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert json.loads(done.stdout)["type"] == "RunCreated"
    assert done.stderr == ""


def test_graph_draws_conditions_maps_and_statuses(project: Project) -> None:
    drawn = project.cli("graph", "flows.py:fulfil").stdout
    assert drawn.startswith("flowchart TD\n")
    assert 'n1["charge"]' in drawn
    assert "n1 --> n2" in drawn
    assert 'input -. "order.amount #62; 1000" .-> n2' in drawn
    project.cli("run", "flows.py:wide", "--run-id", "w", "-q")
    run = project.here("graph", "w").stdout
    assert 'subgraph n1["enrich: for each of ' in run
    assert "40/40" in run
    assert "class n1,n2,n3 completed" in run
    as_json = project.json("graph", "w")
    assert as_json["nodes"][0] == {
        "id": "enrich", "title": "enrich", "kind": "map", "uses": None, "inside": None, "phase": None, "when": None,
        "delay": None, "status": "completed", "note": "40/40",
    }  # fmt: skip
    assert {"from": "enrich", "to": "crunch", "kind": "data", "label": None} in as_json["edges"]
    assert project.here("graph", "nothing").returncode == 2


def test_validate_names_every_problem_at_once(project: Project) -> None:
    good = project.cli("validate", "flows.py")
    assert good.returncode == 0
    assert "fulfil: 2 nodes, no problems" in good.stdout
    definition = {"name": "bad", "nodes": [{"id": "a", "uses": "x", "args": {"v": ["node", "b"]}}, {"id": "b", "uses": "x", "args": {"v": ["node", "a"]}}, {"id": "c", "uses": "x", "after": ["nobody"]}]}  # fmt: skip # noqa: E501
    (project.directory / "bad.json").write_text(json.dumps(definition))
    bad = project.json("validate", "bad.json", exit_code=1)
    assert bad["ok"] is False
    problems = bad["workflows"][0]["problems"]
    assert len(problems) >= 2
    fields = ["code", "node", "field", "message", "hint", "file", "line", "column"]
    assert [list(problem) for problem in problems] == [fields] * len(problems)
    (project.directory / "not.json").write_text("{")
    assert project.here("validate", "not.json").returncode == 1
    assert project.here("validate", "missing.json").returncode == 2
    assert project.here("validate", "missing.py").returncode == 2
    (project.directory / "traced.py").write_text(
        "import holdfast as hf\n@hf.node\ndef f(x: int) -> int: return x\n"
        "@hf.workflow\ndef w(x: int):\n    return f(x if x else 1)\n"
    )
    traced = project.json("validate", "traced.py", exit_code=1)
    assert traced["workflows"][0]["problems"][0]["code"] == "trace_error"
    nothing = project.json("validate", "not.json", exit_code=1)
    told = [p for shown in (bad, traced, nothing) for workflow in shown["workflows"] for p in workflow["problems"]]
    assert all(problem["hint"] for problem in told)


def test_validate_says_where_compensating_would_undo_nothing(project: Project) -> None:
    (project.directory / "undo.py").write_text(
        "import holdfast as hf\n@hf.node\nasync def undo(x: int) -> None: ...\n"
        "@hf.node(compensate=undo)\nasync def f(x: int) -> int: return x\n"
        "@hf.workflow(on_failure='compensate')\ndef graph(xs: list[int]) -> list[int]:\n    return hf.map(f, xs)\n"
        "@hf.workflow(on_failure='compensate')\nasync def durable(ctx: hf.Context) -> int: return 1\n"
    )
    found = project.json("validate", "undo.py")["workflows"]
    said = {workflow["workflow"]: workflow["warnings"] for workflow in found}
    assert said["graph"] == []
    assert said["durable"] == [], "which steps durable code makes is known when it runs"
    definition = {"name": "plain", "nodes": [{"id": "a", "uses": "x"}], "settings": {"on_failure": "compensate"}}
    (project.directory / "plain.json").write_text(json.dumps(definition))
    assert len(project.json("validate", "plain.json")["workflows"][0]["warnings"]) == 1


def test_runs_and_databases_that_are_not_there(project: Project) -> None:
    nothing = project.cli("list")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "there is no database" in nothing.stderr
    assert project.json("list") == []
    for verb in ("show", "events", "cancel", "resume", "graph"):
        assert project.json(verb, "nobody", exit_code=2)["error"]["code"] == "unknown_run"
    assert not (project.directory / "holdfast.db").exists()
    (project.directory / "holdfast.db").touch()  # as a full disk may leave it
    empty = project.cli("list")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "there is no database in" in empty.stderr
    assert project.json("show", "nobody", exit_code=2)["error"]["code"] == "unknown_run"
    assert (project.directory / "holdfast.db").stat().st_size == 0
    project.cli("run", "flows.py:named", "--set", "name=x", "--run-id", "abc-1", "-q")
    project.cli("run", "flows.py:named", "--set", "name=x", "--run-id", "abc-2", "-q")
    several = project.json("show", "abc", exit_code=2)
    assert "abc-1, abc-2" in several["error"]["message"]


def test_a_database_of_another_program_is_left_alone(project: Project) -> None:
    path = project.directory / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = path.read_bytes()
    for args in (["list"], ["show", "x"], ["run", "flows.py:named", "--set", "name=x"]):
        done = project.json(*args, "--db", "other.db", exit_code=2)
        assert done["error"]["code"] == "not_our_store"
    assert path.read_bytes() == before


def test_a_database_that_cannot_be_written_is_one_clear_line(project: Project) -> None:
    project.cli("run", "flows.py:named", "--set", "name=x", "-q")
    as_nobody = (
        "import os, sys, holdfast.api, holdfast.cli.main as m; [m.load(v) for v in ('run', 'list')]; "
        "sys.path.insert(0, ''); import flows; os.geteuid() or os.seteuid(65534); sys.exit(m.main(sys.argv[1:]))"
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "runs.db").write_bytes((project.directory / "holdfast.db").read_bytes())
        (directory / "runs.db").chmod(0o444)
        (directory / "flows.py").write_text((project.directory / "flows.py").read_text())
        directory.chmod(0o555)
        command = [
            sys.executable,
            "-c",
            as_nobody,
            "run",
            "flows.py:named",
            "--set",
            "name=x",
            "--db",
            "runs.db",
            "--json",
        ]
        done = subprocess.run(
            command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False
        )
        directory.chmod(0o755)
    assert done.returncode == 2, done
    assert json.loads(done.stdout)["error"]["code"] == "store_read_only"
    assert done.stderr.startswith("holdfast: ")
    assert len(done.stderr.splitlines()) == 1


def test_every_verb_has_help_with_an_example(project: Project) -> None:
    for verb in COMMANDS:
        done = project.here(verb, "--help")
        assert done.returncode == 0
        assert f"Usage: holdfast {verb}" in done.stdout
        assert "Example" in done.stdout
        assert f"  holdfast {verb}" in done.stdout


def test_help_and_version_load_nothing_heavy(project: Project) -> None:
    done = project.here("--help")
    assert all(f"  {verb} " in done.stdout for verb in COMMANDS)
    loaded = "import sys; from holdfast.cli.main import main; main(['--help']); print('LOADED', *sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", loaded], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    modules = printed.split("LOADED ")[1].split()
    assert not {"apsw", "asyncio", "msgspec", "rich", "holdfast.engine", "holdfast.model"} & set(modules)
    assert project.cli("version").stdout.startswith("holdfast ")
    assert set(project.json("version")) == {"version", "python", "sqlite"}


@pytest.mark.parametrize("args", [["frobnicate"], ["shwo", "x"], ["show"], ["list", "--limit", "many"]])
def test_unknown_verbs_and_options_are_one_line(project: Project, args: list[str]) -> None:
    done = project.cli(*args)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("holdfast: ")
    if args[0] == "shwo":
        assert "Did you mean 'show'?" in done.stderr


def test_no_arguments_print_the_help(project: Project) -> None:
    assert project.here().stdout.startswith("Usage: holdfast")
