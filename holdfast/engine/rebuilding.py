"""Rebuilding: a run's rows written again from its journal, by the engine that holds its lease.

Owns: case R1 of the catalogue: which rows are not what an intact journal folds to, and the commit that rewrites them.
Never: opens a branch, or changes what happened: the run goes on from the last event of its journal, or has ended there.
(repairs.py does the same to a run without an owner, for an operator who asks for it.)
On crash: the commit has landed or it has not; before it the run is found in the same state again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.engine import redelivery
from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.rules.draft import Draft
from holdfast.store.contract import Store
from holdfast.store.records import state_rows
from holdfast.store.records.expected_rows import ExpectedRows, JournalAudit
from holdfast.store.records.journal import readable
from holdfast.store.row_types import Commit, EventRow, MessageOutcome, MessageRow, RunRow, TimerRow, WaitRow

CASE = "R1"


class Difference:
    """How the rows of a run differ from what its journal, which is intact, folds to."""

    def __init__(self, row: RunRow, expected: ExpectedRows, differs: str) -> None:
        self.row = row
        self.expected = expected
        if expected.seq > row.last_seq:
            self.what = f"its rows were those of event {row.last_seq}, and its journal goes on to event {expected.seq}"
        elif expected.seq < row.last_seq:
            self.what = f"its rows were those of event {row.last_seq}, and its journal ends with event {expected.seq}"
        else:
            self.what = f"its rows were not what its journal tells: {differs}"

    @property
    def lacks_events(self) -> bool:
        """The rows know of events that the journal does not have: what they told was acknowledged, and is lost."""
        return self.expected.seq < self.row.last_seq

    @property
    def has_ended(self) -> bool:
        return self.expected.state.status in RUN_TERMINAL


class LowToken(NamedTuple):
    """The row of a run fell behind its journal so far that its token did as well. The token is raised first: a run's
    events never have a lower token than those before them."""

    journal: int
    """The token of the last event."""

    @property
    def raised(self) -> int:
        """What the row's token becomes. No engine that ever wrote to the run has it."""
        return self.journal + 1


def low_token(events: Sequence[EventRow], row: RunRow) -> LowToken | None:
    """Whether the token of a run's row is behind its journal. A claim gives a run a token that no event has yet."""
    written = max((event.token for event in events if event.run_no == row.run_no), default=0)
    is_behind = row.token < written if row.engine is None else row.token <= written
    return LowToken(written) if is_behind else None


def difference(audit: JournalAudit, row: RunRow) -> Difference | str | None:
    """How a run's rows differ from its journal; a sentence when something else is wrong; None: they are in order.
    Raises CorruptJournal when the journal cannot testify."""
    expected = audit.expected
    if expected is None or audit.damage is not None:
        raise CorruptJournal(audit.damage)
    return audit.problem if audit.differs is None else Difference(row, expected, audit.differs)


def commit(store: Store, found: Difference, now: int, message: MessageRow | None) -> Commit:
    """All rows of the run as its journal has them, and its lease given back. A run that has not ended is told of it by
    `RunRecovered`; of one that has, the last event stays the last."""
    row, expected = found.row, found.expected
    state = expected.state
    state.seq, state.head_hash = expected.seq, expected.head_hash
    draft = Draft(state, now)
    if not found.has_ended:
        draft.emit(ev.RunRecovered(CASE, row.branch, state.branch, expected.seq, found.what))
        if message is not None:
            draft.emit(ev.MessageConsumed(message.message_id, message.kind))
    events, _ = state_rows.event_rows(state, draft.entries, row.token)
    state.fold_changed = True
    there = {(node.node, node.path, node.visit): node for node in store.nodes(row.run_no)}
    return Commit(
        row.run_no,
        row.token,
        row.last_seq,
        change=state_rows.run_change(state, None),
        nodes=[node for key, node in expected.nodes.items() if there.get(key) != node],
        events=events,
        waits=[*expected.waits.values(), *_unknown_waits(store, row, expected)],
        timers=[*expected.timers.values(), *_unknown_timers(store, row, expected)],
        outcomes=list(_settled(store, row)),
        gone=[key for key in there if key not in expected.nodes],
        version=state.plan.version if state.plan.version != row.version else 0,
        ends=found.has_ended,
        expected_hash=row.head_hash,
    )


def _unknown_waits(store: Store, row: RunRow, expected: ExpectedRows) -> Iterator[WaitRow]:
    """Open waits that the journal knows nothing of: they are closed, so that no answer to them is taken."""
    for wait in store.open_waits([row.run_no]):
        if wait.wait_id not in expected.opened_waits:
            yield wait._replace(status="closed", outcome="superseded")


def _unknown_timers(store: Store, row: RunRow, expected: ExpectedRows) -> Iterator[TimerRow]:
    for timer in store.set_timers([row.run_no]):
        if timer.timer not in expected.known_timers:
            yield timer._replace(status="cancelled")


def _settled(store: Store, row: RunRow) -> Iterator[MessageOutcome]:
    """Messages that the journal has taken behind the event that the rows know: they are not taken again."""
    for event in store.events(row.run_no, row.last_seq, types=("MessageConsumed", "MessageRefused")):
        settled = readable(row.run_id, event.seq, event.type, event.data)
        stored = store.message(settled.message_id)
        if stored is not None and stored.status in ("new", "held"):
            yield redelivery.outcome(settled)
