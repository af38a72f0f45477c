"""Waits: what a run can wait for, what ends a wait, and which call of a `ctx.race` has won.

Owns: opening and closing waits, timers, children's reports, when the run itself is suspended; that the commit which
ends a call of a race also decides the races that it ends: in it, what the other calls wait for is closed, and what they
ask for later is closed as it is opened.
Never: knows where a body is (in memory or not); the answer is in the draft, the engine finds the body or runs it again.
What people and other runs answer is in questions.py and resuming.py.
Rule of races: an answer or a signal that is accepted for a call of a race makes that call the winner. A signal that
comes second is kept, an answer that comes second is refused. (Where a call of a race is a coroutine of several calls on
ctx, this is true of its end, not of each of them.)
On crash: which races are decided is not stored. The journal of the body has it: the winner's answer is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.naming import derived, instance_text, is_undo
from holdfast.model.state import NodeState, WaitState, timers_of
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.model.timers import RUN_TIMEOUT
from holdfast.rules import body_reports
from holdfast.rules.body_reports import current, wake
from holdfast.rules.draft import Answer, ChildToCreate, Draft, Refusal
from holdfast.rules.nodes import lacks_params, restart_body
from holdfast.rules.scopes import awaits_output, close_unanswered

RACE = "race"
"""The actor that closes what the losers of a race wait for."""


def open_wait(d: Draft, c: cmd.OpenWait) -> WaitState:
    """Open the wait of a body's call. (It may be closed again when this returns.)"""
    ns = body_reports.awake(d, c)
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, c.kind, c.call, c.until, c.about), ns)
    wait = d.state.waits[wait_id]
    if _has_lost(ns, c.call):  # a race was decided before this call was
        _close_loser(d, ns, wait_id)
        return wait
    if c.until is not None and c.lasts is not None:
        d.set_timer(wait_id, c.lasts, c.until)
    elif c.until is not None:
        d.emit(ev.TimerSet(wait_id, c.until))
    if c.child is not None:
        _start_child(d, ns, wait_id, c.child, c.call)
    return wait


def _start_child(d: Draft, ns: NodeState, wait_id: str, child: cmd.NewChild, call: dict[str, object]) -> None:
    run_id = child.run_id or derived(
        "run_",
        d.state.run_id,
        d.state.fold.key_epoch,
        ns.node,
        ns.path,
        ns.visit,
        call["step_key"],
        ns.failures + d.state.fold.failures_before_retry.get(instance_text(ns.node, ns.path), 0),
        size=16,
    )
    d.emit(ev.ChildStarted(run_id, child.workflow, child.version, wait_id, child.detached), ns)
    if child.detached:  # nothing to wait for: the call ends with the child's id
        close_wait(d, d.state.waits[wait_id], "started", msgspec.json.encode(run_id))
    if not child.attach:
        parent = None if child.detached else {"run_id": d.state.run_id, "wait_id": wait_id}
        d.extra.children.append(ChildToCreate(run_id, child, parent, d.state.fold.depth + 1))


def suspend_node(d: Draft, c: cmd.SuspendNode) -> None:
    """Suspend a node of whose body every task waits, until one of its waits closes."""
    ns = current(d, c, NodeStatus.RUNNING)
    if ns.waits:
        d.emit(ev.NodeSuspended(ns.waits), ns)


def close_wait(d: Draft, wait: WaitState, outcome: str, value: bytes, actor: str = "") -> None:
    """Close a wait with its answer; the body that waits continues."""
    ns = d.state.nodes.get((wait.node, wait.path))
    for timer in timers_of(d.state, wait):
        d.emit(ev.TimerCancelled(timer))
    d.emit(ev.WaitClosed(wait.wait_id, outcome, msgspec.Raw(value), actor), ns)
    if ns is None:
        return
    if "races" in wait.call:  # the races in which this wait is all that a call does are won by it
        _win(d, ns, wait.call["races"][: wait.call["decides"]])
    if d.state.fold.paused and ns.status is NodeStatus.SUSPENDED:  # its body was evicted; it runs when the pause ends
        return
    wake_run(d, wait.kind)
    if ns.status is NodeStatus.SUSPENDED and not d.defers_bodies and not lacks_params(d, ns.scope):
        d.emit(ev.NodeResumed(wait.wait_id), ns)
        restart_body(d, ns)
    d.extra.answers.append(Answer(ns, wait, outcome, value))


def close_by_body(d: Draft, c: cmd.CloseWait) -> None:
    """Close a wait that the body itself gave up."""
    wait = d.state.waits.get(c.wait_id)
    if wait is None:
        raise Refusal("stale", f"{c.wait_id} is closed")
    ns = d.state.nodes.get((wait.node, wait.path))
    if ns is not None and ns.status is NodeStatus.SUSPENDED:
        wake(d, ns)
    close_unanswered(d, c.wait_id, ns, c.outcome, actor=RACE if c.outcome == "superseded" else "")


def wake_run(d: Draft, by: str) -> None:
    """Record that a suspended run continues."""
    if d.state.status is RunStatus.SUSPENDED:
        d.emit(ev.RunResumed(by))


