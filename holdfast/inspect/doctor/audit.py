"""Audit: one run's journal, proved event by event, and its rows against what the journal folds to.

Owns: order and hash chain, decoding, the fold, and what each event may rely on (legality.py has the rules).
Never: reads the store or a clock, changes anything but itself.
Invariants: the same rows give the same violations, however they are cut into portions.

    audit = Audit(plan, run_no, run_id)
    audit.feed(events)               # as often as there are new ones
    audit.compare(evidence)          # the rows as they were when the last of these events was the last one

A journal that was tampered with cannot testify: from the first gap, broken link or unreadable event on only order and
chain are checked, and the rows are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from holdfast.inspect.doctor import comparing, legality
from holdfast.inspect.doctor.facts import AuditFacts
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.errors import CorruptJournal, HoldfastError
from holdfast.model.evolve import evolve
from holdfast.model.lineage import branches_of, lineage
from holdfast.model.state import NodeState, OpenScope, RunState
from holdfast.model.violations import Repair, Violation
from holdfast.store.records.journal import entry_of
from holdfast.store.row_types import EventRow, Evidence


class Audit(AuditFacts):
    """The proof of one run, as far as it has been fed. `copy` is cheap, so that a search can go back to any point."""

    def feed(self, rows: Iterable[EventRow]) -> list[Violation]:
        """Take the next events, in order of `seq`; what is wrong with them."""
        known = len(self.violations)
        for row in rows:
            self._take(row)
        self.note_closed()
        return self.violations[known:]

    def compare(self, evidence: Evidence) -> list[Violation]:
        """Hold the rows of the run against what was fed; what is wrong with them. Changes nothing."""
        return comparing.compare(self, evidence)

    def copy(self) -> Audit:
        """A second audit that continues from here by itself."""
        other = Audit.__new__(Audit)
        other.__dict__.update(self.__dict__)
        other.state = _copy_state(self.state)
        other.violations = list(self.violations)
        other._kept = list(self._kept)
        other.instances = dict(self.instances)
        other.started = dict(self.started)
        other.steps = {key: set(steps) for key, steps in self.steps.items()}
        other.pended = dict(self.pended)
        other.undoable = dict(self.undoable)
        other.register = self.register.copy()
        other.messages, other.settled = dict(self.messages), dict(self.settled)
        other.opened = dict(self.opened)
        return other

    # --- the journal -----------------------------------------------------------------------------------------

    def _take(self, row: EventRow) -> None:
        run_no, seq, branch, kind, node, path, visit, at, token, found, data = row
        if seq != self.seq + 1:
            self._misplaced(row)
        if run_no != self.run_no:
            self._share(row)
            return
        if token < self.token:
            self.report("I4", f"event {seq} carries token {token}, and the one before it {self.token}: {_ZOMBIE}", row)
        expected = journal_format.link(self.hash, self.run_id, seq, branch, kind, node, path, visit, at, token, data)
        if found != expected:
            self._distrust("I3", f"event {seq} ({kind}) is not the one that was written: {_CHAIN}", row)
        # the chain continues from what is there, so that one changed event is one violation
        self.seq, self.hash, self.token = seq, found, max(token, self.token)
        if not (self.trusted and self.sound):
            return
        try:
            event = journal_format.decode(kind, data)
        except CorruptJournal as error:
            self._distrust("I6", f"event {seq} cannot be read: {error.message}", row)
            return
        if journal_format.encode(event) != data:
            self.report("I6", f"event {seq} ({kind}) holds more than its type knows, or holds it otherwise", row)
        self._keep(row)
        self._fold(ev.Entry(seq, at, event, node, path, visit, branch))

    def _share(self, row: EventRow) -> None:
        """An event of the run that this one was forked from; it is proved there."""
        self.seq = self.shared_until = row.seq
        self.hash = row.hash
        self._keep(row)

    def _keep(self, row: EventRow) -> None:
        if self._recall is None:
            self._kept.append(row)

    def _misplaced(self, row: EventRow) -> None:
        if row.seq <= self.seq:
            self._distrust("I2", f"event {row.seq} is there twice", row)
            return
        first, last = self.seq + 1, row.seq - 1
        missing = f"event {first} is missing" if first == last else f"events {first} to {last} are missing"
        self._distrust("I1", f"{missing} from the journal", row)

    def _distrust(self, code: str, what: str, row: EventRow) -> None:
        self.trusted = False
        self.report(code, what, row, Repair.HOLD)

    def _fold(self, entry: ev.Entry) -> None:
        try:
            if type(entry.event) is ev.BranchOpened:
                self._open_branch(entry)
            else:
                self._apply(entry)
        except (HoldfastError, AssertionError, LookupError, ValueError, AttributeError, TypeError) as error:
            self.sound = False
            code = "I8" if isinstance(error, HoldfastError) else "I41"
            why = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
            what = f"event {entry.seq} ({type(entry.event).__name__}) cannot follow the ones before it: {why}"
            self.report(code, what, entry, Repair.HOLD)

    def _apply(self, entry: ev.Entry) -> None:
        created = entry.event
        if type(created) is ev.RunCreated and created.version != self.state.plan.version and not self.replaying:
            self._begin(self._plan_of(created.version))  # a later branch may have moved to another version
        afterwards = legality.check(self, entry)
        evolve(self.state, entry)
        if afterwards is not None:
            afterwards(self, entry)

    def _open_branch(self, entry: ev.Entry) -> None:
        """The state is now the fold of the branch's lineage: begin again, with what it inherits."""
        e: ev.BranchOpened = entry.event
        rows = self._kept if self._recall is None else self._recall(entry.seq)
        entries = [entry_of(self.run_id, row) for row in rows if row.seq < entry.seq]
        self.branches = branches_of(entries)
        known = len(self.violations)
        legality.check(self, entry)
        if len(self.violations) > known:  # it may even be its own ancestor
            self.sound = False
            return
        entries.append(entry)
        self.branches = branches_of(entries)
        self.opened[e.branch] = self.branches[e.branch]
        self._begin(self._plan_of(self.branches[e.branch].version))
        self.replaying = True
        try:
            for inherited in lineage(entries, e.branch, self._plan_of):
                self.branch = inherited.branch
                self._apply(inherited)
        finally:
            self.replaying = False
        # what was cut off with the old branch runs again as if an engine had died
        self.branch, self.ended, self.undone, self.taken_over_at = e.branch, None, None, entry.seq


