"""Proof: an audit, fed from a store.

Owns: reading a run's journal in portions and its rows at the moment of its last event, so that a live engine gives no
false alarm, and a run of any length needs little memory at once.
Never: judges (audit.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.engine.doctor.audit import Audit
from holdfast.engine.doctor.violations import Violation
from holdfast.engine.versions import Versions
from holdfast.store.api import EventRow, RunRow, Store

PAGE = 10_000
"""Events read at once; 10,000 are a few megabytes."""


def audit_of(store: Store, versions: Versions, row: RunRow, *, early_micros: int = 0) -> Audit:
    """An audit of a run that has not been fed yet. Raises CorruptJournal when its version is not in the store."""
    return Audit(
        versions.numbered(row.workflow, row.version),
        row.run_no,
        row.run_id,
        plan_of=lambda version: versions.numbered(row.workflow, version),
        recall=lambda seq: _journal(store, row.run_no, before=seq),
        early_micros=early_micros,
    )


def prove(store: Store, audit: Audit) -> list[Violation]:
    """Feed an audit with what is new since the last time, and compare the rows; what is wrong."""
    found: list[Violation] = []
    while True:
        evidence = store.evidence(audit.run_no, audit.seq, PAGE)
        for branch in evidence.branches if audit.seq == 0 else ():
            if branch.origin_no is not None:
                found += audit.feed(_journal(store, audit.run_no, before=branch.cutoff_seq + 1))
        found += audit.feed(evidence.events)
        if evidence.complete:
            return found + audit.compare(evidence)


def _journal(store: Store, run_no: int, before: int) -> Iterable[EventRow]:
    """A run's events from the first one on, with those that it shares with the run it was forked from."""
    return _until(_pages(store, run_no), before)


def _pages(store: Store, run_no: int) -> Iterator[EventRow]:
    after = 0
    while page := store.events(run_no, after, PAGE):
        yield from page
        after = page[-1].seq


def _until(rows: Iterator[EventRow], before: int) -> Iterator[EventRow]:
    for row in rows:
        if row.seq >= before:
            return
        yield row