def fire(d: Draft, timer: str) -> None:
    """Fire a timer of the engine's own: a sleep, a retry or a start that was delayed, the run's timeout."""
    d.fire_timer(timer)
    if timer in d.state.waits:
        close_wait(d, d.state.waits[timer], "fired", b"null")
        return
    if timer == RUN_TIMEOUT:
        wake_run(d, timer)
        return
    for ns in d.state.nodes.values():
        if ns.status is NodeStatus.SCHEDULED and ns.start_timer == timer:
            if not d.state.fold.paused:
                wake_run(d, "retry")
            if may_start(d, ns):
                d.scheduled.append(ns)


def may_start(d: Draft, ns: NodeState) -> bool:
    """Whether everything that its start reads is in memory; else it starts when the engine has provided that."""
    if is_undo(ns.node):  # one at a time
        found, work = d.state.to_undo(*ns.instance), d.state.undo
        return work is not None and found is not None and found is work.left[0]
    return not lacks_params(d, ns.scope)


def run_again(d: Draft, ns: NodeState, by: str, *, same_attempt: bool = False) -> None:
    """Schedule a suspended instance whose body has ended, from its start."""
    d.emit(ev.NodeResumed(by), ns)
    d.emit(ev.NodeScheduled(ns.attempt if same_attempt else ns.attempt + 1), ns)
    if may_start(d, ns):
        d.scheduled.append(ns)


def child_ended(d: Draft, child: str, status: str, result: bytes, error: ev.ErrorInfo | None) -> None:
    """Close the wait for a child run that reports its end."""
    wait_id = d.state.fold.children.get(child)
    wait = d.state.waits.get(wait_id or "")
    if wait is None:
        raise Refusal("stale", f"run {d.state.run_id} does not wait for {child}")
    ns = d.state.nodes.get((wait.node, wait.path))
    d.emit(ev.ChildEnded(child, status, msgspec.Raw(result), error), ns)
    if error is not None:
        result = msgspec.json.encode(msgspec.structs.replace(error, run_id=child))
    close_wait(d, wait, status, result)


def suspend_run(d: Draft) -> None:
    """Suspend the run if nothing in it can continue without its waits or timers."""
    state = d.state
    paused = bool(state.fold.paused)
    if state.fold.closing not in ("", "compensating") or not (state.waits or len(state.timers) > 0):
        return
    if state.status is not RunStatus.RUNNING and not (paused and state.status is RunStatus.CREATED):
        return
    if (
        d.defers_bodies and not paused
    ):  # what was answered runs when an engine claims the run, whatever else it waits for
        return
    waiting = paused
    for ns in state.nodes.values():
        match ns.status:
            case NodeStatus.RUNNING if ns.plan.body is None or awaits_output(ns):
                return
            case NodeStatus.SUSPENDED:
                waiting = waiting or bool(ns.waits)
                if not ns.waits and not paused:
                    return
            case NodeStatus.SCHEDULED:
                if state.undo is not None and state.undo.left and is_undo(ns.node) and not may_start(d, ns):
                    continue  # another compensation comes first
                if ns.start_timer not in state.timers and not paused:
                    return
                waiting = True
    if waiting and not d.finish and not (d.extras is not None and d.extras.params_wanted):
        d.emit(ev.RunSuspended(tuple(state.waits)))


# --- races -------------------------------------------------------------------------------------------------------


def record_step(d: Draft, c: cmd.RecordStep) -> int | None:
    """Record a step of a body. If it is the end of a race that another call has won meanwhile, record nothing; that
    call."""
    winner = _winner(d, c)
    if winner is None:
        ns = body_reports.record(d, c, c.event)
        if c.races:
            _win(d, ns, c.races)
    return winner


def _winner(d: Draft, c: cmd.RecordStep) -> int | None:
    ns = d.state.nodes.get((c.node, c.path))
    if c.event.kind != "race" or not c.races or ns is None or ns.races is None:
        return None
    race, index = c.races[0]
    decided = ns.races.get(race, index)
    return None if decided == index else decided


def _win(d: Draft, ns: NodeState, races: Iterable[Sequence[Any]]) -> None:
    """Decide races that a call has won, and close what the losers wait for. The end of a race may also be the end of a
    call of the race around it. Each race is its name and the place of the call in it; of a wait they come as lists,
    from its JSON."""
    if ns.races is None:
        ns.races = {}
    for race, index in races:
        if ns.races.setdefault(race, index) != index:
            break  # it ended too late; so the races around it are not decided by it
    for wait_id in ns.waits:
        if _has_lost(ns, d.state.waits[wait_id].call):
            _close_loser(d, ns, wait_id)


def _has_lost(ns: NodeState, call: Mapping[str, Any]) -> bool:
    """Whether a call is part of one that has lost a race."""
    decided = ns.races
    return decided is not None and any(decided.get(race, index) != index for race, index in call.get("races", ()))


def _close_loser(d: Draft, ns: NodeState, wait_id: str) -> None:
    """Close a wait of a call that lost a race; a child that it waited for is cancelled."""
    close_unanswered(d, wait_id, ns, "superseded", actor=RACE)
