"""Survey: many runs at once, by questions that one statement answers.

Owns: which questions are asked, what each answer means, and its text.
Never: reads a journal (proof.py does, run by run).
Invariants: each question is about one moment, so that a live engine gives no false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.model.journal_format import newer
from holdfast.model.limits import DOCTOR_PATIENCE_SECONDS, SECOND
from holdfast.model.timers import Elapsed, due
from holdfast.model.views import command_line, humanize_duration
from holdfast.model.violations import Repair, Violation, violation
from holdfast.store.clocks import awake_micros
from holdfast.store.contract import Store
from holdfast.store.liveness import Life, Locks, life_of
from holdfast.store.row_types import Check, EngineRow, Suspect


class Question(NamedTuple):
    """What an answer to a check means."""

    code: str
    means: Repair
    what: Callable[[Suspect], str]


QUESTIONS: dict[Check, Question] = {
    "head": Question("I1", Repair.REBUILD, lambda s: _head(s)),
    "gap": Question(
        "I1",
        Repair.HOLD,
        lambda s: f"event {s.seq} is missing from the journal: {s.found} of {s.wanted} events are there",
    ),
    "token": Question(
        "I4", Repair.REBUILD, lambda s: f"event {s.seq} has token {s.found}, and the run has only reached {s.wanted}"
    ),
    "ending": Question(
        "I7",
        Repair.REBUILD,
        lambda s: f"the run is {s.found} and has {'an' if s.wanted else 'no'} end in time",
    ),
    "terminal": Question(
        "I7", Repair.REBUILD, lambda s: f"the run is {s.found}, and its journal ends with {s.wanted} (event {s.seq})"
    ),
    "status": Question("I8", Repair.REBUILD, lambda s: f"the run has the status {s.found!r}, which does not exist"),
    "owned_end": Question("I22", Repair.FREE, lambda s: f"the run has {s.wanted}, and engine {s.found} still owns it"),
    "wait_of_end": Question("I22", Repair.REBUILD, lambda s: f"the run has {s.wanted}, and wait {s.found} is open"),
    "timer_of_end": Question("I22", Repair.REBUILD, lambda s: f"the run has {s.wanted}, and timer {s.found} is set"),
    "message_of_end": Question(
        "I24", Repair.CLOSE, lambda s: f"the run has {s.wanted}, and message {s.found} still waits to be taken"
    ),
    "node_of_end": Question("I22", Repair.REBUILD, lambda s: f"the run has {s.wanted}, and {s.node} is {s.found}"),
    "node_of_suspended": Question("I20", Repair.REBUILD, lambda s: f"the run is suspended, and {s.node} is running"),
    "stuck": Question("I20", Repair.REBUILD, lambda s: "the run is suspended, and nothing can wake it"),
    "wait_without_timer": Question(
        "I23", Repair.REBUILD, lambda s: f"wait {s.found} ends at a time, and no timer is set to end it"
    ),
    "wait_without_child": Question(
        "I38", Repair.BY_HAND, lambda s: f"wait {s.found} is for child {s.wanted}, which does not exist"
    ),
    "wait_for_ended_child": Question(
        "I23", Repair.DELIVER, lambda s: f"the run waits for {s.found}, which has {s.wanted}, and was not notified"
    ),
    "child_of_ended": Question(
        "I37", Repair.BY_HAND, lambda s: f"its parent {s.found} is {s.wanted}, and this run was not asked to stop"
    ),
    "version": Question(
        "I40", Repair.RECOVER, lambda s: f"its version {s.wanted} of workflow {s.found} is not in the store"
    ),
    "parent": Question(
        "I44", Repair.BY_HAND, lambda s: f"its parent ({s.found}) or root ({s.wanted}) is not in the store"
    ),
    "branch": Question("I35", Repair.BY_HAND, lambda s: f"the run is on branch {s.found}, which was never opened"),
    "orphan_events": Question("I44", Repair.BY_HAND, lambda s: _orphans(s)),
    "orphan_nodes": Question("I44", Repair.REMOVE, lambda s: _orphans(s)),
    "orphan_waits": Question("I44", Repair.REMOVE, lambda s: _orphans(s)),
    "orphan_timers": Question("I44", Repair.REMOVE, lambda s: _orphans(s)),
    "orphan_branches": Question("I44", Repair.REMOVE, lambda s: _orphans(s)),
    "orphan_messages": Question("I44", Repair.REMOVE, lambda s: _orphans(s)),
}
"""Whatever one of these finds is wrong."""

NEWER: Final = Question("I46", Repair.BY_HAND, lambda s: f"the run was {newer(s.found)}")
"""Nothing is wrong with such a run, and nothing can be said about it."""

LEFT_ALONE: dict[Check, Question] = {
    "left_alone": Question(
        "I51",
        Repair.RESUME,
        lambda s: f"the run is {s.wanted}, no engine drives it, and nothing has happened for {{age}}",
    ),
    "overdue": Question(
        "I51", Repair.RESUME, lambda s: f"timer {s.found} was due {{age}} ago, and no engine drives the run"
    ),
}
"""In order, if an engine comes along. One should have by now."""

_BY_HAND: dict[str, str] = {
    "I4": "an engine wrote after it was replaced: do not let two machines open one file, and restore a backup",
    "I35": "restore the run from a backup",
    "I37": "stop the child: {cancel}",
    "I46": "upgrade Holdfast here",
    "I38": "cancel the run ({cancel}) or fork it before the child was started",
    "I44": "events are never deleted: restore the row of the run from a backup",
}


def survey(
    store: Store,
    first_no: int,
    last_no: int,
    *,
    now: int,
    elapsed: Elapsed | None,
    orphan_seconds: float,
    engines: Sequence[EngineRow],
) -> tuple[list[Violation], list[Violation]]:
    """What is wrong with the runs of a range of numbers, and what may be."""
    found: list[Violation] = []
    told_before = now - int(DOCTOR_PATIENCE_SECONDS * SECOND)
    for check, question in QUESTIONS.items():
        for suspect in store.suspects(check, first_no, last_no, told_before):
            found.append(_violation(check, question, suspect))
    before = now - int(orphan_seconds * SECOND)
    for check, question in LEFT_ALONE.items():
        for suspect in store.suspects(check, first_no, last_no, before):
            since = suspect.found if check == "left_alone" else suspect.wanted
            if check == "overdue" and _lasts_on(store, suspect, before, now, elapsed):
                continue
            found.append(_violation(check, question, suspect, age=humanize_duration(now - since)))
    lives = _lives(store, engines, now)
    wrong, doubtful = _leases(store.suspects("lease", first_no, last_no), lives, now)
    if wrong:  # an engine that stops gives its runs back before its process is gone: ask again
        still = {(s.run_no, s.found) for s in store.suspects("lease", first_no, last_no)}
        wrong = [v for v in wrong if (v.run_no, v.detail) in still]
    doubtful += [_violation("format", NEWER, s) for s in store.suspects("format", first_no, last_no)]
    return found + wrong, doubtful


def _lasts_on(store: Store, overdue: Suspect, before: int, now: int, elapsed: Elapsed | None) -> bool:
    """Whether a timer is overdue only by a wall clock that was set: its duration is not over."""
    for timer in store.set_timers([overdue.run_no]):
        if timer.timer == overdue.found and timer.boot:
            return due(timer.due_at, Elapsed(timer.boot, timer.elapsed), now, elapsed) >= before
    return False


def _violation(check: Check, question: Question, s: Suspect, age: str = "") -> Violation:
    means = question.means
    code = question.code
    if check == "head" and s.found == s.seq:
        code, means = "I3", Repair.HOLD
    cancel = command_line("cancel", s.run_id or "RUN")
    words = _BY_HAND.get(code, "").replace("{cancel}", cancel) if means is Repair.BY_HAND else ""
    return violation(
        code,
        question.what(s).replace("{age}", age),
        run_id=s.run_id,
        run_no=s.run_no,
        node=s.node,
        path=s.path,
        seq=s.seq,
        means=means,
        repair=words,
        detail=s.found if means in (Repair.DELIVER, Repair.FREE) else check,
    )


def _head(s: Suspect) -> str:
    if s.found == s.seq:
        return f"the run's row knows another event {s.seq} than the journal has: one of them was changed"
    return f"the run's row says that event {s.found} is the last one, and the journal ends with {s.seq or 'nothing'}"


def _orphans(s: Suspect) -> str:
    return f"{s.found} row(s) of {s.wanted} belong to run number {s.run_no}, which does not exist"


def _lives(store: Store, engines: Sequence[EngineRow], now: int) -> dict[str, tuple[EngineRow, Life]]:
    locks = Locks.of(store)
    return {engine.engine: (engine, life_of(engine, now, locks)) for engine in engines}


def _leases(
    owned: Sequence[Suspect], lives: Mapping[str, tuple[EngineRow, Life]], now: int
) -> tuple[list[Violation], list[Violation]]:
    """Leases without a living owner; and owners that live and have not renewed in time."""
    wrong: list[Violation] = []
    doubtful: list[Violation] = []
    for s in owned:
        engine, life = lives.get(s.found, (None, "alive"))
        if s.wanted is None:
            wrong.append(_lease(s, f"engine {s.found} owns the run, and there is no such engine"))
        elif engine is not None and life == "dead":
            wrong.append(
                _lease(s, f"engine {s.found} (process {engine.pid} on {engine.host}) owns the run and is dead")
            )
        elif engine is not None and life == "late":
            late = humanize_duration(awake_micros() - engine.awake_until)
            what = f"engine {s.found} (process {engine.pid}) owns the run, lives, and is {late} late with its lease"
            doubtful.append(_lease(s, what))
    return wrong, doubtful


def _lease(s: Suspect, what: str) -> Violation:
    return violation("I19", what, run_id=s.run_id, run_no=s.run_no, means=Repair.FREE, detail=s.found)
