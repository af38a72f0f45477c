"""Readers: where an engine reads from its store.

Owns: whether somebody who reads holds the event loop. A file answers sooner than a thread could be asked. A server may
go away in the middle of a read, which then waits for it to come back: it does so in a thread, and bodies, other runs
and whoever wants to stop the process go on meanwhile.
Never: knows what is read.
Invariants: what was read beside the loop may be old by the time it is used. Whoever uses it asks again for what only
the loop knows (who drives a run now, whether the engine is closing); what only the store knows is decided by the
conditions of the next write.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from holdfast.engine.ports import settle
from holdfast.engine.writers import Job, work_off

_T = TypeVar("_T")
READERS = 4
"""Reads at once. They have threads of their own: bodies may keep asyncio's busy for as long as they like."""


class Reader(Protocol):
    """How to read."""

    async def read(self, function: Callable[..., _T], *args: Any) -> _T: ...

    def close(self) -> None:
        """Take nothing more. Whoever still waits for a server gives up when the store is closed."""
        ...


class LoopReader:
    """Reads at once."""

    async def read(self, function: Callable[..., _T], *args: Any) -> _T:
        return function(*args)

    def close(self) -> None:
        pass


class ReaderThreads:
    """Reads beside the loop. No process waits for these threads when it ends: a server may never come back."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_closed = False
        for number in range(READERS):
            name = f"holdfast-reader-{number}"
            threading.Thread(target=work_off, args=(self._jobs,), name=name, daemon=True).start()

    async def read(self, function: Callable[..., _T], *args: Any) -> _T:
        if self._is_closed:  # and so is the store, which says it
            return function(*args)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def job() -> None:
            found: Any = None
            error: BaseException | None = None
            try:
                found = function(*args)
            except Exception as e:  # noqa: BLE001 - it is raised again where the caller waits
                error = e
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(settle, answer, found, error)

        self._jobs.put(job)
        return await answer

    def close(self) -> None:
        self._is_closed = True
        for _ in range(READERS):
            self._jobs.put(None)
