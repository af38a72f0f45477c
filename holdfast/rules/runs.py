"""Runs: how a run begins, is asked to stop, and ends.

Owns: the first and the last events, cancellation and failure as phases inside `running`, compensation.
Never: retries or skips (nodes.py).
Invariants: the terminal event is the last; it is in one commit with the closing of all waits and timers.
"""

from __future__ import annotations

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.ids import derived
from holdfast.model.state import RUN_TIMEOUT, retry_timer
from holdfast.model.statuses import NODE_SETTLED, RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.rules import nodes, waits
from holdfast.rules.draft import Draft, Refusal, ToRun
from holdfast.rules.scopes import close_silently, withdraw

SECOND = 1_000_000


def begin(d: Draft) -> None:
    """Schedule what waits for nothing."""
    create(d)
    nodes.enter(d, d.state.scopes["."])


def create(d: Draft) -> None:
    """The run exists: its time counts from here, also while it waits for a place."""
    timeout = d.state.fold.settings.timeout
    if timeout is not None and RUN_TIMEOUT not in d.state.timers:
        d.emit(ev.TimerSet(RUN_TIMEOUT, d.now + int(timeout * SECOND)))


def cancel(d: Draft, reason: str, actor: str) -> None:
    """Ask the run to stop. A second cancel is a no-op."""
    if d.state.status in RUN_TERMINAL:
        raise Refusal("finished", f"the run has {d.state.status} already")
    if d.state.fold.closing:
        return
    waits.wake_run(d, "cancel")
    d.emit(ev.RunCancelRequested(reason, actor))


def fail(d: Draft, c: cmd.FailRun) -> None:
    """The run cannot go on (for instance its result cannot be stored)."""
    if d.state.status in RUN_TERMINAL or d.state.fold.closing:
        raise Refusal("stale", "the run is ending already")
    d.emit(ev.ScopeClosed("failing", c.error))


def finish(d: Draft, c: cmd.FinishRun) -> None:
    """Everything has settled and the result is known."""
    if d.state.status in RUN_TERMINAL or d.state.fold.closing or not _all_settled(d):
        raise Refusal("stale", "the run is not at its end")
    end(d, ev.RunCompleted(msgspec.Raw(c.result)))


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
        if state.fold.settings.on_failure != "compensate" or not _has_compensations(d):
            _end_closed(d)
            return
        d.emit(ev.ScopeClosed("compensating"))
    _undo_next(d)


def _has_compensations(d: Draft) -> bool:
    stack = [d.state.plan.root]
    while stack:
        scope = stack.pop()
        for plan in scope.nodes.values():
            if plan.undo is not None:
                return True
            if plan.body is not None:
                stack.append(plan.body)
    return False


def _undo_next(d: Draft) -> None:
    """Compensations run one at a time, last completed first; what may have happened comes before what did."""
    state = d.state
    if state.undo is None:
        d.undo_wanted = True
        return
    if not state.undo:
        _end_closed(d)
        return
    node, path, visit, _ = state.undo[0]
    ns = state.instance(f"{node}~undo", path, visit)
    if ns.status is NodeStatus.PENDING:
        d.emit(ev.NodeScheduled(1), ns)
        d.scheduled.append(ns)


def provide_undo(d: Draft, c: cmd.ProvideUndo) -> None:
    """The engine has read what there is to undo. Instances of unknown outcome come first, if they can be undone."""
    if d.state.undo is not None:  # it was asked for twice: by a request, and by the takeover behind it
        raise Refusal("stale", "what there is to undo is known already")
    unknown: list[tuple[str, str, int, int]] = []
    for node, path, visit in d.state.fold.unknown:
        definition = d.state.plan.scope_of(path).nodes[node].definition
        if definition.compensate and definition.compensate_accepts_none and (node, path, visit) not in c.undone:
            unknown.append((node, path, visit, 0))
    d.state.undo = [*unknown, *c.instances]
    for ns in d.state.nodes.values():  # after a takeover: it did not know yet what to undo
        if ns.node.endswith("~undo") and ns.status is NodeStatus.SCHEDULED and retry_timer(ns) not in d.state.timers:
            d.scheduled.append(ns)


def _end_closed(d: Draft) -> None:
    fold = d.state.fold
    others = list(fold.others)
    for node, path, _ in fold.unknown:
        definition = d.state.plan.scope_of(path).nodes[node].definition
        if definition.compensate and not definition.compensate_accepts_none:
            others.append(
                ev.ErrorInfo("outcome_unknown", f"{node} was cut off and may have happened", node=node, path=path)
            )
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
        case ev.RunCompleted():
            payload["result"] = terminal.result
        case ev.RunFailed():
            payload["error"] = terminal.error
        case ev.RunCancelled():
            payload["error"] = ev.ErrorInfo("run_cancelled", f"child {state.run_id} was cancelled: {terminal.reason}")
    return ToRun(state.fold.parent["run_id"], derived("m_", state.run_id, "ended"), "child_ended", payload)


def stop_node(d: Draft, c: cmd.StopNode) -> None:
    """An orderly stop or a pause left this body; it goes on later with the same attempt."""
    ns = nodes.current(d, c, NodeStatus.RUNNING)
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
