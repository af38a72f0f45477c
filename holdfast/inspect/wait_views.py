"""Waits, and the status of a run, as people and programs see them.

Owns: `Wait` from a row, its clause in a sentence with details (since when, until when, and what happens then),
the status that is shown, whether only a request from outside can move a run, and which unfinished runs no engine
drives.
Never: changes anything; says which engine will drive a run (why.py does).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from holdfast.model import events as ev
from holdfast.model.errors import NewerFormat
from holdfast.model.journal_format import is_newer, newer
from holdfast.model.limits import UNDRIVEN_COUNTED_MAX, WAITS_AT_ONCE
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.timers import RUN_TIMEOUT, QuestionTimer, is_start_timer, question_timer
from holdfast.model.views import Wait, humanize_duration, iso_or_none, times, wait_text, when
from holdfast.store.contract import Store
from holdfast.store.records.state_rows import about_of, child_of
from holdfast.store.row_types import AskedRow, NodeRow, RunRow, TimerRow, WaitRow

RECOVERING = "recovering"
"""The status that is shown of a run between the claim of a new owner and its takeover; no row has it."""
OF_PEOPLE = frozenset({"input", "signal", "basket", "pause", "hold"})
"""Kinds of waits that only a request from outside ends (or the deadline of a question)."""


def hold_of(row: RunRow) -> str | None:
    """Why no engine here may touch a run: it was put on hold, or a newer Holdfast wrote it and none drives it now."""
    if row.hold is None and row.engine is None and is_newer(row.format) and row.status not in RUN_TERMINAL:
        return f"{NewerFormat.code}: {newer(row.format)}"
    return row.hold


def shown_status(store: Store, row: RunRow) -> str:
    """The status of a run as callers see it. A run on hold is suspended, whatever it was doing when it was put there. A
    run is recovering while its new owner has claimed it and has not committed the takeover yet."""
    if row.status in RUN_TERMINAL:
        return row.status
    if hold_of(row) is not None:
        return RunStatus.SUSPENDED
    return RECOVERING if _is_recovering(store, row) else row.status


def _is_recovering(store: Store, row: RunRow) -> bool:
    """Whether the last event of a running run was written under an earlier token than its owner's."""
    if row.status != RunStatus.RUNNING or row.engine is None or row.last_engine is None:
        return False
    last = store.events(row.run_no, row.last_seq - 1, 1)
    return bool(last) and last[0].token < row.token


def waits_of(store: Store, row: RunRow) -> list[Wait]:
    """What a run waits for; a run that no engine may touch waits for a person."""
    return waits_of_all(store, [row])[row.run_no]


def waits_of_all(store: Store, rows: Sequence[RunRow]) -> dict[int, list[Wait]]:
    """The same for many runs in one read, by run number."""
    runs = {row.run_no: row for row in rows}
    found: dict[int, list[Wait]] = {row.run_no: [] for row in rows}
    for wait in store.open_waits(list(runs)) if runs else ():
        row = runs[wait.run_no]
        found[wait.run_no].append(wait_view(row.run_id, row.workflow, wait))
    for row in rows:
        why = hold_of(row)
        if why is not None:
            hold = Wait(wait_id="", kind="hold", run_id=row.run_id, workflow=row.workflow, question=why)
            found[row.run_no].append(hold)
    return found


def views(rows: Iterable[AskedRow]) -> list[Wait]:
    return [wait_view(row.run_id, row.workflow, row.wait) for row in rows]


def wait_view(run_id: str, workflow: str, row: WaitRow) -> Wait:
    about = about_of(row)
    return Wait(
        wait_id=row.wait_id,
        kind=row.kind,
        run_id=run_id,
        workflow=workflow,
        node=row.node,
        path=row.path,
        since=when(row.since),
        until=None if row.until is None else when(row.until),
        question=about.get("question") or about.get("why") or _said(row.kind, about),
        about=about.get("about"),
        schema=about.get("schema"),
        basket=row.basket,
        assignee=row.assignee,
        name=about.get("name"),
        mode=about.get("mode"),
        error=about.get("error"),
        child=child_of(row),
    )


