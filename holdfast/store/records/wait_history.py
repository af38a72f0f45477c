"""Register: every wait and timer that a run ever had, on any branch, as the rows they must have.

Owns: rows of waits and timers that are made from a whole journal, by whoever writes them anew or checks them. (While a
run goes on, rows.py makes them from the latest events.)
Invariants: it may be told of an event more than once, and in any order: the latest one of each kind counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.model import events as ev
from holdfast.model.state import RunState
from holdfast.store.records.state_rows import wait_row
from holdfast.store.row_types import TimerRow, WaitRow


class _Closed(NamedTuple):
    seq: int
    outcome: str
    actor: str | None


class _Set(NamedTuple):
    seq: int
    due_at: int
    branch: int
    boot: str
    elapsed: int


class _Over(NamedTuple):
    seq: int
    status: str
    branch: int


_LEFT_BEHIND = _Closed(0, "superseded", None)
"""How a wait ended that no event closed: another branch was opened, and it did not take it over."""


class Register:
    """The waits and timers of one run. Of a run that was forked off another one, what lies before `after`, the cut, is
    with that one."""

    def __init__(self, entries: Iterable[ev.Entry] = ()) -> None:
        self.opened: dict[str, ev.Entry] = {}
        """Every wait that was ever opened."""
        self.timers: dict[str, _Set] = {}
        """Every timer that was ever set."""
        self._closed: dict[str, _Closed] = {}
        self._over: dict[str, _Over] = {}
        for entry in entries:
            self.note(entry)

    def copy(self) -> Register:
        """A second register that goes on from here by itself."""
        other = Register()
        other.opened, other.timers = dict(self.opened), dict(self.timers)
        other._closed, other._over = dict(self._closed), dict(self._over)
        return other

    def note(self, entry: ev.Entry) -> None:
        """Take an event of the run."""
        match entry.event:
            case ev.WaitOpened(wait_id=wait_id):
                self.opened.setdefault(wait_id, entry)
            case ev.WaitClosed(wait_id=wait_id, outcome=outcome, actor=actor):
                closed = _Closed(entry.seq, outcome, actor or None)
                self._closed[wait_id] = max(closed, self._closed.get(wait_id, closed))
            case ev.TimerSet(timer=timer, due_at=due_at, boot=boot, elapsed=elapsed):
                made = _Set(entry.seq, due_at, entry.branch, boot, elapsed)
                self.timers[timer] = max(made, self.timers.get(timer, made))
            case ev.TimerFired(timer=timer):
                self._end(timer, _Over(entry.seq, "fired", entry.branch))
            case ev.TimerCancelled(timer=timer):
                self._end(timer, _Over(entry.seq, "cancelled", entry.branch))

    def _end(self, timer: str, over: _Over) -> None:
        self._over[timer] = max(over, self._over.get(timer, over))

    def wait_rows(self, state: RunState, after: int = 0) -> dict[str, WaitRow]:
        """The rows of all waits that were opened behind `after`, when this is what the journal folds to."""
        rows: dict[str, WaitRow] = {}
        for wait_id, entry in self.opened.items():
            if entry.seq <= after:
                continue
            wait = state.waits.get(wait_id)
            row = rows[wait_id] = wait_row(state.run_no, entry, wait)
            if wait is None:
                _, outcome, actor = self._closed.get(wait_id, _LEFT_BEHIND)
                rows[wait_id] = row._replace(status="closed", outcome=outcome, actor=actor)
        return rows

    def timer_rows(self, state: RunState, after: int = 0) -> dict[str, TimerRow]:
        """The rows of all timers that were set behind `after`, when this is what the journal folds to."""
        rows: dict[str, TimerRow] = {}
        for timer, (seq, due_at, branch, boot, elapsed) in self.timers.items():
            if seq <= after:
                continue
            over = self._over.get(timer)
            if timer in state.timers:
                boot, elapsed = state.lasting.get(timer, ("", 0))
                rows[timer] = TimerRow(state.run_no, timer, state.timers[timer], branch, "set", boot, elapsed)
            elif over is not None and over.seq > seq:
                rows[timer] = TimerRow(state.run_no, timer, due_at, over.branch, over.status, boot, elapsed)
            else:  # a branch left it behind
                rows[timer] = TimerRow(state.run_no, timer, due_at, branch, "cancelled", boot, elapsed)
        return rows
