"""Repairs: what `holdfast doctor --repair` does.

Owns: one repair per kind of damage, each under the run's lease for the moment that it takes: it names the token that
the run had when it was judged, and does nothing when an engine was quicker.
Never: changes or deletes an event. A journal that was tampered with is not repaired: the run is put on hold.
On crash: each repair is one transaction, and the next check tells what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from holdfast.engine.messages import report_of_end
from holdfast.engine.ports import RunInspector
from holdfast.model.errors import CorruptJournal, DefinitionError, Refused
from holdfast.model.journal_format import is_newer, newer
from holdfast.model.views import command_line
from holdfast.model.violations import Repair, Report, Violation
from holdfast.store.contract import Store
from holdfast.store.liveness import Locks, life_of
from holdfast.store.records.run_records import find_run
from holdfast.store.row_types import EngineRow, Rebuilt, RunRow

_encode = msgspec.json.Encoder().encode

Recover = Callable[[str], str]
"""Brings a run back to its last stable event; what was done. It needs an engine, which the caller has."""

ORDER = (Repair.FREE, Repair.HOLD, Repair.REMOVE, Repair.CLOSE, Repair.REBUILD, Repair.DELIVER, Repair.RECOVER)
"""Leases first: a run that a dead engine owns cannot be repaired."""


ALL = frozenset(ORDER)
REBUILDING = frozenset({Repair.REBUILD})

ROUNDS_MAX = 3
"""A repair may bring the next damage to light: a freed lease lets rows be rebuilt, and rebuilt rows may show that the
run has no future."""


def treat(
    repairs: Repairs,
    report: Report,
    look: Callable[[], Report],
    *,
    means: frozenset[Repair] = ALL,
    rebuild: Iterable[str] = (),
) -> Report:
    """Repair what a report names and `means` allows, look again, until nothing more can be done; `rebuild` are runs
    whose rows are written again in any case. What is left then, and what was done."""
    said = repairs.rebuild_by_id(rebuild)
    if said:
        report = look()
    for _ in range(ROUNDS_MAX):
        done = [text for text in repairs.apply(v for v in report.violations if v.means in means) if text not in said]
        if not done:
            break
        said += done
        report = look()
    report.repaired = said
    return report


class Repairs:
    """The repairs of one store. Each says in a sentence what it did, or why it did nothing."""

    def __init__(self, store: Store, inspector: RunInspector, now: int, recover: Recover | None = None) -> None:
        self._store = store
        self._inspector = inspector
        self._now = now
        self._recover = recover
        self._buried: set[str] = set()
        """Engines that were found dead and whose runs are free."""

    def apply(self, violations: Iterable[Violation]) -> list[str]:
        """Do what can be done about these, each run and each engine once per kind."""
        said: dict[str, None] = {}
        done: set[tuple[Repair, object]] = set()
        for violation in sorted((v for v in violations if v.means in ORDER), key=lambda v: ORDER.index(v.means)):
            subject = (violation.run_no, violation.detail) if violation.means is Repair.REMOVE else violation.run_no
            if (violation.means, subject) not in done and violation.detail not in self._buried:
                done.add((violation.means, subject))
                said[self._one(violation)] = None
        return list(said)

    def _one(self, violation: Violation) -> str:
        store, run_no = self._store, violation.run_no
        assert run_no is not None
        match violation.means:
            case Repair.REMOVE:
                count = store.remove_orphans(violation.detail, run_no)
                return f"removed {count} row(s) of run number {run_no}, which does not exist"
            case Repair.FREE:
                return self._free(violation.detail, run_no)
        row = store.run_by_no(run_no)
        if row is None:
            return f"run number {run_no} is gone"
        return self._refusing(lambda: self._to_run(violation, self._unowned(row)))

    def _to_run(self, violation: Violation, row: RunRow) -> str:
        match violation.means:
            case Repair.HOLD:
                return self._hold(row, f"corrupt: {violation.what}")
            case Repair.REBUILD:
                return self.rebuild(row)
            case Repair.CLOSE:
                return f"run {row.run_id}: refused {self._store.close_inbox(row.run_no)} message(s), as it has ended"
            case Repair.DELIVER:
                return self._deliver(row, violation.detail)
            case _:
                return self._recover_run(row)

    def rebuild_by_id(self, run_ids: Iterable[str]) -> list[str]:
        """Write the rows of these runs again, whatever they say now."""
        rows = [find_run(self._store, run_id) for run_id in run_ids]
        return [self._refusing(partial(self.rebuild, row)) for row in rows]

    @staticmethod
    def _refusing(repair: Callable[[], str]) -> str:
        try:
            return repair()
        except Refused as refusal:
            return f"nothing was done: {refusal.message}"

    def rebuild(self, row: RunRow) -> str:
        """Fold a run's journal and write its rows again. Raises Refused when a live engine owns it."""
        if is_newer(row.format):
            raise Refused(f"run {row.run_id} was {newer(row.format)}")
        row = self._unowned(row)
        try:
            audit = self._inspector.audit(row)
        except (CorruptJournal, DefinitionError) as error:
            return f"run {row.run_id} cannot be rebuilt: {error.message}"
        expected = audit.expected
        if expected is None:
            return self._hold(row, f"corrupt: {audit.damage}")
        if row.token < expected.token:
            if not self._store.raise_token(row.run_no, row.token, None, expected.token):
                raise Refused(f"run {row.run_id} was taken by an engine meanwhile; stop it first")
            row = msgspec.structs.replace(row, token=expected.token)
        state = expected.state
        rebuilt = Rebuilt(
            run_no=row.run_no,
            token=row.token,
            version=state.plan.version,
            last_seq=expected.seq,
            head_hash=expected.head_hash,
            status=state.status,
            branch=state.branch,
            recoveries=state.recoveries,
            started_at=state.started_at,
            finished_at=state.finished_at,
            fold=_encode(state.fold),
            nodes=list(expected.nodes.values()),
            waits=list(expected.waits.values()),
            timers=list(expected.timers.values()),
        )
        if not self._store.rebuild(rebuilt):
            raise Refused(f"run {row.run_id} was taken by an engine meanwhile; stop it first")
        return f"run {row.run_id}: wrote its rows again from {expected.seq:,} events"

    def _hold(self, row: RunRow, why: str) -> str:
        if row.hold is None and not self._store.set_hold(row.run_no, row.token, row.engine, why):
            raise Refused(f"run {row.run_id} was taken by an engine meanwhile; stop it first")
        return f"run {row.run_id} is on hold ({why}); nothing is appended to it until it is resumed"

    def _free(self, engine: str, run_no: int) -> str:
        known = next((row for row in self._store.engines() if row.engine == engine), None)
        if known is None or life_of(known, self._now, Locks.of(self._store)) == "dead":
            freed = self._store.remove_engine(engine, None if known is None else known.expires_at)
            if freed is None:
                raise Refused(f"engine {engine} has renewed its lease meanwhile; stop it first")
            self._buried.add(engine)
            if known is not None:
                Locks.of(self._store).remove(known)
            return f"freed {freed} run(s) of engine {engine}, which is gone"
        row = self._store.run_by_no(run_no)
        if row is None or not self._store.release(engine, [(run_no, row.token)]):
            return f"run number {run_no} has no owner now"
        return f"run {row.run_id}: took its lease from engine {engine}"

    def _deliver(self, row: RunRow, child: str) -> str:
        self._store.send([report_of_end(self._store, child, row.run_no, self._now)])
        return f"run {row.run_id}: told it that {child} has ended"

    def _recover_run(self, row: RunRow) -> str:
        if self._recover is None:
            return (
                f"nothing was done: run {row.run_id} needs an engine to continue: {command_line('resume', row.run_id)}"
            )
        return f"run {row.run_id}: {self._recover(row.run_id)}"

    def _unowned(self, row: RunRow) -> RunRow:
        """The run, if no live engine owns it; the lease of a dead engine is released first."""
        if row.engine is None:
            return row
        owner: EngineRow | None = next((e for e in self._store.engines() if e.engine == row.engine), None)
        if owner is not None and life_of(owner, self._now, Locks.of(self._store)) != "dead":
            raise Refused(
                f"run {row.run_id} is owned by engine {row.engine} (process {owner.pid} on {owner.host}), which is "
                "alive; stop it first"
            )
        self._free(row.engine, row.run_no)
        freed = self._store.run_by_no(row.run_no)
        assert freed is not None
        return freed
