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
from typing import Any

from holdfast.engine import crash_points
from holdfast.model import commands as cmd
from holdfast.model.captures import captured
from holdfast.model.errors import BodyEnded, HoldfastError, OutcomeUnknown, Pended
from holdfast.model.events import ErrorInfo
from holdfast.model.values import encode
from holdfast.worker.body_life import BodyLife, LeaveReason, LiveBody
from holdfast.worker.tries import StepThread, Try

log = logging.getLogger("holdfast.node")


async def settle(body: LiveBody, report: Callable[[], None]) -> None:
    """Stop what a body that has ended left behind, for at most the grace time, and then report how the body ended."""
    life = body.life
    if life is BodyLife.REPORTED:  # since the body ended
        return
    ended = life is not BodyLife.LEAVING
    if ended:  # an orderly stop lets steps finish instead; the executor cancels them when its grace time is over
        body.begin_ending()
    await _outlast(body)
    if body.life is not BodyLife.REPORTED:
        for thread in body.steps.late:
            if thread.is_worth_recording:
                _record_late(body, thread)
        if ended:
            for tried in {*body.steps.tries, *(thread.tried for thread in body.steps.threads)}:
                _record_given_up(body, tried)
    report()


async def _outlast(body: LiveBody) -> None:
    """Wait until nothing of the body is at work, or its end is reported for another reason."""
    deadline = body.loop.time() + body.grace_seconds
    while body.life is not BodyLife.REPORTED:
        left = deadline - body.loop.time()
        at_work = [*body.tasks, *(thread.over for thread in body.steps.threads)]
        if not at_work or left <= 0:
            return
        await asyncio.wait(at_work, timeout=left)


def _record_late(body: LiveBody, thread: StepThread) -> None:
    """The function of a cancelled step has ended after all: its outcome is recorded, and it is not called again."""
    with contextlib.suppress(HoldfastError):  # a result that cannot be stored: the step has no outcome
        if thread.error is None:
            _record(body, thread.tried.completed(thread.value))
        elif isinstance(thread.error, Exception):
            _record(body, thread.tried.failed(body.described(thread.error), body.port.now()))


def _record_given_up(body: LiveBody, tried: Try) -> None:
    """A step does not stop: the journal says that it may still act after the body's end. (Of a step whose start was
    committed the journal says so already: the step is not repeated unasked, or its unknown outcome is compensated.)"""
    a, step = body.attempt, tried.call.name
    what = (
        f"step {step} was still running {body.grace_seconds:g} s after the body of {a.node} had ended and may "
        "act later; let it end when it is cancelled"
    )
    log.warning("run %s: %s", body.port.run_id, what)
    if tried.repeats and not tried.undo:
        _record(body, tried.failed(body.described(OutcomeUnknown(what)), body.port.now()))


def _record(body: LiveBody, event: Any) -> None:
    a = body.attempt
    if body.hidden is not None:
        body.hidden.refuse(f"what {a.node} records", event)
    body.port.submit(cmd.RecordStep(a.node, a.path, a.attempt, event, (), visit=a.visit))


# --- reports ---------------------------------------------------------------------------------------------------------


def completed(body: LiveBody, result: Any, ended: BodyEnded | None = None) -> None:
    """The body returned, or ended in a call that ends it, with this as its output."""
    if body.expired:  # too late: that attempt is over, whatever it returned
        interrupted(body)
        return
    try:
        data = encode(result, body.attempt.handler.returns, what="result")
    except HoldfastError as e:
        failed(body, e)
        return
    completed_bytes(body, data, ended)


def completed_bytes(body: LiveBody, data: bytes, ended: BodyEnded | None = None) -> None:
    """The same for an output that is encoded."""
    if crash_points.hit is not None:
        crash_points.hit("body.after")
    a, variables = body.attempt, body.vars
    try:
        if body.hidden is not None:
            body.hidden.refuse(f"the output of {a.node}, or a variable that it set,", (data, variables))
        kept = captured(data, a.captures, f"the output of {a.node}") if a.captures else {}
        kept_vars = body.captured_vars() if variables else {}
    except HoldfastError as e:
        failed(body, e)
        return
    if ended is None:
        body.report(cmd.CompleteNode(a.node, a.path, a.attempt, data, kept, variables, kept_vars, visit=a.visit))
    elif isinstance(ended, Pended):
        body.report(
            cmd.PendNode(
                a.node, a.path, a.attempt, ended.basket, data, kept, variables, kept_vars, ended.rerun,
                _pend_error(body, ended.error), ended.target, ended.ticket, visit=a.visit,
            )
        )  # fmt: skip
    else:
        body.report(
            cmd.CompleteNode(
                a.node, a.path, a.attempt, data, kept, variables, kept_vars, ended.target, ended.ticket, visit=a.visit
            )
        )


def failed(body: LiveBody, error: BaseException) -> None:
    """The body raised."""
    ended = _end_in(error)
    if ended is not None and not body.drops_result:
        if isinstance(ended, Pended) and (ended.rerun or ended.error is not None):
            completed_bytes(body, b"null", ended)  # it runs again: its output is used by no node
        else:
            completed(body, ended.output, ended)
    elif body.stop_reason is not None or body.life is BodyLife.LEAVING:
        interrupted(body)  # what it raised is how it stopped; why it had to is what counts
    else:
        a = body.attempt
        body.report(cmd.FailNode(a.node, a.path, a.attempt, body.described(error), visit=a.visit))


def interrupted(body: LiveBody) -> None:
    """The body's task was cancelled: by the engine, for a reason, or by itself."""
    a, reason = body.attempt, body.stop_reason
    if isinstance(reason, HoldfastError):
        body.report(cmd.FailNode(a.node, a.path, a.attempt, body.described(reason), visit=a.visit))
    elif reason is not None:
        body.report(cmd.DropNode(a.node, a.path, a.attempt, visit=a.visit))
    elif body.life is BodyLife.LEAVING:
        left(body)
    else:
        failed(body, RuntimeError("the body cancelled itself"))


def left(body: LiveBody) -> None:
    """The body was unwound without an end. An orderly stop is reported, and so is a body whose code does not match its
    recorded calls; an eviction is not."""
    a = body.attempt
    if body.mismatch is not None:
        body.report(cmd.StopNode(a.node, a.path, a.attempt, changed=body.mismatch.message, visit=a.visit))
    else:
        _stopped(body, may_resume=a.definition.on_crash == "rerun")


def not_begun(body: LiveBody) -> None:
    """The body was left before it began: it has done nothing, so that it may resume whatever its `on_crash` says."""
    _stopped(body, may_resume=True)


def _stopped(body: LiveBody, *, may_resume: bool) -> None:
    a, reason = body.attempt, body.leave_reason
    if may_resume and reason in (LeaveReason.STOP, LeaveReason.PAUSE):
        body.report(cmd.StopNode(a.node, a.path, a.attempt, reason is LeaveReason.PAUSE, visit=a.visit))
    else:
        body.report(None)


def _end_in(error: BaseException) -> BodyEnded | None:
    """The call that ended a body, perhaps in tasks of its own, whose group then holds nothing else."""
    if isinstance(error, BaseExceptionGroup):
        ends, others = error.split(BodyEnded)
        return None if ends is None or others is not None else _end_in(ends.exceptions[0])
    return error if isinstance(error, BodyEnded) else None


def _pend_error(body: LiveBody, error: str | BaseException | None) -> ErrorInfo | None:
    if error is None:
        return None
    if isinstance(error, BaseException):
        return body.described(error)
    return ErrorInfo("pended", error if body.hidden is None else body.hidden.text(error))
