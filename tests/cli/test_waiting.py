"""Questions, signals, baskets and pauses on the command line, in real processes."""

from __future__ import annotations

import getpass
import json
import os
import pty
import re
import sqlite3
import subprocess
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest

from holdfast.cli import databases
from holdfast.cli.wording import WAITS_MAX, wait_lines
from holdfast.model.views import Wait
from tests.cli.conftest import COMMAND, ENVIRONMENT, Project, eventually
from tests.cli.terminals import CTRL_C, CTRL_D, Terminal, on_terminal

FLOWS = """
import asyncio
import os
from dataclasses import dataclass
from typing import Literal

import holdfast as hf


def mark(name):
    with open(name, "a") as f:
        f.write("x")


async def until(name):
    while not os.path.exists(name):
        await asyncio.sleep(0.01)


@dataclass
class Decision:
    approve: bool
    tier: Literal["gold", "silver"] = "silver"


@hf.node
async def at_work() -> str:
    mark("working")
    await until("go")
    return "worked"


@hf.node
def ship(order: str, decision: Decision) -> str:
    mark("shipped")
    return f"{order} {decision.approve} {decision.tier}"


@hf.workflow
def approval(order: str = "lamp"):
    decision = hf.ask(
        "Ship it?", about={"order": order}, schema=Decision, assignee="ada", basket="finance", deadline="2d",
        remind="1d", escalate=hf.Escalate("36h", assignee="boss"),
    )
    return ship(order, decision)


@hf.workflow
def busy_approval():
    return {"answer": hf.ask("Ship it?", schema=Decision), "other": at_work()}


@hf.node(on_crash="ask")
async def ask_inside(ctx: hf.Context) -> str:
    mark("asked")
    return await ctx.ask("Which colour?", schema=Literal["red", "blue"])


@hf.workflow
def coloured():
    return ask_inside()


@hf.workflow
async def patient(ctx: hf.Context) -> str:
    return await ctx.ask("Still there?", schema=str, deadline="1h", default="nobody")


@hf.workflow
async def parcel(ctx: hf.Context) -> dict:
    return await ctx.receive("packed", schema=dict[str, int])


@hf.workflow
def busy_parcel():
    return {"signal": hf.receive("packed", schema=dict[str, int]), "other": at_work()}


@hf.node
async def check(n: int) -> str:
    mark(f"check-{n}")
    if n == 1 and not os.path.exists("registry"):
        hf.pend("errors", error="registry is down")
    return hf.pend("second_look", output=f"checked {n}") if n != 1 else "checked 1"


@hf.node
def joined(checked: list[str]) -> str:
    return ", ".join(checked)


@hf.workflow
def checks():
    return joined(hf.map(check, [0, 1, 2]))


@hf.workflow
def busy_checks():
    return {"checks": hf.map(check, [0, 1, 2]), "other": at_work()}


@hf.node
async def limited(ctx: hf.Context) -> str:
    limit = ctx.vars.get("limit")
    if limit is None:
        hf.pend("manual", rerun=True)
    return f"at most {limit} of {ctx.vars.get('code')}"


@hf.workflow(variables={"limit": int, "code": str})
def with_variables():
    return limited()


@hf.node
async def first() -> str:
    mark("first")
    await until("go")
    return "one"


@hf.node
def second(one: str) -> str:
    mark("second")
    return f"{one} two"


@hf.workflow
def two_nodes():
    return second(first())


@hf.workflow
async def asks_child(ctx: hf.Context) -> str:
    return await ctx.child(patient_child, run_id="the-child")


@hf.workflow
async def patient_child(ctx: hf.Context) -> str:
    return await ctx.ask("Are you the child?", schema=str)
"""

ME = getpass.getuser()


@pytest.fixture
def waiting(project: Project) -> Project:
    (project.directory / "flows.py").write_text(FLOWS)
    return project


def started(project: Project, workflow: str, run_id: str = "r", exit_code: int = 3) -> list[dict[str, Any]]:
    """Run a workflow until it waits for somebody; what it waits for."""
    done = project.cli("run", f"flows.py:{workflow}", "--run-id", run_id, "--json", "-q")
    assert done.returncode == exit_code, done
    waits: list[dict[str, Any]] = json.loads(done.stdout)["waits"]
    return waits


