"""Writers: the threads in which writes happen.

Owns: which of them runs when. Groups of commits may run beside each other; every other write is alone: it begins when
all that was put before it has ended, and nothing that was put after it begins before it has ended.
Never: knows what a job does.

Why groups may: their runs are different ones, each with a fence of its own, and a run has one commit in flight. What a
group writes for a run of another one (a message, a child) is what another engine's group might write at that moment,
and the store is made for that. Why nothing else may: whoever gives leases back, or says that an engine has ended, means
everything that was written until then.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Protocol

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
