"""Expected rows: what the state tables must hold for a run, by its journal.

Owns: the form in which an audit of a journal hands its result to the engine, which writes rows again.
Never: audits (inspect/doctor/audit.py) or writes (engine/rebuilding.py, engine/repairs.py).
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
    """The highest that an event of the journal carries."""
    state: RunState
    nodes: dict[InstanceKey, NodeRow]
    waits: dict[str, WaitRow]
    timers: dict[str, TimerRow]
    opened_waits: frozenset[str]
    """Every wait that the journal knows, on any branch, also of the run that this one was forked from."""
    known_timers: frozenset[str]


class JournalAudit(msgspec.Struct, frozen=True):
    """What an audit of one run came to."""

    expected: ExpectedRows | None
    """None when the journal cannot testify: events are missing, were changed, or do not follow each other."""
    damage: str | None = None
    """The first damage of the journal, or of what the run's row says about its last event."""
    differs: str | None = None
    """The first way in which the rows differ from what is expected."""
    problem: str | None = None
    """The first thing that is wrong, where rows do not differ."""


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