def at_work(project: Project, workflow: str, count: int = 1) -> list[dict[str, Any]]:
    """Run a workflow in a process of its own that has more to do; what it waits for meanwhile."""
    project.start("run", f"flows.py:{workflow}", "--run-id", "r", "--json")
    project.wait_for("working")
    eventually(lambda: len(project.json("show", "r")["waits"]) == count, "it does not wait")
    found: list[dict[str, Any]] = project.json("show", "r")["waits"]
    return found


def ended(project: Project) -> dict[str, Any]:
    """Let the process that drives the run go on; the run as it prints it at its end."""
    project.open_gate()
    out, _ = project.started[0].communicate(timeout=60)
    shown: dict[str, Any] = json.loads(out)
    return shown


def on_form(project: Project, wait_id: str) -> AbstractContextManager[Terminal]:
    """The form of `holdfast respond`, on a terminal."""
    return on_terminal([*COMMAND, "respond", wait_id], project.directory, ENVIRONMENT)


# --- run and resume ----------------------------------------------------------------------------------------------


def test_run_exits_with_3_and_prints_what_it_waits_for_and_the_command_that_goes_on(waiting: Project) -> None:
    done = waiting.cli("run", "flows.py:approval", "--run-id", "r", "--db", "other.db")
    assert done.returncode == 3
    wait_id = waiting.json("show", "r", "--db", "other.db")["waits"][0]["wait_id"]
    assert re.search(rf"ask asks ada in finance: Ship it\? \({wait_id}, 1d 23:59:\d\d left\)", done.stderr)
    assert "run r is suspended; it waits for a person or another program:" in done.stderr
    assert f"    holdfast respond {wait_id} --db sqlite:////" in done.stderr
    again = waiting.cli("resume", "r", "--db", "other.db")
    assert again.returncode == 3
    assert f"holdfast respond {wait_id}" in again.stderr


def test_a_run_whose_child_asks_prints_the_command_that_answers_the_child(waiting: Project) -> None:
    done = waiting.cli("run", "flows.py:asks_child", "--run-id", "r")
    wait_id = waiting.json("show", "the-child")["waits"][0]["wait_id"]
    assert done.returncode == 3
    assert f"run the-child: patient_child asks: Are you the child? ({wait_id})" in done.stderr
    waiting.cli("respond", wait_id, "--input", "yes")
    assert waiting.json("resume", "r")["result"] == "yes"


