"""Committer: the one write path.

Owns: which commits are written together, when their listeners learn the outcome, and in which threads the store is
written. Groups of commits may run beside each other; every other write is alone: it begins when all writes before it
have ended, and no later one begins before it has ended.
Never: builds a commit (run/turn.py), knows SQL (store).
Invariants: a run has at most one commit in flight. Groups are sent in the order in which their commits were handed
over, and every other write comes behind all groups that were sent before it. Whatever has queued while the last group
was being written is the next group; no commit waits for a time window.
On crash: a group is in the database or it is not.

Where a server writes, neither side should wait for the other. So groups have a limit there, which splits many runs that
advance in step into several groups; two of them may be under way; and the next one is sent before the listeners of the
last one are called. While the server writes one group, the next one is on its way, and bodies of the others run. A file
is written by this process itself: a group takes all pending commits, and its listeners are called first, since two
groups would only compete for the interpreter.

Groups may run beside each other because their runs are different ones, each with a fence of its own. What a group
writes for a run of another one (a message, a child) is what another engine's group might write at that moment, and the
store is made for that. No other write may: one that releases leases, or records that an engine has ended, refers to
everything that was written until then.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from holdfast.engine import crash_points
from holdfast.engine.ports import settle
from holdfast.model.errors import OutcomeUnknown, StoreError, StoreFull
from holdfast.store.contract import Store
from holdfast.store.row_types import Commit, CommitResult

log = logging.getLogger("holdfast.engine")
_T = TypeVar("_T")
FULL_RETRY_SECONDS = 1.0
SERVED_GROUP_MAX = 250
"""Commits of one group where a server writes: 1,000 runs are four groups, of which one or two are at the server.
Smaller groups cost more time per commit, larger ones leave server or process idle."""


Job = Callable[[], None]


class CommitListener(Protocol):
    """Learns the outcome of a commit."""

    def landed(self, outcome: CommitResult) -> None: ...


class _Waiter:
    """A caller without an actor that waits for one commit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: asyncio.Future[CommitResult] = loop.create_future()

    def landed(self, outcome: CommitResult) -> None:
        settle(self.outcome, outcome, None)


