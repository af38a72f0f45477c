"""Branch opening: the commit that leaves one branch of a run and opens the next.

Owns: the payload of a request for another branch, the plan that it leads to (`Opening`), and the events of that commit.
Never: chooses where it is cut (branch_cut.py), reads the journal (the engine passes in the state at the cut), starts
bodies: the next owner does what follows, as after a crash.
Invariants: what has completed and is not dropped never runs again. Nothing is deleted from the journal.
Waits: one that is unchanged on both branches, with its timers, stays open under its id. Any other is superseded: a body
that asked asks again; a node in a basket, or one of which a person is asked whether it was done, waits under a new id.
An operator's pause ends with the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model.lineage import Branch, scopes_around
from holdfast.model.naming import instance_text, parse_instance
from holdfast.model.plans import NodePlan, data_of
from holdfast.model.references import ABSENT, availability, lookup
from holdfast.model.state import NodeState, RunState, WaitState, timers_of
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.model.timers import only_watches
from holdfast.rules import milestones, nodes, questions, runs, scopes
from holdfast.rules.draft import Draft, Refusal

REQUESTS = {
    "fork": ev.ForkRequested,
    "jump": ev.JumpRequested,
    "reopen": ev.JumpRequested,
    "retry": ev.RetryRequested,
}


REOPEN = "reopen"


class AnswerEdit(msgspec.Struct, omit_defaults=True):
    """The answer to a question of the branch that is left."""

    value: msgspec.Raw
    node: str
    path: str
    visit: int = 1
    call: dict[str, Any] = {}
    """The remembered call that asked; empty: the engine did."""


class Edits(msgspec.Struct, omit_defaults=True):
    """What is different on the new branch: whole values, checked by the sender, each with what rules read of it."""

    input: dict[str, msgspec.Raw] = {}
    """All inputs by name; empty: as they were."""
    input_captured: dict[str, Any] = {}
    vars: dict[str, msgspec.Raw] = {}
    vars_captured: dict[str, Any] = {}
    outputs: dict[str, msgspec.Raw] = {}
    outputs_captured: dict[str, dict[str, Any]] = {}
    answers: dict[str, AnswerEdit] = {}
    """By the id of the wait."""
    version: int = 0


class Asked(msgspec.Struct, omit_defaults=True):
    """A request to continue from elsewhere: the payload of `fork`, `jump` and `retry`."""

    target: str | int | None = None
    """An instance, a seq (fork), or `start`; None: the end (fork), whatever failed (retry)."""
    branch: int | None = None
    """The branch that it is about; None: the current one."""
    edits: Edits = msgspec.field(default_factory=Edits)
    keys: str = "renew"
    """`renew` or `inherit`: whether effects that repeat get new idempotency keys (a retry always inherits)."""
    basket: str = ""
    """Of a reopening: the run waits in this basket first, until it is resumed."""
    accepts_change: bool = False
    """Of a fork at the end: bodies may make other calls than they remember. It inherits the keys."""
    migrates: bool = False
    """Of a fork at the end: the run is moved to `edits.version`, with what that keeps. It inherits the keys."""
    drop: tuple[str, ...] = ()
    """Instances that a migration may lose."""
    actor: str = ""


class Opening(msgspec.Struct):
    """The plan that a request leads to."""

    parent: int
    cutoff_seq: int
    reason: str
    target: str
    dropped: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Nodes that a jump forward skips."""
    enter: str = ""
    """The top-level node that is entered, whatever its condition is."""
    reruns_all: bool = False
    """Bodies that were running at the cut run again, whatever their `on_crash` is: the operator asks for it."""
    basket: str = ""
    """Where the run waits until it is resumed, before anything runs."""
    accepts_change: bool = False
    """Bodies that have begun may make other calls than they remember."""

    def inherit_omissions(self, dropped: list[str], reopened: list[str]) -> None:
        """Also omit what the branch that is left had dropped and reopened."""
        self.dropped = tuple(dict.fromkeys((*dropped, *self.dropped)))
        self.reopened = tuple(t for t in dict.fromkeys((*reopened, *self.reopened)) if t not in self.dropped)

    def as_branch(self, branch: int, key_epoch: int, version: int, actor: str) -> Branch:
        cut = (branch, self.parent, self.cutoff_seq, key_epoch, self.reason, self.dropped, self.reopened)
        return Branch(*cut, version, actor)


class Preview(msgspec.Struct, omit_defaults=True):
    """What a branch would reuse and do again, before it is opened."""

    branch: int
    parent: int
    cutoff_seq: int
    key_epoch: int
    reused: list[str] = []
    runs_again: list[str] = []
    repeats: list[str] = []
    """Of those, the ones that were started before: their effects happen again."""
    same_keys: bool = False
    """Whether they happen again under the idempotency keys that they had."""
    skipped: list[str] = []
    """Nodes that a jump forward skips, and those that will be skipped as far as is known now."""
    given: list[str] = []
    """Instances that do not run, because the edits bring their outputs."""
    answered: list[str] = []
    """Questions to which the edits bring the answer, by the ids they had."""
    pended: list[str] = []
    """Instances that stay in their basket."""


