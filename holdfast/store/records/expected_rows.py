"""Expected rows: what the state tables must hold for a run, according to its journal.

Owns: the result of an audit, with which the engine rewrites rows, and the rows of waits and timers that are derived
from a whole journal. (While a run advances, state_rows.py derives them from the latest events.)
Never: audits (inspect/doctor/audit.py) or writes (engine/undriven_commits.py, engine/repairs.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.model import events as ev
from holdfast.model.state import RunState
from holdfast.store.records.state_rows import wait_row
from holdfast.store.row_types import NodeRow, TimerRow, WaitRow

InstanceKey = tuple[str, str, int]
"""(node, path, visit)"""


class ExpectedRows(msgspec.Struct, frozen=True):
    """The rows of one run that an intact journal folds to."""

    seq: int
    head_hash: bytes
    token: int
    """The highest token of an event of the journal."""
    state: RunState
    nodes: dict[InstanceKey, NodeRow]
    waits: dict[str, WaitRow]
    timers: dict[str, TimerRow]
    opened_waits: frozenset[str]
    """Every wait of the journal, on any branch, also of the run that this one was forked from."""
    known_timers: frozenset[str]


class JournalAudit(msgspec.Struct, frozen=True):
    """The result of the audit of one run."""

    expected: ExpectedRows | None
    """None if the journal is damaged: events are missing, were changed, or do not follow each other."""
    damage: str | None = None
    """The first damage of the journal, or of what the run's row says about its last event."""
    differs: str | None = None
    """The first difference between the rows and the expected ones."""
    problem: str | None = None
    """The first problem other than a difference of rows."""


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
"""The end of a wait that no event closed: another branch was opened, and did not inherit it."""


class WaitAndTimerHistory:
    """Every wait and timer that one run ever had, on any branch. For a forked run, those before the cut (`after`)
    belong to its origin. Events may be added more than once, and in any order: the latest of each kind counts."""

    def __init__(self, entries: Iterable[ev.Entry] = ()) -> None:
        self.opened: dict[str, ev.Entry] = {}
        """Every wait that was ever opened."""
        self.timers: dict[str, _Set] = {}
        """Every timer that was ever set."""
        self._closed: dict[str, _Closed] = {}
        self._over: dict[str, _Over] = {}
        for entry in entries:
            self.note(entry)

    def copy(self) -> WaitAndTimerHistory:
        """A copy that can be extended independently."""
        other = WaitAndTimerHistory()
        other.opened, other.timers = dict(self.opened), dict(self.timers)
        other._closed, other._over = dict(self._closed), dict(self._over)
        return other

    def note(self, entry: ev.Entry) -> None:
        """Add an event of the run."""
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
        """The rows of all waits that were opened after `after`, given the state that the journal folds to."""
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
        """The rows of all timers that were set after `after`, given the state that the journal folds to."""
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
