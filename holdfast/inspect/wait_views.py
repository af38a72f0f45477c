"""Waits as people see them: what a run waits for, and what everybody is asked.

Owns: `Wait`, its JSON shape, whether anything but the outside can move a run, and the command that does.
Never: changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.model.errors import NewerFormat
from holdfast.model.journal_format import is_newer, newer
from holdfast.model.limits import WAITS_AT_ONCE
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.timers import is_start_timer
from holdfast.model.views import Wait, iso_or_none, when
from holdfast.store.contract import Store
from holdfast.store.records.state_rows import about_of, child_of
from holdfast.store.row_types import AskedRow, RunRow, TimerRow, WaitRow

OF_PEOPLE = frozenset({"input", "signal", "basket", "pause", "hold"})
"""Kinds of waits that nothing but somebody from outside ends (or the deadline of a question)."""


def hold_of(row: RunRow) -> str | None:
    """Why no engine here may touch a run: it was put on hold, or a newer Holdfast wrote it and none drives it now."""
    if row.hold is None and row.engine is None and is_newer(row.format) and row.status not in RUN_TERMINAL:
        return f"{NewerFormat.code}: {newer(row.format)}"
    return row.hold


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
    """The waits of a run, and of the children it waits for, where nothing but somebody from outside can move it; else
    None. The deadline of a question counts when it has passed: nobody stays for days to see that."""
    if hold_of(row) is not None:
        return waits_of(store, row)
    if row.status != RunStatus.SUSPENDED or store.new_messages([row.run_no]):  # an answer may be on its way
        return None
    return _rests(store, row, store.open_waits([row.run_no]), store.set_timers([row.run_no]), now)


def resting(store: Store, rows: Sequence[RunRow], now: int) -> set[int]:
    """The numbers of those of some runs that nothing but somebody from outside can move, however many they are."""
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
        if below is None:  # a sleep, a deadline that is due, a child that goes on
            return None
        found += below
    return found or None