def _said(kind: str, about: dict[str, Any]) -> str | None:
    if kind != "pause":
        return None
    by = f" by {about['actor']}" if about.get("actor") else ""
    reason = f": {about['reason']}" if about.get("reason") else ""
    return f"paused{by}{reason}"


def baskets_json(store: Store) -> list[dict[str, Any]]:
    """The baskets in which something lies."""
    return [
        {"basket": b.basket, "questions": b.questions, "pended": b.pended, "oldest": iso_or_none(b.since)}
        for b in store.baskets()
    ]


# --- who can move a run --------------------------------------------------------------------------------------------


def only_outside_moves(store: Store, row: RunRow, now: int) -> list[Wait] | None:
    """The waits of a run, and of the children it waits for, if only a request from outside can move it; otherwise None.
    The deadline of a question counts only when it has passed: a caller does not wait for days to see it."""
    if hold_of(row) is not None:
        return waits_of(store, row)
    if row.status != RunStatus.SUSPENDED or store.new_messages([row.run_no]):  # an answer may be on its way
        return None
    return _rests(store, row, store.open_waits([row.run_no]), store.set_timers([row.run_no]), now)


def resting(store: Store, rows: Sequence[RunRow], now: int) -> set[int]:
    """The numbers of those of these runs, however many, that only a request from outside can move."""
    asleep = [row for row in rows if row.status == RunStatus.SUSPENDED and hold_of(row) is None]
    found = {row.run_no for row in rows if hold_of(row) is not None}
    for page in (asleep[start : start + WAITS_AT_ONCE] for start in range(0, len(asleep), WAITS_AT_ONCE)):
        moved = {message.run_no for message in store.new_messages([row.run_no for row in page])}
        numbers = [row.run_no for row in page if row.run_no not in moved]
        waits: dict[int, list[WaitRow]] = {number: [] for number in numbers}
        timers: dict[int, list[TimerRow]] = {number: [] for number in numbers}
        for wait in store.open_waits(numbers):
            waits[wait.run_no].append(wait)
        for timer in store.set_timers(numbers):
            timers[timer.run_no].append(timer)
        for row in page:
            if row.run_no in waits and _rests(store, row, waits[row.run_no], timers[row.run_no], now):
                found.add(row.run_no)
    return found


def _rests(
    store: Store, row: RunRow, waits: Sequence[WaitRow], timers: Sequence[TimerRow], now: int
) -> list[Wait] | None:
    if any(wait.kind == "pause" for wait in waits):
        return [wait_view(row.run_id, row.workflow, wait) for wait in waits]
    if any(is_start_timer(timer.timer) for timer in timers):  # also a start that is delayed
        return None
    found: list[Wait] = []
    for wait in waits:
        if wait.kind in OF_PEOPLE and (wait.until is None or wait.until > now):
            found.append(wait_view(row.run_id, row.workflow, wait))
            continue
        child = store.run(child_of(wait) or "") if wait.kind == "child" else None
        below = None if child is None else only_outside_moves(store, child, now)
        if below is None:  # a sleep, a deadline that is due, a child that moves by itself
            return None
        found += below
    return found or None


# --- a wait in words ------------------------------------------------------------------------------------------------


