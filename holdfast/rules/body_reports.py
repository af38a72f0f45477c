"""Body reports: what a body reports while it runs and when it ends, and what follows for its node.

Owns: steps and checkpoints; completion (also with a ticket), failure (with a retry by policy), `hf.pend`, cancellation.
Never: decides which node runs next (nodes.py: an instance that settles is left in `Draft.todo`), maps and loops
(scopes.py), what follows when a basket is resumed (resuming.py).
Rules: a report names its attempt and visit; one from an attempt that is over is refused.
A ticket (`hf.goto`, `hf.ticket`) counts if no other one is pending; one that is raised while another is pending is
recorded and changes nothing. Maps and loops under way end with it, however far their items are. One that leads nowhere
fails its node.
A pended node has completed, and what follows it runs on resume. With `rerun` it runs again itself, with nothing
remembered; with an error it is an attempt that failed, and runs again as another one. A ticket that was given with it
is redeemed on resume.
On crash: a pended node is its row and its wait; nothing of it is in memory.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.journey_shape import ROUTES, answer_problem, target_problem
from holdfast.model.limits import SECOND
from holdfast.model.naming import depth, instance_text, is_undo
from holdfast.model.policies import NO_RETRY, seconds_until_retry
from holdfast.model.problems import near
from holdfast.model.state import NodeState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus, RunStatus
from holdfast.rules import scopes
from holdfast.rules.draft import Draft, Refusal

TICKET = "ticket"
"""Why an instance was cancelled or skipped: a ticket leads elsewhere."""

_RUNNING, _SUSPENDED = NodeStatus.RUNNING, NodeStatus.SUSPENDED
"""Members that every step is compared with: looking one up in its Enum takes as long as a call."""


def current(d: Draft, c: cmd.OfBody, *statuses: NodeStatus) -> NodeState:
    """The instance that a body reports for. Raises Refusal if that attempt is over."""
    ns = d.state.nodes.get((c.node, c.path))
    if (
        ns is None
        or ns.attempt != c.attempt
        or ns.visit != c.visit
        or ns.status not in statuses
        or (ns.status is _SUSPENDED and _body_has_ended(d, ns))
    ):
        raise Refusal("stale", f"attempt {c.attempt} of {instance_text(c.node, c.path, c.visit)} is over")
    return ns


def _body_has_ended(d: Draft, ns: NodeState) -> bool:
    """Whether the body of a suspended instance is over, so that only a person lets it run again."""
    return any(d.state.waits[wait_id].is_of_ended_body for wait_id in ns.waits)


def awake(d: Draft, c: cmd.OfBody) -> NodeState:
    """The instance that a body reports for, running again if it was suspended: a task of a parked body continued by
    itself, or the body was ended by something else than a task that waited."""
    ns = current(d, c, _RUNNING, _SUSPENDED)
    if ns.status is _SUSPENDED:
        wake(d, ns)
    return ns


def wake(d: Draft, ns: NodeState) -> None:
    """Record that a suspended body continues by itself."""
    if d.state.status is RunStatus.SUSPENDED:
        d.emit(ev.RunResumed("body"))
    d.emit(ev.NodeResumed("body"), ns)


# --- while it runs -----------------------------------------------------------------------------------------------


def record(d: Draft, c: cmd.OfBody, event: ev.StepCompleted | ev.StepFailed | ev.StepStarted) -> NodeState:
    """Record a step of a body; its instance."""
    ns = awake(d, c)
    d.emit(event, ns)
    return ns


def checkpoint(d: Draft, c: cmd.Checkpoint) -> None:
    """Record a checkpoint: what the body remembered before it is not replayed again."""
    ns = awake(d, c)
    raw = {name: msgspec.Raw(value) for name, value in c.vars.items()}
    d.emit(ev.NodeCheckpointed(msgspec.Raw(c.value), {}, c.number, raw, c.captured_vars, c.patches), ns)
    ns.races = None


# --- completion --------------------------------------------------------------------------------------------------


def complete(d: Draft, c: cmd.CompleteNode) -> None:
    """Complete a node whose body returned or raised a ticket."""
    ns = awake(d, c)
    wrong = answer_problem(ns.plan.definition, c.captured.get("")) if ns.plan.definition.unit else None
    if wrong is not None:
        _fail(d, ns, ev.ErrorInfo("bad_branch", wrong, retryable=False))
        return
    if c.target is None and c.ticket is None:
        _complete(d, ns, c)
        return
    target, problem = _target(d, c)
    if problem is not None:
        _fail_target(d, ns, problem)
        return
    pending = d.state.fold.ticket is not None
    is_stopping = d.state.fold.closing or (scopes.scope_has_ended(ns.scope) and not pending)
    if not is_stopping:  # before its completion, so that a cut behind the completion keeps the ticket
        d.emit(ev.TicketRaised(target, c.ticket), ns)
    _complete(d, ns, c)
    if not is_stopping and not pending:
        stop_scopes(d, ns.node)


def _complete(d: Draft, ns: NodeState, c: cmd.CompleteNode | cmd.PendNode) -> None:
    if ns.waits:
        scopes.close_waits(d, ns)
    if c.vars:
        raw = {name: msgspec.Raw(value) for name, value in c.vars.items()}
        d.emit(ev.NodeCompleted(c.attempt, msgspec.Raw(c.output), c.captured, raw, c.captured_vars), ns)
    else:
        d.emit(ev.NodeCompleted(c.attempt, msgspec.Raw(c.output), c.captured), ns)
    d.todo.append(ns)


def _target(d: Draft, c: cmd.CompleteNode | cmd.PendNode) -> tuple[str, str | None]:
    """The node that a ticket leads to, and what is wrong with it."""
    definition = d.state.plan.definition
    if is_undo(c.node):
        return "", "a compensation cannot go to another node: its run is ending"
    unit = d.state.plan.root.nodes.get(c.node)
    if unit is not None and unit.definition.unit in ROUTES:
        return "", f"{c.node} is a route: it answers with branches, and raises no ticket"
    if c.ticket is not None and definition.kind == "graph" and c.ticket not in definition.tickets:
        hint = near(c.ticket, definition.tickets) or f"declare it: @hf.workflow(tickets={{{c.ticket!r}: 'node'}})"
        return "", f"the workflow has no ticket {c.ticket!r} ({hint})"
    target = (c.target if c.ticket is None else definition.tickets.get(c.ticket)) or ""
    problem = target_problem(definition, target)
    return (target, None) if problem is None else ("", f"{problem[0]} ({problem[1]})")


def _fail_target(d: Draft, ns: NodeState, why: str) -> None:
    _fail(d, ns, ev.ErrorInfo("bad_target", why, retryable=False))


def stop_scopes(d: Draft, cause: str) -> None:
    """End maps and loops that have not ended, because of a ticket; bodies that run inside them finish their node."""
    owners = [ns for ns in d.state.nodes.values() if ns.plan.body is not None and not ns.settled]
    for owner in sorted(owners, key=lambda ns: -depth(ns.path)):  # innermost first
        d.emit(ev.NodeCancelled(TICKET, cause=cause), owner)
        d.todo.append(owner)


# --- pending -----------------------------------------------------------------------------------------------------


def pend(d: Draft, c: cmd.PendNode) -> None:
    """Suspend a node in a basket: its body ended with `hf.pend`."""
    ns = awake(d, c)
    if is_undo(ns.node):
        _fail_target(d, ns, "a compensation cannot pend: its run is ending")
        return
    if ns.plan.definition.unit in ROUTES and c.error is None:
        why = f"{ns.node} is a route, and a route cannot pend: it answers with branches, or pends with an error"
        _fail(d, ns, ev.ErrorInfo("bad_branch", why, retryable=False))
        return
    target: str | None = None
    if c.error is None and (c.target is not None or c.ticket is not None):
        target, problem = _target(d, c)
        if problem is not None:
            _fail_target(d, ns, problem)
            return
    if d.state.fold.closing or scopes.scope_has_ended(ns.scope):  # it is being stopped: it could never be resumed
        if c.rerun or c.error is not None:
            record_cancelled(d, ns)
        else:
            _complete(d, ns, c)
        return
    if ns.waits:
        scopes.close_waits(d, ns)
    if c.error is not None:
        _into_basket(d, ns, c.basket, "error", c, error=c.error)
    elif c.rerun:
        _into_basket(d, ns, c.basket, "same", c)
    else:
        _into_basket(d, ns, c.basket, "next", c, target=target)


def _into_basket(
    d: Draft,
    ns: NodeState,
    basket: str,
    mode: Literal["next", "same", "error"],
    ended: cmd.PendNode | None = None,
    *,
    error: ev.ErrorInfo | None = None,
    target: str | None = None,
) -> None:
    """Let an instance whose body has ended wait for a resume: then the next one runs, or the same one again."""
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


# --- failure and cancellation ------------------------------------------------------------------------------------


def fail(d: Draft, c: cmd.FailNode) -> None:
    """Retry a node by its policy after an attempt that failed, or fail it for good."""
    _fail(d, awake(d, c), c.error)


def _fail(d: Draft, ns: NodeState, error: ev.ErrorInfo) -> None:
    if not is_undo(ns.node) and (d.state.fold.closing or scopes.scope_has_ended(ns.scope)):
        record_cancelled(d, ns)  # its body was being cancelled: how it ended does not matter
        return
    policy = ns.plan.definition.retry or NO_RETRY
    seed = f"{d.state.run_id}{ns.key}{ns.failures}"
    delay = seconds_until_retry(policy, ns.failures + 1, error.kinds, error.retryable, seed, error.retry_after)
    if delay is None:
        fail_for_good(d, ns, error)
        return
    for wait_id in ns.waits:  # a step that was to be tried again: the next attempt of the body calls it anew
        if d.state.waits[wait_id].kind == ev.STEP_RETRY:
            scopes.close_unanswered(d, wait_id, ns)
    retry_at = d.now + int(delay * SECOND)
    d.emit(ev.NodeFailed(ns.attempt, error, retryable=True, retry_at=retry_at), ns)
    d.schedule(ns, ns.attempt + 1, retry_at if delay > 0 else None)


def fail_for_good(d: Draft, ns: NodeState, error: ev.ErrorInfo) -> None:
    """Fail a node without another attempt: the consequence is for the run, for the map's item, or for the dependents
    alone."""
    error = msgspec.structs.replace(error, node=ns.node, path=ns.path, attempt=ns.attempt)
    if ns.waits:
        scopes.close_waits(d, ns)
    if is_undo(ns.node):
        d.emit(ev.NodeFailed(ns.attempt, error, counts=False), ns)
        return
    collector = scopes.collector_of(ns.scope)
    on_failure = d.state.fold.settings.on_failure
    if collector is None and on_failure.startswith("pend:") and ns.plan.body is None and ns.attempt > 0:
        _into_basket(d, ns, on_failure.removeprefix("pend:"), "error", error=error)
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
        scopes.fail_scope(d, owner)
        ns = owner


def cancelled(d: Draft, c: cmd.DropNode) -> None:
    """Record the end of a body that was cancelled or given up."""
    record_cancelled(d, current(d, c, _RUNNING))


def record_cancelled(d: Draft, ns: NodeState) -> None:
    """Record that a body that was cancelled has ended; whether its effect happened is unknown."""
    if ns.waits:
        scopes.close_waits(d, ns)
    d.emit(ev.NodeCancelled("cancelled", "unknown"), ns)
    d.todo.append(ns)


def skip(d: Draft, ns: NodeState, reason: str, cause: str | None) -> None:
    """Skip a pending instance; `cause` is the node because of which."""
    d.emit(ev.NodeSkipped(reason, cause), ns)
    d.todo.append(ns)
