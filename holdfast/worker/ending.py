"""Ending: what happens between the last line of a body and the report of how it ended.

Owns: cancelling and awaiting the steps and tasks that the body has left behind, recording what completes meanwhile,
recording which steps did not stop, and the command that reports the end.
Never: decides what the end leads to (rules).
Rule: a body's tasks are those that have made or awaited a call on ctx. Other tasks that were created in the body (the
pool or reader of a library) are not touched; a call on ctx raises in them from now on.
On crash: the end is not recorded, so the body runs again; the steps that were recorded do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine import crash_points
from holdfast.model import commands as cmd
from holdfast.model.errors import BodyEnded, HoldfastError, OutcomeUnknown, Pended
from holdfast.model.events import ErrorInfo
from holdfast.model.references import captured
from holdfast.model.values import encode
from holdfast.worker.body_life import BodyLife, LeaveReason
from holdfast.worker.failures import describe

if TYPE_CHECKING:
    from holdfast.worker.activation import Activation
    from holdfast.worker.tries import StepThread, Try

log = logging.getLogger("holdfast.node")


async def settle(activation: Activation, report: Callable[[], None]) -> None:
    """Stop what a body that has ended left behind, for at most the grace time, and then report how the body ended."""
    life = activation.life
    if life is BodyLife.REPORTED:  # since the body ended
        return
    ended = life is not BodyLife.LEAVING
    if ended:  # an orderly stop lets steps finish instead; the executor cancels them when its grace time is over
        activation.begin_ending()
    await _outlast(activation)
    if activation.life is not BodyLife.REPORTED:
        for thread in activation.late:
            if thread.is_worth_recording:
                _record_late(activation, thread)
        if ended:
            for tried in {*activation.steps, *(thread.tried for thread in activation.threads)}:
                _record_given_up(activation, tried)
    report()


async def _outlast(activation: Activation) -> None:
    """Wait until nothing of the body is at work, or its end is reported for another reason."""
    deadline = activation.loop.time() + activation.grace_seconds
    while activation.life is not BodyLife.REPORTED:
        left = deadline - activation.loop.time()
        at_work = [*activation.tasks, *(thread.over for thread in activation.threads)]
        if not at_work or left <= 0:
            return
        await asyncio.wait(at_work, timeout=left)


def _record_late(activation: Activation, thread: StepThread) -> None:
    """The function of a cancelled step has ended after all: its outcome is recorded, and it is not called again."""
    with contextlib.suppress(HoldfastError):  # a result that cannot be stored: the step has no outcome
        if thread.error is None:
            _record(activation, thread.tried.completed(thread.value))
        elif isinstance(thread.error, Exception):
            _record(activation, thread.tried.failed(thread.error, activation.port.now()))


def _record_given_up(activation: Activation, tried: Try) -> None:
    """A step does not stop: the journal says that it may still act after the body's end. (Of a step whose start was
    committed the journal says so already: the step is not repeated unasked, or its unknown outcome is compensated.)"""
    a, step = activation.attempt, tried.call.name
    what = (
        f"step {step} was still running {activation.grace_seconds:g} s after the body of {a.node} had ended and may "
        "act later; let it end when it is cancelled"
    )
    log.warning("run %s: %s", activation.port.run_id, what)
    if tried.runner.on_crash == "rerun" and not tried.undo:
        _record(activation, tried.failed(OutcomeUnknown(what), activation.port.now()))


def _record(activation: Activation, event: Any) -> None:
    a = activation.attempt
    activation.port.submit(cmd.RecordStep(a.node, a.path, a.attempt, event, (), visit=a.visit))


# --- reports ---------------------------------------------------------------------------------------------------------


def completed(activation: Activation, result: Any, ended: BodyEnded | None = None) -> None:
    """The body returned, or ended in a call that ends it, with this as its output."""
    if activation.expired:  # too late: that attempt is over, whatever it returned
        interrupted(activation)
        return
    try:
        data = encode(result, activation.attempt.handler.returns, what="result")
    except HoldfastError as e:
        failed(activation, e)
        return
    completed_bytes(activation, data, ended)


def completed_bytes(activation: Activation, data: bytes, ended: BodyEnded | None = None) -> None:
    """The same for an output that is encoded."""
    if crash_points.hit is not None:
        crash_points.hit("body.after")
    a, variables = activation.attempt, activation.vars
    try:
        kept = captured(data, a.captures, f"the output of {a.node}") if a.captures else {}
        kept_vars = activation.captured_vars() if variables else {}
    except HoldfastError as e:
        failed(activation, e)
        return
    if ended is None:
        activation.report(cmd.CompleteNode(a.node, a.path, a.attempt, data, kept, variables, kept_vars, visit=a.visit))
    elif isinstance(ended, Pended):
        activation.report(
            cmd.PendNode(
                a.node, a.path, a.attempt, ended.basket, data, kept, variables, kept_vars, ended.rerun,
                _pend_error(ended.error), ended.target, ended.ticket, visit=a.visit,
            )
        )  # fmt: skip
    else:
        activation.report(
            cmd.CompleteNode(
                a.node, a.path, a.attempt, data, kept, variables, kept_vars, ended.target, ended.ticket, visit=a.visit
            )
        )


def failed(activation: Activation, error: BaseException) -> None:
    """The body raised."""
    ended = _end_in(error)
    if ended is not None and not activation.drops_result:
        if isinstance(ended, Pended) and (ended.rerun or ended.error is not None):
            completed_bytes(activation, b"null", ended)  # it runs again: its output is used by no node
        else:
            completed(activation, ended.output, ended)
    elif activation.stop_reason is not None or activation.life is BodyLife.LEAVING:
        interrupted(activation)  # what it raised is how it stopped; why it had to is what counts
    else:
        a = activation.attempt
        activation.report(cmd.FailNode(a.node, a.path, a.attempt, describe(error), visit=a.visit))


def interrupted(activation: Activation) -> None:
    """The body's task was cancelled: by the engine, for a reason, or by itself."""
    a, reason = activation.attempt, activation.stop_reason
    if isinstance(reason, HoldfastError):
        activation.report(cmd.FailNode(a.node, a.path, a.attempt, describe(reason), visit=a.visit))
    elif reason is not None:
        activation.report(cmd.DropNode(a.node, a.path, a.attempt, visit=a.visit))
    elif activation.life is BodyLife.LEAVING:
        left(activation)
    else:
        failed(activation, RuntimeError("the body cancelled itself"))


