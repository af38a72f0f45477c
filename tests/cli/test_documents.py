"""Documents on the command line, in real processes: validate, schema, run, start, worker, graph, crashtest, resume."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Project, eventually

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "documents"
CODE = ("--code", str(EXAMPLES / "handlers.py"))
ORDER = {"id": "42", "amount": 150, "items": ["a", "b"]}

HANDLERS = """
import os
import time

import holdfast as hf


def mark(name):
    with open(name, "a") as f:
        f.write("x")


@hf.node(name="first")
def first(n: int) -> int:
    mark("first")
    return n + 1


@hf.node(name="gated")
def gated(n: int) -> int:
    mark("gated")
    while not os.path.exists("go"):
        time.sleep(0.01)
    return 10 * n
"""

FLOW = """\
kind: dag
name: slow
input: {n: {type: integer}}
nodes:
  - {id: step.one, handler: first, config: {n: "{{ input.n }}"}}
  - {id: two, handler: gated, dependencies: [step.one], config: {n: '{{ nodes["step.one"].output }}'}}
"""

NAPS = """\
kind: graph
name: naps
nodes:
  - {id: nap, handler: sleep, input: {seconds: 1h}}
  - {id: heard, handler: receive, after: [nap], input: {name: word}}
result: "{{ heard.output }}"
"""


@pytest.fixture
def written(project: Project) -> Project:
    (project.directory / "handlers.py").write_text(HANDLERS)
    (project.directory / "flow.yaml").write_text(FLOW)
    return project


def test_validate_prints_each_problem_with_file_line_and_column(written: Project) -> None:
    good = written.cli("validate", "flow.yaml", "--code", "handlers.py")
    assert good.returncode == 0, good
    assert "slow: 2 nodes, no problems" in good.stdout
    (written.directory / "flow.yaml").write_text(
        FLOW.replace("handler: gated", "handler: gatde").replace("n: {", "m: {")
    )
    bad = written.cli("validate", "flow.yaml", "--code", "handlers.py")
    assert bad.returncode == 1
    assert "flow.yaml:6:24: there is no handler 'gatde'; did you mean 'gated'?" in bad.stdout.splitlines()
    assert any(line.startswith("flow.yaml:5:52: the workflow has no input 'n'") for line in bad.stdout.splitlines())
    found = written.json("validate", "flow.yaml", "--code", "handlers.py", exit_code=1)
    assert not found["ok"]
    problems = found["workflows"][0]["problems"]
    assert {(p["file"], p["line"], p["column"], p["code"]) for p in problems} >= {
        ("flow.yaml", 6, 24, "unknown_handler")
    }


def test_validate_without_code_says_what_it_did_not_check(written: Project) -> None:
    done = written.cli("validate", "flow.yaml")
    assert done.returncode == 0
    assert "not checked: the handlers first, gated; name their code with --code FILE.py" in done.stdout


def test_a_file_that_is_no_document_is_one_problem_and_no_traceback(written: Project) -> None:
    (written.directory / "broken.yaml").write_text("kind: [dag\nname: x")
    done = written.cli("validate", "broken.yaml", "flow.yaml")
    assert done.returncode == 1
    assert "broken.yaml:2:5: this is not YAML" in done.stdout
    assert "slow: 2 nodes" in done.stdout
    ran = written.cli("run", "broken.yaml")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("kind", ["", "graph", "dag"])
def test_schema_prints_a_json_schema_that_accepts_the_examples(project: Project, kind: str) -> None:
    import jsonschema_rs

    from holdfast.documents.reading import read_file

    printed = project.here("schema", *([kind] if kind else []))
    checker = jsonschema_rs.validator_for(json.loads(printed.stdout))
    documents = [source.value for file in sorted(EXAMPLES.glob("*.yaml")) for source in read_file(file)]
    fitting = [value for value in documents if not kind or value["kind"] == kind]
    assert fitting
    for value in fitting:
        assert checker.is_valid(value), list(checker.iter_errors(value))
        assert not checker.is_valid(value | {"retires": 3})
    assert project.here("schema", "tree").returncode == 2


def test_run_start_and_worker_take_documents(written: Project) -> None:
    written.open_gate()
    ran = written.cli("run", "flow.yaml:slow", "--code", "handlers.py", "--input", '{"n": 5}', "--quiet")
    assert (ran.returncode, ran.stdout) == (0, "60\n"), ran
    wrong = written.cli("run", "flow.yaml", "--code", "handlers.py", "--set", "n=five")
    assert wrong.returncode == 2
    assert 'input n: "five" is not of type "integer"' in wrong.stderr
    assert "has no workflow 'slwo'" in written.cli("run", "flow.yaml:slwo", "--code", "handlers.py").stderr
    started = written.json("start", "flow.yaml", "--code", "handlers.py", "--set", "n=1")
    worker = written.start("worker", "handlers.py", "flow.yaml")
    eventually(lambda: written.json("show", started["run_id"])["status"] == "completed", "the worker never ran it")
    assert written.json("show", started["run_id"])["result"] == 20
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_a_run_killed_half_way_resumes_from_the_database_when_the_document_is_gone(written: Project) -> None:
    run = written.start("run", "flow.yaml", "--code", "handlers.py", "--set", "n=5", "--run-id", "r")
    written.wait_for("gated")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    (written.directory / "flow.yaml").unlink()
    written.open_gate()
    resumed = written.cli("resume", "r", "--quiet")
    assert (resumed.returncode, resumed.stdout) == (0, "60\n"), resumed
    assert written.marks("first") == 1
    assert written.marks("gated") == 2
    doctor = written.cli("doctor", "--deep")
    assert doctor.returncode == 0, doctor


def test_a_document_of_built_in_handlers_needs_no_file_at_all(project: Project) -> None:
    flow = project.directory / "naps.yaml"
    flow.write_text(NAPS.replace("1h", "100ms"))
    run = project.start("run", "naps.yaml", "--run-id", "r")
    eventually(lambda: "RunCreated" in project.cli("events", "r").stdout, "the run never began")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    flow.unlink()
    (project.directory / "other.py").write_text(
        "import holdfast as hf\n@hf.workflow\nasync def other(ctx: hf.Context) -> None: ...\n"
    )
    worker = project.start("worker", "other.py")  # any engine of the database drives it
    sent = project.cli("signal", "r", "word", '"hello"')
    assert sent.returncode == 0, sent
    eventually(lambda: project.json("show", "r")["status"] == "completed", "no engine drove it")
    assert project.json("show", "r")["result"] == "hello"
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)


def test_graph_why_fork_and_retry_work_on_a_run_of_a_document(written: Project) -> None:
    drawn = written.cli("graph", "flow.yaml", "--code", "handlers.py")
    assert 'n1["step.one (step-one-' in drawn.stdout, drawn
    written.open_gate()
    assert written.cli("run", "flow.yaml", "--code", "handlers.py", "--set", "n=5", "--run-id", "r").returncode == 0
    why = written.cli("why", "r")
    assert "completed" in why.stdout
    forked = written.cli("fork", "r", "--at", "two", "--set", "input.n=7", "--quiet", "--code", "handlers.py")
    assert forked.returncode == 0, forked
    assert written.json("show", "r")["result"] == 60  # only `two` runs again, and it reads what was kept
    again = written.cli("fork", "r", "--at", "two", "--dry-run")
    assert "step.one" in again.stdout or "step-one" in again.stdout


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("diamond.yaml", ("--set", "n=5")),
        ("fulfil.yaml:fulfil", ("--input", json.dumps({"order": ORDER}))),
        (
            "fulfil.yaml:fulfil",
            (
                "--input",
                json.dumps({"order": ORDER | {"amount": 1500}}),
                "--answer",
                'Ship order 42 for 1500?={"approved": true}',
            ),
        ),
        ("fulfil.yaml:batch", ("--input", json.dumps({"orders": [ORDER]}))),
        ("reminder.yaml", ("--set", "topic=backups")),
        ("claim.yaml", ("--set", "amount=1200")),
        ("onboarding.yaml", ("--set", "name=Ada")),
    ],
)
def test_each_example_survives_every_crash(project: Project, target: str, options: tuple[str, ...]) -> None:
    done = project.cli("crashtest", str(EXAMPLES / target), *CODE, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "survives every crash" in done.stdout
    assert "the run was completed" in done.stdout


def test_the_examples_are_valid_and_give_what_they_say(project: Project) -> None:
    assert project.cli("validate", str(EXAMPLES), *CODE).returncode == 0
    ran = project.cli("run", str(EXAMPLES / "diamond.yaml"), *CODE, "--set", "n=5", "--quiet")
    assert ran.stdout == "20\n"
    ran = project.cli("run", str(EXAMPLES / "reminder.yaml"), "--set", "topic=backups", "--quiet")
    assert ran.stdout == '"reminded 2 times of backups"\n'
    ran = project.cli("run", f"{EXAMPLES}:batch", *CODE, "--input", json.dumps({"orders": [ORDER, ORDER]}), "--quiet")
    assert json.loads(ran.stdout) == [{"receipt": "receipt-42", "label": "label-42-2"}] * 2


def test_a_journey_pends_shows_its_join_and_variables_and_is_resumed(project: Project) -> None:
    claim = (str(EXAMPLES / "claim.yaml"), *CODE)
    pended = project.cli("run", *claim, "--set", "amount=1200", "--run-id", "c", "--quiet")
    assert pended.returncode == 3, pended.stderr
    shown = project.cli("show", "c").stdout
    assert "join      checked waits for .checks.policy." in shown
    assert project.json("vars", "c") == {"checks": 0, "status": "open"}
    info = json.loads(project.cli("show", "c", "--as", "process_info").stdout)
    assert (info["pend_exec_path"], info["is_complete"]) == (".checks.policy.", False)
    assert json.loads(project.cli("show", "c", "--as", "s3").stdout)["status"] == "pended"
    drawn = project.cli("graph", "c").stdout
    assert 'n7 -- "again" --> n2' in drawn
    assert project.cli("resume", "c", *CODE, "--quiet").stdout == '{\n  "status": "paid",\n  "checks": 2\n}\n'
    reopened = project.cli("reopen", "c", "reject", *CODE, "--set", "vars.status=open", "--quiet")
    assert json.loads(reopened.stdout)["status"] == "rejected", reopened.stderr
    assert project.cli("doctor", "--deep").returncode == 0


def test_steps_are_shown_with_their_modules_and_can_be_jumped_to_by_name(project: Project) -> None:
    onboarding = str(EXAMPLES / "onboarding.yaml")
    ran = project.cli("run", onboarding, *CODE, "--set", "name=Ada", "--run-id", "o", "--quiet")
    assert json.loads(ran.stdout) == {"score": 50, "confirmed": True, "summary": "Ada: 50"}, ran.stderr
    steps = project.json("show", "o", "--phases")
    assert [(s["phase"], s["status"], [m["node"] for m in s["nodes"]]) for s in steps] == [
        ("collect", "completed", ["score", "bonus"]),
        ("confirm", "completed", ["ask"]),
        ("finish", "completed", ["sum"]),
    ]
    assert steps[0]["nodes"][1]["output"] == 50
    again = project.cli("jump", "o", "confirm", *CODE, "--dry-run").stdout
    assert "ask" in again
    assert "bonus" in again
    assert project.cli("jump", "o", "finish", *CODE, "--quiet").returncode == 0
    refused = project.cli("retry", "o", "collect", *CODE)
    assert "nothing of the phase collect has failed" in refused.stderr


def test_python_loads_documents_by_path(written: Project) -> None:
    written.open_gate()
    script = written.directory / "program.py"
    script.write_text(
        "import holdfast as hf\nimport handlers\n"
        "flow = hf.load('flow.yaml')\n"
        "@hf.workflow\ndef around(n: int):\n    return flow(n=n)\n"
        "@hf.workflow\nasync def durable(ctx: hf.Context, n: int) -> int:\n    return await ctx.child(flow, n=n)\n"
        "if __name__ == '__main__':\n"
        "    print(hf.run(flow, n=1), hf.run(around, n=2), hf.run(durable, n=3))\n"
    )
    import subprocess

    ran = subprocess.run(
        [sys.executable, str(script)], cwd=written.directory, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "20 30 40\n", ran.stderr


def test_a_timer_of_a_document_that_no_engine_has_loaded_is_fired(project: Project) -> None:
    """A run that sleeps has no owner: only its timer, once it is due, brings it to an engine."""
    (project.directory / "naps.yaml").write_text(
        "kind: graph\nname: nap\nnodes: [{id: nap, handler: sleep, input: {seconds: 2s}}]\nresult: done\n"
    )
    run = project.start("run", "naps.yaml", "--run-id", "r")
    eventually(lambda: project.cli("events", "r").stdout.count("RunSuspended") == 1, "the run never slept")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    (project.directory / "other.py").write_text(
        "import holdfast as hf\n@hf.workflow\nasync def other(ctx: hf.Context) -> None: ...\n"
    )
    worker = project.start("worker", "other.py")
    eventually(lambda: project.json("show", "r")["status"] == "completed", "its timer was never fired")
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)
