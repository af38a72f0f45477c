"""Lineage: the events that belong to a branch.

Owns: which events of a journal belong to a branch (its parent's lineage up to the cut-off, without what it drops and
without the ends of what it reopens, then its own), and folding them into a state.
Never: opens a branch (rules/branch_opening.py), reads the store.
Invariants: no event is copied or changed; two branches share the events before their cut-off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal
from holdfast.model.evolve import evolve
from holdfast.model.naming import ROOT, Instance, is_undo, key_of, parse_instance, paths_inside, segments
from holdfast.model.plans import NodePlan, Plan, ScopePlan
from holdfast.model.state import Key, RunState
from holdfast.model.statuses import RunStatus

ROOT_BRANCH = 1
Around = tuple[ScopePlan, str, NodePlan | None, int]
"""A scope, its path, the map or loop it belongs to, item or round."""
_K = TypeVar("_K")


class Branch(msgspec.Struct, frozen=True):
    """One branch of a run's history."""

    branch: int
    parent: int | None = None
    cutoff_seq: int = 0
    key_epoch: int = 1
    reason: str = "start"
    dropped: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()
    version: int = 0
    actor: str = ""
    at: int = 0


def branches_of(entries: Iterable[ev.Entry]) -> dict[int, Branch]:
    """Every branch in a journal; `version` is the one that each runs under."""
    found: dict[int, Branch] = {}
    for entry in entries:
        e = entry.event
        if type(e) is ev.RunCreated and not found:
            found[entry.branch] = Branch(entry.branch, version=e.version, at=entry.at, actor=e.actor)
        elif type(e) is ev.BranchOpened:
            version = e.version or (found[e.parent].version if e.parent in found else 0)
            cut = (e.branch, e.parent, e.cutoff_seq, e.key_epoch, e.reason, e.dropped, e.reopened)
            found[e.branch] = Branch(*cut, version, e.actor, entry.at)
    return found


def ancestry(branches: dict[int, Branch], branch: int) -> list[Branch]:
    """A branch and those that it descends from, the root first."""
    line: list[Branch] = []
    here: int | None = branch
    while here is not None:
        found = branches.get(here)
        if found is None or (found.parent is not None and found.parent >= here):  # a forged ancestry would never end
            raise CorruptJournal(f"branch {branch} does not descend from the first branch")
        line.append(found)
        here = found.parent
    return line[::-1]


def lineage(entries: Sequence[ev.Entry], branch: int, plan_of: Callable[[int], Plan]) -> list[ev.Entry]:
    """The events that belong to a branch, in order. `plan_of` gives the plan of a version."""
    own: dict[int, list[ev.Entry]] = {}
    for entry in entries:
        own.setdefault(entry.branch, []).append(entry)
    line: list[ev.Entry] = []
    for here in ancestry(branches_of(entries), branch):
        if here.parent is not None:
            line = inherited(line, here, plan_of(here.version))
        line += own.get(here.branch, [])
    return line


def inherited(line: Sequence[ev.Entry], branch: Branch, plan: Plan) -> list[ev.Entry]:
    """The events that a branch inherits from its parent's lineage."""
    kept = [entry for entry in line if entry.seq <= branch.cutoff_seq]
    if not branch.dropped and not branch.reopened:
        return kept
    reopened = [parse_instance(text) for text in branch.reopened]
    roots = [parse_instance(text) for text in branch.dropped]
    again = {instance for instance in roots if is_undo(instance[0])}
    keeps_undone = bool(again) or any(is_undo(node) for node, _, _ in reopened)
    dropped = Dropped(plan, [root for root in roots if root not in again], kept, reopened, keeps_undone=keeps_undone)
    goes_on = set(reopened)
    return [
        e
        for e in kept
        if not dropped.covers(e) and (e.node, e.path, e.visit) not in again and not _is_end_of(e, goes_on, dropped)
    ]


def recorded_status(entries: Sequence[ev.Entry], branches: dict[int, Branch], branch: int) -> RunStatus:
    """The status of a branch by its own events alone, for one that cannot be folded because its version is gone. (One
    without events that drops all that its parent had begun counts as begun.)"""
    line = ancestry(branches, branch)
    cuts = {parent.branch: child.cutoff_seq for parent, child in pairwise(line)}
    begun = any(type(entry.event) in _BEGINS and entry.seq <= cuts.get(entry.branch, 0) for entry in entries)
    status = RunStatus.RUNNING if begun else RunStatus.CREATED
    for kind in (type(entry.event) for entry in entries if entry.branch == branch):
        if kind in _BEGINS and status is RunStatus.CREATED:
            status = RunStatus.RUNNING
        status = _MOVES.get(kind, status)
    return status


