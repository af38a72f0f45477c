"""Nodes: when an instance may run, and what follows from how it ended.

Owns: readiness, scheduling, starting, completing, failing and retrying, skipping.
Never: maps and loops (scopes.py), the end of the run (runs.py).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.graph import NodePlan, condition_left
from holdfast.model.limits import RETRY_IN_MEMORY_SECONDS, SECOND
from holdfast.model.naming import instance_text, is_undo, undone_by
from holdfast.model.policies import NO_RETRY, seconds_until_retry
from holdfast.model.references import ABSENT, PENDING, UNDONE, availability, inputs_of, judge, locate, lookup
from holdfast.model.state import NodeState, OpenScope, RunState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus, RunStatus
from holdfast.rules import scopes
from holdfast.rules.draft import Draft, Refusal

_RUNNING, _SUSPENDED, _COMPLETED = NodeStatus.RUNNING, NodeStatus.SUSPENDED, NodeStatus.COMPLETED
"""Members that every step is compared with: to look one up in its Enum takes as long as a call."""


def current(d: Draft, c: cmd.OfBody, *statuses: NodeStatus) -> NodeState:
    """The instance a body speaks for, or a refusal: that attempt is over."""
    ns = d.state.nodes.get((c.node, c.path))
    if (
        ns is None
        or ns.attempt != c.attempt
        or ns.visit != c.visit
        or ns.status not in statuses
        or (ns.status is _SUSPENDED and _has_ended(d, ns))
    ):
        raise Refusal("stale", f"attempt {c.attempt} of {instance_text(c.node, c.path, c.visit)} is over")
    return ns


def _has_ended(d: Draft, ns: NodeState) -> bool:
    """Whether the body of a suspended instance is over, and only a person lets it run again."""
    return any(d.state.waits[wait_id].is_of_ended_body for wait_id in ns.waits)


def look(d: Draft, scope: OpenScope, plan: NodePlan) -> None:
    """Decide a pending node if everything it refers to is settled."""
    state = d.state
    path = plan.path(scope.path)
    if (plan.id, path) in state.nodes or state.fold.closing or state.fold.ticket is not None or state.fold.paused:
        return
    if plan.waits_for and not _decidable(d, scope, plan, path):
        return
    if scope.owner is not None and lacks_params(d, scope):
        return
    ns = state.meet(plan, scope, plan.id, path)
    when = plan.definition.when
    if when is not None and scope.owner is None and state.fold.entered:
        when = condition_left(scope.plan, plan, state.fold.entered)
    if when is not None:
        try:
            wanted = judge(state, scope, when)
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
    if len(plan.waits_for) == 1 and not plan.lazy:  # nothing to keep count of
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
    # its data chooses between nodes: what it does not need to wait for may still be missing
    if not missing.isdisjoint(plan.settles_after):
        return False
    return all(availability(d.state, scope, e)[0] is not PENDING for e in data_of(plan))


def data_of(plan: NodePlan) -> list[object]:
    """What a node takes: its arguments, the list of a map, the start of a loop."""
    d = plan.definition
    return [*d.args.values(), *([d.over] if d.kind == "map" else []), *([d.start] if d.kind == "loop" else [])]


def _is_settled(d: Draft, scope: OpenScope, node: str) -> bool:
    ns = d.state.nodes.get((node, scope.plan.nodes[node].path(scope.path)))
    return ns is not None and ns.status in NODE_SETTLED


def _absent(d: Draft, scope: OpenScope, plan: NodePlan) -> str | None:
    """The node whose absence skips this one."""
    if plan.lazy:
        for expr in data_of(plan):
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
    """Everything it needs is there: it is scheduled, or its scope opens."""
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
            _schedule(d, ns, 1, d.now + int(delay * SECOND))
        else:
            d.emit(ev.NodeScheduled(1), ns)
            d.scheduled.append(ns)


def _schedule(d: Draft, ns: NodeState, attempt: int, start_at: int | None) -> None:
    """An attempt may start, now or then. Before a late one the run can be suspended: a timer wakes it."""
    d.emit(ev.NodeScheduled(attempt, start_at), ns)
    if start_at is not None and start_at - d.now > RETRY_IN_MEMORY_SECONDS * SECOND:
        d.set_timer(ns.start_timer, start_at - d.now)
    d.scheduled.append(ns)


def is_time(d: Draft, ns: NodeState) -> bool:
    """Whether a scheduled instance for which no timer is set may start. Such a start is never put off for longer than
    `RETRY_IN_MEMORY_SECONDS`: where it seems to be, the wall clock was set back meanwhile."""
    if ns.start_timer in d.state.timers:
        return False
    return not d.now < ns.not_before <= d.now + RETRY_IN_MEMORY_SECONDS * SECOND


def enter_target(d: Draft, plan: NodePlan) -> None:
    """A ticket leads to this top-level node: it is entered whatever its condition says, but its data must be there."""
    ns = d.state.instance(plan.id, plan.path("."))
    cause = _absent(d, ns.scope, plan)
    if cause is None:
        enter_node(d, ns)
        return
    absent = lookup(d.state, ns.scope, cause)
    how = "was never entered" if absent is None else f"is {absent.status}"
    why = f"{plan.id} needs the output of {cause}, which {how}: a ticket leads to {plan.id} without it"
    fail_for_good(d, ns, ev.ErrorInfo("missing_data", why, retryable=False))


def lacks_params(d: Draft, scope: OpenScope) -> bool:
    """Whether the engine must first provide parameters that rules read in this scope, or around it: a scope is new, or
    the run was read again. Nothing inside is decided, and no body inside goes on, before that."""
    here: OpenScope | None = scope
    lacking = False
    while here is not None and here.owner is not None:
        if here.plan.param_captures and here.params is None:
            lacking = True
            if not any(wanted is here for wanted in d.extra.params_wanted):
                d.extra.params_wanted.append(here)
        here = here.parent
    return lacking


def params_known(d: Draft, scope: OpenScope) -> None:
    """What was held back because a scope's parameters were not known goes on."""
    for ns in list(d.state.nodes.values()):
        if ns.path.startswith(scope.path) and not lacks_params(d, ns.scope):
            if ns.status is NodeStatus.SCHEDULED and ns.start_timer not in d.state.timers:
                d.scheduled.append(ns)
            elif ns.status is NodeStatus.SUSPENDED and not ns.waits:
                d.emit(ev.NodeResumed("params"), ns)
                go_on(d, ns)