class Reasons:
    """What one run waits for, as of `now`: the clause of each wait, with its details in parentheses."""

    def __init__(
        self, store: Store, run: RunRow, timers: Sequence[TimerRow], now: int, say: Callable[..., str]
    ) -> None:
        self._say = say
        self._store = store
        self._run = run
        self._timers = timers
        self._now = now

    def of(self, row: WaitRow) -> str:
        """Why the run waits, as far as this wait is concerned."""
        wait = wait_view(self._run.run_id, self._run.workflow, row)
        left = "" if row.until is None else humanize_duration(row.until - self._now)
        place = "" if row.node is None else f"{instance_text(row.node, row.path or '.', row.visit)} "
        return f"{place}{wait_text(wait, left)} ({'; '.join(self._details(row, about_of(row)))})"

    def _details(self, wait: WaitRow, about: dict[str, Any]) -> Iterator[str]:
        if wait.kind in ("input", "basket"):
            yield wait.wait_id
        yield f"since {self._instant(wait.since)}"
        match wait.kind:
            case "timer" if wait.until is not None:
                yield f"until {self._instant(wait.until)}"
            case ev.STEP_RETRY:
                attempt, at = about.get("attempt", 2), self._instant(wait.until or self._now)
                yield f"it failed {times(attempt - 1)}; attempt {attempt} is at {at}"
            case "child":
                yield self._child(child_of(wait))
            case "input" | "signal":
                yield from self._steps(wait, about)
                yield from self._deadline(wait, about)
            case "basket":
                yield _resumed(about)

    def delays(self, nodes: Sequence[NodeRow]) -> list[str]:
        """Starts that are put off, and the end of the run's time."""
        put_off = [node for node in nodes if node.status == NodeStatus.SCHEDULED and node.not_before]
        limits = [timer for timer in self._timers if timer.timer == RUN_TIMEOUT]
        ends = [f"its timeout ends it at {self._instant(timer.due_at)}" for timer in limits]
        return [self._put_off(node) for node in put_off] + ends

    def _put_off(self, node: NodeRow) -> str:
        name, at = instance_text(node.node, node.path, node.visit), self._instant(node.not_before)
        if not node.failures:
            return f"{name} starts at {at}, after its delay"
        return f"{name} failed {times(node.failures)}; attempt {node.attempt} is at {at}"

    def _instant(self, at: int) -> str:
        apart = (
            f"{humanize_duration(self._now - at)} ago" if at <= self._now else f"in {humanize_duration(at - self._now)}"
        )
        return f"{iso_or_none(at)}, {apart}"

    def _child(self, child: str | None) -> str:
        row = None if child is None else self._store.run(child)
        if row is None:
            return "that run does not exist, so nothing will wake it"
        return f"that run is {shown_status(self._store, row)}: {self._say('why', row.run_id)}"

    # --- until it is answered --------------------------------------------------------------------------------

    def _steps(self, wait: WaitRow, about: dict[str, Any]) -> list[str]:
        """The next reminder of a question, and who is asked next, soonest first."""
        known = [(timer.due_at, question_timer(timer.timer)) for timer in self._timers]
        mine = [(due_at, timer) for due_at, timer in known if timer is not None and timer.wait_id == wait.wait_id]
        return [self._step(timer, due_at, about) for due_at, timer in sorted(mine, key=lambda found: found[0])]

    def _step(self, timer: QuestionTimer, due_at: int, about: dict[str, Any]) -> str:
        at = self._instant(due_at)
        if timer.kind == "remind":
            before = timer.number - 1
            return f"the next reminder, after {before}, at {at}" if before else f"a reminder at {at}"
        step = about["escalate"][timer.number]
        to = [str(step["assignee"])] if "assignee" in step else []
        to += [f"the basket {step['basket']}"] if "basket" in step else []
        return f"it is reassigned to {' and '.join(to)} at {at}"

    def _deadline(self, wait: WaitRow, about: dict[str, Any]) -> list[str]:
        if wait.until is None:
            return []
        then = "its default is used" if "default" in about else "the node fails"
        return [f"its deadline is {self._instant(wait.until)}: then {then}"]


def _resumed(about: dict[str, Any]) -> str:
    """What resuming a node in a basket means."""
    match about.get("mode"):
        case "next" if about.get("target"):
            then = f"the run continues at {about['target']}"
        case "next":
            then = "what follows it runs"
        case "same":
            then = "it runs again from its start"
        case _:
            then = "it runs again, as another attempt"
    return f"when it is resumed, {then}"


# --- runs that no engine drives -------------------------------------------------------------------------------------


_UNFINISHED = tuple(status.value for status in RunStatus if status not in RUN_TERMINAL)


def undriven_runs(store: Store, dead_engines: Collection[str], run_id: str, now: int) -> int:
    """How many unfinished runs no live engine drives and no person has to move, without those that belong to the tree
    of `run_id`."""
    row = store.run(run_id) if store.unfinished_count() else None
    if row is None:
        return 0
    rows = store.runs(status=_UNFINISHED, limit=UNDRIVEN_COUNTED_MAX)
    others = [r for r in rows if r.root_no != row.root_no and (r.engine is None or r.engine in dead_engines)]
    return len(others) - len(resting(store, others, now))