# --- the commit ------------------------------------------------------------------------------------------------


def leave(d: Draft, base: RunState, request: Any, *, same_keys: bool) -> None:
    """Write the last events of the old branch: what the new one does not inherit is closed as superseded. With the same
    keys a body that runs again asks for the same children, so those are not cancelled."""
    state = d.state
    for wait in list(state.waits.values()):
        if wait.kind == "pause" or not _stays_open(wait, state, base):
            ns = state.nodes.get((wait.node, wait.path))
            asks_again = same_keys and wait.node in base.plan.scope_of(wait.path or ".").nodes
            scopes.close_unanswered(d, wait.wait_id, ns, "superseded", spare_child=asks_again)
    for timer, due_at in list(state.timers.items()):
        if base.timers.get(timer) != due_at:
            d.emit(ev.TimerCancelled(timer))
    d.emit(request)


def _stays_open(wait: WaitState, here: RunState, there: RunState) -> bool:
    """Whether a wait is the same on both branches: not ended, not reassigned, and without another reminder."""
    if there.waits.get(wait.wait_id) != wait:
        return False
    timers = {*timers_of(here, wait), *timers_of(there, wait)}
    return all(here.timers.get(timer) == there.timers.get(timer) for timer in timers)


def begin(
    d: Draft, base: RunState, opening: Opening, branch: Branch, edits: Edits, created: ev.RunCreated | None = None
) -> None:
    """Write the first events of the new branch (of a new run, with `created`). Nothing runs until an engine claims the
    run."""
    before, phases = d.state, dict(base.fold.phases)
    d.switch_branch(base, branch.branch)
    if created is not None:
        d.emit(created)
    d.emit(
        ev.BranchOpened(
            branch.branch,
            branch.parent or 0,
            branch.cutoff_seq,
            branch.key_epoch,
            branch.reason,
            branch.dropped,
            branch.reopened,
            branch.version,
            branch.actor,
            opening.enter,
        )
    )
    _edit(d, edits, branch.actor)
    asked_again = _supersede(d, before)
    _answer(d, edits, asked_again, branch.actor)
    for timer, due_at in list(base.timers.items()):
        if before.timers.get(timer) != due_at or not _is_wanted(base, timer):
            d.emit(ev.TimerCancelled(timer))
    reopened = {parse_instance(text)[:2] for text in opening.reopened}
    if opening.accepts_change:
        for ns in list(base.nodes.values()):
            if ns.plan.body is None and ns.attempt and not ns.settled:
                d.emit(ev.CodeChanged(ns.plan.definition.uses, "", "", accepted=True), ns)
    for ns in list(base.nodes.values()):
        if ns.plan.body is None and _runs_again(ns, opening, reopened):
            d.emit(ev.NodeScheduled(ns.attempt + 1), ns)
    for name in opening.skipped:
        d.emit(ev.NodeSkipped("jump", opening.enter), base.instance(name, "." + base.plan.root.nodes[name].lane))
    _end_phases(d, phases)
    if opening.enter and not d.state.plan.definition.start:
        _enter(d, opening.enter)
    if base.status is not RunStatus.CREATED:  # else it is set when the run begins
        runs.create(d)
    if branch.reason == REOPEN:
        milestones.begin(d, REOPEN)
    if opening.basket:
        about = {"basket": opening.basket, "reason": "the run was reopened", "actor": branch.actor}
        d.emit(ev.WaitOpened(d.new_wait_id(), "pause", {}, None, about))


def _supersede(d: Draft, before: RunState) -> dict[str, str]:
    """Close the waits that do not stay open. Those that a person ends and no body asks for again are opened as new
    ones; old id to new id."""
    asked_again: dict[str, str] = {}
    for wait in list(d.state.waits.values()):
        if _stays_open(wait, d.state, before):
            continue
        ns = d.state.nodes.get((wait.node, wait.path))
        d.emit(ev.WaitClosed(wait.wait_id, "superseded"), ns)
        if wait.is_of_ended_body:
            where = {"basket": wait.basket, "assignee": wait.assignee}
            about = {**wait.about, **{name: value for name, value in where.items() if value is not None}}
            wait_id = d.new_wait_id()
            d.emit(ev.WaitOpened(wait_id, wait.kind, {}, None, about), ns)
            asked_again[wait.wait_id] = wait_id
    return asked_again