def start(d: Draft, ns: NodeState) -> None:
    """A place for the body is free: its start is part of this commit."""
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
            seq = state.nodes[node, scope.plan.nodes[node].path(scope.path)].output_seq
        args[param] = ["at", seq, *keys]
        inputs.append((param, seq, pointed))
    return args, tuple(inputs)


def go_on(d: Draft, ns: NodeState) -> None:
    """A body that was left, or that waits, runs again (or goes on, if it is still in memory)."""
    d.started.append((ns, located_args(d.state, ns)))


def located_args(state: RunState, ns: NodeState) -> dict[str, object]:
    """The arguments of a call, by the events that hold them."""
    if is_undo(ns.node):
        return _args_of_undo(state, ns)
    return {name: locate(state, ns.scope, e) for name, e in ns.plan.definition.args.items()}


def _args_of_undo(state: RunState, ns: NodeState) -> dict[str, object]:
    """What a compensation gets: the output of what it undoes (None where nobody knows it), and inputs by name."""
    instance = (undone_by(ns.node), ns.path, ns.visit)
    found = next((undoable for undoable in state.undo or () if undoable.instance == instance), None)
    if found is None:
        return {UNDONE: None}
    return {UNDONE: ["at", found.output_seq] if found.output_seq else None, **found.args}


def complete(d: Draft, c: cmd.CompleteNode) -> None:
    ns = ending(d, c)
    if ns.waits:
        scopes.close_waits(d, ns)
    d.emit(_completed(c), ns)
    d.todo.append(ns)


def ending(d: Draft, c: cmd.OfBody) -> NodeState:
    """The instance whose body has ended; it may have been suspended, when what ended it was no task that waited."""
    ns = current(d, c, _RUNNING, _SUSPENDED)
    if ns.status is _SUSPENDED:
        wake(d, ns)
    return ns


def wake(d: Draft, ns: NodeState) -> None:
    """A suspended body goes on by itself."""
    if d.state.status is RunStatus.SUSPENDED:
        d.emit(ev.RunResumed("body"))
    d.emit(ev.NodeResumed("body"), ns)


def record(d: Draft, c: cmd.OfBody, event: ev.StepCompleted | ev.StepFailed | ev.StepStarted) -> NodeState:
    """A body remembers something; its instance."""
    ns = current(d, c, _RUNNING, _SUSPENDED)
    if ns.status is _SUSPENDED:  # a task of a parked body went on by itself
        wake(d, ns)
    d.emit(event, ns)
    return ns


def _completed(c: cmd.CompleteNode) -> ev.NodeCompleted:
    raw = msgspec.Raw
    if not c.vars:
        return ev.NodeCompleted(c.attempt, raw(c.output), c.captured)
    return ev.NodeCompleted(
        c.attempt, raw(c.output), c.captured, {k: raw(v) for k, v in c.vars.items()}, c.captured_vars
    )


def fail(d: Draft, c: cmd.FailNode) -> None:
    """An attempt ended in an error: try again by policy, or fail for good."""
    ns = ending(d, c)
    error = c.error
    if is_undo(ns.node) or not (d.state.fold.closing or scopes.is_dead(ns.scope)):
        policy = ns.plan.definition.retry or NO_RETRY
        seed = f"{d.state.run_id}{ns.key}{ns.failures}"
        delay = seconds_until_retry(policy, ns.failures + 1, error.kinds, error.retryable, seed)
        if delay is None:
            fail_for_good(d, ns, error)
        else:
            _retry(d, ns, error, delay)
    else:  # it was being cancelled: how it ended does not matter any more
        drop(d, ns)


