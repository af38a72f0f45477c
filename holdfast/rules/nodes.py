"""Nodes: when an instance may run, and what follows once others have settled.

Owns: readiness, scheduling and starting, the consequences of instances that settled, entering the target of a ticket.
Never: how a body ends (body_reports.py), maps and loops (scopes.py), the end of the run (runs.py).
Rules: while a ticket is pending nothing new starts: a running body finishes its node; what has not begun or only waits
is cancelled, and so is the next attempt of what failed. When nothing runs, the target is entered on the root path as a
new visit.
On crash: a pending ticket is part of the state. The next owner first finishes what was cut off, then enters the target.
"""

from __future__ import annotations

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.expressions import holds
from holdfast.model.fold import Ticket
from holdfast.model.limits import RETRY_IN_MEMORY_SECONDS, SECOND
from holdfast.model.naming import instance_text, is_undo
from holdfast.model.plans import NodePlan, condition_left, data_of
from holdfast.model.references import (
    ABSENT,
    PENDING,
    UNDONE,
    availability,
    evaluate_captured,
    inputs_of,
    locate,
    lookup,
)
from holdfast.model.state import NodeState, OpenScope, RunState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.rules import scopes
from holdfast.rules.body_reports import TICKET, fail_for_good, skip
from holdfast.rules.draft import Draft, Refusal

_COMPLETED = NodeStatus.COMPLETED
"""A member that every step is compared with: looking one up in its Enum takes as long as a call."""


def try_schedule(d: Draft, scope: OpenScope, plan: NodePlan) -> None:
    """Schedule or skip a pending node if everything that it refers to has settled."""
    state = d.state
    path = scope.path + plan.lane
    if (plan.id, path) in state.nodes or state.fold.closing or state.fold.ticket is not None or state.fold.paused:
        return
    if plan.waits_for and not _decidable(d, scope, plan, path):
        return
    if scope.owner is not None and lacks_params(d, scope):
        return
    ns = state.create_instance(plan, scope, plan.id, path)
    when = plan.when
    if when is not None and scope.owner is None and state.fold.entered:
        when = condition_left(scope.plan, plan, state.fold.entered)
    if when is not None:
        try:
            wanted = holds(evaluate_captured(state, scope, when))
        except InvalidInput as e:
            fail_for_good(d, ns, ev.ErrorInfo("invalid_input", f"its condition: {e.message}"))
            return
        if not wanted:
            skip(d, ns, "condition", None)
            return
    cause = _absent(d, scope, plan)
    if cause is not None:
        skip(d, ns, "absent", cause)
        return
    enter_node(d, ns)


def _decidable(d: Draft, scope: OpenScope, plan: NodePlan, path: str) -> bool:
    if len(plan.waits_for) == 1 and not plan.lazy:  # nothing to count
        return _is_settled(d, scope, plan.waits_for[0])
    state = d.state
    missing = state.missing.get((plan.id, path))
    if missing is None:
        missing = {n for n in plan.waits_for if not _is_settled(d, scope, n)}
        if len(plan.waits_for) > 1:
            state.missing[plan.id, path] = missing
    if not missing:
        state.missing.pop((plan.id, path), None)
        return True
    if not plan.lazy:
        return False
    # its data chooses between nodes: those that it does not need may still be missing
    if not missing.isdisjoint(plan.settles_after):
        return False
    return all(availability(d.state, scope, e)[0] is not PENDING for e in data_of(plan.definition))


def _is_settled(d: Draft, scope: OpenScope, node: str) -> bool:
    ns = d.state.nodes.get((node, scope.path + scope.plan.nodes[node].lane))
    return ns is not None and ns.status in NODE_SETTLED


def _absent(d: Draft, scope: OpenScope, plan: NodePlan) -> str | None:
    """The node whose absence skips this one."""
    if plan.lazy:
        for expr in data_of(plan.definition):
            found, cause = availability(d.state, scope, expr)
            if found is ABSENT:
                return cause or plan.id
        return None
    for name in plan.data_nodes:
        ns = lookup(d.state, scope, name)
        if ns is None or ns.status is not _COMPLETED:
            return name
    return None


def enter_node(d: Draft, ns: NodeState) -> None:
    """Schedule a node whose data is complete, or open its scope."""
    limit = d.state.fold.settings.max_visits
    if ns.visit > limit:
        why = f"tickets have led to {ns.node} again and again: {limit} visits, the max_visits of the workflow"
        fail_for_good(d, ns, ev.ErrorInfo("too_many_visits", why, retryable=False))
        return
    phase = ns.plan.definition.phase
    if phase is not None and phase not in d.state.fold.phases:
        d.emit(ev.PhaseStarted(phase))
    if ns.plan.body is not None:
        scopes.open_first(d, ns)
    else:
        delay = ns.plan.definition.delay
        if delay:
            d.schedule(ns, 1, d.now + int(delay * SECOND))
        else:
            d.emit(ev.NodeScheduled(1), ns)
            d.scheduled.append(ns)