def _answer(d: Draft, edits: Edits, asked_again: dict[str, str], actor: str) -> None:
    """Record the edited answers: for questions that are open, and for those that bodies will ask again."""
    for text, given in edits.answers.items():
        wait = d.state.waits.get(asked_again.get(text, text))
        if wait is None and not given.call:
            raise Refusal("not_asked", f"{text} asks about an attempt that is not on the new branch: omit it")
        d.emit_at(ev.AnswerEdited(text, given.value, actor, given.call), given.node, given.path, given.visit)
        if wait is None:
            continue
        if wait.is_crash_question:
            questions.answer_crash_question(d, wait, bytes(given.value), actor)
            continue
        for timer in timers_of(d.state, wait):
            d.emit(ev.TimerCancelled(timer))
        ns = d.state.nodes.get((wait.node, wait.path))
        d.emit(ev.WaitClosed(wait.wait_id, "answered", given.value, actor), ns)


def check_answers(edits: Edits, kept: Sequence[ev.Entry]) -> None:
    """Check that each edited answer has a question: one that is open on the branch, or that is asked again there."""
    for entry in kept:
        e = entry.event
        if type(e) is ev.WaitClosed and e.wait_id in edits.answers and e.outcome != "superseded":
            node = instance_text(entry.node or "", entry.path or ".", entry.visit)
            raise Refusal(
                "answered",
                f"{e.wait_id} has ended before the cut (event {entry.seq}: {e.outcome}), and is not asked "
                f"again: fork at {node}, or at an event before that",
            )


def _end_phases(d: Draft, before: dict[str, str]) -> None:
    """Complete phases whose last node has settled: the cut is between the two, or the edits or the jump settled it."""
    unsettled = d.state.scopes["."].unsettled
    for phase, nodes_of_it in d.state.plan.phases.items():
        if before.get(phase) != "completed" and not nodes_of_it & unsettled:
            d.emit(ev.PhaseCompleted(phase))


def _is_wanted(base: RunState, timer: str) -> bool:
    if only_watches(timer) or any(timer in timers_of(base, wait) for wait in base.waits.values()):
        return True
    return any(ns.status is NodeStatus.SCHEDULED and ns.start_timer == timer for ns in base.nodes.values())


def _runs_again(ns: NodeState, opening: Opening, reopened: set[tuple[str, str]]) -> bool:
    if ns.status is NodeStatus.FAILED:  # the cut is between a failure and the next attempt
        return ns.finished_at is None
    rerun = opening.reruns_all or ns.key in reopened or ns.plan.definition.on_crash == "rerun"
    return ns.status is NodeStatus.RUNNING and rerun


def _enter(d: Draft, node: str) -> None:
    """Enter the target of a jump forward, whatever its condition is; its data must be available."""
    plan = d.state.plan.root.nodes[node]
    missing = _missing(d.state, plan)
    if missing:
        shown = ", ".join(f'"{name}": …' for name in missing)
        raise Refusal(
            "no_data",
            f"{node} needs the output of {' and '.join(missing)}, which the jump skips: give it as edits, "
            f'{{"outputs": {{{shown}}}}}',
        )
    nodes.enter_node(d, d.state.instance(node, "." + plan.lane))


def _missing(state: RunState, plan: NodePlan) -> list[str]:
    """The top-level nodes whose outputs a node needs, and that have none."""
    scope = state.scopes["."]
    if plan.lazy:  # its data chooses between nodes
        found = [availability(state, scope, expr) for expr in data_of(plan.definition)]
        return list(dict.fromkeys(cause or plan.id for what, cause in found if what is ABSENT))
    needed = [(name, lookup(state, scope, name)) for name in plan.data_nodes]
    return [name for name, ns in needed if ns is None or ns.status is not NodeStatus.COMPLETED]


def _edit(d: Draft, edits: Edits, actor: str) -> None:
    if edits.input:
        d.emit(ev.InputEdited(msgspec.Raw(msgspec.json.encode(edits.input)), edits.input_captured, actor))
    if edits.vars:
        d.emit(ev.VariablesSet(edits.vars, edits.vars_captured, actor))
    for text, value in edits.outputs.items():
        ns = _editable(d.state, text)
        for wait_id in ns.waits:
            scopes.close_unanswered(d, wait_id, ns, "superseded")
        d.emit(ev.OutputEdited(value, edits.outputs_captured.get(text, {}), actor), ns)


def _editable(state: RunState, text: str) -> NodeState:
    """The instance whose output a person gives: one that has completed, was skipped, or has not run."""
    node, path, _ = parse_instance(text)
    ns = state.nodes.get((node, path))
    if ns is None and scopes_around(state.plan, path)[-1][2] is None:
        ns = state.instance(node, path)
    if ns is None:
        raise Refusal(
            "closed",
            f"the map or loop around {text} has ended, or has not reached it: edit the output of the map or loop",
        )
    if ns.status is NodeStatus.FAILED:
        raise Refusal("failed", f"{text} has failed on this branch: retry it, or fork at it, with this output")
    if ns.plan.body is not None and not ns.settled and ns.status is not NodeStatus.PENDING:
        raise Refusal("under_way", f"{text} is running: fork at it, with this output")
    return ns
