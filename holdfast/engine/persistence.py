"""Persistence: what a `lazy` or `interval` run may hold back, and when it must commit.

Owns: the events that are decided and not written yet.
Rule: bodies may start before the commit that orders them, except those that a crash must not repeat; nothing may leave
    the run before it.
On crash: what was held back never happened; attempt numbers repeat and keys are the same.
"""

from __future__ import annotations

from holdfast.model import events as ev
from holdfast.model.limits import BUFFERED_BYTES_MAX, BUFFERED_EVENTS_MAX
from holdfast.model.policies import seconds
from holdfast.model.state import RunState
from holdfast.model.statuses import RunStatus
from holdfast.model.timers import is_start_timer
from holdfast.rules.draft import Draft
from holdfast.store.records.stored_values import Values

_STAYS_INSIDE = frozenset(
    {
        ev.NodeScheduled,
        ev.NodeStarted,
        ev.NodeCompleted,
        ev.NodeFailed,
        ev.NodeSkipped,
        ev.StepCompleted,
        ev.StepFailed,
        ev.ScopeOpened,
        ev.ScopeClosed,
        ev.PhaseStarted,
        ev.PhaseCompleted,
    }
)
"""Everything else leaves the run, wakes it, or ends it: it is committed first."""


class Persistence:
    """The buffer of one run; empty for ever when it is `aggressive`."""

    __slots__ = ("_bytes", "entries", "interval_seconds", "lazy")

    def __init__(self, mode: str) -> None:
        self.lazy = mode != "aggressive"
        self.interval_seconds = seconds(mode.removeprefix("interval:")) if mode.startswith("interval:") else None
        self.entries: list[ev.Entry] = []
        self._bytes = 0

    def may_hold(self, draft: Draft, state: RunState) -> bool:
        """Whether this turn may wait for a later commit."""
        if not self.lazy or state.status is not RunStatus.RUNNING or state.fold.closing:
            return False
        if draft.undo_wanted or draft.finish:
            return False
        extras = draft.extras
        if extras is not None and (extras.outcomes or extras.messages or extras.children):
            return False
        if len(self.entries) + len(draft.entries) > BUFFERED_EVENTS_MAX or self._bytes > BUFFERED_BYTES_MAX:
            return False
        return all(
            type(e.event) in _STAYS_INSIDE and not _is_committed_first(e) and not _is_once(e, state)
            for e in draft.entries
        )

    def hold(self, draft: Draft, values: Values, run_no: int) -> None:
        """Keep a turn in memory, with the values its readers will want."""
        for entry in draft.entries:
            event = entry.event
            if isinstance(event, ev.NodeCompleted):
                values.pin(run_no, entry.seq, bytes(event.output), {k: bytes(v) for k, v in event.vars.items()})
                self._bytes += len(bytes(event.output))
            elif isinstance(event, ev.StepCompleted):
                self._bytes += len(bytes(event.output))
        self.entries += draft.entries

    def take(self) -> list[ev.Entry]:
        """Everything held back, now that it is committed."""
        taken, self.entries, self._bytes = self.entries, [], 0
        return taken


UNBUFFERED = Persistence("aggressive")
"""The buffer of all runs that hold nothing back."""


def _is_committed_first(entry: ev.Entry) -> bool:
    event = entry.event
    if isinstance(event, ev.NodeScheduled) and event.died:
        return True  # the death of its process is counted, whatever becomes of the engine
    return isinstance(event, ev.TimerSet) and is_start_timer(event.timer)


def _is_once(entry: ev.Entry, state: RunState) -> bool:
    """Whether this starts a body that a crash must not repeat: only a start that was committed is known afterwards."""
    if not isinstance(entry.event, ev.NodeStarted):
        return False
    assert entry.node is not None
    assert entry.path is not None
    return state.nodes[entry.node, entry.path].plan.definition.on_crash != "rerun"  # also of a compensation