def is_time(d: Draft, ns: NodeState) -> bool:
    """Whether a scheduled instance for which no timer is set may start. Such a start is never delayed for longer than
    `RETRY_IN_MEMORY_SECONDS`: where it seems to be, the wall clock was set back meanwhile."""
    if ns.start_timer in d.state.timers:
        return False
    return not d.now < ns.not_before <= d.now + RETRY_IN_MEMORY_SECONDS * SECOND


# --- parameters of scopes ----------------------------------------------------------------------------------------


def lacks_params(d: Draft, scope: OpenScope) -> bool:
    """Whether the engine must first provide parameters that rules read in this scope, or around it: the scope is new,
    or the run was loaded again. Until then nothing inside is decided, and no body inside continues."""
    here: OpenScope | None = scope
    lacking = False
    while here is not None and here.owner is not None:
        if here.plan.param_captures and here.params is None:
            lacking = True
            if not any(wanted is here for wanted in d.extra.params_wanted):
                d.extra.params_wanted.append(here)
        here = here.parent
    return lacking


def provide_params(d: Draft, c: cmd.ProvideParams) -> None:
    """Continue with everything that waited for the parameters of a scope."""
    scope = d.state.scopes.get(c.scope_path)
    if scope is None:
        raise Refusal("stale", f"scope {c.scope_path} is closed")
    scope.params = c.values
    # scopes inside it waited as well
    d.extra.opened += [inner for inner in d.state.scopes.values() if inner.path.startswith(scope.path)]
    for ns in list(d.state.nodes.values()):
        if ns.path.startswith(scope.path) and not lacks_params(d, ns.scope):
            if ns.status is NodeStatus.SCHEDULED and ns.start_timer not in d.state.timers:
                d.scheduled.append(ns)
            elif ns.status is NodeStatus.SUSPENDED and not ns.waits:
                d.emit(ev.NodeResumed("params"), ns)
                restart_body(d, ns)


# --- starting a body ---------------------------------------------------------------------------------------------


def start_node(d: Draft, c: cmd.StartNode) -> None:
    """Start a scheduled node for which a slot became free."""
    ns = d.state.nodes.get((c.node, c.path))
    if ns is None or ns.status is not NodeStatus.SCHEDULED:
        raise Refusal("stale", f"{instance_text(c.node, c.path)} is no longer scheduled")
    if d.state.fold.paused:  # since its slot became free; it starts when the pause ends
        raise Refusal("paused", f"{instance_text(c.node, c.path)} does not start while the run is paused")
    start(d, ns)


def start(d: Draft, ns: NodeState) -> None:
    """Start the body of a scheduled instance: its start is part of this commit."""
    direct = ns.plan.direct
    if direct is None:
        args = located_args(d.state, ns)
        inputs = inputs_of(args)
    else:
        args, inputs = _located_directly(d.state, ns, direct)
    if ns.races is not None:
        ns.races = None
    taken = ns.plan.definition.compensate_inputs
    if taken:
        undo_args = {name: args[name] for name in taken if name in args}
        d.emit(ev.NodeStarted(ns.attempt, inputs, undo_args), ns)
    else:
        d.emit(ev.NodeStarted(ns.attempt, inputs), ns)
    d.started.append((ns, args))


def _located_directly(
    state: RunState, ns: NodeState, direct: tuple[tuple[str, str | None, tuple[str | int, ...], str], ...]
) -> tuple[dict[str, object], tuple[tuple[str, int, str], ...]]:
    """Arguments that are plain references: what `located_args` and `inputs_of` would give, without the walk."""
    args: dict[str, object] = {}
    inputs: list[tuple[str, int, str]] = []
    scope = ns.scope
    for param, node, keys, pointed in direct:
        seq = state.fold.input_seq
        if node is not None:
            seq = state.nodes[node, scope.path + scope.plan.nodes[node].lane].output_seq
        args[param] = ["at", seq, *keys]
        inputs.append((param, seq, pointed))
    return args, tuple(inputs)


def restart_body(d: Draft, ns: NodeState) -> None:
    """Run a body again that was evicted or that waits (or let it continue, if it is still in memory)."""
    d.started.append((ns, located_args(d.state, ns)))


def located_args(state: RunState, ns: NodeState) -> dict[str, object]:
    """The arguments of a call, by the events that hold them."""
    if is_undo(ns.node):
        return _args_of_undo(state, ns)
    return {name: locate(state, ns.scope, e) for name, e in ns.plan.definition.args.items()}


def _args_of_undo(state: RunState, ns: NodeState) -> dict[str, object]:
    """The arguments of a compensation: the output of what it undoes (None where it is unknown), and inputs by name."""
    found = state.to_undo(*ns.instance)
    if found is None:
        return {UNDONE: None}
    return {UNDONE: ["at", found.output_seq] if found.output_seq else None, **found.args}