def test_resume_all_drives_what_can_go_on_and_leaves_alone_what_waits_for_somebody(waiting: Project) -> None:
    started(waiting, "approval", "asks")
    started(waiting, "checks", "pended")
    waiting.start("run", "flows.py:two_nodes", "--run-id", "cut-off")
    waiting.wait_for("first")
    waiting.started[0].kill()
    waiting.started[0].wait()
    waiting.open_gate()
    waiting.cli("pause", "cut-off")
    started(waiting, "coloured", "answered")
    waiting.cli("respond", waiting.json("show", "answered")["waits"][0]["wait_id"], "--input", "red")
    done = waiting.cli("resume", "--all", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["run_id"] == "answered"
    assert "3 runs wait for a person or another program: `holdfast inbox`" in done.stderr
    statuses = {run["run_id"]: run["status"] for run in waiting.json("list")}
    assert statuses == {"asks": "suspended", "pended": "suspended", "cut-off": "suspended", "answered": "completed"}
    nothing = waiting.cli("resume", "--all")
    assert nothing.returncode == 0
    assert "nothing to resume: no other run is unfinished" in nothing.stderr


def test_resume_goes_on_with_a_question_whose_deadline_has_passed_meanwhile(waiting: Project) -> None:
    started(waiting, "patient")
    with closing(sqlite3.connect(waiting.directory / "holdfast.db")) as db, db:
        db.execute("UPDATE run_waits SET until = 1")  # an hour has passed
        db.execute("UPDATE run_timers SET due_at = 1, boot = ''")
    found = waiting.cli("resume", "--all", "-q")
    assert (found.returncode, found.stdout) == (0, '"nobody"\n')


def test_run_does_not_count_runs_that_wait_for_somebody_as_left_alone(waiting: Project) -> None:
    started(waiting, "approval", "asks")
    assert "other unfinished" not in waiting.cli("run", "flows.py:coloured", "--run-id", "r").stderr


# --- inbox and baskets -------------------------------------------------------------------------------------------


def test_inbox_lists_what_people_are_asked_and_what_lies_in_baskets(waiting: Project) -> None:
    (asked,) = started(waiting, "approval", "order-1")
    pended = started(waiting, "checks", "order-2")
    listed = waiting.cli("inbox")
    header, *rows = listed.stdout.splitlines()
    assert header.split() == ["WAIT", "AGE", "RUN", "WORKFLOW", "NODE", "ASSIGNEE", "BASKET", "UNTIL", "ASKED"]
    assert rows[0].startswith(asked["wait_id"])
    assert rows[0].endswith("Ship it?")
    assert {row.split()[0] for row in rows[1:]} == {wait["wait_id"] for wait in pended}, "since the same instant"
    assert any(row.endswith("failed: registry is down") for row in rows)
    assert "`holdfast respond WAIT` answers" in listed.stderr
    assert sorted(waiting.json("inbox"), key=str) == sorted([asked, *pended], key=str)


def test_inbox_can_be_asked_for_a_basket_a_person_and_a_few(waiting: Project) -> None:
    (asked,) = started(waiting, "approval", "order-1")
    started(waiting, "checks", "order-2")
    assert waiting.json("inbox", "--assignee", "ada") == [asked]
    assert waiting.json("inbox", "--basket", "finance") == [asked]
    assert [wait["basket"] for wait in waiting.json("basket", "errors")] == ["errors"]
    assert len(waiting.json("inbox", "--limit", "2")) == 2
    assert "… and more; --limit 4 shows them" in waiting.cli("inbox", "--limit", "2").stderr
    nobody = waiting.cli("inbox", "--assignee", "eve")
    assert (nobody.returncode, nobody.stdout) == (0, "")
    assert nobody.stderr == "nothing waits for an answer of eve\n"


def test_an_empty_inbox_says_so_also_without_a_database(waiting: Project) -> None:
    assert waiting.json("inbox") == []
    assert waiting.json("baskets") == []
    assert "there is no database" in waiting.cli("inbox").stderr
    waiting.cli("run", "flows.py:with_variables", "-q")
    assert "nothing waits for an answer in basket finance" in waiting.cli("basket", "finance").stderr


def test_baskets_counts_questions_and_pended_nodes(waiting: Project) -> None:
    started(waiting, "approval", "order-1")
    started(waiting, "checks", "order-2")
    shown = {b["basket"]: (b["questions"], b["pended"]) for b in waiting.json("baskets")}
    assert shown == {"finance": (1, 0), "errors": (0, 1), "second_look": (0, 2)}
    header, *rows = waiting.cli("baskets").stdout.splitlines()
    assert header.split() == ["BASKET", "QUESTIONS", "PENDED", "OLDEST"]
    assert [row.split()[:3] for row in rows] == [["errors", "0", "1"], ["finance", "1", "0"], ["second_look", "0", "2"]]


# --- respond -----------------------------------------------------------------------------------------------------


def test_respond_works_with_no_engine_running_and_says_how_to_go_on(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    done = waiting.cli("respond", asked["wait_id"], "--input", '{"approve": true, "tier": "gold"}')
    assert (done.returncode, done.stdout) == (0, f"answered {asked['wait_id']} of run r, as {ME}\n")
    assert "no engine drives run r; `holdfast resume r` continues it" in done.stderr
    assert waiting.marks("shipped") == 0
    assert waiting.json("resume", "r")["result"] == "lamp True gold"
    (answer,) = waiting.events("r", "WaitClosed")
    assert (answer["data"]["outcome"], answer["data"]["actor"]) == ("answered", ME)


def test_an_answer_given_where_no_code_is_costs_no_attempt_and_is_no_crash(waiting: Project) -> None:
    (asked,) = started(waiting, "coloured")
    assert waiting.cli("respond", asked["wait_id"], "--input", "red").returncode == 0
    assert waiting.cli("signal", "r", "another", "1").returncode == 0  # a second request finds the run as it was left
    shown = waiting.json("resume", "r")
    assert shown["result"] == "red"
    assert {node["attempt"] for node in shown["nodes"]} == {1}
    assert not waiting.events("r", "NodeScheduled")[1:]
    assert all(event["data"]["graceful"] for event in waiting.events("r", "RunTakenOver"))


def test_a_wrong_answer_says_what_is_wrong_and_the_question_stays_open(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    wrong = waiting.json("respond", asked["wait_id"], "--input", '{"approve": "yes"}', exit_code=1)
    assert wrong["error"]["code"] == "invalid_input"
    assert 'approve: "yes" is not of type "boolean". The question stays open' in wrong["error"]["message"]
    assert waiting.json("inbox") == [asked]
    broken = waiting.cli("respond", asked["wait_id"], "--input", '{"approve": true')
    assert broken.returncode == 2
    assert "--input is not JSON" in broken.stderr


def test_a_second_answer_learns_who_was_first(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    waiting.cli("respond", asked["wait_id"], "--input", '{"approve": true}', "--actor", "ada")
    late = waiting.cli("respond", asked["wait_id"], "--input", '{"approve": false}', "--actor", "bob")
    assert late.returncode == 1
    assert late.stderr == f"holdfast: run r: {asked['wait_id']} was answered by ada\n"
    waiting.cli("resume", "r", "-q")
    after = waiting.cli("respond", asked["wait_id"], "--input", '{"approve": false}')
    assert (after.returncode, after.stderr) == (1, f"holdfast: run r: {asked['wait_id']} was answered by ada\n")


def test_respond_takes_plain_text_where_only_text_is_wanted_and_reads_files_and_stdin(waiting: Project) -> None:
    for number, given in enumerate(["blue", '"blue"', "@answer", "-"]):
        (waiting.directory / "answer").write_text("blue\n")
        (asked,) = started(waiting, "coloured", f"r{number}")
        assert waiting.cli("respond", asked["wait_id"], "--input", given, stdin='"blue"').returncode == 0
        assert waiting.json("resume", f"r{number}")["result"] == "blue"


def test_respond_without_input_and_without_a_terminal_says_how_to_answer(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    done = waiting.cli("respond", asked["wait_id"])
    assert done.returncode == 2
    assert "there is no terminal for a form; give the answer to 'Ship it?' as --input JSON" in done.stderr


def test_respond_on_a_terminal_shows_the_question_and_asks_for_each_field_once(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    with on_form(waiting, asked["wait_id"]) as terminal:
        terminal.see("approve (yes/no): ")
        terminal.type("yes\n")
        terminal.see("tier (one of the list) [silver]: ")
        terminal.type("1\n")
        assert terminal.end() == 0
    assert "run r  ·  approval  ·  ask  ·  for ada  ·  basket finance  ·  until " in terminal.shown
    assert "Ship it?\n  order  lamp\n" in terminal.shown
    assert (terminal.shown.count("approve (yes/no)"), terminal.shown.count("tier (one of the list)")) == (1, 1)
    assert waiting.json("resume", "r")["result"] == "lamp True gold"


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D], ids=["ctrl-c", "ctrl-d"])
def test_whoever_leaves_the_form_has_sent_nothing(waiting: Project, key: str) -> None:
    (asked,) = started(waiting, "approval")
    with on_form(waiting, asked["wait_id"]) as terminal:
        terminal.see("approve (yes/no): ")
        terminal.type("yes\n")
        terminal.see("tier (one of the list) [silver]: ")
        terminal.type(key)
        assert terminal.end() == 130
        terminal.see("interrupted; no answer was sent, and the question stays open")
    assert waiting.json("inbox") == [asked]


def test_a_form_prints_nothing_but_json_on_stdout_when_json_is_wanted(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    ours, its = pty.openpty()
    os.write(ours, b"no\n1\n")
    done = subprocess.run(
        [*COMMAND, "respond", asked["wait_id"], "--json"],
        cwd=waiting.directory, env=ENVIRONMENT, stdin=its, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    os.close(ours)
    os.close(its)
    assert json.loads(done.stdout)["run_id"] == "r"
    assert "approve (yes/no)" in done.stderr


def test_respond_reaches_a_run_that_another_engine_drives(waiting: Project) -> None:
    (asked,) = at_work(waiting, "busy_approval")
    done = waiting.cli("respond", asked["wait_id"], "--input", '{"approve": true}', "--actor", "ada")
    assert done.returncode == 0
    assert "an engine drives run r" in done.stderr
    assert ended(waiting)["result"]["answer"] == {"approve": True, "tier": "silver"}
    assert waiting.events("r", "RunTakenOver") == []


def test_respond_to_what_is_no_question_says_what_ends_it(waiting: Project) -> None:
    pended = started(waiting, "checks")
    done = waiting.cli("respond", pended[0]["wait_id"], "--input", "1")
    assert done.returncode == 2
    assert f"`holdfast resume r --wait {pended[0]['wait_id']}` ends it" in done.stderr
    unknown = waiting.json("respond", "w_nothing", "--input", "1", exit_code=2)
    assert unknown["error"]["code"] == "unknown_wait"


def test_a_wait_id_that_two_runs_have_is_told_apart_by_the_run(waiting: Project) -> None:
    for run_id in ("a", "b"):
        started(waiting, "approval", run_id)
    with closing(sqlite3.connect(waiting.directory / "holdfast.db")) as db, db:
        db.execute("UPDATE run_waits SET wait_id = 'w_same'")
    both = waiting.cli("respond", "w_same", "--input", '{"approve": true}')
    assert both.returncode == 2
    assert "'w_same' is not unique: w_same of run a, w_same of run b; say which with --run RUN" in both.stderr
    with databases.reading(waiting.url) as store:
        assert databases.find_wait(store, "w_same", "b").run_id == "b"


def test_on_crash_ask_is_answered_with_done_and_the_result_or_runs_again(waiting: Project) -> None:
    (waiting.directory / "flows.py").write_text(
        FLOWS.replace("@hf.node\nasync def at_work", '@hf.node(on_crash="ask")\nasync def at_work')
    )
    at_work(waiting, "busy_approval")
    waiting.started[0].kill()
    waiting.started[0].wait()
    resumed = waiting.cli("resume", "r", "--json")
    assert resumed.returncode == 3
    assert "nothing was completed yet; asks first whether it was done: at_work\n" in resumed.stderr
    assert "runs again" not in resumed.stderr
    (verdict,) = [wait for wait in json.loads(resumed.stdout)["waits"] if "Was it done?" in wait["question"]]
    told = waiting.cli("why", "r").stdout.replace("\n", " ")
    assert "at_work asks: at_work was running when its engine died. Was it done?" in told
    assert f"`holdfast respond {verdict['wait_id']}` answers" in told
    assert waiting.cli("respond", verdict["wait_id"], "--input", '{"done": true, "output": "by hand"}').returncode == 0
    (asked,) = waiting.json("inbox")
    waiting.cli("respond", asked["wait_id"], "--input", '{"approve": true}')
    assert waiting.json("resume", "r")["result"]["other"] == "by hand"


@pytest.mark.parametrize(
    "command",
    [
        ("respond", "", "--input", '"here"'),
        ("respond", "w_", "--run", "", "--input", '"here"'),
        ("reassign", "", "--to", "bob"),
        ("move", "", "desk"),
        ("cancel", ""),
        ("pause", ""),
        ("signal", "", "n"),
        ("resume", ""),
        ("resume", "r", "--wait", ""),
        ("retry", ""),
        ("show", ""),
    ],
)
def test_an_empty_id_names_nothing_although_there_is_only_one(waiting: Project, command: tuple[str, ...]) -> None:
    started(waiting, "patient")
    before = waiting.json("show", "r")
    refused = waiting.here(*command)
    assert refused.returncode == 2, refused
    assert "'' is not a run id" in refused.stderr or "no run waits under the id ''" in refused.stderr
    assert waiting.json("show", "r") == before


def test_bytes_that_are_no_text_are_wrong_usage_and_no_traceback(waiting: Project) -> None:
    (asked,) = started(waiting, "patient")
    before = waiting.json("show", "r")
    broken = "a\udcff"  # as a terminal sends bytes that are no UTF-8
    for command in (
        ("respond", asked["wait_id"], "--input", '"here"', "--actor", broken),
        ("respond", broken, "--input", '"here"'),
        ("reassign", asked["wait_id"], "--to", broken),
        ("signal", "r", broken),
        ("pause", "r", "--reason", broken),
        ("resume", broken),
        ("inbox", "--basket", broken),
        ("basket", broken),
    ):
        refused = waiting.here(*command)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), (command, refused)
    assert waiting.json("show", "r") == before


def test_of_very_many_waits_it_is_said_how_many_are_not_listed() -> None:
    asked = [Wait(wait_id=f"w_{n}", kind="input", run_id="r", workflow="w", question="?") for n in range(WAITS_MAX + 2)]
    assert wait_lines(asked, 0, "r", [])[-1] == "  … and 2 more; `holdfast show r` lists all of them"
    pauses = [Wait(wait_id=f"p_{n}", kind="pause", run_id="r", workflow="w", question="paused") for n in range(11)]
    assert wait_lines([*asked, *pauses], 0, "r", [])[-1] == "  … and 1 more; `holdfast show r` lists all of them"


# --- reassign and move -------------------------------------------------------------------------------------------


def test_reassign_hands_a_question_on_and_leaves_an_audit_event(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    done = waiting.cli("reassign", asked["wait_id"], "--to", "bob", "--basket", "managers", "--actor", "ada")
    assert done.stdout == f"moved {asked['wait_id']} of run r from ada to bob, from basket finance into managers\n"
    (moved,) = waiting.json("inbox", "--assignee", "bob")
    assert (moved["wait_id"], moved["basket"]) == (asked["wait_id"], "managers")
    (edit,) = waiting.events("r", "RunEdited")
    assert (edit["data"]["actor"], edit["data"]["before"]["assignee"], edit["data"]["after"]["assignee"]) == (
        "ada",
        "ada",
        "bob",
    )
    assert waiting.cli("reassign", asked["wait_id"]).returncode == 2


def test_move_changes_the_basket_of_a_pended_node(waiting: Project) -> None:
    pended = started(waiting, "checks")
    (broken,) = [wait for wait in pended if wait["basket"] == "errors"]
    assert waiting.json("move", broken["wait_id"], "retry_queue")["run_id"] == "r"
    assert [wait["wait_id"] for wait in waiting.json("basket", "retry_queue")] == [broken["wait_id"]]
    assert waiting.json("basket", "errors") == []
    paths = waiting.json("show", "r", "--paths")["paths"]
    assert [path["basket"] for path in paths if path["response"] == "error_pend"] == ["retry_queue"]


# --- signals -----------------------------------------------------------------------------------------------------


def test_signal_works_with_no_engine_running_and_is_received_on_resume(waiting: Project) -> None:
    started(waiting, "parcel")
    done = waiting.cli("signal", "r", "packed", '{"boxes": 2}')
    assert (done.returncode, done.stdout) == (0, "run r received packed\n")
    assert "`holdfast resume r` continues it" in done.stderr
    assert waiting.json("resume", "r")["result"] == {"boxes": 2}
    late = waiting.cli("signal", "r", "packed", "1")
    assert late.returncode == 1
    assert "run r is already completed" in late.stderr


def test_a_signal_that_nobody_asks_for_yet_is_kept_and_why_names_it(waiting: Project) -> None:
    started(waiting, "approval")
    for payload in ("1", "2"):
        assert waiting.cli("signal", "r", "hurry", payload).stdout == "kept signal hurry until run r asks for it\n"
    waiting.cli("signal", "r", "note")
    told = waiting.cli("why", "r").stdout.replace("\n", " ")
    assert "3 signals are kept that no call has received yet: hurry ×2, note." in told


def test_a_signal_with_an_id_is_sent_once_and_another_payload_under_it_is_refused(waiting: Project) -> None:
    started(waiting, "approval")
    for _ in range(2):
        assert waiting.cli("signal", "r", "hurry", "1", "--id", "hurry-1").returncode == 0
    refused = waiting.json("signal", "r", "hurry", "2", "--id", "hurry-1", exit_code=1)
    assert refused["error"]["code"] == "refused"
    assert "1 signal is kept" in waiting.cli("why", "r").stdout.replace("\n", " ")


def test_a_signal_that_does_not_fit_is_refused_and_one_that_is_no_json_is_wrong_usage(waiting: Project) -> None:
    started(waiting, "parcel")
    unfit = waiting.cli("signal", "r", "packed", '{"boxes": "two"}')
    assert unfit.returncode == 1
    assert "signal 'packed': boxes" in unfit.stderr
    assert waiting.cli("signal", "r", "packed", "two boxes").returncode == 2


def test_after_a_refused_signal_the_corrected_one_is_received_under_the_same_id(waiting: Project) -> None:
    started(waiting, "parcel")
    assert waiting.cli("signal", "r", "packed", '{"boxes": "two"}', "--id", "p-1").returncode == 1
    for _ in range(2):
        done = waiting.cli("signal", "r", "packed", '{"boxes": 2}', "--id", "p-1")
        assert (done.returncode, done.stdout) == (0, "run r received packed\n")
    assert waiting.cli("signal", "r", "packed", '{"boxes": 3}', "--id", "p-1").returncode == 1


def test_signal_reaches_a_run_that_another_engine_drives(waiting: Project) -> None:
    at_work(waiting, "busy_parcel")
    assert waiting.cli("signal", "r", "packed", '{"boxes": 3}').stdout == "run r received packed\n"
    assert ended(waiting)["result"]["signal"] == {"boxes": 3}


# --- pausing, and resuming what waits ----------------------------------------------------------------------------


def test_pause_stops_a_run_between_its_nodes_and_resume_lets_it_go_on(waiting: Project) -> None:
    running = waiting.start("run", "flows.py:two_nodes", "--run-id", "r")
    waiting.wait_for("first")
    paused = waiting.cli("pause", "r", "--reason", "the bank is down")
    assert (paused.returncode, paused.stdout) == (0, "paused run r\n")
    assert paused.stderr == "run r pauses when the bodies that run now have ended their nodes\n"
    waiting.open_gate()
    _, told = running.communicate(timeout=60)
    assert running.returncode == 3
    assert f"paused by {ME}: the bank is down" in told
    assert waiting.marks("second") == 0
    why = waiting.cli("why", "r").stdout.replace("\n", " ")
    assert f"run r waits: paused by {ME}: the bank is down (since 20" in why
    assert "ago). To move it: `holdfast resume r` ends the pause." in why
    assert f"waits     paused by {ME}: the bank is down (w_" in waiting.cli("show", "r").stdout
    assert f"two_nodes  paused by {ME}: the bank is down" in waiting.cli("list").stdout
    done = waiting.cli("resume", "r")
    assert (done.returncode, done.stdout) == (0, '"one two"\n')
    assert "run r: the pause is over (w_" in done.stderr
    assert waiting.marks("first") == 1


def test_of_three_pended_branches_the_second_is_resumed_alone(waiting: Project) -> None:
    pended = started(waiting, "checks")
    (broken,) = [wait for wait in pended if wait["basket"] == "errors"]
    (waiting.directory / "registry").touch()
    done = waiting.cli("resume", "r", "--wait", broken["wait_id"])
    assert done.returncode == 3
    assert f"run r: took check@.check.1. out of basket errors ({broken['wait_id']})" in done.stderr
    assert "goes on: check" not in done.stderr
    assert done.stderr.count("in basket second_look (w_") == 2
    left = waiting.json("show", "r")["waits"]
    assert [wait["path"] for wait in left] == [".check.0.", ".check.2."]
    assert (waiting.marks("check-0"), waiting.marks("check-1"), waiting.marks("check-2")) == (1, 2, 1)
    by_path = waiting.cli("resume", "r", "--path", ".check.2.", "-q")
    assert by_path.returncode == 3
    assert [wait["path"] for wait in waiting.json("show", "r")["waits"]] == [".check.0."]
    assert waiting.json("resume", "r")["result"] == "checked 0, checked 1, checked 2"
    gone = waiting.cli("resume", "r", "--wait", broken["wait_id"])
    assert gone.returncode == 1
    assert f"{broken['wait_id']} was resumed by {ME}" in gone.stderr


def test_resume_of_one_wait_reaches_a_run_that_another_engine_drives(waiting: Project) -> None:
    pended = at_work(waiting, "busy_checks", 3)
    (broken,) = [wait for wait in pended if wait["basket"] == "errors"]
    (waiting.directory / "registry").touch()
    done = waiting.cli("resume", "r", "--wait", broken["wait_id"], "--no-run", "--actor", "ada")
    assert (done.returncode, done.stdout) == (
        0,
        f"run r: took check@.check.1. out of basket errors ({broken['wait_id']})\n",
    )
    eventually(lambda: len(waiting.json("show", "r")["waits"]) == 2, "it was not resumed")
    eventually(lambda: waiting.marks("check-1") == 2, "it does not run again")
    for wait in waiting.json("show", "r")["waits"]:
        waiting.cli("resume", "r", "--wait", wait["wait_id"], "--no-run")
    assert ended(waiting)["result"]["checks"] == ["checked 0", "checked 1", "checked 2"]
    assert waiting.events("r", "RunTakenOver") == []


def test_resume_without_running_needs_no_code_and_leaves_the_rest_to_others(waiting: Project) -> None:
    started(waiting, "checks")
    (waiting.directory / "flows.py").rename(waiting.directory / "away.py")
    assert waiting.cli("resume", "r").returncode == 2
    done = waiting.cli("resume", "r", "--no-run")
    assert (done.returncode, done.stderr.count("holdfast resume r --wait w_")) == (0, 2)
    assert "took check@.check.0. out of basket second_look" in done.stdout


def test_variables_are_set_on_resume_and_a_wrong_one_changes_nothing(waiting: Project) -> None:
    (pended,) = started(waiting, "with_variables")
    wrong = waiting.json("resume", "r", "--set", "vars.limit=many", exit_code=1)
    assert 'variable limit: "many" is not of type "integer"' in wrong["error"]["message"]
    assert waiting.cli("resume", "r", "--set", "limit=3").returncode == 2
    assert waiting.json("show", "r")["waits"] == [pended]
    done = waiting.cli("resume", "r", "--set", "vars.limit=3", "--set", "vars.code=007")
    assert (done.returncode, done.stdout) == (0, '"at most 3 of 007"\n')
    assert f"{ME} set limit, code" in done.stderr


def test_one_run_is_named_for_wait_path_set_and_no_run(waiting: Project) -> None:
    for args in (("--all", "--wait", "w_1"), ("a", "b", "--path", "."), ("a", "b", "--no-run")):
        refused = waiting.here("resume", *args)
        assert refused.returncode == 2
        assert "are for one named run" in refused.stderr


# --- what people see ---------------------------------------------------------------------------------------------


def test_show_list_graph_and_events_say_what_a_run_waits_for(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    shown = waiting.cli("show", "r").stdout
    assert f"waits     ask asks ada in finance: Ship it?, until {asked['until']} ({asked['wait_id']})" in shown
    assert "asks ada in finance: Ship it?\n· ship" in shown
    assert f"to continue: holdfast respond {asked['wait_id']}" in shown
    assert waiting.cli("list").stdout.rstrip().endswith("approval  asks ada in finance: Ship it?")
    drawn = waiting.json("graph", "r")
    assert {node["id"]: node["note"] for node in drawn["nodes"]} == {
        "ask": "(asks ada in finance: Ship it?)",
        "ship": None,
    }
    assert "asks ada in finance: Ship it" in waiting.cli("graph", "r").stdout
    assert "kind=input" in waiting.cli("events", "r").stdout
    assert "about=Ship it?" in waiting.cli("events", "r").stdout


def test_a_map_whose_items_lie_in_baskets_says_so_in_its_line(waiting: Project) -> None:
    started(waiting, "checks")
    assert "0/3 ↻1 is in basket second_look and 2 more" in waiting.cli("show", "r").stdout


def test_why_tells_reminders_escalation_and_deadline_of_a_question(waiting: Project) -> None:
    (asked,) = started(waiting, "approval")
    told = waiting.cli("why", "r").stdout.replace("\n", " ")
    assert f"ask asks ada in finance: Ship it? ({asked['wait_id']}; since {asked['since']}, " in told
    assert "ago; a reminder at 20" in told
    assert "; it is reassigned to boss at 20" in told
    assert f"; its deadline is {asked['until']}, in 1 day: then the node fails)" in told
    assert f"To move it: `holdfast respond {asked['wait_id']}` answers. No engine runs its code: what you say" in told


def test_why_says_what_resuming_a_pended_node_means(waiting: Project) -> None:
    started(waiting, "checks")
    told = waiting.cli("why", "r").stdout.replace("\n", " ")
    assert ": registry is down (w_" in told
    assert "ago; when it is resumed, it runs again, as another attempt)" in told
    assert "ago; when it is resumed, what follows it runs)" in told
    started(waiting, "with_variables", "v")
    told = waiting.cli("why", "v").stdout.replace("\n", " ")
    assert "when it is resumed, it runs again from its start). To move it: `holdfast resume v` resumes it." in told


def test_why_knows_what_moves_by_itself(waiting: Project) -> None:
    started(waiting, "checks", "pended")
    assert waiting.json("why", "pended")["moves"] is False
    at_work(waiting, "busy_approval")
    assert waiting.json("why", "r")["moves"] is True


def test_the_paths_of_a_run_name_their_baskets_and_answers(waiting: Project) -> None:
    started(waiting, "checks")
    shown = waiting.json("show", "r", "--paths")
    found = [(path["name"], path["response"], path["basket"]) for path in shown["paths"]]
    assert found == [
        (".", None, None),
        (".check.0.", "ok_pend", "second_look"),
        (".check.1.", "error_pend", "errors"),
        (".check.2.", "ok_pend", "second_look"),
    ]
    assert shown["pend_path"] == ".check.0."
    table = waiting.cli("show", "r", "--paths").stdout
    assert ".check.0.  completed  check  ok_pend     second_look  resumed first" in table
