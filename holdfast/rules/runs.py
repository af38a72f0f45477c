"""Runs: how a run begins, is asked to stop, and ends.

Owns: the first and the last events, cancellation and failure as phases inside `running`.
Never: retries or skips (nodes.py), compensations (undoing.py).
Invariants: the terminal event is the last; it is in one commit with the closing of all waits and timers.
"""

from __future__ import annotations

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import MissingCode
from holdfast.model.limits import INLINE_LIMIT_BYTES, SECOND
from holdfast.model.naming import derived, instance_text
from holdfast.model.statuses import NODE_SETTLED, RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.timers import RUN_TIMEOUT
from holdfast.rules import nodes, undoing, waits
from holdfast.rules.draft import Draft, Refusal, ToRun
from holdfast.rules.scopes import close_silently, withdraw


def begin(d: Draft) -> None:
    """Schedule what waits for nothing."""
    create(d)
    nodes.enter(d, d.state.scopes["."])


def create(d: Draft) -> None:
    """The run exists: its time counts from here, also while it waits for a place."""
    timeout = d.state.fold.settings.timeout
    if timeout is not None and RUN_TIMEOUT not in d.state.timers:
        d.set_timer(RUN_TIMEOUT, int(timeout * SECOND))


def cancel(d: Draft, reason: str, actor: str, *, gives_up_undo: bool = False, hold: str = "") -> None:
    """Ask the run to stop. A second cancel is a no-op, unless it gives up compensations that cannot run: those whose
    code no engine has, and with `hold`, why the run was on hold while it compensated, the one that has begun."""
    if d.state.status in RUN_TERMINAL:
        raise Refusal("finished", f"the run has {d.state.status} already")
    if d.state.fold.closing and not gives_up_undo:
        return
    waits.wake_run(d, "cancel")
    d.emit(ev.RunCancelRequested(reason, actor, gives_up_undo))
    if hold and not hold.startswith(MissingCode.code):  # which may have been loaded since
        undoing.give_up_open(d, hold)


def fail(d: Draft, c: cmd.FailRun) -> None:
    """The run cannot go on (for instance its result cannot be stored)."""
    if d.state.status in RUN_TERMINAL or d.state.fold.closing:
        raise Refusal("stale", "the run is ending already")
    d.emit(ev.ScopeClosed("failing", c.error))


def finish(d: Draft, c: cmd.FinishRun) -> None:
    """Everything has settled and the result is known."""
    if d.state.status in RUN_TERMINAL or d.state.fold.closing or not _all_settled(d):
        raise Refusal("stale", "the run is not at its end")
    end(d, ev.RunCompleted(msgspec.Raw(c.result), c.located))


def conclude(d: Draft) -> None:
    """After every turn: is there anything left to do?"""
    state = d.state
    if state.status in RUN_TERMINAL:
        return
    if state.fold.closing:
        _close(d)
    elif _all_settled(d):
        if state.fold.failed and state.fold.error is not None:
            end(d, ev.RunFailed(state.fold.error))
        else:
            d.finish = True


def _all_settled(d: Draft) -> bool:
    if d.state.scopes["."].unsettled:
        return False
    for ns in d.state.nodes.values():  # noqa: SIM110 - of every run, however many nodes: a third of what `all` takes
        if ns.status not in NODE_SETTLED:
            return False
    return True


def _close(d: Draft) -> None:
    """Failing or cancelling: stop everything, then undo, then end."""
    state = d.state
    if state.fold.paused:  # what is to be undone must run
        close_silently(d, state.fold.paused)
    if state.fold.closing != "compensating":
        # innermost first, so that a map is withdrawn after its items
        for ns in sorted(state.nodes.values(), key=lambda n: -n.path.count(".")):
            if not ns.settled:
                withdraw(d, ns, state.fold.closing)
        d.todo.clear()
        if any(not ns.settled for ns in state.nodes.values()):
            return
        if not undoing.is_wanted(state):
            _end_closed(d)
            return
        d.emit(ev.ScopeClosed("compensating"))
    if not undoing.go_on(d):
        _end_closed(d)


def _end_closed(d: Draft) -> None:
    fold = d.state.fold
    others = undoing.not_undone(d.state)
    if fold.cancel_reason is not None:
        end(d, ev.RunCancelled(fold.cancel_reason, tuple(others)))
        return
    error = fold.error or ev.ErrorInfo("failed", "the run failed")
    end(d, ev.RunFailed(error, tuple(others)))


def end(d: Draft, terminal: ev.RunCompleted | ev.RunFailed | ev.RunCancelled) -> None:
    """The terminal event, with everything that must be closed beside it."""
    state = d.state
    waits.wake_run(d, "end")
    for wait_id in list(state.waits):
        close_silently(d, wait_id)
    for timer in list(state.timers):
        d.emit(ev.TimerCancelled(timer))
    d.emit(terminal)
    if not isinstance(terminal, ev.RunCompleted):
        for child in state.fold.children:
            message_id = derived("m_", state.run_id, "cancel", child)
            reason = f"its parent {state.run_id} has {state.status}"
            d.extra.messages.append(ToRun(child, message_id, "cancel", {"reason": reason, "actor": "parent"}))
    if state.fold.parent is not None:
        d.extra.messages.append(_report(d, terminal))


def _report(d: Draft, terminal: ev.RunCompleted | ev.RunFailed | ev.RunCancelled) -> ToRun:
    """What the parent is told."""
    state = d.state
    assert state.fold.parent is not None
    payload: dict[str, object] = {"child": state.run_id, "status": str(state.status)}
    match terminal:
        case ev.RunCompleted(located=None):
            payload["result"] = terminal.result
        case ev.RunCompleted():
            payload |= {"status": "failed", "error": too_large_for_parent(state.run_id)}
        case ev.RunFailed():
            payload["error"] = terminal.error
        case ev.RunCancelled():
            payload["error"] = ev.ErrorInfo("run_cancelled", f"child {state.run_id} was cancelled: {terminal.reason}")
    return ToRun(state.fold.parent["run_id"], derived("m_", state.run_id, "ended"), "child_ended", payload)


def too_large_for_parent(child: str) -> ev.ErrorInfo:
    """Why a parent does not get the result of a child that has completed."""
    return ev.ErrorInfo(
        "value_too_large",
        f"child {child} has completed, and its result has more than {INLINE_LIMIT_BYTES:,} bytes: a parent cannot "
        f"store it. Let the child return something smaller; engine.get({child!r}).result() reads it",
    )


def stop_node(d: Draft, c: cmd.StopNode) -> None:
    """An orderly stop or a pause left this body; it goes on later with the same attempt."""
    ns = nodes.current(d, c, NodeStatus.RUNNING)
    if c.changed:
        d.extra.hold = f"code_changed: {instance_text(ns.node, ns.path, ns.visit)}: {c.changed}"
    pause_is_over = c.for_pause and not d.state.fold.paused
    if ns.waits:  # only a part of it waited: suspended it would not go on before that part is answered
        d.emit(ev.NodeScheduled(ns.attempt), ns)
        if pause_is_over:
            d.scheduled.append(ns)
        return
    d.emit(ev.NodeSuspended((), None, "stop"), ns)
    if pause_is_over:
        d.emit(ev.NodeResumed("resume"), ns)
        nodes.go_on(d, ns)


def is_finished(status: RunStatus) -> bool:
    return status in RUN_TERMINAL
