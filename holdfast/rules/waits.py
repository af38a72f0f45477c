"""Waits: what a run can wait for, and what ends the waiting.

Owns: opening and closing waits, timers, children's reports, and when the run itself counts as suspended.
Never: knows where a body is (in memory or not); the answer is in the draft, the engine finds the body or runs it again.
What people and other runs answer is beside it: questions.py, signals.py, resuming.py.
"""

from __future__ import annotations

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.naming import derived, instance_text, is_undo, undone_by
from holdfast.model.state import NodeState, WaitState, timers_of
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.model.timers import RUN_TIMEOUT
from holdfast.rules import races
from holdfast.rules.draft import Answer, ChildToCreate, Draft, Refusal
from holdfast.rules.nodes import current, go_on, lacks_params, wake
from holdfast.rules.scopes import close_silently


def open_wait(d: Draft, c: cmd.OpenWait) -> WaitState:
    """A body made a call that waits. (The wait may be closed already.)"""
    ns = current(d, c, NodeStatus.RUNNING, NodeStatus.SUSPENDED)
    if ns.status is NodeStatus.SUSPENDED:  # another task of a parked body went on by itself
        wake(d, ns)
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, c.kind, c.call, c.until, c.about), ns)
    wait = d.state.waits[wait_id]
    if races.has_lost(ns, c.call):  # while it was on its way
        races.lose(d, ns, wait_id)
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
        ns.failures + d.state.fold.forgiven.get(instance_text(ns.node, ns.path), 0),
        size=16,
    )
    d.emit(ev.ChildStarted(run_id, child.workflow, child.version, wait_id, child.detached), ns)
    if child.detached:  # nothing to wait for: the call ends with the child's id
        close_wait(d, d.state.waits[wait_id], "started", msgspec.json.encode(run_id))
    if not child.attach:
        parent = None if child.detached else {"run_id": d.state.run_id, "wait_id": wait_id}
        d.extra.children.append(ChildToCreate(run_id, child, parent, d.state.fold.depth + 1))


def suspend_node(d: Draft, c: cmd.SuspendNode) -> None:
    """Everything in a body waits: the node is suspended until one of its waits closes."""
    ns = current(d, c, NodeStatus.RUNNING)
    if ns.waits:
        d.emit(ev.NodeSuspended(ns.waits), ns)


def close_wait(d: Draft, wait: WaitState, outcome: str, value: bytes, actor: str = "") -> None:
    """A wait has its answer; whoever waits goes on."""
    ns = d.state.nodes.get((wait.node, wait.path))
    for timer in timers_of(d.state, wait):
        d.emit(ev.TimerCancelled(timer))
    d.emit(ev.WaitClosed(wait.wait_id, outcome, msgspec.Raw(value), actor), ns)
    if ns is None:
        return
    races.answered(d, ns, wait)
    if d.state.fold.paused and ns.status is NodeStatus.SUSPENDED:  # its body was left; it goes on when the pause ends
        return
    wake_run(d, wait.kind)
    if ns.status is NodeStatus.SUSPENDED and not d.leaves_bodies and not lacks_params(d, ns.scope):
        d.emit(ev.NodeResumed(wait.wait_id), ns)
        go_on(d, ns)
    d.extra.answers.append(Answer(ns, wait, outcome, value))


def give_up(d: Draft, c: cmd.CloseWait) -> None:
    """The body itself does not wait any more."""
    wait = d.state.waits.get(c.wait_id)
    if wait is None:
        raise Refusal("stale", f"{c.wait_id} is closed")
    ns = d.state.nodes.get((wait.node, wait.path))
    if ns is not None and ns.status is NodeStatus.SUSPENDED:
        wake(d, ns)
    close_silently(d, c.wait_id, ns, c.outcome, actor=races.RACE if c.outcome == "superseded" else "")


def wake_run(d: Draft, by: str) -> None:
    if d.state.status is RunStatus.SUSPENDED:
        d.emit(ev.RunResumed(by))


def fire(d: Draft, timer: str) -> None:
    """A timer of the engine's own is due: of a sleep, a retry or a start that was delayed, the run's time."""
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
    """Whether everything that its start reads is at hand; else it starts when the engine has provided it."""
    if is_undo(ns.node):  # one at a time
        first = d.state.undo[0] if d.state.undo else None
        return first is not None and first.instance == (undone_by(ns.node), ns.path, ns.visit)
    return not lacks_params(d, ns.scope)


def try_again(d: Draft, ns: NodeState, by: str, *, same_attempt: bool = False) -> None:
    """A suspended instance whose body has gone runs again from its start."""
    d.emit(ev.NodeResumed(by), ns)
    d.emit(ev.NodeScheduled(ns.attempt if same_attempt else ns.attempt + 1), ns)
    if may_start(d, ns):
        d.scheduled.append(ns)


def child_ended(d: Draft, child: str, status: str, result: bytes, error: ev.ErrorInfo | None) -> None:
    """A child run reports its end."""
    wait_id = d.state.fold.children.get(child)
    wait = d.state.waits.get(wait_id or "")
    if wait is None:
        raise Refusal("stale", f"nobody waits for {child}")
    ns = d.state.nodes.get((wait.node, wait.path))
    d.emit(ev.ChildEnded(child, status, msgspec.Raw(result), error), ns)
    if error is not None:
        result = msgspec.json.encode(msgspec.structs.replace(error, run_id=child))
    close_wait(d, wait, status, result)


def suspend_run(d: Draft) -> None:
    """When nothing in the run can move without its waits or timers, the run is suspended."""
    state = d.state
    paused = bool(state.fold.paused)
    if state.fold.closing not in ("", "compensating") or not (state.waits or len(state.timers) > 0):
        return
    if state.status is not RunStatus.RUNNING and not (paused and state.status is RunStatus.CREATED):
        return
    if d.leaves_bodies and not paused:  # what woke it goes on when somebody takes the run, whatever else it waits for
        return
    waiting = paused
    for ns in state.nodes.values():
        match ns.status:
            case NodeStatus.RUNNING if ns.plan.body is None:
                return
            case NodeStatus.SUSPENDED:
                waiting = waiting or bool(ns.waits)
                if not ns.waits and not paused:
                    return
            case NodeStatus.SCHEDULED:
                if state.undo and is_undo(ns.node) and not may_start(d, ns):
                    continue  # another compensation comes first
                if ns.start_timer not in state.timers and not paused:
                    return
                waiting = True
    if waiting and not d.finish and not (d.extras is not None and d.extras.params_wanted):
        d.emit(ev.RunSuspended(tuple(state.waits)))
