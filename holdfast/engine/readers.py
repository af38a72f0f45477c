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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

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
    """Reads beside the loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, "holdfast-reader")
        self._is_closed = False

    async def read(self, function: Callable[..., _T], *args: Any) -> _T:
        if self._is_closed:  # and so is the store, which says it
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False)
