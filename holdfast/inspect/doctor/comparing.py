"""Comparing: the rows of a run against what its journal folds to.

Owns: what every row of the state tables must say, given an audit, and which ones say something else.
Never: changes the audit or the rows (repairs.py writes what `expected_*` tell).

Columns of the lease and of holds are not part of the fold. Of a wait or timer that is over only how it ended is
compared, beside what was known when it began: what else its row says depends on how its events were committed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.inspect.doctor import legality
from holdfast.inspect.doctor.facts import AuditFacts
from holdfast.model.fold import Fold
from holdfast.model.state import RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.violations import Repair, Violation
from holdfast.store.records.state_rows import node_row
from holdfast.store.row_types import BranchRow, Evidence, NodeRow, RunRow, TimerRow, WaitRow

_fold = msgspec.json.Decoder(Fold).decode

Key = tuple[str, str, int]
REQUESTED = frozenset(kind.__name__ for kind in legality.REQUESTS)


def compare(audit: AuditFacts, evidence: Evidence) -> list[Violation]:
    """What is wrong with the rows of the run whose events were fed."""
    row = evidence.run
    if row is None:
        return [_wrong(audit, "I44", "the run's row is missing, and its events are there", means=Repair.BY_HAND)]
    found = [*_heads(audit, row)]
    if not (audit.trusted and audit.sound) or found:
        return found  # a journal that cannot testify says nothing about rows
    found += _run(audit, row)
    found += _nodes(audit, evidence.nodes)
    found += _waits(audit, evidence.waits)
    found += _timers(audit, evidence.timers)
    found += _branches(audit, evidence.branches)
    found += _messages(audit, evidence)
    found += _rest(audit, row, evidence)
    return found


# --- what the rows must be -----------------------------------------------------------------------------------------


def expected_nodes(audit: AuditFacts) -> dict[Key, NodeRow]:
    """The rows of all instances, in the order in which they began."""
    rows: dict[Key, NodeRow] = {}
    for key, closed in audit.instances.items():
        if closed is not None:
            rows[key] = closed
            continue
        ns = audit.state.nodes.get(key[:2])
        if ns is not None and ns.visit == key[2]:
            rows[key] = NodeRow._make(node_row(audit.run_no, ns, 1))
    return rows


def expected_waits(audit: AuditFacts) -> dict[str, WaitRow]:
    """The rows of all waits that this run ever opened."""
    return audit.register.wait_rows(audit.state, audit.shared_until)


def expected_timers(audit: AuditFacts) -> dict[str, TimerRow]:
    """The rows of all timers that this run ever set."""
    return audit.register.timer_rows(audit.state, audit.shared_until)


# --- what they are -------------------------------------------------------------------------------------------------


def _heads(audit: AuditFacts, row: RunRow) -> Iterator[Violation]:
    if row.last_seq != audit.seq:
        what = f"the run's row says that event {row.last_seq} is the last one, and the journal ends with {audit.seq}"
        yield _wrong(audit, "I1", what, seq=audit.seq, means=Repair.REBUILD if audit.trusted else Repair.HOLD)
    elif row.head_hash != audit.hash:
        what = f"the run's row knows another event {audit.seq} than the journal has: one of them was changed"
        yield _wrong(audit, "I3", what, seq=audit.seq, means=Repair.HOLD)
    if row.token < audit.token:
        what = f"event {audit.seq} was written with token {audit.token}, and the run's row has {row.token}"
        yield _wrong(audit, "I4", what, seq=audit.seq, means=Repair.REBUILD if audit.trusted else Repair.HOLD)


def _run(audit: AuditFacts, row: RunRow) -> Iterator[Violation]:
    state = audit.state
    if row.version != state.plan.version:
        yield _differs(audit, "the run's version", row.version, state.plan.version)
    for column in ("status", "branch", "recoveries", "started_at", "finished_at"):
        wanted, found = getattr(state, column), getattr(row, column)
        if wanted != found:
            yield _differs(audit, f"the run's {column}", found, wanted)
    try:
        fold = _fold(row.fold or b"")
    except (msgspec.DecodeError, msgspec.ValidationError):
        yield _wrong(audit, "I5", "the run's fold cannot be read", means=Repair.REBUILD)
        return
    for name in Fold.__struct_fields__:
        wanted, found = getattr(state.fold, name), getattr(fold, name)
        if wanted != found:
            yield _differs(audit, f"the run's {name}", found, wanted)


def _nodes(audit: AuditFacts, rows: Sequence[NodeRow]) -> Iterator[Violation]:
    expected = expected_nodes(audit)
    found = {(row.node, row.path, row.visit): row for row in rows}
    for key in expected.keys() - found.keys():
        yield _wrong(audit, "I5", f"{_name(key)} has no row", key, means=Repair.REBUILD)
    for key, row in found.items():
        wanted = expected.get(key)
        if wanted is None:
            what = f"{_name(key)} has a row, and the journal knows nothing of it"
            yield _wrong(audit, "I5", what, key, means=Repair.REBUILD)
        elif row != wanted:
            yield from _columns(audit, f"{_name(key)}", row, wanted, key)


def _waits(audit: AuditFacts, rows: Sequence[WaitRow]) -> Iterator[Violation]:
    expected = expected_waits(audit)
    found = {row.wait_id: row for row in rows}
    for wait_id in expected.keys() - found.keys():
        wait = expected[wait_id]
        yield _wrong(audit, "I5", f"wait {wait_id} has no row", (wait.node, wait.path, 1), means=Repair.REBUILD)
    for wait_id, row in found.items():
        wanted = expected.get(wait_id)
        if wanted is None:
            what = f"wait {wait_id} has a row, and the journal knows nothing of it"
            yield _wrong(audit, "I5", what, means=Repair.REBUILD)
            continue
        if wanted.status == "closed":
            wanted = wanted._replace(data=row.data, basket=row.basket, assignee=row.assignee)
        if row != wanted:
            yield from _columns(audit, f"wait {wait_id}", row, wanted, (row.node, row.path, row.visit))


def _timers(audit: AuditFacts, rows: Sequence[TimerRow]) -> Iterator[Violation]:
    expected = expected_timers(audit)
    found = {row.timer: row for row in rows}
    for timer in expected.keys() - found.keys():
        yield _wrong(audit, "I5", f"timer {timer} has no row", means=Repair.REBUILD)
    for timer, row in found.items():
        wanted = expected.get(timer)
        if wanted is None:
            what = f"timer {timer} has a row, and the journal knows nothing of it"
            yield _wrong(audit, "I5", what, means=Repair.REBUILD)
            continue
        if wanted.status != "set":
            wanted = wanted._replace(due_at=row.due_at, branch=row.branch, boot=row.boot, elapsed=row.elapsed)
        if row != wanted:
            yield from _columns(audit, f"timer {timer}", row, wanted)


def _branches(audit: AuditFacts, rows: Sequence[BranchRow]) -> Iterator[Violation]:
    found = {row.branch: row for row in rows}
    for number in audit.opened.keys() | found.keys():
        wanted, row = audit.opened.get(number), found.get(number)
        if wanted is None:  # an unused branch is harmless: a run continues on its current one
            continue
        if row is None:
            yield _wrong(audit, "I35", f"branch {number} has no row")
        elif row[2:6] != (wanted.parent, wanted.cutoff_seq, wanted.key_epoch, wanted.reason):
            yield _wrong(audit, "I35", f"branch {number} is not the one that the journal opened")


def _messages(audit: AuditFacts, evidence: Evidence) -> Iterator[Violation]:
    rows = {row.message_id: row for row in evidence.messages}
    for message_id, event in audit.messages.items():
        row = rows.get(message_id)
        wanted = "consumed" if event == "MessageConsumed" else "dead"
        if row is None:
            yield _wrong(audit, "I24", f"message {message_id} was taken, and its row is missing")
        elif row.status != wanted:
            yield _wrong(audit, "I24", f"message {message_id} was taken, and its row says {row.status}")
    for row in evidence.messages:
        if row.status == "held" and row.kind != "signal":
            yield _wrong(audit, "I24", f"message {row.message_id} is a {row.kind}, and is kept like a signal")
        # a signal is redelivered when the run continues from before it was received; nothing else is consumed twice
        settled = audit.messages if row.kind == "signal" else audit.settled
        if row.status == "consumed" and row.message_id not in settled:
            yield _wrong(audit, "I24", f"message {row.message_id} counts as consumed, and no event consumed it")


def _rest(audit: AuditFacts, row: RunRow, evidence: Evidence) -> Iterator[Violation]:
    """Statuses against what they mean, whatever the rows say."""
    state: RunState = audit.state
    asked = any(message.status == "new" for message in evidence.messages)  # then an engine may own it to open a branch
    if state.status in RUN_TERMINAL and row.engine is not None and not asked:
        yield _wrong(
            audit, "I22", f"the run has {state.status}, and engine {row.engine} still owns it", means=Repair.FREE
        )
    if state.status is RunStatus.SUSPENDED and not state.waits and not state.timers:
        yield _wrong(audit, "I20", "the run is suspended, and nothing can wake it", means=Repair.RECOVER)
    if audit.ended in REQUESTED:
        what = f"the journal ends with {audit.ended}, and no branch was opened"
        yield _wrong(audit, "I35", what, seq=audit.seq, means=Repair.RECOVER)
    for ns in state.nodes.values():
        if ns.status is NodeStatus.FAILED and ns.finished_at is None:
            what = f"{_name((ns.node, ns.path, ns.visit))} failed and was to be tried again, and nothing followed"
            yield _wrong(audit, "I12", what, (ns.node, ns.path, ns.visit), seq=ns.output_seq, means=Repair.RECOVER)


def _columns(
    audit: AuditFacts, whose: str, row: Any, wanted: Any, key: tuple[str | None, str | None, int] | None = None
) -> Iterator[Violation]:
    for column, is_, should in zip(wanted._fields, row, wanted, strict=True):
        if is_ != should:
            yield _differs(audit, f"{whose}: {column}", is_, should, key)


def _differs(
    audit: AuditFacts, what: str, found: Any, wanted: Any, key: tuple[str | None, str | None, int] | None = None
) -> Violation:
    said = f"{what} is {_short(found)} in its row and {_short(wanted)} by the journal"
    return _wrong(audit, "I5", said, key, means=Repair.REBUILD)


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _name(key: Key) -> str:
    node, path, visit = key
    again = f"#{visit}" if visit != 1 else ""
    return node if path == "." and not again else f"{node}@{path}{again}"


def _wrong(
    audit: AuditFacts,
    code: str,
    what: str,
    key: tuple[str | None, str | None, int] | None = None,
    *,
    seq: int | None = None,
    means: Repair = Repair.BY_HAND,
) -> Violation:
    node, path = key[:2] if key is not None else (None, None)
    return audit.violation(code, what, node, path, seq, means)
