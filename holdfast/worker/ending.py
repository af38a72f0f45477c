"""Ending: what happens between the last line of a body and the report of how it ended.

Owns: cancelling and awaiting the steps and tasks that the body has left behind, recording what completes meanwhile, and
recording which steps did not stop.
Never: decides what the end leads to (rules), reports it (activation.py).
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

from holdfast.model import commands as cmd
from holdfast.model.errors import HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.worker.activation import Activation
    from holdfast.worker.step_threads import StepThread
    from holdfast.worker.steps import Try

log = logging.getLogger("holdfast.node")


async def settle(activation: Activation, report: Callable[[], None]) -> None:
    """Stop what a body that has ended left behind, for at most the grace time, and then report how the body ended."""
    ended = not activation.leaving
    if ended:  # an orderly stop lets steps finish instead; the executor cancels them when its grace time is over
        activation.begin_ending()
    await _outlast(activation)
    if not activation.reported:
        for thread in activation.late:
            if thread.is_worth_recording:
                _record_late(activation, thread)
        if ended:
            for tried in {*activation.steps, *(thread.tried for thread in activation.threads)}:
                _record_given_up(activation, tried)
    report()


async def _outlast(activation: Activation) -> None:
    """Wait until nothing of the body is at work any more, or its end is reported for another reason."""
    deadline = activation.loop.time() + activation.grace_seconds
    while not activation.reported:
        left = deadline - activation.loop.time()
        at_work = [*activation.tasks, *(thread.over for thread in activation.threads)]
        if not at_work or left <= 0:
            return
        await asyncio.wait(at_work, timeout=left)


def _record_late(activation: Activation, thread: StepThread) -> None:
    """The function of a cancelled step has ended after all: its outcome is remembered, and it is not called again."""
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
