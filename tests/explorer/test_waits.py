"""The explorer over every way of waiting: no crash loses an answer, a signal or a basket, or lets one count twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.engine.ownership import claim
from holdfast.model.errors import UsageError
from holdfast.testing import explore
from holdfast.testing.explorer.client import Outside
from holdfast.testing.explorer.search import Explorer
from holdfast.testing.explorer.tape import Tape
from holdfast.testing.simulation.faults import Outcome
from tests.budget import soaked
from tests.explorer import waiting
from tests.explorer.test_explorer import nothing_left_out

STEPS = ["xp_step"]
TIMED = (
    "a deadline that passes",
    "a deadline that does not pass",
    "an answer in the moment of the deadline",
    "an answer that comes too late",
    "a deadline that passes after the answer",
    "reminders and an escalation",
    "a signal that does not come in time",
    "a signal from another run",
    "a race",
    "a sleep",
    "a sleep beside a question",
    "a delay",
)
"""Cases in which timers fire."""
PER_COMMIT = ("a deadline that passes", "a race", "a sleep")
"""Those of them in which timers are also only fired, for each commit."""


@pytest.mark.parametrize("name", waiting.CASES)
def test_no_crash_changes_what_comes_of(name: str) -> None:
    workflow, result, options = waiting.CASES[name]
    report = explore(workflow, idempotent=STEPS, **options)
    assert report.safe, report.explain()
    assert report.outcome.startswith("was suspended" if result is None else "was completed")


@pytest.mark.parametrize(
    ("name", "due_at_once"),
    [
        *((name, claim.DUE_AT_ONCE) for name, case in waiting.CASES.items() if case.result is not None),
        *((name, 1) for name in TIMED),
    ],
)
def test_undisturbed_the_run_comes_to_its_result(name: str, due_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every schedule is compared with this one."""
    monkeypatch.setattr(claim, "DUE_AT_ONCE", due_at_once)
    workflow, result, options = waiting.CASES[name]
    outside = {option: value for option, value in options.items() if option in Outside.__struct_fields__}
    inputs = {option: value for option, value in options.items() if option not in outside}
    explorer = Explorer(workflow, inputs, None, set(STEPS), {}, Outside(**outside))
    with explorer.surroundings():
        status, value = explorer._undisturbed(Tape()).outcome["run explored"]
    assert (status, json.loads(value)) == ("completed", result)


@pytest.mark.parametrize("name", ["a question", "a signal", "two nodes in baskets"])
def test_whoever_goes_first_it_is_survived(name: str) -> None:
    workflow, _, options = waiting.CASES[name]
    report = explore(workflow, idempotent=STEPS, seed=7, **options)
    assert report.safe, report.explain()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["a question that is answered at once", "a signal that comes at once"])
def test_two_crashes_in_one_schedule_of(name: str) -> None:
    workflow, _, options = waiting.CASES[name]
    report = explore(workflow, depth=2, schedules_max=500, **options)
    assert report.safe, report.explain()
    assert report.schedules == 500


@pytest.mark.parametrize("name", [*PER_COMMIT, *soaked(*(name for name in TIMED if name not in PER_COMMIT))])
def test_no_crash_changes_what_comes_of_timers_that_are_only_fired(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where very many are due: whoever fires them does not go on with their runs."""
    monkeypatch.setattr(claim, "DUE_AT_ONCE", 1)
    workflow, _, options = waiting.CASES[name]
    report = explore(workflow, idempotent=STEPS, **options)
    assert report.safe, report.explain()


@pytest.mark.parametrize("workflow", [waiting.asks, waiting.asks_in_code])
def test_a_cancel_of_a_run_that_asks_survives_every_crash(workflow: Any) -> None:
    report = explore(workflow, idempotent=STEPS, answers=waiting.ANSWERS, cancel_after="xp_add")
    assert report.safe, report.explain()


def test_what_is_left_out_of_a_waiting_run_would_have_been_survived() -> None:
    workflow, _, options = waiting.CASES["a signal"]
    quick = explore(workflow, **options)
    with nothing_left_out():
        whole = explore(workflow, **options)
    assert whole.safe, whole.explain()
    assert (quick.schedules, whole.alike) == (whole.schedules, 0)
    assert quick.alike > quick.schedules / 10


def test_the_writes_of_whoever_asks_meet_every_fault() -> None:
    """A request may be lost, be applied unheard, or wait for an engine that stands still."""
    explorer = Explorer(waiting.asks, {}, None, set(), {}, Outside(waiting.ANSWERS))
    met: set[Outcome] = set()
    with explorer.surroundings():
        undisturbed, *schedules = explorer.schedules(depth=1)
    for schedule in schedules:
        met |= {Outcome(o) for n, o in schedule.tape.faults if undisturbed.boundaries[n].label == "send"}
    assert met == set(Outcome) - {Outcome.OK}


# --- who answers --------------------------------------------------------------------------------------------------


def test_answers_may_come_from_a_function_that_leaves_some_to_nobody() -> None:
    def answer(wait: Any) -> Any:
        assert wait.node == "ask"
        return {"Ship it?": {"approved": wait.about == {"x": 2}}}[wait.question]

    assert explore(waiting.asks, answers=answer, tape="0/").outcome == "was completed"
    assert "there is no answer to 'At which price?'" in explore(waiting.asks_in_code, answers=PARTLY, tape="0/").outcome


PARTLY = {"Ship it?": {"approved": True}}


def test_a_question_that_nobody_answers_is_named() -> None:
    report = explore(waiting.asks, tape="0/")
    assert report.outcome == "was suspended (there is no answer to 'Ship it?')"
    assert "there is no answer to 'Ship it?'" in report.explain()


def test_an_answer_that_does_not_fit_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"the answer to 'Ship it\?': .*approved"):
        explore(waiting.asks, answers={"Ship it?": {"approved": "perhaps"}})


def test_people_take_no_negative_time() -> None:
    with pytest.raises(UsageError, match="people_take"):
        explore(waiting.asks, people_take=-1)


def test_a_node_that_comes_back_into_its_basket_each_time_is_left_there_in_the_end() -> None:
    report = explore(waiting.pends_itself, tape="0/")
    assert "xw_rerun is not resumed" in report.outcome