# --- consequences ------------------------------------------------------------------------------------------------


def propagate(d: Draft) -> None:
    """Decide everything that waited for what settled in this turn, until nothing more follows."""
    while d.todo or d.extras is not None:
        extras = d.extras
        if extras is not None:
            while extras.failing:
                fail_for_good(d, *extras.failing.pop(0))
            opened, extras.opened = extras.opened, []
            for scope in opened:
                enter(d, scope)
            if not (d.todo or extras.opened or extras.failing):
                return
        settled, d.todo = d.todo, []
        for ns in settled:
            _propagate_one(d, ns)


def _propagate_one(d: Draft, ns: NodeState) -> None:
    """Decide what follows from one instance that settled."""
    if ns.plan.definition.phase is not None:
        _end_phase(d, ns, ns.plan.definition.phase)
    if d.state.fold.closing:
        return
    scope = ns.scope
    if scope.owner is not None and (d.state.scopes.get(scope.path) is not scope or scopes.scope_has_ended(scope)):
        scopes.advance_around(d, scope)
        return
    for name in ns.plan.dependents:
        plan = scope.plan.nodes[name]
        if len(plan.waits_for) > 1:
            missing = d.state.missing.get((name, scope.path + plan.lane))
            if missing is not None:
                missing.discard(ns.node)
        try_schedule(d, scope, plan)


def enter(d: Draft, scope: OpenScope) -> None:
    """Decide what can be decided in a scope, in the order of the definition. (In a journey nothing: journeys.py.)"""
    if scope.owner is not None and (scopes.scope_has_ended(scope) or lacks_params(d, scope)):
        return
    if scope.unsettled == scope.plan.nodes.keys():  # a new scope: only what waits for nothing can be ready
        for name in scope.plan.entries:
            try_schedule(d, scope, scope.plan.nodes[name])
        return
    for plan in scope.plan.nodes.values():
        if plan.id in scope.unsettled:
            try_schedule(d, scope, plan)


def _end_phase(d: Draft, ns: NodeState, phase: str) -> None:
    if d.state.fold.phases.get(phase) != "started" or ns.scope.owner is not None:
        return
    if not (d.state.plan.phases[phase] & ns.scope.unsettled):
        d.emit(ev.PhaseCompleted(phase))


# --- tickets -----------------------------------------------------------------------------------------------------


def redeem_ticket(d: Draft) -> None:
    """Cancel what has not begun or only waits, because a ticket is pending; enter its target when nothing runs."""
    state = d.state
    ticket = state.fold.ticket
    if ticket is None or state.fold.closing or state.fold.paused:
        return
    for ns in list(state.nodes.values()):
        if _is_idle(d, ns):
            scopes.cancel_instance(d, ns, TICKET, waits_are="superseded", cause=ticket.node)
            d.todo.append(ns)
    propagate(d)
    if all(ns.settled for ns in state.nodes.values()):
        _enter_target(d, ticket)


def _is_idle(d: Draft, ns: NodeState) -> bool:
    """Whether an instance has not begun, or only waits. An attempt that was cut off counts as running; and until a
    person has answered, it is unknown what one did that must not be repeated."""
    match ns.status:
        case NodeStatus.SCHEDULED:
            return not scopes.was_cut_off(ns)
        case NodeStatus.SUSPENDED:
            return bool(ns.waits) and not any(d.state.waits[wait_id].is_crash_question for wait_id in ns.waits)
    return False


def _enter_target(d: Draft, ticket: Ticket) -> None:
    """Skip what the ticket passes over, and enter its target whatever its condition is; its data must be there."""
    state = d.state
    root = state.scopes["."]
    target = root.plan.nodes.get(ticket.target)
    if target is not None and target.definition.unit:
        d.emit(ev.TargetEntered(ticket.target))
        return
    if target is None:
        why = f"the ticket of {ticket.node} leads to {ticket.target!r}, a node that this version does not have"
        d.emit(ev.ScopeClosed("failing", ev.ErrorInfo("bad_target", why)))
        return
    again = root.plan.downstream(ticket.target)
    for plan in root.plan.nodes.values():
        if plan.id in root.unsettled and plan.id not in again:
            skip(d, state.instance(plan.id, "." + plan.lane), TICKET, ticket.node)
    propagate(d)
    d.emit(ev.TargetEntered(ticket.target))
    ns = state.instance(target.id, "." + target.lane)
    cause = _absent(d, ns.scope, target)
    if cause is None:
        enter_node(d, ns)
    else:
        absent = lookup(state, ns.scope, cause)
        how = "was never entered" if absent is None else f"is {absent.status}"
        why = f"{target.id} needs the output of {cause}, which {how}: a ticket leads to {target.id} without it"
        fail_for_good(d, ns, ev.ErrorInfo("missing_data", why, retryable=False))
    propagate(d)
