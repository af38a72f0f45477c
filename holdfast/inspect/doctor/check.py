"""Check: the doctor's proof of one run, and of a whole database.

Owns: feeding an audit from a store; which runs are checked, in which order; one report of everything that was found.
Never: changes anything (engine/repairs.py does), judges events or rows itself (legality.py, comparing.py, survey.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.inspect.doctor import comparing
from holdfast.inspect.doctor.audit import Audit
from holdfast.inspect.doctor.survey import survey
from holdfast.model import definition as definitions
from holdfast.model.errors import CorruptJournal, DefinitionError, StoreError
from holdfast.model.journal_format import is_newer
from holdfast.model.limits import CLOCK_SLACK_MICROSECONDS, DOCTOR_EVENTS_AT_ONCE, DOCTOR_RUNS_AT_ONCE, ORPHAN_SECONDS
from holdfast.model.validation import check as problems_of
from holdfast.model.violations import Repair, Report, Violation, violation
from holdfast.store.clocks import Clock, clock_of
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import ExpectedRows, JournalAudit
from holdfast.store.records.journal import Plans
from holdfast.store.records.run_records import find_run
from holdfast.store.row_types import EventRow, RunRow
from holdfast.store.version_contract import VersionRow


def audit_of(store: Store, plans: Plans, row: RunRow, *, early_micros: int = 0) -> Audit:
    """An audit of a run that has not been fed yet. Raises CorruptJournal when its version is not in the store."""
    return Audit(
        plans.of_run(row),
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


# --- a whole database -----------------------------------------------------------------------------------------------


_FIRST, _LAST = -(2**63), 2**63 - 1

Progress = Callable[[int, int], None]
"""Told how many runs and events have been looked at."""


def check(
    store: Store,
    run_ids: Sequence[str] | None = None,
    deep: bool = False,
    *,
    clock: Clock | None = None,
    orphan_seconds: float = ORPHAN_SECONDS,
    progress: Progress | None = None,
) -> Report:
    """Look at the runs with these ids, or at everything. `deep` folds every journal. Changes nothing."""
    report = Report()
    examination = _Examination(store, report, clock or clock_of(store), orphan_seconds, progress)
    try:
        if run_ids is None:
            examination.store_itself(thorough=deep)
            ranges = examination.pages()
        else:
            ranges = ((row.run_no, row.run_no) for row in [find_run(store, run_id) for run_id in run_ids])
        for first_no, last_no in ranges:
            examination.runs(first_no, last_no, deep=deep)
    except StoreError as error:
        report.violations.append(violation("I43", f"the database cannot be read to its end: {error.message}"))
    return report


class _Examination:
    """One check under way."""

    def __init__(
        self, store: Store, report: Report, clock: Clock, orphan_seconds: float, progress: Progress | None
    ) -> None:
        self._store = store
        self._report = report
        self._clock = clock
        self._orphan_seconds = orphan_seconds
        self._progress = progress
        self._plans = Plans(store)

    def store_itself(self, *, thorough: bool) -> None:
        """The file, its settings, its schema, and the definitions in it."""
        health = self._store.health(thorough=thorough)
        for damage in health.damage:
            self._report.violations.append(violation("I43", f"the database is damaged: {damage}"))
        if not health.durable:
            what = "the database does not write through to the disk at every commit"
            self._report.violations.append(violation("I43", what))
        if health.schema != health.schema_wanted:
            what = f"the database has schema {health.schema}, and this Holdfast writes {health.schema_wanted}"
            self._report.violations.append(violation("I46", what))
        for row in self._store.versions():
            self._report.violations += _definition(row)

    def pages(self) -> Iterator[tuple[int, int]]:
        """All runs by number, and whatever lies between and around them."""
        before = _FIRST
        while True:
            count, last_no = self._store.run_page(before, DOCTOR_RUNS_AT_ONCE)
            if count < DOCTOR_RUNS_AT_ONCE:
                yield before + 1, _LAST
                return
            yield before + 1, last_no
            before = last_no

    def runs(self, first_no: int, last_no: int, *, deep: bool) -> None:
        """The runs of a range of numbers."""
        store, report = self._store, self._report
        numbers = store.run_numbers(first_no, last_no)
        wrong, doubtful = survey(
            store,
            first_no,
            last_no,
            now=self._clock.now(),
            elapsed=self._clock.elapsed(),
            orphan_seconds=self._orphan_seconds,
            engines=store.engines(),
        )
        report.warnings += doubtful
        if deep:
            for done, run_no in enumerate(numbers, start=1):
                wrong += self._journal(run_no)
                if self._progress is not None and done % 100 == 0:
                    self._progress(report.checked + done, report.events)
        self._add(wrong)
        report.checked += len(numbers)
        if self._progress is not None:
            self._progress(report.checked, report.events)

    def _journal(self, run_no: int) -> list[Violation]:
        row = self._store.run_by_no(run_no)
        if row is None or is_newer(row.format):
            return []
        try:
            audit = audit_of(self._store, self._plans, row, early_micros=CLOCK_SLACK_MICROSECONDS)
        except (CorruptJournal, DefinitionError):
            return []  # its version is missing or unreadable, and was reported as such
        found = prove(self._store, audit)
        self._report.events += audit.seq - audit.shared_until
        return found

    def _add(self, found: list[Violation]) -> None:
        """What both checks found is reported once."""
        told: set[tuple[object, ...]] = set()
        for one in found:
            key = (one.code, one.run_no, one.node, one.path, one.what)
            if key not in told and not _is_told(one, found):
                told.add(key)
                self._report.violations.append(self._with_hold(one))

    def _with_hold(self, damage: Violation) -> Violation:
        """A damaged journal stays damaged; what is left to do is different once its run is on hold."""
        if damage.means is not Repair.HOLD or damage.run_no is None:
            return damage
        row = self._store.run_by_no(damage.run_no)
        if row is None or row.hold is None:
            return damage
        return msgspec.structs.replace(damage, repair="the run is on hold; restore it from a backup")


def _is_told(quick: Violation, found: list[Violation]) -> bool:
    """Whether a second read of the journal says the same from the event at which it begins."""
    return quick.detail == "gap" and any(
        other.code == "I1" and other.run_no == quick.run_no and other.detail is None for other in found
    )


def _definition(row: VersionRow) -> list[Violation]:
    name = f"version {row.version} of workflow {row.workflow}"
    try:
        definition = definitions.decode(row.definition)
    except DefinitionError as error:
        return [violation("I42", f"{name} cannot be read: {error.message}")]
    if definition.content_hash() != row.hash:
        return [violation("I40", f"{name} is not the one that was stored: its content has another hash")]
    problems = problems_of(definition)
    return [violation("I42", f"{name} is not valid: {problem}") for problem in problems]
