"""State: a run folded from its events.

Owns: RunState and its parts: what rules read and what the state tables hold.
Never: decides (rules), does I/O, reads a clock.
Invariants: what events fold to is changed by `evolve` (evolve.py) alone. The fields that are marked "never stored" are
scratch: rules and the engine set them, no row and no event holds them, and a run that is loaded again begins without.
On crash: nothing; the same state is read from the state tables, or folded again from the journal.

The live fold is mutable, for speed. Only open scopes are in memory: when an item of a map or a round of a loop ends,
its nodes are closed (their rows stay in the table) and removed here. None of these structs refers back to what holds
it, so the garbage collector need not visit them (gc=False): with 10,000 live runs it would do nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from holdfast.model.commands import Undoable
from holdfast.model.definition import END
from holdfast.model.fold import Counters, Fold
from holdfast.model.naming import (
    ROOT,
    Instance,
    derived,
    instance_text,
    is_undo,
    scope_path,
    segments,
    undoes_step,
    undone_by,
)
from holdfast.model.plans import NodePlan, Plan, ScopePlan, step_undo_plan
from holdfast.model.statuses import NODE_SETTLED, NodeStatus, RunStatus
from holdfast.model.timers import START, Elapsed, belongs_to, due

Key = tuple[str, str]
"""(node, path): an instance on its current visit."""


class RoundEnd(msgspec.Struct, gc=False):
    """How the last round of a loop ended. Rules act on it in the same turn, so it is never stored; a fold without the
    parameters of the round (the engine provides them, no event holds them) neither has nor needs it."""

    stop: bool = False
    """`until` was true."""
    problem: str | None = None
    """`until` could not be evaluated."""
    captured: dict[str, Any] = {}
    """What rules outside read of the loop's result."""


class OpenScope(msgspec.Struct, gc=False):
    """An open scope: the workflow itself, an item of a map, a round of a loop."""

    path: str
    plan: ScopePlan
    owner: NodeState | None
    """The map or loop; None for the workflow."""
    key: int = 0
    unsettled: set[str] = msgspec.field(default_factory=set)
    parent: OpenScope | None = None
    params: dict[str, Any] | None = None
    """Captured values of its parameters, once the engine has provided them; never stored."""


class NodeState(msgspec.Struct, gc=False):
    """One instance in an open scope."""

    plan: NodePlan
    scope: OpenScope
    node: str
    path: str
    visit: int = 1
    status: NodeStatus = NodeStatus.PENDING
    attempt: int = 0
    failures: int = 0
    output_seq: int = 0
    memory_seq: int = 0
    not_before: int = 0
    captured: dict[str, Any] = {}
    counters: Counters | None = None
    virtual: bool = False
    waits: tuple[str, ...] = ()
    started_at: int | None = None
    finished_at: int | None = None
    changed: bool = False
    """Its row is to be written; never stored."""
    closed: bool = False
    """Its scope has ended: the row stays, the instance leaves memory."""
    cancelling: bool = False
    """Its body is being cancelled; never stored."""
    next_key: int = 0
    """The next item of a map to begin; never stored."""
    round_end: RoundEnd | None = None
    """How a loop's last round ended; never stored."""
    races: dict[str, int] | None = None
    """The winning call of each race of its body that was decided since its start or last checkpoint; never stored."""

    @property
    def key(self) -> Key:
        return (self.node, self.path)

    @property
    def instance(self) -> Instance:
        return (self.node, self.path, self.visit)

    @property
    def text(self) -> str:
        """The instance as people write it."""
        return instance_text(self.node, self.path, self.visit)

    @property
    def settled(self) -> bool:
        return self.status in NODE_SETTLED

    @property
    def start_timer(self) -> str:
        """The name of the timer that a late start waits for: a retry, or a node with a delay."""
        return f"{START}{self.node}@{self.path}"


