"""Undriven commits: commits of runs that no engine drives, made under their lease.

Owns: the rows of a new branch; which signals of a run are redelivered when it continues on a new branch, and which ones
a forked run gets copies of; the answer to a request; and the rows of a run written again from its intact journal (case
R1 of the catalogue).
Never: decides what is kept (rules/branch_cut.py), changes an event.
Signals: one that was received after the cut, or by an instance that is dropped, is `new` again, and the next owner
applies it as if it had just arrived. One that was received on the part that is kept counts as received, also when it
was redelivered before, on another branch. A signal that no call has received yet stays; if others are redelivered, it
is recorded once more after them, so that all arrive in the order in which they were sent. Other messages have their one
effect on one branch and are never redelivered: an answer is bound to its question, which is asked again under
another id. A forked run has its own inbox: it gets copies under ids of its own, and the other run keeps the originals.
Invariants: on every branch each signal is received at most once.
On crash: a commit has landed or it has not; before it the run is found in the same state again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal
from holdfast.model.lineage import Branch
from holdfast.model.naming import derived
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.rules.draft import Draft, Refusal
from holdfast.store.contract import Store
from holdfast.store.records import state_rows
from holdfast.store.records.expected_rows import ExpectedRows, JournalAudit
from holdfast.store.records.journal import readable
from holdfast.store.row_types import (
    BranchRow,
    Commit,
    EventRow,
    MessageOutcome,
    MessageRow,
    RunChange,
    RunRow,
    TimerRow,
    WaitRow,
)

_encode = msgspec.json.Encoder().encode


def opening_commit(store: Store, row: RunRow, draft: Draft, branch: Branch, origin_no: int | None = None) -> Commit:
    """Events and rows of a new branch, the rows in place of the old one's."""
    state = draft.state
    events, _ = state_rows.event_rows(state, draft.entries, row.token)
    before = {(n.node, n.path, n.visit): n for n in store.nodes(row.run_no)}
    after = {(n[1], n[2], n[3]): n for n in state_rows.changed_nodes(state)}
    state.fold_changed = True
    cut = (branch.branch, branch.parent or 0, branch.cutoff_seq, branch.key_epoch, branch.reason)
    return Commit(
        row.run_no,
        row.token,
        row.last_seq,
        nodes=[node for key, node in after.items() if before.get(key) != node],
        events=events,
        opens=BranchRow(row.run_no, *cut, origin_no, draft.now),
        gone=[key for key in before if key not in after],
        version=branch.version if branch.version != row.version else 0,
        begins=(row.workflow, branch.version),
        expected_hash=row.head_hash,
    )


def refuse_retired(store: Store, workflow: str, version: int) -> None:
    """Raise Refusal if a branch would begin under a retired version. The commit that opens it is refused as well, if
    the version is retired meanwhile."""
    row = store.version(workflow, version)
    if row is not None and row.retired_at is not None:
        what = f"version {version} of workflow {workflow} is retired, and nothing of it starts"
        raise Refusal("version_retired", f"{what}. Deploy it again, or name another version")


def signals_to_redeliver(
    store: Store, run_no: int, journal: Iterable[ev.Entry], kept: Sequence[ev.Entry]
) -> list[MessageOutcome]:
    """What becomes of the signals of a run whose new branch inherits `kept`."""
    now, rows = _taken(kept), _signals(store, run_no, journal)
    received = [row for row in rows if row.message_id in now and row.status != _STATUS[type(now[row.message_id])]]
    returned = [row for row in rows if row.message_id not in now and row.status in ("consumed", "dead")]
    if returned:
        returned += [row for row in rows if row.message_id not in now and row.status == "held"]
    outcomes = [outcome(now[row.message_id]) for row in received]
    return outcomes + [MessageOutcome(row.message_id, "new", None) for row in returned]


def copies(
    store: Store, run_no: int, journal: Iterable[ev.Entry], kept: Sequence[ev.Entry], to_run_no: int, to_run_id: str
) -> list[MessageRow]:
    """The signals of a run that a run which is forked off it, and inherits `kept`, has yet to receive."""
    now = _taken(kept)
    unreceived = [row for row in _signals(store, run_no, journal) if row.message_id not in now]
    return [
        MessageRow(derived("m_", to_run_id, "copy", row.message_id), to_run_no, row.kind, row.payload, row.created_at)
        for row in unreceived
    ]


_STATUS = {ev.MessageConsumed: "consumed", ev.MessageRefused: "dead"}


def _taken(entries: Iterable[ev.Entry]) -> dict[str, ev.MessageConsumed | ev.MessageRefused]:
    """Signals that an instance has received (or could not decode), by id. One that was refused on arrival has no
    instance: its sender knows that it was not accepted."""
    return {
        entry.event.message_id: entry.event
        for entry in entries
        if type(entry.event) in _STATUS and entry.event.kind == "signal" and entry.node is not None
    }


def _signals(store: Store, run_no: int, journal: Iterable[ev.Entry]) -> list[MessageRow]:
    """Those that were received on some branch, and those that wait to be, in order of arrival."""
    rows = {row.message_id: row for row in (*store.held_messages([run_no]), *store.new_messages([run_no]))}
    for message_id in _taken(journal):
        row = store.message(message_id)
        if row is not None and row.run_no == run_no:  # else it was sent to the run that this one was forked off
            rows[message_id] = row
    return sorted((row for row in rows.values() if row.kind == "signal"), key=lambda row: row.no)


def outcome(event: ev.MessageConsumed | ev.MessageRefused) -> MessageOutcome:
    """What the row of a message says that a run has received, or refused."""
    if isinstance(event, ev.MessageRefused):
        verdict = {"outcome": "refused", "code": event.code, "why": event.why}
        return MessageOutcome(event.message_id, "dead", _encode(verdict))
    return MessageOutcome(event.message_id, "consumed", _encode({"outcome": "applied"}))


def refusal_commit(row: RunRow, message: MessageRow, refusal: Refusal) -> Commit:
    """The commit that answers a request with a refusal."""
    return answer_commit(row, message, {"outcome": "refused", "code": refusal.code, "why": refusal.why})


def answer_commit(row: RunRow, message: MessageRow, verdict: dict[str, Any]) -> Commit:
    """The commit that only answers a request: the run stays as it is, and its lease is released."""
    change = RunChange(
        row.last_seq,
        row.head_hash,
        row.status,
        row.branch,
        None,
        row.recoveries,
        row.started_at,
        row.finished_at,
        None,
        row.format,
    )
    outcome = MessageOutcome(message.message_id, "dead", _encode(verdict))  # no event records it
    return Commit(row.run_no, row.token, row.last_seq, change=change, outcomes=[outcome], expected_hash=row.head_hash)


# --- rows that differ from their journal ----------------------------------------------------------------------------


CASE = "R1"


class Difference:
    """How the rows of a run differ from what its journal, which is intact, folds to."""

    def __init__(self, row: RunRow, expected: ExpectedRows, differs: str) -> None:
        self.row = row
        self.expected = expected
        if expected.seq > row.last_seq:
            self.what = (
                f"its rows were those of event {row.last_seq}, and its journal continues to event {expected.seq}"
            )
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


def rebuild_commit(store: Store, found: Difference, now: int, message: MessageRow | None) -> Commit:
    """All rows of the run as its journal has them, and its lease released. A run that has not ended records it with
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
            yield outcome(settled)