_BEGINS = (ev.NodeScheduled, ev.ScopeOpened)
_MOVES: dict[type[Any], RunStatus] = {
    ev.RunSuspended: RunStatus.SUSPENDED,
    ev.RunResumed: RunStatus.RUNNING,
    ev.RunCompleted: RunStatus.COMPLETED,
    ev.RunFailed: RunStatus.FAILED,
    ev.RunCancelled: RunStatus.CANCELLED,
}


def carried(
    branches: dict[int, Branch], source: int, parent: int, line: Sequence[ev.Entry]
) -> tuple[list[str], list[str]]:
    """What a branch that is cut from the lineage `line` of `source` has to drop and reopen because `source` did. A
    branch's parent is the one that holds its last inherited event; if that is an ancestor of `source`, the branches
    between the two had dropped something, and it stays dropped."""
    dropped: list[str] = []
    reopened: list[str] = []
    begun = {(entry.node, entry.path, entry.visit) for entry in line}
    for between in ancestry(branches, source)[::-1]:
        if between.branch == parent:
            break
        dropped = [*between.dropped, *dropped]
        reopened = [*(text for text in between.reopened if parse_instance(text) in begun), *reopened]
    return dropped, reopened


def fold(plan: Plan, run_no: int, run_id: str, line: Sequence[ev.Entry]) -> RunState:
    """Fold a lineage into a state, whose `changed` lists every instance that exists or existed."""
    state = RunState.new(plan, run_no, run_id, line[0].at if line else 0)
    for entry in line:
        if type(entry.event) is ev.RunCreated:
            state.created_at = entry.at
        evolve(state, entry)
    return state


class Dropped:
    """The instances that a branch drops: the given ones and everything downstream of them by data, condition, order or
    path. A map or loop around one of them is not dropped, but its end is."""

    def __init__(
        self,
        plan: Plan,
        roots: Sequence[Instance],
        line: Sequence[ev.Entry],
        reopened: Sequence[Instance] = (),
        *,
        keeps_undone: bool = False,
    ) -> None:
        self._keeps_undone = keeps_undone
        """What was undone stays undone: the branch continues the undoing."""
        self._since: dict[Key, int] = {}
        """Instances that are dropped, with the event from which on (another visit may have come before)."""
        self._inside: dict[str, int] = {}
        """Paths whose instances are dropped, likewise."""
        self._later_rounds: list[tuple[str, int, int]] = []
        """(prefix, round, since): rounds of a loop after this one."""
        self.unended: dict[Key, int] = {}
        """Maps and loops around a dropped instance, completed ones around a reopened one: their end is dropped."""
        self._paths: list[tuple[str, int]] = []
        """(path, since) of a journey: from there on its units are dropped, those of the paths that begin there, and
        those behind the join to which it leads."""
        self._waits: dict[str, Key] = {}
        completed: set[Key] = set()
        for entry in line:
            if entry.node is None or entry.path is None:
                continue
            if type(entry.event) is ev.WaitOpened:
                self._waits[entry.event.wait_id] = (entry.node, entry.path)
            elif type(entry.event) is ev.NodeCompleted:
                completed.add((entry.node, entry.path))
        for root in roots:
            self._drop(plan, root, line)
        for _, path, _ in reopened:
            # an item of a map that collects its errors: the map had ended all the same
            self._drop_around(scopes_around(plan, path), 0, completed)

    def _drop(self, plan: Plan, root: Instance, line: Sequence[ev.Entry]) -> None:
        node, path, visit = root
        since = 0
        if visit > 1 or plan.definition.start:
            begun = next((e.seq for e in line if (e.node, e.path, e.visit) == root), None)
            if begun is None:
                return  # it began after the cut
            since = begun
        if plan.definition.start:
            self._paths.append((path, since))
            return
        around = scopes_around(plan, path)
        scope, scope_path = around[-1][0], around[-1][1]
        if node not in scope.nodes:  # the branch runs under a version without this node
            self._add(self._since, (node, path), since)
            self._add(self._inside, paths_inside(node, path), since)
            return
        self._drop_names(scope, scope_path, scope.downstream(node), since)
        self._drop_around(around, since, None)

    def _drop_around(self, around: list[Around], since: int, only: set[Key] | None) -> None:
        """Drop what follows the maps and loops around an instance; with `only`, of those that are in it."""
        for (_, _, owner, key), (outer, outer_path, _, _) in zip(around[:0:-1], around[-2::-1], strict=True):
            assert owner is not None
            owner_key = (owner.id, outer_path + owner.lane)
            if only is not None and owner_key not in only:
                continue
            self._add(self.unended, owner_key, since)
            if owner.definition.kind == "loop":
                self._later_rounds.append((paths_inside(*owner_key), key, since))
            self._drop_names(outer, outer_path, outer.downstream(owner.id) - {owner.id}, since)

    def _drop_names(self, scope: ScopePlan, scope_path: str, names: set[str], since: int) -> None:
        for name in names:
            plan = scope.nodes[name]
            path = scope_path + plan.lane
            self._add(self._since, (name, path), since)
            if plan.body is not None:
                self._add(self._inside, paths_inside(name, path), since)

    @staticmethod
    def _add(known: dict[_K, int], key: _K, since: int) -> None:
        known[key] = min(since, known.get(key, since))

    def covers(self, entry: ev.Entry) -> bool:
        """Whether an event is dropped."""
        if entry.node is not None and entry.path is not None:
            return self.has(entry.node, entry.path, entry.seq)
        if type(entry.event) is ev.PathEnded:
            return self._is_behind(entry.event.path, entry.seq)
        if type(entry.event) is ev.TargetEntered:
            return self._is_behind(ROOT, entry.seq)
        if type(entry.event) is not ev.WaitClosed or entry.event.wait_id not in self._waits:
            return False
        return self.has(*self._waits[entry.event.wait_id], entry.seq)

    def has(self, node: str, path: str, seq: int) -> bool:
        """Whether what an instance did at `seq` is dropped."""
        if is_undo(node):
            return not self._keeps_undone
        since = self._since.get((node, path))
        if (since is not None and seq >= since) or self._is_behind(path, seq):
            return True
        if path == "." or not (self._inside or self._later_rounds):
            return False
        if any(path.startswith(prefix) and seq >= since for prefix, since in self._inside.items()):
            return True
        return any(
            path.startswith(prefix) and key_of(path, prefix) > key and seq >= since
            for prefix, key, since in self._later_rounds
        )

    def _is_behind(self, path: str, seq: int) -> bool:
        """Whether what happened on a path of a journey at `seq` followed from a unit that is dropped."""
        return any(
            seq >= since and (path.startswith(dropped) or dropped.startswith(path)) for dropped, since in self._paths
        )

    def instance_of(self, wait_id: str) -> Key | None:
        return self._waits.get(wait_id)