_ZOMBIE = "an owner that had been replaced has written"
_CHAIN = "its hash does not follow from its content and the event before it"


def _copy_state(state: RunState) -> RunState:
    """A state that shares nothing with the original that `evolve` changes in place."""
    other = copy(state)
    other.fold = copy(state.fold)
    scopes: dict[int, OpenScope] = {}
    nodes: dict[int, NodeState] = {}

    def scope_of(scope: OpenScope) -> OpenScope:
        found = scopes.get(id(scope))
        if found is None:
            found = scopes[id(scope)] = copy(scope)
            found.unsettled = set(scope.unsettled)
            found.owner = None if scope.owner is None else node_of(scope.owner)
            found.parent = None if scope.parent is None else scope_of(scope.parent)
        return found

    def node_of(ns: NodeState) -> NodeState:
        found = nodes.get(id(ns))
        if found is None:
            found = nodes[id(ns)] = copy(ns)
            found.scope = scope_of(ns.scope)
            if ns.counters is not None:
                found.counters = copy(ns.counters)
                found.counters.done = copy(ns.counters.done)
                found.counters.done.starts = list(ns.counters.done.starts)
                found.counters.done.ends = list(ns.counters.done.ends)
        return found

    other.scopes = {path: scope_of(scope) for path, scope in state.scopes.items()}
    other.nodes = {key: node_of(ns) for key, ns in state.nodes.items()}
    other.changed = [node_of(ns) for ns in state.changed]
    other.waits = {wait_id: copy(wait) for wait_id, wait in state.waits.items()}
    other.timers = dict(state.timers)
    return other
