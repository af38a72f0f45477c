"""Checkpoints: when a body may close its memory.

Owns: the refusal of a checkpoint while something of the body is under way. What another task is told then, or was told
and has not handed over yet, would be forgotten: a signal lost, a question asked twice.
Rule: a call on ctx is open from the moment it is made until what it gave back to be awaited has ended, or was dropped.
Results that were read cannot be told from those that were not, except while somebody waits for several at once.
"""

from __future__ import annotations

import inspect

from holdfast.model.errors import UsageError
from holdfast.worker import parking
from holdfast.worker.activation import Activation


def check(activation: Activation) -> None:
    """Raise UsageError when the calling task may not make a checkpoint now."""
    problem = _under_way(activation)
    if problem is not None:
        raise UsageError(
            f"ctx.checkpoint closes the memory of the whole body, and {problem}: it would be forgotten. Await it "
            "before, or make the loop that has the checkpoints a node or a workflow of its own"
        )


def _under_way(activation: Activation) -> str | None:
    here = activation.joined()
    for awaited, call in activation.calls.items():
        if inspect.getcoroutinestate(awaited) != inspect.CORO_CLOSED:
            return f"ctx.{call.kind} ({call.name}) is still under way"
    others = {task for task in activation.tasks if task is not here and not task.done()}
    if not all(parking.waits_for(task, here) for task in others):
        return "another task of the body, which calls ctx as well, still goes on"
    waiting = others if activation.task is None or activation.task is here else {activation.task, *others}
    if not activation.ended.isdisjoint(parking.ended_beside(waiting)):
        return "what another task of the body was told is not read yet"
    return None
