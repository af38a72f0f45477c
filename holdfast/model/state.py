"""State: a run folded from its events.

Owns: RunState and its parts: what rules read and what the state tables hold. Only `evolve` (evolve.py) changes it.
Never: decides (rules), does I/O, looks at a clock.
On crash: nothing; the same state is read from the state tables, or folded again from the journal.

The live fold is mutable, for speed. Only open scopes are held: when an item of a map or a round of a loop ends, its
nodes are closed (their rows stay in the table) and forgotten here. None of these structs refers back to what holds it,
so the collector need not look at them (gc=False): with 10,000 live runs that is what it would do all day.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from holdfast.model import events as ev
from holdfast.model.commands import Undoable
from holdfast.model.definition import Settings
from holdfast.model.graph import NodePlan, Plan, ScopePlan, step_undo_plan
from holdfast.model.naming import Instance, derived, instance_text, is_undo, undoes_step, undone_by
from holdfast.model.ranges import Ranges
from holdfast.model.statuses import NODE_SETTLED, NodeStatus, RunStatus
from holdfast.model.timers import Elapsed, belongs_to, due, start_timer

Key = tuple[str, str]
"""(node, path): an instance on its current visit."""


class Counters(msgspec.Struct, gc=False, omit_defaults=True):
    """What a map or loop keeps instead of its items: stored in its row."""

    count: int | None = None
    """Items of a map."""
    opened: int = 0
    """Items or rounds begun."""
    done: Ranges = msgspec.field(default_factory=Ranges)
    """Items or rounds ended."""
    carry: Any = None
    """Loop: the last round's result, located."""


class RoundEnd(msgspec.Struct, gc=False):
    """What the last round of a loop came to. Rules act on it in the same turn, so it is never stored; a fold without
    the parameters of the round (the engine provides them, no event holds them) does not know it and needs it not."""

    stop: bool = False
    """`until` said so."""
    problem: str | None = None
    """`until` could not be evaluated."""
    captured: dict[str, Any] = {}
    """What rules outside read of the loop's result."""


class OpenScope(msgspec.Struct, gc=False):
    """A scope that is being worked on: the workflow itself, an item of a map, a round of a loop."""

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
    """Its scope has ended: the row stays, the state forgets it."""
    cancelling: bool = False
    """Its body was told to stop; never stored."""
    next_key: int = 0
    """The next item of a map to begin; never stored."""
    round_end: RoundEnd | None = None
    """How a loop's last round ended; never stored."""
    races: dict[str, int] | None = None
    """Which call has won, of the races of its body that were decided since it started or had its last checkpoint; never
    stored."""

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
        return start_timer(self.node, self.path)


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
    def is_verdict(self) -> bool:
        """The engine's own question: a body was cut off, and only a person knows whether it has done its work."""
        return self.kind == "hold" or (self.kind == "input" and not self.call)

    @property
    def is_of_ended_body(self) -> bool:
        """Whoever it belongs to runs no more: it lies in a basket, or was cut off and must not be repeated unasked."""
        return self.kind == "basket" or self.is_verdict


class GivenAnswer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An answer that somebody gave, with the edits of a branch, to a question that was not open there."""

    wait_id: str
    """The question as it was asked on the branch that was left."""
    node: str
    path: str
    visit: int
    call: dict[str, Any]
    value: msgspec.Raw
    actor: str = ""

    def is_for(self, node: str, path: str, visit: int, call: dict[str, Any]) -> bool:
        """Whether this call of a body asks the same question."""
        same = (node, path, visit) == (self.node, self.path, self.visit)
        return same and all(call.get(part) == self.call.get(part) for part in _CALL)


_CALL = ("scope", "position", "kind", "name", "digest", "key")
"""What a remembered call is known by."""


class HeldSignal(NamedTuple):
    """A signal that arrived before anybody waited for it."""

    message_id: str
    name: str
    payload: bytes


class Ticket(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A ticket that was raised and whose target is not entered yet: nothing new starts until then."""

    target: str
    node: str
    """Who raised it."""
    path: str
    name: str | None = None