class WaitState(msgspec.Struct, gc=False):
    """An open wait."""

    wait_id: str
    kind: str
    node: str
    path: str
    visit: int
    call: dict[str, Any]
    since: int
    until: int | None = None
    child: str | None = None
    about: dict[str, Any] = {}
    """What rules read of it: question, schema, default, name, mode, ... (not what a question is about)."""
    basket: str | None = None
    assignee: str | None = None

    @property
    def is_crash_question(self) -> bool:
        """Whether the engine asks: a body was cut off, and only a person knows whether it was done."""
        return self.kind == "hold" or (self.kind == "input" and not self.call)

    @property
    def is_of_ended_body(self) -> bool:
        """Whether the body it belongs to has ended: it pended, or was cut off and must not be repeated unasked."""
        return self.kind == "basket" or self.is_crash_question


class HeldSignal(NamedTuple):
    """A signal that arrived before a call waited for it."""

    message_id: str
    name: str
    payload: bytes


class UndoWork(msgspec.Struct, gc=False):
    """What there is to compensate, as the engine has read it from rows and journal."""

    left: list[Undoable]
    """Last completed first."""
    current: Undoable | None = None
    """The one whose compensation was scheduled."""
    more: bool = False
    """The engine provides further ones when these are undone."""
    in_doubt: tuple[Instance, ...] = ()
    """Steps of unknown outcome whose compensations do not accept None."""
    lacking: frozenset[str] = frozenset()
    """The handlers of compensations that no engine has loaded."""


