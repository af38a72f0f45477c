"""Python internals: every private name of the standard library that the simulation uses.

Owns: these names, and the check at import that this Python has them.
Never: used by the engine. Only tests depend on this module.

- `asyncio._get_running_loop`, `_set_running_loop`: let one thread run the callbacks of several simulated processes,
  each with the loop that it expects. "Extending asyncio" documents both for authors of event loops.
- `asyncio.tasks._swap_current_task` (from Python 3.12, needed from 3.14): the same for the current task of the caller.
- `Task._log_traceback`, `_log_destroy_pending`: discard the tasks of a process that was killed without a warning.
- `random._urandom`: what `random.SystemRandom` has bound; `secrets` and `uuid` draw from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

_MISSING = [
    f"{owner.__name__}.{name}"
    for owner, name in (
        (asyncio, "_get_running_loop"),
        (asyncio, "_set_running_loop"),
        (asyncio.Task, "_log_traceback"),
        (asyncio.Task, "_log_destroy_pending"),
        (random, "_urandom"),
    )
    if not hasattr(owner, name)
]
if _MISSING:
    raise ImportError(f"holdfast.testing does not work with this Python, which lacks {', '.join(_MISSING)}")


def set_running_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Make this the running loop of the thread, for callbacks that belong to it."""
    asyncio._set_running_loop(loop)


@contextlib.contextmanager
def outside_running_loop() -> Iterator[None]:
    """Let the block set other running loops; afterwards the caller's loop and task are current again."""
    outer = asyncio._get_running_loop()
    swap = getattr(asyncio.tasks, "_swap_current_task", None)
    task = swap(outer, None) if swap is not None and outer is not None else None
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if task is not None and swap is not None:
            swap(outer, task)


def discard(task: asyncio.Task[Any]) -> None:
    """Close a task of a process that is gone. Nothing of it runs later, and asyncio logs nothing about it."""
    if task.done():
        task._log_traceback = False
        return
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    with contextlib.suppress(BaseException):
        coroutine.close()


@contextlib.contextmanager
def random_bytes_from(draw: Callable[[int], bytes]) -> Iterator[None]:
    """Let `os.urandom`, and everything in the standard library that is built on it, draw from here."""
    before = os.urandom
    os.urandom = draw
    random._urandom = draw  # type: ignore[attr-defined]
    try:
        yield
    finally:
        os.urandom = before
        random._urandom = before  # type: ignore[attr-defined]