class Fold(msgspec.Struct, gc=False, omit_defaults=True):
    """What a run's state needs beyond its columns and nodes; stored as one JSON value in the run's row."""

    closing: str = ""
    """`failing` or `cancelling` while a run is being ended, then `compensating`."""
    error: ev.ErrorInfo | None = None
    others: list[ev.ErrorInfo] = []
    cancel_reason: str | None = None
    cancel_actor: str = ""
    paused: str = ""
    """The wait of an operator's pause: nothing new starts until it is closed."""
    unknown: list[tuple[str, str, int]] = []
    """Instances whose outcome is unknown and that may have to be undone."""
    vars: dict[str, int] = {}
    vars_captured: dict[str, Any] = {}
    input_captured: dict[str, Any] = {}
    phases: dict[str, str] = {}
    settings: Settings = Settings()
    parent: dict[str, Any] | None = None
    depth: int = 0
    key_epoch: int = 1
    code_hash: str = ""
    """One hash over the fingerprints in RunCreated: a quick way to see that no code has changed."""
    children: dict[str, str] = {}
    """Attached children that have not ended: child run id to the wait it answers."""
    failed: int = 0
    """Nodes that failed under `continue`."""
    ticket: Ticket | None = None
    visits: dict[str, int] = {}
    """The current visit of top-level nodes that were entered again; what lies inside a map or loop has its visit."""
    entered: list[str] = []
    """Top-level nodes that a ticket or an operator led to and that have a condition: from there on it counts as
    true."""
    undoes_steps: bool = False
    """Steps with a compensation were started: the journal tells which."""
    undoing: dict[str, ev.StepUndo] = {}
    """Compensations of steps that have begun and not ended, by instance."""
    gives_up_undo: bool = False
    """An operator has asked that compensations which cannot run are recorded as failed."""
    input_seq: int = 1
    """The event that holds the input: RunCreated, unless it was edited."""
    ancestors: list[tuple[int, int]] = []
    """(branch, last seq) of the lines of history that this one goes on from, oldest first."""
    forgiven: dict[str, int] = {}
    """Failures of instances that a person let try again; their policy counts from 0, their children do not."""
    answers: list[GivenAnswer] = []
    """Answers that wait for their question to be asked again."""