class RunState(msgspec.Struct, gc=False):
    """A run. `changed` and `fold_changed` say what the latest events changed; the commit clears them."""

    plan: Plan
    run_no: int
    run_id: str
    created_at: int
    status: RunStatus = RunStatus.CREATED
    seq: int = 0
    head_hash: bytes = b""
    branch: int = 1
    recoveries: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    fold: Fold = msgspec.field(default_factory=Fold)
    nodes: dict[Key, NodeState] = {}
    scopes: dict[str, OpenScope] = {}
    waits: dict[str, WaitState] = {}
    timers: dict[str, int] = {}
    """When each is due, by the wall clock as it was when the timer was set."""
    lasting: dict[str, Elapsed] = {}
    """Those of them that were set by a duration: when it is over."""
    missing: dict[Key, set[str]] = {}
    """Which nodes a pending instance still waits for; computed at first use, never stored."""
    undo: UndoWork | None = None
    """What there is to compensate; None until the engine has provided it, never stored."""
    signals: dict[str, deque[HeldSignal]] = {}
    """Signals that no call has received yet, by name, in order of arrival; they are rows of the inbox, not events."""
    changed: list[NodeState] = []
    fold_changed: bool = False
    format: int = 1
    """What a reader of the run must know (journal_format.py)."""
    last_at: int = 0
    """The time of its latest event, as far as is known: later events are not earlier, even if the wall clock was set
    back."""

    @classmethod
    def new(cls, plan: Plan, run_no: int, run_id: str, created_at: int) -> RunState:
        state = cls(plan, run_no, run_id, created_at)
        state.format = plan.format
        state.open_root()
        return state

    def due_at(self, timer: str, now: int, elapsed: Elapsed | None) -> int:
        """When a timer that is set is due, by the wall clock that shows `now`."""
        return due(self.timers[timer], self.lasting.get(timer), now, elapsed)

    def open_root(self) -> None:
        """Open the scope of the workflow itself, with nothing in it settled."""
        unsettled = {END} if self.plan.definition.start else set(self.plan.root.nodes)
        self.scopes["."] = OpenScope(".", self.plan.root, None, unsettled=unsettled)

    def instance(self, node: str, path: str, visit: int | None = None) -> NodeState:
        """The instance, created as pending if it does not exist. Without `visit`: the current one."""
        ns = self.nodes.get((node, path))
        if ns is not None and visit is not None and visit != ns.visit:
            # each visit of a node is undone by itself, one after the other; a unit of a journey is entered again
            known = is_undo(node) or ns.plan.definition.unit
            assert known, f"run {self.run_id}: visit {visit} of {node}@{path} during {ns.visit}"
            self.close(ns)
            ns = None
        if ns is None:
            if is_undo(node):  # it may belong to an item that is closed, and does not open it again
                scope_plan = self.plan.scope_of(path)
                plan = self.undo_plan(scope_plan, node, path, visit or 1)
                return self.create_instance(plan, OpenScope(path, scope_plan, None), node, path, visit)
            scope = self.scopes.get(path)
            if scope is None or node not in scope.plan.nodes:
                scope = self.scope_at(path)
            ns = self.create_instance(scope.plan.nodes[node], scope, node, path, visit)
        return ns

    def undo_plan(self, scope: ScopePlan, node: str, path: str, visit: int) -> NodePlan:
        """The plan of a compensation in a scope; of that of a step, as far as it has begun and not ended."""
        if undoes_step(path):
            return step_undo_plan(node, scope, self.fold.undoing.get(instance_text(node, path, visit)))
        undo = scope.nodes[undone_by(node)].undo
        assert undo is not None
        return undo

    def create_instance(
        self, plan: NodePlan, scope: OpenScope, node: str, path: str, visit: int | None = None
    ) -> NodeState:
        """Create a pending instance, for callers that have its plan and scope at hand."""
        if visit is None:
            visit = self.visit_of(node, path) if self.fold.visits else 1
        ns = self.nodes[node, path] = NodeState(plan, scope, node, path, visit)
        owner = scope.owner
        if owner is not None and owner.counters is not None and scope.key >= owner.counters.opened:
            owner.counters.opened = scope.key + 1
            self.touch(owner)
        return ns

    def next_visit(self, plan: NodePlan, path: str) -> NodeState:
        """Create the next instance of a unit of a journey on a path; the one before is closed."""
        before = self.nodes.get((plan.id, path))
        if before is not None:
            self.close(before)
        visit = before.visit + 1 if before is not None else 1
        return self.create_instance(plan, self.scopes[ROOT], plan.id, path, visit)

    def to_undo(self, undo: str, path: str, visit: int) -> Undoable | None:
        """What a compensation undoes, if it is left to undo."""
        left = self.undo.left if self.undo is not None else ()
        instance = (undone_by(undo), path, visit)
        return next((undoable for undoable in left if undoable.instance == instance), None)

    def visit_of(self, node: str, path: str) -> int:
        """The current visit of an instance: its own if it is top-level, else that of the outermost map or loop around
        it."""
        for name, _, _ in segments(path):
            plan = self.plan.root.nodes.get(name)
            if plan is not None and plan.body is not None:
                return self.fold.visits.get(name, 1)
        return self.fold.visits.get(node, 1)

    def close(self, ns: NodeState) -> None:
        """Remove an instance that nothing refers to; its row stays."""
        ns.closed = True
        self.touch(ns)
        del self.nodes[ns.key]

    def scope_at(self, path: str) -> OpenScope:
        """The innermost scope of a path, opened if it is not open."""
        scope, here = self.scopes[ROOT], ROOT
        for name, key, inner in segments(path):
            plan = scope.plan.nodes.get(name)
            if plan is not None and plan.body is not None:  # else a lane of a parallel route
                scope = self.scopes.get(inner) or self.open_scope(self.nodes[name, here], int(key))
            here = inner
        return scope

    def open_scope(self, owner: NodeState, key: int) -> OpenScope:
        """Open an item or a round. It counts as opened with the first event inside it."""
        assert owner.plan.body is not None
        path = scope_path(owner.node, owner.path, key)
        scope = OpenScope(path, owner.plan.body, owner, key, set(owner.plan.body.nodes), owner.scope)
        self.scopes[path] = scope
        return scope

    def hold_signal(self, signal: HeldSignal) -> None:
        """Keep a signal until a call asks for it."""
        self.signals.setdefault(signal.name, deque()).append(signal)

    def touch(self, ns: NodeState) -> None:
        """Note that the row of an instance is to be written."""
        if not ns.changed:
            ns.changed = True
            self.changed.append(ns)


def timers_of(state: RunState, wait: WaitState) -> list[str]:
    """The timers that belong to a wait and are set: its deadline, reminders, escalations."""
    if not ("remind" in wait.about or "escalate" in wait.about):
        return [wait.wait_id] if wait.wait_id in state.timers else []
    return [name for name in state.timers if name == wait.wait_id or belongs_to(name, wait.wait_id)]


def code_hash(fingerprints: dict[str, str]) -> str:
    """One hash over the fingerprints of all handlers."""
    return derived("", *(f"{k}={v}" for k, v in sorted(fingerprints.items()))) if fingerprints else ""
