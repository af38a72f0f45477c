"""Pends: a body ends, and its node waits in a basket until somebody resumes it.

Owns: what `hf.pend` leads to, and what follows when the basket is left again.
Rules: without more, the node has completed and what follows it runs on resume; with `rerun` it runs again itself, with
nothing remembered; with an error it is an attempt that failed, and runs again as another one. A ticket that was given
with it is redeemed on resume.
On crash: a pended node is its row and its wait; nothing of it is in memory.
"""

from __future__ import annotations

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.naming import is_undo
from holdfast.model.state import NodeState, WaitState
from holdfast.rules import nodes, scopes, tickets, waits
from holdfast.rules.draft import Draft


def pend(d: Draft, c: cmd.PendNode) -> None:
    """A body ended with `hf.pend`."""
    ns = nodes.ending(d, c)
    if is_undo(ns.node):
        _fail(d, c, "a compensation cannot pend: its run is ending")
        return
    target: str | None = None
    if c.error is None and (c.target is not None or c.ticket is not None):
        target, wrong = tickets.resolve(d, c)
        if wrong is not None:
            _fail(d, c, wrong)
            return
    if d.state.fold.closing or scopes.is_dead(ns.scope):  # it was told to stop: nobody would resume it
        if c.rerun or c.error is not None:
            nodes.drop(d, ns)
        else:
            nodes.complete(
                d,
                cmd.CompleteNode(
                    c.node, c.path, c.attempt, c.output, c.captured, c.vars, c.captured_vars, visit=c.visit
                ),
            )
        return
    if ns.waits:
        scopes.close_waits(d, ns)
    if c.error is not None:
        nodes.into_basket(d, ns, c.basket, "error", c, error=c.error)
    elif c.rerun:
        nodes.into_basket(d, ns, c.basket, "same", c)
    else:
        nodes.into_basket(d, ns, c.basket, "next", c, target=target)


def _fail(d: Draft, c: cmd.PendNode, why: str) -> None:
    error = ev.ErrorInfo("bad_target", why, retryable=False)
    nodes.fail(d, cmd.FailNode(c.node, c.path, c.attempt, error, visit=c.visit))


def take_out(d: Draft, wait: WaitState, actor: str) -> None:
    """Somebody resumes a node that lies in a basket."""
    ns = d.state.nodes[wait.node, wait.path]
    d.emit(ev.WaitClosed(wait.wait_id, "resumed", actor=actor), ns)
    waits.wake_run(d, wait.kind)
    match wait.about["mode"]:
        case "next":
            d.emit(ev.NodeResumed(wait.wait_id), ns)
            _complete(d, ns, wait)
        case "same":
            waits.try_again(d, ns, wait.wait_id, same_attempt=True)
        case "error":
            waits.try_again(d, ns, wait.wait_id)


def _complete(d: Draft, ns: NodeState, wait: WaitState) -> None:
    """Its body has completed long ago; what follows it goes on, or what its ticket leads to."""
    completed = ev.NodeCompleted(ns.attempt, captured=ns.captured, pended_at=ns.output_seq)
    target = wait.about.get("target")
    raised = target is not None and d.state.fold.ticket is None
    if target is not None:
        d.emit(ev.TicketRaised(target, wait.about.get("ticket")), ns)
    d.emit(completed, ns)
    d.todo.append(ns)
    if raised:
        tickets.stop_scopes(d, ns.node)
