"""Store threads: in which threads the store is written and read.

Owns: which write runs when. Groups of commits may run beside each other; every other write is alone: it begins when all
writes before it have ended, and no later one begins before it has ended. And whether a read blocks the event loop: a
file answers sooner than a thread could be asked; a server may become unreachable in the middle of a read, which then
waits in a thread, while bodies, other runs and closing the engine continue.
Never: knows what is written or read.
Invariants: what was read beside the loop may be old by the time it is used. Its user checks again what only the loop
knows (which engine drives a run, whether the engine is closing); what only the store knows is decided by the conditions
of the next write.

Groups may run beside each other because their runs are different ones, each with a fence of its own, and a run has one
commit in flight. What a group writes for a run of another one (a message, a child) is what another engine's group might
write at that moment, and the store is made for that. No other write may: one that releases leases, or records that an
engine has ended, refers to everything that was written until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from holdfast.engine.ports import settle

Job = Callable[[], None]


class Writer(Protocol):
    """Where writes happen, in the order in which they were put there."""

    @property
    def groups_max(self) -> int:
        """How many groups may be under way here at once."""
        ...

    def put(self, job: Job) -> None:
        """A write that is alone."""
        ...

    def put_group(self, job: Job) -> None:
        """A group of commits."""
        ...

    def close(self) -> None:
        """Take nothing more, and return when everything that was put here has been done."""
        ...


def work_off(jobs: queue.SimpleQueue[Job | None]) -> None:
    """What a thread does that has jobs: one after the other, until there is None."""
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        job = None  # what it held must not stay in memory until the next one comes


class WriterThread:
    """One thread, which owns the writing connection: everything is alone."""

    groups_max: Final = 1

    def __init__(self, name: str = "holdfast-writer") -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=work_off, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    put_group = put

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


class TwoWriterThreads:
    """Two threads, for a server that takes several writes at once: while it works at one group, the next is on its way.

    The first thread does everything in its order. The second helps out with a group while the first one has a group and
    no job that is to be alone.
    """

    groups_max: Final = 2

    def __init__(self) -> None:
        self._first = WriterThread()
        self._second = WriterThread("holdfast-writer-2")
        self._changed = threading.Condition()
        self._alone = 0
        """Jobs that are to be alone and have not ended."""
        self._groups = 0
        """Groups at the first thread that have not ended."""
        self._helping = 0
        """Groups at the second one."""

    def put(self, job: Job) -> None:
        with self._changed:
            self._alone += 1
            self._first.put(lambda: self._do_alone(job))

    def put_group(self, job: Job) -> None:
        with self._changed:
            if self._groups and not self._alone:
                self._helping += 1
                self._second.put(lambda: self._help(job))
            else:
                self._groups += 1
                self._first.put(lambda: self._do_group(job))

    def _do_alone(self, job: Job) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._helping)
        try:
            job()
        finally:
            with self._changed:
                self._alone -= 1

    def _do_group(self, job: Job) -> None:
        try:
            job()
        finally:
            with self._changed:
                self._groups -= 1

    def _help(self, job: Job) -> None:
        try:
            job()
        finally:
            with self._changed:
                self._helping -= 1
                self._changed.notify_all()

    def close(self) -> None:
        self._first.close()
        self._second.close()


# --- reads ----------------------------------------------------------------------------------------------------------


_T = TypeVar("_T")
READERS = 4
"""Reads at once. They have threads of their own: bodies may keep asyncio's busy for as long as they like."""


class Read(Protocol):
    """Reads from the store."""

    async def __call__(self, function: Callable[..., _T], *args: Any) -> _T: ...


class Reader(Protocol):
    """How to read."""

    async def read(self, function: Callable[..., _T], *args: Any) -> _T: ...

    def close(self) -> None:
        """Accept no more reads. A read that waits for a server ends when the store is closed."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the caller
                loop.call_soon_threadsafe(settle, answer, found, error)

        self._jobs.put(job)
        return await answer

    def close(self) -> None:
        self._is_closed = True
        for _ in range(READERS):
            self._jobs.put(None)
