"""Runs: how a run begins, is asked to stop, and ends.

Owns: the first and the last events, cancellation and failure as phases inside `running`.
Never: retries (body_reports.py), skips (nodes.py), compensations (undoing.py).
Invariants: the terminal event is the last; it is in one commit with the closing of all waits and timers.
"""

from __future__ import annotations

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import MissingCode
from holdfast.model.limits import INLINE_LIMIT_BYTES, SECOND
from holdfast.model.naming import depth, derived
from holdfast.model.statuses import NODE_SETTLED, RUN_TERMINAL, ended_text
from holdfast.model.timers import RUN_TIMEOUT
from holdfast.rules import journeys, milestones, nodes, undoing, variables, waits
from holdfast.rules.draft import Draft, Refusal, ToRun
from holdfast.rules.scopes import cancel_instance, close_unanswered


def begin(d: Draft) -> None:
    """Schedule what waits for nothing."""
    if d.state.fold.closing or d.state.status in RUN_TERMINAL:
        raise Refusal("stale", "the run was cancelled before it began")
    create(d)
    milestones.begin(d, "start")
    if d.state.plan.definition.variables:
        variables.set_first(d)
    if d.state.plan.definition.start:
        journeys.begin(d)
    else:
        nodes.enter(d, d.state.scopes["."])


def create(d: Draft) -> None:
    """Set the timer of the run's timeout: it counts from here, also while the run waits for a slot."""
    timeout = d.state.fold.settings.timeout
    if timeout is not None and RUN_TIMEOUT not in d.state.timers:
        d.set_timer(RUN_TIMEOUT, int(timeout * SECOND))


def refuse_finished(d: Draft) -> None:
    """Raise Refusal for a run that has ended."""
    if d.state.status in RUN_TERMINAL:
        raise Refusal("finished", f"the run {ended_text(d.state.status)}")


def cancel(d: Draft, reason: str, actor: str, *, gives_up_undo: bool = False, hold: str = "") -> None:
    """Ask the run to stop. A second cancel does nothing, unless it gives up compensations that cannot run: those whose
    code no engine has loaded, and with `hold`, why the run was on hold while it compensated, the one that has begun."""
    refuse_finished(d)
    if d.state.fold.closing and not gives_up_undo:
        return
    waits.wake_run(d, "cancel")
    d.emit(ev.RunCancelRequested(reason, actor, gives_up_undo))
    if hold and not hold.startswith(MissingCode.code):  # which may have been loaded since
        undoing.give_up_open(d, hold)


def fail(d: Draft, c: cmd.FailRun) -> None:
    """Fail a run that cannot continue (for instance because its result cannot be stored)."""
    if d.state.status in RUN_TERMINAL or d.state.fold.closing:
        raise Refusal("stale", "the run is ending already")
    d.emit(ev.ScopeClosed("failing", c.error))


def finish(d: Draft, c: cmd.FinishRun) -> None:
    """Complete a run of which everything has settled, with its result."""
    if d.state.status in RUN_TERMINAL or d.state.fold.closing or not _all_settled(d):
        raise Refusal("stale", "nodes of the run have not settled")
    end(d, ev.RunCompleted(msgspec.Raw(c.result), c.located))


def conclude(d: Draft) -> None:
    """End the run, or ask for its result, if nothing is left to do; called at the end of a turn."""
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
    for ns in d.state.nodes.values():  # noqa: SIM110 - of every run, however many nodes: a third of the time of `all`
        if ns.status not in NODE_SETTLED:
            return False
    return True


def _close(d: Draft) -> None:
    """Stop everything of a run that is failing or cancelling, then undo, then end it."""
    state = d.state
    if state.fold.paused:  # compensations must run
        close_unanswered(d, state.fold.paused)
    if state.fold.closing != "compensating":
        # innermost first, so that a map is cancelled after its items
        for ns in sorted(state.nodes.values(), key=lambda n: -depth(n.path)):
            if not ns.settled:
                cancel_instance(d, ns, state.fold.closing)
        d.todo.clear()
        if any(not ns.settled for ns in state.nodes.values()):
            return
        if not undoing.is_wanted(state):
            _end_closed(d)
            return
        d.emit(ev.ScopeClosed("compensating"))
    if not undoing.run_next(d):
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
    """Write the terminal event, with everything that must be closed beside it."""
    state = d.state
    waits.wake_run(d, "end")
    for wait_id in list(state.waits):
        close_unanswered(d, wait_id)
    for timer in list(state.timers):
        d.emit(ev.TimerCancelled(timer))
    d.emit(terminal)
    if not isinstance(terminal, ev.RunCompleted):
        for child in state.fold.children:
            message_id = derived("m_", state.run_id, "cancel", child)
            reason = f"its parent {state.run_id} {ended_text(state.status)}"
            d.extra.messages.append(ToRun(child, message_id, "cancel", {"reason": reason, "actor": "parent"}))
    if state.fold.parent is not None:
        d.extra.messages.append(_report(d, terminal))


def _report(d: Draft, terminal: ev.RunCompleted | ev.RunFailed | ev.RunCancelled) -> ToRun:
    """The message that reports the end of a run to its parent."""
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