class Committer:
    """Hands groups of commits, and the store's other writes, to the writer."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[BaseException], None],
        writer: Writer,
    ) -> None:
        self._store = store
        self._loop = loop
        self._on_fatal = on_fatal
        self._writer = writer
        self._is_served = store.is_shared
        self._group_max = SERVED_GROUP_MAX if self._is_served else sys.maxsize
        self._pending: list[tuple[Commit, CommitListener]] = []
        self._flushes_soon = False
        self._under_way = 0
        """Groups that were sent and have not landed."""
        self._failure: BaseException | None = None
        self._is_closed = False
        self.wait_when_full = True
        """Retry while the disk is full, rather than fail."""
        self.commits = 0

    def submit(self, commit: Commit, listener: CommitListener) -> None:
        """Put a commit into the next group; `flush` sends it."""
        self._pending.append((commit, listener))

    def flush(self) -> None:
        """Send what has queued, unless enough is under way: then it goes when that has landed."""
        while self._pending and self._under_way < self._writer.groups_max:
            group, self._pending = self._pending[: self._group_max], self._pending[self._group_max :]
            self._under_way += 1
            self._send(group)

    def _flush_soon(self) -> None:
        """Flush in the next turn of the loop: what is submitted in this one shares the group."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushes_soon = False
        self.flush()

    def _send(self, group: list[tuple[Commit, CommitListener]]) -> None:
        self._writer.put_group(lambda: self._write(group))

    def _write(self, group: list[tuple[Commit, CommitListener]]) -> None:
        """Commit a group on a writer's thread; its listeners learn the outcome on the loop."""
        outcomes, error = self._try(group)
        self._call_loop(self._land, group, outcomes, error)

    def _try(self, group: list[tuple[Commit, CommitListener]]) -> tuple[list[CommitResult], BaseException | None]:
        """The outcome of each commit, or the error."""
        if crash_points.hit is not None:
            crash_points.hit("commit.before")
        try:
            outcomes = self._store.commit([commit for commit, _ in group])
            if crash_points.hit is not None:
                crash_points.hit("commit.after")
            return outcomes, None
        except Exception as e:  # noqa: BLE001 - whatever it is, callers that wait must learn of it on the loop
            return [], e

    def _land(
        self, group: list[tuple[Commit, CommitListener]], outcomes: list[CommitResult], error: BaseException | None
    ) -> None:
        self._under_way -= 1
        if error is not None:
            self._fail(group, error)
            return
        self.commits += 1
        if self._is_served:
            self.flush()
        assert len(outcomes) == len(group)
        group.reverse()
        for outcome in outcomes:
            listener = group.pop()[1]  # its commit is freed: the run's next turn finds that memory warm
            try:
                listener.landed(outcome)
            except Exception:  # a bug of ours in one run: the others of the group must learn theirs
                log.exception("a run failed to apply the outcome of its commit")
        if self._pending:
            self.flush()

    def _fail(self, group: list[tuple[Commit, CommitListener]], error: BaseException) -> None:
        if isinstance(error, StoreFull) and self.wait_when_full:
            # nothing was written; the same group is sent again later
            log.error("the disk is full; trying again every %g s: %s", FULL_RETRY_SECONDS, error)
            self._under_way += 1
            self._loop.call_later(FULL_RETRY_SECONDS, self._send, group)
            return
        self._fatal(error)
        for _, listener in group:
            if isinstance(listener, _Waiter):
                settle(listener.outcome, None, error)

    async def commit_one(self, commit: Commit) -> CommitResult:
        """Commit for a run that no engine drives. Raises the error that has closed the store."""
        self._check()
        waiter = _Waiter(self._loop)
        self.submit(commit, waiter)
        self._flush_soon()
        return await waiter.outcome

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run another write of the store, in order with the commits."""
        self._check()
        future: asyncio.Future[_T] = self._loop.create_future()

        def job() -> None:
            try:
                if crash_points.hit is not None:
                    crash_points.hit("write.before")
                result = function(*args)
                if crash_points.hit is not None:
                    crash_points.hit("write.after")
            except Exception as e:  # noqa: BLE001 - it is raised again where the caller waits
                self._call_loop(self._report, future, None, e)
            else:
                self._call_loop(self._report, future, result, None)

        self._writer.put(job)
        return await future

    async def insist(self, function: Callable[..., _T], *args: Any) -> _T:
        """Like `call`, but retries while the disk is full."""
        return await self.when_not_full(lambda: self.call(function, *args))

    async def when_not_full(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do `work`, and repeat it until the disk has space for it."""
        while True:
            try:
                return await work()
            except StoreFull as error:
                if not self.wait_when_full:
                    raise
                log.error("the disk is full; trying again every %g s: %s", FULL_RETRY_SECONDS, error)
                await asyncio.sleep(FULL_RETRY_SECONDS)

    def call_from_thread(self, function: Callable[[], None]) -> None:
        """Queue a write from another thread (that of the lease), without waiting for it."""

        def job() -> None:
            try:
                function()
            except OutcomeUnknown as e:
                self._call_loop(self._fatal, e)

        self._writer.put(job)

    def _report(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if isinstance(error, OutcomeUnknown):  # the store is closed, for all callers
            self._fatal(error)
        settle(future, result, error)

    def give_up(self, error: BaseException) -> None:
        """Stop for good: what has to be written cannot be."""
        self._fatal(error)

    def _fatal(self, error: BaseException) -> None:
        """The store can no longer be used. Only the first error says why."""
        if self._failure is None:
            self._failure = error
            self._on_fatal(error)

    @property
    def idle(self) -> bool:
        return not self._under_way and not self._pending

    def close(self) -> None:
        """Return when everything handed over has been written."""
        self._is_closed = True
        self._writer.close()

    def _check(self) -> None:
        """Refuse what is handed over when the store has failed or is closed."""
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise StoreError("the engine is closed")

    def _call_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed, and with it all callers
            log.debug("the event loop closed before a write was reported")


# --- the writer's threads -------------------------------------------------------------------------------------------


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