def _is_end_of(entry: ev.Entry, reopened: set[Instance], dropped: Dropped) -> bool:
    """Whether an event ended an instance that continues: a reopened one, or a map or loop around a dropped one."""
    e = entry.event
    kind = type(e)
    if kind is ev.WaitClosed and e.outcome == "cancelled":
        key = dropped.instance_of(e.wait_id)
        return key is not None and any((node, path) == key for node, path, _ in reopened)
    if kind not in _ENDS or (kind is ev.NodeFailed and e.retryable) or entry.node is None or entry.path is None:
        return False
    since = dropped.unended.get((entry.node, entry.path))
    if since is not None and entry.seq >= since:
        return True
    if kind is ev.NodeCompleted and e.pended_at is None:  # else it had pended, and counts as not resumed
        return False
    return (entry.node, entry.path, entry.visit) in reopened


_ENDS = frozenset({ev.NodeFailed, ev.NodeCancelled, ev.NodeCompleted, ev.ScopeClosed})


def scopes_around(plan: Plan, path: str) -> list[Around]:
    """The scopes around a path, from the workflow to the innermost."""
    scope = plan.root
    found: list[Around] = [(scope, ROOT, None, 0)]
    for name, key, here in segments(path):
        owner = scope.nodes.get(name)
        if owner is not None and owner.body is not None and key.isdigit():
            scope = owner.body
            found.append((scope, here, owner, int(key)))
    return found


def owners_of(plan: Plan, key: Instance) -> Iterable[Instance]:
    """The maps and loops around an instance; what is inside them has their visit."""
    around = scopes_around(plan, key[1])
    for (_, _, owner, _), (_, outer_path, _, _) in zip(around[1:], around, strict=False):
        assert owner is not None
        yield owner.id, outer_path + owner.lane, key[2]


def instance_named(plan: Plan, path: str, name: str) -> tuple[str, str] | None:
    """The instance that a name means inside a path."""
    for scope, scope_path, _, _ in reversed(scopes_around(plan, path)):
        if name in scope.nodes:
            return name, scope_path + scope.nodes[name].lane
    return None


def is_collected(plan: Plan, inner: Instance, outer: Instance) -> bool:
    """Whether a map between two instances collects errors: then the inner one's failure is not why the outer failed."""
    depth = len(scopes_around(plan, outer[1]))
    return any(
        owner is not None and owner.definition.errors == "collect"
        for _, _, owner, _ in scopes_around(plan, inner[1])[depth + 1 :]
    )


def is_in(ancestors: Sequence[tuple[int, int]], current: int, branch: int, seq: int) -> bool:
    """Whether an event belongs to the lineage of a branch, by its branch and seq alone."""
    return branch == current or any(branch == b and seq <= last for b, last in ancestors)