def _retry(d: Draft, ns: NodeState, error: ev.ErrorInfo, delay: float) -> None:
    for wait_id in ns.waits:  # a step that was to be tried again: the next attempt of the body calls it anew
        if d.state.waits[wait_id].kind == ev.STEP_RETRY:
            scopes.close_silently(d, wait_id, ns)
    retry_at = d.now + int(delay * SECOND)
    d.emit(ev.NodeFailed(ns.attempt, error, retryable=True, retry_at=retry_at), ns)
    _schedule(d, ns, ns.attempt + 1, retry_at if delay > 0 else None)


def fail_for_good(d: Draft, ns: NodeState, error: ev.ErrorInfo) -> None:
    """No further attempt: the run, the map's item or just the dependents bear the consequence."""
    error = msgspec.structs.replace(error, node=ns.node, path=ns.path, attempt=ns.attempt)
    if ns.waits:
        scopes.close_waits(d, ns)
    if is_undo(ns.node):
        d.emit(ev.NodeFailed(ns.attempt, error, counts=False), ns)
        return
    collector = scopes.collector_of(ns.scope)
    on_failure = d.state.fold.settings.on_failure
    if collector is None and on_failure.startswith("pend:") and ns.plan.body is None and ns.attempt > 0:
        into_basket(d, ns, on_failure.removeprefix("pend:"), "error", error=error)
        return
    if collector is None and on_failure != "continue":
        d.emit(ev.NodeFailed(ns.attempt, error, closes=True), ns)
        return
    counts = collector is None
    while True:
        d.emit(ev.NodeFailed(ns.attempt, error, counts=counts), ns)
        d.todo.append(ns)
        owner = ns.scope.owner
        if owner is None or owner is collector or owner.status in NODE_SETTLED:
            return
        scopes.abandon(d, owner)
        ns = owner


def into_basket(
    d: Draft,
    ns: NodeState,
    basket: str,
    mode: Literal["next", "same", "error"],
    ended: cmd.PendNode | None = None,
    *,
    error: ev.ErrorInfo | None = None,
    target: str | None = None,
) -> None:
    """An instance whose body has ended waits until somebody resumes it: then the next one runs, or itself again."""
    about: dict[str, object] = {"basket": basket, "mode": mode}
    if error is not None:
        error = msgspec.structs.replace(error, node=ns.node, path=ns.path, attempt=ns.attempt)
        d.emit(ev.NodeFailed(ns.attempt, error, retryable=True), ns)
        about["error"] = {"code": error.code, "message": error.message}
    if target is not None:
        about |= {"target": target, "ticket": ended and ended.ticket}
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, "basket", {}, None, about), ns)
    if ended is None:
        d.emit(ev.NodeSuspended((wait_id,), basket, mode), ns)
        return
    raw = {name: msgspec.Raw(value) for name, value in ended.vars.items()}
    output, captured = (ended.output, ended.captured) if mode == "next" else (b"null", {})
    d.emit(
        ev.NodeSuspended(
            (wait_id,), basket, mode, msgspec.Raw(output), captured, raw, ended.captured_vars, forgets=ended.rerun
        ),
        ns,
    )


def drop(d: Draft, ns: NodeState) -> None:
    """A body that was cancelled has gone; whether its effect happened is not known."""
    if ns.waits:
        scopes.close_waits(d, ns)
    d.emit(ev.NodeCancelled("cancelled", "unknown"), ns)
    d.todo.append(ns)


def skip(d: Draft, ns: NodeState, reason: str, cause: str | None) -> None:
    d.emit(ev.NodeSkipped(reason, cause), ns)
    d.todo.append(ns)


def draw_consequences(d: Draft) -> None:
    """Look at everything that waited for what settled in this turn, until nothing more follows."""
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
            _draw(d, ns)


def _draw(d: Draft, ns: NodeState) -> None:
    """What follows from one instance that settled."""
    if ns.plan.definition.phase is not None:
        _end_phase(d, ns, ns.plan.definition.phase)
    if d.state.fold.closing:
        return
    scope = ns.scope
    if scope.owner is not None and (d.state.scopes.get(scope.path) is not scope or scopes.is_dead(scope)):
        scopes.advance_around(d, scope)
        return
    for name in ns.plan.dependents:
        plan = scope.plan.nodes[name]
        if len(plan.waits_for) > 1:
            missing = d.state.missing.get((name, plan.path(scope.path)))
            if missing is not None:
                missing.discard(ns.node)
        look(d, scope, plan)


def enter(d: Draft, scope: OpenScope) -> None:
    """Decide what can be decided in a scope, in the order of the definition."""
    if scope.owner is not None and (scopes.is_dead(scope) or lacks_params(d, scope)):
        return
    if scope.unsettled == scope.plan.nodes.keys():  # a new scope: only what waits for nothing can be ready
        for name in scope.plan.entries:
            look(d, scope, scope.plan.nodes[name])
        return
    for plan in scope.plan.nodes.values():
        if plan.id in scope.unsettled:
            look(d, scope, plan)


def _end_phase(d: Draft, ns: NodeState, phase: str) -> None:
    if d.state.fold.phases.get(phase) != "started" or ns.scope.owner is not None:
        return
    if not (d.state.plan.phases[phase] & ns.scope.unsettled):
        d.emit(ev.PhaseCompleted(phase))