def left(activation: Activation) -> None:
    """The body was unwound without an end. An orderly stop is reported, and so is a body whose code does not match its
    recorded calls; an eviction is not."""
    a = activation.attempt
    if activation.mismatch is not None:
        activation.report(cmd.StopNode(a.node, a.path, a.attempt, changed=activation.mismatch.message, visit=a.visit))
    else:
        _stopped(activation, may_resume=a.definition.on_crash == "rerun")


def not_begun(activation: Activation) -> None:
    """The body was left before it began: it has done nothing, so that it may resume whatever its `on_crash` says."""
    _stopped(activation, may_resume=True)


def _stopped(activation: Activation, *, may_resume: bool) -> None:
    a, reason = activation.attempt, activation.leave_reason
    if may_resume and reason in (LeaveReason.STOP, LeaveReason.PAUSE):
        activation.report(cmd.StopNode(a.node, a.path, a.attempt, reason is LeaveReason.PAUSE, visit=a.visit))
    else:
        activation.report(None)


def _end_in(error: BaseException) -> BodyEnded | None:
    """The call that ended a body, perhaps in tasks of its own, whose group then holds nothing else."""
    if isinstance(error, BaseExceptionGroup):
        ends, others = error.split(BodyEnded)
        return None if ends is None or others is not None else _end_in(ends.exceptions[0])
    return error if isinstance(error, BodyEnded) else None


def _pend_error(error: str | BaseException | None) -> ErrorInfo | None:
    if error is None:
        return None
    return describe(error) if isinstance(error, BaseException) else ErrorInfo("pended", error)