class RunState(msgspec.Struct, gc=False):
    """A run. `changed` and `fold_changed` say what the latest events touched; whoever commits clears them."""

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
    """Which nodes a pending instance still waits for; made when first asked, never stored."""
    undo: list[Undoable] | None = None
    """What is left to compensate, last completed first; provided by the engine, never stored."""
    undoing: Undoable | None = None
    """The one of them that was told to run; never stored."""
    more_to_undo: bool = False
    """Further ones are to be asked for when these are undone; never stored."""
    in_doubt: tuple[Instance, ...] = ()
    """Steps of unknown outcome whose compensations do not accept None; provided with `undo`, never stored."""
    lacking: frozenset[str] = frozenset()
    """The handlers of compensations that no engine has loaded; provided with `undo`, never stored."""
    signals: dict[str, deque[HeldSignal]] = {}
    """Signals that nobody has received yet, by name, in order of arrival; the inbox is their table, no event tells of
    them."""
    changed: list[NodeState] = []
    fold_changed: bool = False
    format: int = 1
    """What a reader of the run must know (run_format.py)."""
    last_at: int = 0
    """The time of its latest event, as far as is known: a wall clock that is set back does not make history go back."""

    @classmethod
    def new(cls, plan: Plan, run_no: int, run_id: str, created_at: int) -> RunState:
        state = cls(plan, run_no, run_id, created_at)
        state.open_root()
        return state

    def due_at(self, timer: str, now: int, elapsed: Elapsed | None) -> int:
        """When a timer that is set is due, by the wall clock that shows `now`."""
        return due(self.timers[timer], self.lasting.get(timer), now, elapsed)

    def open_root(self) -> None:
        """Open the scope of the workflow itself, with nothing in it settled."""
        self.scopes["."] = OpenScope(".", self.plan.root, None, unsettled=set(self.plan.root.nodes))

    def instance(self, node: str, path: str, visit: int | None = None) -> NodeState:
        """The instance, made pending when it is met for the first time. Without `visit`: the current one."""
        ns = self.nodes.get((node, path))
        if ns is not None and visit is not None and visit != ns.visit:
            # each visit of a node is undone by itself, one after the other; no other instance has two lives at once
            assert is_undo(node), f"run {self.run_id}: visit {visit} of {node}@{path} during {ns.visit}"
            self.close(ns)
            ns = None
        if ns is None:
            base = undone_by(node)
            if base != node:  # a compensation may belong to an item that closed long ago; it opens nothing again
                scope_plan = self.plan.scope_of(path)
                if undoes_step(path):
                    undo: NodePlan | None = step_undo_plan(node, scope_plan, self.step_undo(node, path, visit or 1))
                else:
                    undo = scope_plan.nodes[base].undo
                assert undo is not None
                return self.meet(undo, OpenScope(path, scope_plan, None), node, path, visit)
            scope = self.scopes.get(path)
            if scope is None or base not in scope.plan.nodes:
                scope = self.scope_at(path)
            ns = self.meet(scope.plan.nodes[base], scope, node, path, visit)
        return ns

    def step_undo(self, node: str, path: str, visit: int) -> ev.StepUndo | None:
        """What the compensation of a step runs, if it has begun and not ended."""
        return self.fold.undoing.get(instance_text(node, path, visit))

    def meet(self, plan: NodePlan, scope: OpenScope, node: str, path: str, visit: int | None = None) -> NodeState:
        """An instance that is met for the first time, pending; for those who have its plan and scope at hand."""
        if visit is None:
            visit = self.visit_of(node, path) if self.fold.visits else 1
        ns = self.nodes[node, path] = NodeState(plan, scope, node, path, visit)
        owner = scope.owner
        if owner is not None and owner.counters is not None and scope.key >= owner.counters.opened:
            owner.counters.opened = scope.key + 1
            self.touch(owner)
        return ns

    def visit_of(self, node: str, path: str) -> int:
        """The current visit of an instance: its own at the top, else that of the map or loop it lies in."""
        for name in path.split(".")[1:-1:2]:
            plan = self.plan.root.nodes.get(name)
            if plan is not None and plan.body is not None:
                return self.fold.visits.get(name, 1)
        return self.fold.visits.get(node, 1)

    def close(self, ns: NodeState) -> None:
        """Forget an instance that nothing refers to any more; its row stays."""
        ns.closed = True
        self.touch(ns)
        del self.nodes[ns.key]

    def scope_at(self, path: str) -> OpenScope:
        """The innermost scope around a path, opened where its map or loop is known but it is met for the first time."""
        scope, here = self.scopes["."], "."
        segments = path.strip(".").split(".") if path != "." else []
        for name, key in zip(segments[::2], segments[1::2], strict=True):
            plan = scope.plan.nodes.get(name)
            inner = f"{here}{name}.{key}."
            if plan is not None and plan.body is not None:  # else a lane of a parallel route
                scope = self.scopes.get(inner) or self.open_scope(self.nodes[name, here], int(key))
            here = inner
        return scope

    def open_scope(self, owner: NodeState, key: int) -> OpenScope:
        """Begin an item or a round. It counts as opened with the first event inside it."""
        assert owner.plan.body is not None
        path = f"{owner.path}{owner.node}.{key}."
        scope = OpenScope(path, owner.plan.body, owner, key, set(owner.plan.body.nodes), owner.scope)
        self.scopes[path] = scope
        return scope

    def hold_signal(self, signal: HeldSignal) -> None:
        """Keep a signal until somebody asks for it."""
        self.signals.setdefault(signal.name, deque()).append(signal)

    def touch(self, ns: NodeState) -> None:
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
