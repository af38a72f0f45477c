"""Proof: an audit, fed from a store.

Owns: reading a run's journal in portions and its rows at the moment of its last event, so that a live engine gives no
false alarm, and a run of any length needs little memory at once.
Never: judges (audit.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.inspect.doctor import comparing
from holdfast.inspect.doctor.audit import Audit
from holdfast.model.limits import DOCTOR_EVENTS_AT_ONCE
from holdfast.model.violations import Repair, Violation
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import ExpectedRows, JournalAudit
from holdfast.store.records.journal import Plans
from holdfast.store.row_types import EventRow, RunRow


def audit_of(store: Store, plans: Plans, row: RunRow, *, early_micros: int = 0) -> Audit:
    """An audit of a run that has not been fed yet. Raises CorruptJournal when its version is not in the store."""
    return Audit(
        plans.numbered(row.workflow, row.version),
        row.run_no,
        row.run_id,
        plan_of=lambda version: plans.numbered(row.workflow, version),
        recall=lambda seq: _journal(store, row.run_no, before=seq),
        early_micros=early_micros,
    )


def prove(store: Store, audit: Audit) -> list[Violation]:
    """Feed an audit with what is new since the last time, and compare the rows; what is wrong."""
    found: list[Violation] = []
    while True:
        evidence = store.evidence(audit.run_no, audit.seq, DOCTOR_EVENTS_AT_ONCE)
        for branch in evidence.branches if audit.seq == 0 else ():
            if branch.origin_no is not None:
                found += audit.feed(_journal(store, audit.run_no, before=branch.cutoff_seq + 1))
        found += audit.feed(evidence.events)
        if evidence.complete:
            return found + audit.compare(evidence)


def audited(store: Store, plans: Plans, row: RunRow) -> JournalAudit:
    """Audit a run: what its rows must be, and whether they are. Raises CorruptJournal when its version is missing."""
    audit = audit_of(store, plans, row)
    found = prove(store, audit)
    damage = next((v.what for v in found if v.means is Repair.HOLD), None)
    if not (audit.trusted and audit.sound):
        return JournalAudit(None, damage or "its journal does not make sense")
    differs = next((v.what for v in found if v.means is Repair.REBUILD), None)
    return JournalAudit(expected_rows(audit), damage, differs, found[0].what if found else None)


def expected_rows(audit: Audit) -> ExpectedRows:
    """What the state tables must hold for the run of an audit that trusts its journal."""
    return ExpectedRows(
        seq=audit.seq,
        head_hash=audit.hash,
        token=audit.token,
        state=audit.state,
        nodes=comparing.expected_nodes(audit),
        waits=comparing.expected_waits(audit),
        timers=comparing.expected_timers(audit),
        opened_waits=frozenset(audit.register.opened),
        known_timers=frozenset(audit.register.timers),
    )


def _journal(store: Store, run_no: int, before: int) -> Iterable[EventRow]:
    """A run's events from the first one on, with those that it shares with the run it was forked from."""
    return _until(_pages(store, run_no), before)


def _pages(store: Store, run_no: int) -> Iterator[EventRow]:
    after = 0
    while page := store.events(run_no, after, DOCTOR_EVENTS_AT_ONCE):
        yield from page
        after = page[-1].seq


def _until(rows: Iterator[EventRow], before: int) -> Iterator[EventRow]:
    for row in rows:
        if row.seq >= before:
            return
        yield row
