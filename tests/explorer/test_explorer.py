"""The explorer itself: the same tape gives the same schedule, nothing real is waited for, reports say what to do."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from holdfast.model.errors import InvalidInput, UsageError
from holdfast.rules import resuming as takeover
from holdfast.store.contract import Store
from holdfast.testing import explore
from holdfast.testing.explorer import search, tape
from holdfast.testing.explorer.report import Kind
from holdfast.testing.explorer.tape import Tape
from holdfast.testing.simulation import remembering
from holdfast.testing.simulation.faults import Outcome
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.store import _READS, ProcessStore
from tests.budget import soaked
from tests.explorer import ablations, scenarios, shop, waiting

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("newer", ["marked", "unmarked"])
@pytest.mark.parametrize("workflow", [scenarios.chain, scenarios.code, scenarios.mapped], ids=lambda w: w.name)
def test_nothing_of_a_run_acts_once_a_newer_holdfast_has_written_to_it(workflow: Any, newer: Any) -> None:
    report = explore(workflow, newer=newer)
    # what is repeated where nothing was written by a newer one is not what this is about
    assert [f for f in report.findings if f.kind is Kind.INVARIANT] == [], report.explain()
    assert report.schedules > 20


# --- schedules ------------------------------------------------------------------------------------------------------


def trace(workflow: Any, text: str) -> list[tuple[Any, ...]]:
    explorer = search.Explorer(workflow, {}, None, set(), {})
    with explorer.surroundings():
        met = explorer._run(tape.parse(text)).boundaries
    return [(b.number, b.process, b.label, b.outcome, b.instant) for b in met]


@pytest.mark.parametrize("text", ["0/", "0/5.2", "0/5.7", "3/5.10", "0/4.4-9.1"])
def test_the_same_tape_gives_the_same_schedule(text: str) -> None:
    assert trace(scenarios.graph_parent, text) == trace(scenarios.graph_parent, text)


def test_the_schedule_does_not_depend_on_the_order_of_sets() -> None:
    script = (
        "from tests.explorer.test_explorer import trace\nfrom tests.explorer import scenarios\n"
        "print([t[:3] for t in trace(scenarios.code, '0/7.7') + trace(scenarios.places, '0/5.2')])"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]


def test_a_tape_is_written_and_read() -> None:
    assert str(Tape(((7, 2), (12, 5)), 3)) == "3/7.2-12.5"
    assert tape.parse("3/7.2-12.5") == Tape(((7, 2), (12, 5)), 3)
    assert tape.parse("7.2") == Tape(((7, 2),))
    for wrong in ("7", "a.b", "7.99", "x/7.2"):
        with pytest.raises(UsageError, match="is not a tape"):
            tape.parse(wrong)


def test_a_finding_can_be_run_again_by_its_tape() -> None:
    finding = explore(shop.books).findings[0]
    again = explore(shop.books, tape=finding.tape)
    assert again.schedules == 2
    assert [(f.kind, f.what, f.timeline) for f in again.findings] == [(finding.kind, finding.what, finding.timeline)]


def test_a_schedule_of_two_faults_is_shortened_to_the_one_that_matters() -> None:
    with mock.patch.object(takeover, "_cut_off", ablations._completed_when_started):
        body = next(met[0] for met in trace(scenarios.chain, "0/1.3") if met[2] == "body of xp_add_2")
        report = explore(scenarios.chain, tape=f"0/1.3-{body}.2")
        finding = next(f for f in report.findings if f.kind is Kind.OUTCOME)
    assert len(tape.parse(finding.tape).faults) == 1


BROKEN = (
    "compensations lost",
    "memo before the step",
    "no new token when freed",
    *soaked("message consumed on delivery", "refusal swallowed", "attempt not raised after a crash"),
)


@contextmanager
def nothing_left_out() -> Iterator[None]:
    with (
        mock.patch.object(search.Explorer, "_is_known", return_value=False),
        mock.patch.object(search.Explorer, "_is_repetition", return_value=False),
        mock.patch.object(remembering, "PLACES_MAX", 0),
    ):
        yield


@pytest.mark.parametrize("name", ["xp_chain", "xp_graph_parent", *soaked("xp_retry", "xp_compensate")])
def test_what_is_left_out_of_a_healthy_engine_would_have_been_survived(name: str) -> None:
    workflow = scenarios.ALWAYS_THE_SAME[name]
    quick = explore(workflow)
    with nothing_left_out():
        whole = explore(workflow)
    assert quick.safe, quick.explain()
    assert whole.safe, whole.explain()
    assert (quick.schedules, whole.alike) == (whole.schedules, 0)
    assert quick.alike > quick.schedules / 10


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_left_out_of_a_broken_engine_would_have_found_nothing_else(name: str) -> None:
    ablation = next(a for a in ablations.ALL if a.name == name)
    with ablation.patch():
        quick = explore(ablation.workflow, **ablation.options)
        with nothing_left_out():
            whole = explore(ablation.workflow, **ablation.options)
    assert (quick.alike > 0, whole.alike) == (True, 0)
    assert {(f.kind, f.subject) for f in quick.findings} == {(f.kind, f.subject) for f in whole.findings}


@pytest.mark.parametrize("workflow", [scenarios.graph_parent, scenarios.compensated, scenarios.code])
def test_a_database_that_remembers_answers_as_one_that_is_asked_anew(workflow: Any) -> None:
    def told() -> list[Any]:
        explorer = search.Explorer(workflow, {}, None, {"xp_step"}, {})
        with explorer.surroundings():
            return [
                (str(s.tape), s.alike, s.outcome, [(b.process, b.label, b.outcome, b.instant) for b in s.boundaries])
                for s in explorer.schedules(depth=1)
            ]

    remembered = told()
    with mock.patch.object(remembering, "PLACES_MAX", 0):
        assert told() == remembered


def test_outcomes_have_numbers_that_never_change() -> None:
    assert {o.name: int(o) for o in Outcome} == {
        "OK": 0,
        "DIE_BEFORE": 1,
        "DIE_AFTER": 2,
        "ERROR_NOT_APPLIED": 3,
        "ERROR_APPLIED": 4,
        "HANG_BEFORE_UNTIL_FREED": 5,
        "HANG_BEFORE_UNTIL_CLAIMED": 6,
        "HANG_BEFORE_UNTIL_TAKEN_OVER": 7,
        "HANG_BEFORE_UNTIL_FINISHED": 8,
        "HANG_AFTER_UNTIL_FREED": 9,
        "HANG_AFTER_UNTIL_CLAIMED": 10,
        "HANG_AFTER_UNTIL_TAKEN_OVER": 11,
        "HANG_AFTER_UNTIL_FINISHED": 12,
    }


def test_every_verb_of_the_store_is_a_read_or_a_boundary() -> None:
    verbs = {name for name in vars(Store) if not name.startswith("_")}
    known = _READS | {name for name in vars(ProcessStore) if not name.startswith("_")}
    doctors = {"health", "rebuild", "remove_orphans", "close_inbox"}
    assert verbs - known <= doctors, "is it a boundary? add it to ProcessStore"


# --- nothing real ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workflow", "why"),
    [
        (shop.real_sleep, "tests.explorer.shop.sleeps really sleeps"),
        (shop.real_socket, "tests.explorer.shop.connects opens a connection"),
        (shop.real_thread, "tests.explorer.shop.threads starts a thread"),
        (shop.real_process, "tests.explorer.shop.forks starts a process"),
        (shop.real_connection, "something outside the simulation"),
    ],
)
def test_a_body_that_really_waits_is_unsuitable_and_named(workflow: Any, why: str) -> None:
    report = explore(workflow)
    assert not report.safe
    assert not report.suitable
    assert why in report.findings[0].what
    assert "--fake" in report.explain()


def test_a_fake_makes_it_suitable() -> None:
    for fakes in ({"tests.explorer.shop:nap": lambda: None}, {"time:sleep": lambda seconds: None}):
        report = explore(shop.real_sleep, effects=[], fakes=fakes)
        assert report.safe, report.explain()


def test_a_node_can_be_faked() -> None:
    report = explore(shop.real_socket, effects=[], fakes={"tests.explorer.shop.connects": lambda x: x})
    assert report.safe, report.explain()


@pytest.mark.parametrize("seconds", [2.0, pytest.param(3600.0, marks=pytest.mark.soak)])
def test_timers_of_asyncio_take_no_time(seconds: float) -> None:
    """Each renewal of the lease is a boundary: an hour has 1,500 schedules."""
    report = explore(shop.timer, seconds=seconds)
    assert report.safe, report.explain()


@pytest.mark.parametrize("workflow", [scenarios.graph_parent, waiting.asks_in_a_thread, waiting.races])
def test_schedules_do_not_pile_up_in_memory(workflow: Any) -> None:
    """Attempts are hidden from the collector, and know the engine that made them: a world has to be taken apart."""

    def processes() -> int:
        gc.collect()
        return sum(isinstance(found, Process) for found in gc.get_objects())

    before = processes()
    explore(workflow, answers=waiting.ANSWERS, schedules_max=60)
    assert processes() == before


def test_everything_is_as_it_was_afterwards() -> None:
    before = time.sleep, os.urandom, random.getstate()
    explore(shop.books)
    assert (time.sleep, os.urandom, random.getstate()) == before


# --- calling it -----------------------------------------------------------------------------------------------------


def test_inputs_are_given_by_name_and_checked() -> None:
    assert explore(scenarios.chain, x=3, schedules_max=2).outcome == "was completed"
    with pytest.raises(InvalidInput, match="unknown y"):
        explore(scenarios.chain, y=3)


def test_an_input_called_like_an_option_is_not_taken_for_it() -> None:
    with pytest.raises(UsageError, match=r"pass inputs=\{\.\.\.\}"):
        explore(shop.depth, depth=2)
    assert explore(shop.depth, inputs={"depth": 2}, schedules_max=5).schedules == 5
    with pytest.raises(UsageError, match="given twice"):
        explore(scenarios.chain, inputs={"x": 1}, x=2)


def test_a_report_explains_itself_and_is_json() -> None:
    report = explore(shop.books, stop_at_first=True)
    assert "shop_books is not safe: 1 finding." in report.explain()
    assert not report.complete
    told = msgspec.json.decode(msgspec.json.encode(report.as_json()))
    assert told["safe"] is False
    assert told["findings"][0]["kind"] == "repeated"
    assert "survives every crash" in explore(scenarios.routed).explain()


def test_progress_is_told() -> None:
    told: list[int] = []
    explore(scenarios.routed, schedules_max=10, progress=lambda schedules, ahead, findings: told.append(schedules))
    assert told == list(range(2, 11))
