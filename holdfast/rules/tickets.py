"""Tickets: a body sends its run to another node.

Owns: what `hf.goto` and `hf.ticket` lead to, from the end of the body that raised one until its target is entered.
Rules: the first ticket counts; one that is raised while it is pending is recorded and changes nothing. While it is
pending nothing new starts: a body at work finishes its node, what has not begun or waits is withdrawn, and so is the
next attempt of what failed. When nothing is at work the target is entered on the root path as a new visit.
Maps and loops that are under way end with it, however far their items are.
On crash: a pending ticket is part of the state. The next owner first finishes what was cut off, then enters the target.
"""

from __future__ import annotations

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.naming import is_undo
from holdfast.model.problems import near, target_problem
from holdfast.model.state import NodeState, Ticket
from holdfast.model.statuses import NodeStatus
from holdfast.rules import nodes, scopes
from holdfast.rules.draft import Draft

REASON = "ticket"


def complete(d: Draft, c: cmd.CompleteNode) -> None:
    """A body has ended, and may have raised a ticket. One that leads nowhere fails its node."""
    if c.target is None and c.ticket is None:
        nodes.complete(d, c)
        return
    ns = nodes.ending(d, c)
    target, wrong = resolve(d, c)
    if wrong is not None:
        error = ev.ErrorInfo("bad_target", wrong, retryable=False)
        nodes.fail(d, cmd.FailNode(c.node, c.path, c.attempt, error, visit=c.visit))
        return
    pending = d.state.fold.ticket is not None
    told_to_stop = d.state.fold.closing or (scopes.is_dead(ns.scope) and not pending)
    if not told_to_stop:  # before its completion, so that whoever cuts the history behind that keeps the ticket
        d.emit(ev.TicketRaised(target, c.ticket), ns)
    nodes.complete(d, c)
    if not told_to_stop and not pending:
        stop_scopes(d, ns.node)


def resolve(d: Draft, c: cmd.CompleteNode | cmd.PendNode) -> tuple[str, str | None]:
    """The node that a ticket leads to, and what is wrong with it."""
    definition = d.state.plan.definition
    if is_undo(c.node):
        return "", "a compensation cannot go to another node: its run is ending"
    if c.ticket is not None and definition.kind == "graph" and c.ticket not in definition.tickets:
        hint = near(c.ticket, definition.tickets) or f"declare it: @hf.workflow(tickets={{{c.ticket!r}: 'node'}})"
        return "", f"the workflow has no ticket {c.ticket!r} ({hint})"
    target = (c.target if c.ticket is None else definition.tickets.get(c.ticket)) or ""
    wrong = target_problem(definition, target)
    if wrong is None:
        return target, None
    message, hint = wrong
    return "", f"{message} ({hint})"


def stop_scopes(d: Draft, cause: str) -> None:
    """Maps and loops that have not ended do not go on; bodies at work inside them finish their node."""
    owners = [ns for ns in d.state.nodes.values() if ns.plan.body is not None and not ns.settled]
    for owner in sorted(owners, key=lambda ns: -ns.path.count(".")):  # innermost first
        d.emit(ev.NodeCancelled(REASON, cause=cause), owner)
        d.todo.append(owner)


def redeem(d: Draft) -> None:
    """A ticket is pending: withdraw what has not begun or waits; when nothing is at work, enter the target."""
    state = d.state
    ticket = state.fold.ticket
    if ticket is None or state.fold.closing or state.fold.paused:
        return
    for ns in list(state.nodes.values()):
        if _is_idle(d, ns):
            scopes.withdraw(d, ns, REASON, waits_are="superseded", cause=ticket.node)
            d.todo.append(ns)
    nodes.draw_consequences(d)
    if all(ns.settled for ns in state.nodes.values()):
        _enter(d, ticket)


def _is_idle(d: Draft, ns: NodeState) -> bool:
    """Whether an instance has not begun, or only waits. What an engine left or was cut off from is at work; and before
    a person has said so nobody knows what happened."""
    match ns.status:
        case NodeStatus.SCHEDULED:
            return not scopes.was_cut_off(ns)
        case NodeStatus.SUSPENDED:
            return bool(ns.waits) and not any(d.state.waits[wait_id].is_verdict for wait_id in ns.waits)
    return False


def _enter(d: Draft, ticket: Ticket) -> None:
    """Skip what the ticket passes over, and go on at its target."""
    state = d.state
    root = state.scopes["."]
    if ticket.target not in root.plan.nodes:
        why = f"the ticket of {ticket.node} leads to {ticket.target!r}, a node that this version does not have"
        d.emit(ev.ScopeClosed("failing", ev.ErrorInfo("bad_target", why)))
        return
    again = root.plan.downstream(ticket.target)
    for plan in root.plan.nodes.values():
        if plan.id in root.unsettled and plan.id not in again:
            nodes.skip(d, state.instance(plan.id, plan.path(".")), REASON, ticket.node)
    nodes.draw_consequences(d)
    d.emit(ev.TargetEntered(ticket.target))
    nodes.enter_target(d, root.plan.nodes[ticket.target])
    nodes.draw_consequences(d)
