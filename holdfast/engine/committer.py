"""Committer: the one write path.

Owns: the writer's thread, and which commits go together.
Never: builds a commit (actor.py) or knows SQL (store).
Invariants: commits land in the order in which they were handed over; a run has at most one in flight. Whatever has
queued while the last group was being written is the next group; nobody waits for a window.
On crash: a group is in the database or it is not.

Where a server writes, it should not wait for us nor we for it. So groups have a limit there, which parts many runs that
go on in step into several crowds; and the next group is sent before those of the last one are told. While the server
writes one crowd, bodies run and the next commits of the others are made. There is still one group at the server: our
part of a step takes longer than the server's, so that a second one would only wait there; and every other write (a
lease given back, an engine's end) comes behind all that was sent before it, without anybody having to think about it.
A file is written by this process itself: a group takes everybody, and those who have landed are told first, since two
crowds would only fight for the interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from holdfast.engine import dying
from holdfast.model.errors import OutcomeUnknown, StoreFull
from holdfast.store.api import Commit, Landed, Store

log = logging.getLogger("holdfast.engine")
_T = TypeVar("_T")
FULL_RETRY_SECONDS = 1.0
SERVED_GROUP_MAX = 250
"""Commits of one group where a server writes: 1,000 runs are four crowds, of which one is at the server. Smaller groups
cost more of everybody's time, larger ones leave one of the two idle."""


class Lander(Protocol):
    """Who handed a commit over, and hears how it ended."""

    def landed(self, outcome: Landed) -> None: ...


class _Waiter:
    """Somebody without an actor who waits for one commit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: asyncio.Future[Landed] = loop.create_future()

    def landed(self, outcome: Landed) -> None:
        _set(self.outcome, outcome, None)


class Writer(Protocol):
    """Where writes happen: one at a time, in the order in which they were put there."""

    def put(self, job: Callable[[], None]) -> None: ...
    @property
    def idle(self) -> bool:
        """Whether nothing waits here."""
        ...

    def close(self) -> None:
        """Take nothing more, and return when everything that was put here has been done."""
        ...


class WriterThread:
    """The thread that owns the writing connection."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="holdfast-writer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    @property
    def idle(self) -> bool:
        return self._jobs.empty()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            job = None  # a finished group must not stay in memory until the next one comes


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
        self._pending: list[tuple[Commit, Lander]] = []
        self._busy = False
        self.on_loop = False
        """Commit on the loop when a single commit is all there is: no thread hand-over (embedded use only)."""
        self.wait_when_full = True
        """A full disk: try again until there is space, rather than give up."""
        self.commits = 0

    def submit(self, commit: Commit, lander: Lander) -> None:
        """Put a commit into the next group; `flush` sends it."""
        self._pending.append((commit, lander))

    def flush(self) -> None:
        """Send what has queued, unless a group is under way: then it goes when that one has landed."""
        if self._busy or not self._pending:
            return
        group, self._pending = self._pending[: self._group_max], self._pending[self._group_max :]
        self._busy = True
        if self.on_loop and len(group) == 1 and self._writer.idle:
            self._land(group, *self._try(group))
            return
        self._writer.put(lambda: self._write(group))

    def _write(self, group: list[tuple[Commit, Lander]]) -> None:
        outcome = self._try(group)
        self._call_loop(self._land, group, *outcome)

    def _try(self, group: list[tuple[Commit, Lander]]) -> tuple[list[Landed], BaseException | None]:
        if dying.at is not None:
            dying.at("commit.before")
        try:
            landed = self._store.commit([commit for commit, _ in group])
            if dying.at is not None:
                dying.at("commit.after")
            return landed, None
        except Exception as e:  # noqa: BLE001 - whatever it is, those who wait must hear of it on the loop
            return [], e

    def _land(self, group: list[tuple[Commit, Lander]], outcomes: list[Landed], error: BaseException | None) -> None:
        self._busy = False
        if error is not None:
            self._fail(group, error)
            return
        self.commits += 1
        if self._is_served:
            self.flush()
        for (_, lander), outcome in zip(group, outcomes, strict=True):
            try:
                lander.landed(outcome)
            except Exception:  # a bug of ours in one run: the others of the group must hear of theirs
                log.exception("a run did not take the outcome of its commit")
        self.flush()

    def _fail(self, group: list[tuple[Commit, Lander]], error: BaseException) -> None:
        if isinstance(error, StoreFull) and self.wait_when_full:
            # nothing was written; the same group goes first when there is space again
            log.error("the disk is full; trying again every %g s: %s", FULL_RETRY_SECONDS, error)
            self._busy = True
            self._loop.call_later(FULL_RETRY_SECONDS, self._again, group)
            return
        self._on_fatal(error)
        for _, lander in group:
            if isinstance(lander, _Waiter):
                _set(lander.outcome, None, error)

    async def land(self, commit: Commit) -> Landed:
        """Commit for a run that nobody drives, like any other commit. Raises what has closed the store."""
        waiter = _Waiter(self._loop)
        self.submit(commit, waiter)
        self.flush()
        return await waiter.outcome

    def _again(self, group: list[tuple[Commit, Lander]]) -> None:
        self._writer.put(lambda: self._write(group))

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run another write of the store in the writer's turn."""
        future: asyncio.Future[_T] = self._loop.create_future()

        def job() -> None:
            try:
                if dying.at is not None:
                    dying.at("write.before")
                result = function(*args)
                if dying.at is not None:
                    dying.at("write.after")
            except Exception as e:  # noqa: BLE001 - it is raised again where the caller waits
                self._call_loop(self._report, future, e)
            else:
                self._call_loop(_set, future, result, None)

        self._writer.put(job)
        return await future

    async def insist(self, function: Callable[..., _T], *args: Any) -> _T:
        """The same for what would be lost if it were left undone: a full disk is waited for, as with commits."""
        return await self.when_not_full(lambda: self.call(function, *args))

    async def when_not_full(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do it, again and again if need be, until the disk has space for it."""
        while True:
            try:
                return await work()
            except StoreFull as error:
                if not self.wait_when_full:
                    raise
                log.error("the disk is full; trying again every %g s: %s", FULL_RETRY_SECONDS, error)
                await asyncio.sleep(FULL_RETRY_SECONDS)

    def call_from_thread(self, function: Callable[[], None]) -> None:
        """Queue a write from another thread (the lease's); nobody waits for it."""

        def job() -> None:
            try:
                function()
            except OutcomeUnknown as e:
                self._call_loop(self._on_fatal, e)

        self._writer.put(job)

    def _report(self, future: asyncio.Future[Any], error: BaseException) -> None:
        if isinstance(error, OutcomeUnknown):  # whoever asked, the store is closed for everybody
            self._on_fatal(error)
        _set(future, None, error)

    @property
    def idle(self) -> bool:
        return not self._busy and not self._pending

    def close(self) -> None:
        """Return when everything handed over has been written."""
        self._writer.close()

    def _call_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            log.debug("the event loop closed before a write was reported")


def _set(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
