"""Runtime: what all parts of one engine share.

Owns: the event loop, the background tasks, the place where reads happen, and whether the engine still works.
Never: knows what a task or a read is for.
Invariants: every background task is in one set and ends with the engine. An engine that has failed stays failed.
On crash: nothing to undo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.engine.ports import Executor
from holdfast.engine.readers import Reader
from holdfast.model.errors import StoreError

T = TypeVar("T")
log = logging.getLogger("holdfast.engine")


class Runtime:
    """The event loop of one engine, and what runs on it in the background."""

    loop: asyncio.AbstractEventLoop
    """The event loop on which everything of the engine is awaited."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reader: Reader
        self.stopping = False
        """The engine is being closed, or is closed: nothing new begins."""
        self.fatal: BaseException | None = None
        """The error after which the engine cannot use its store any more."""

    def open(self, loop: asyncio.AbstractEventLoop, reader: Reader) -> None:
        """Run on this loop, and read through this reader."""
        self.loop = loop
        self._reader = reader

    def check(self) -> None:
        """Raise when the engine has failed or is closed."""
        if self.fatal is not None:
            raise self.fatal
        if self.stopping:
            raise StoreError("the engine is closed")

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        """Read from the store. Writes of other engines after the read began are not in its result."""
        return await self._reader.read(function, *args)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background, until it ends or the engine is closed. A failure is logged."""
        task = self._executor.task(work)
        self._tasks.add(task)
        task.add_done_callback(self._report_failure)
        return task

    async def run_to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even if the caller is cancelled; only closing the engine cancels it."""
        task = self._executor.task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise StoreError("the engine is closed") from None
            task.add_done_callback(self._report_failure)  # the caller does not learn that it failed
            raise

    def _report_failure(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def cancel_tasks(self) -> None:
        """Cancel all background work and wait until it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        self._reader.close()
