"""Committer: the one write path.

Owns: which commits are written together, and when their listeners learn the outcome.
Never: builds a commit (run/turn.py), knows SQL (store), or which thread writes (store_threads.py).
Invariants: a run has at most one commit in flight. Groups are sent in the order in which their commits were handed
over, and every other write comes behind all groups that were sent before it. Whatever has queued while the last group
was being written is the next group; no commit waits for a time window.
On crash: a group is in the database or it is not.

Where a server writes, neither side should wait for the other. So groups have a limit there, which splits many runs that
advance in step into several groups; two of them may be under way; and the next one is sent before the listeners of the
last one are called. While the server writes one group, the next one is on its way, and bodies of the others run. A file
is written by this process itself: a group takes all pending commits, and its listeners are called first, since two
groups would only compete for the interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sized
from typing import Any, Protocol, TypeVar

from holdfast.engine import crash_points
from holdfast.engine.asyncio_internals import watches_only_itself
from holdfast.engine.event_loop import may_be_interrupted
from holdfast.engine.ports import settle
from holdfast.engine.store_threads import Writer
from holdfast.model.errors import OutcomeUnknown, StoreError, StoreFull
from holdfast.store.contract import Store
from holdfast.store.row_types import Commit, CommitResult

log = logging.getLogger("holdfast.engine")
_T = TypeVar("_T")
FULL_RETRY_SECONDS = 1.0
SERVED_GROUP_MAX = 250
"""Commits of one group where a server writes: 1,000 runs are four groups, of which one or two are at the server.
Smaller groups cost more time per commit, larger ones leave server or process idle."""
SLOW_SECONDS = 0.002
"""A commit on the loop that took longer: the disk is busy, and the writer's thread writes for a while."""
WAITING_SHARE = 0.1
"""How much of its time a loop waits for a disk that is slow, at most."""
KEEPS_AWAY_SECONDS = 60.0
ROWS_MAX, BYTES_MAX = 100, 100_000
"""A commit with more takes a millisecond and more on any disk: too long for the event loop, and no sign of a
busy disk."""


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
        self._calls = 0
        """Other writes that were sent and have not been reported."""
        self._failure: BaseException | None = None
        self._is_closed = False
        self._inline: InlineCommits | None = None
        """When the loop itself may write; None: never."""
        self._lands_here = False
        """The listeners of a commit that the loop itself has written are being called."""
        self.wait_when_full = True
        """Retry while the disk is full, rather than fail."""
        self.commits = 0

    def submit(self, commit: Commit, listener: CommitListener) -> None:
        """Put a commit into the next group; `flush` sends it."""
        self._pending.append((commit, listener))

    def flush(self) -> None:
        """Send what has queued, unless enough is under way: then it goes when that has landed."""
        if self._lands_here:  # other work on the loop has a turn before the next commit
            self._flush_soon()
            return
        while self._pending and self._under_way < self._writer.groups_max:
            # checked first: if that is interrupted, the commit is still pending
            inline = self._inline
            is_for_us = (
                inline is not None
                and len(self._pending) == 1
                and not self._calls
                and inline.is_allowed(self._pending[0][0])
            )
            group, self._pending = self._pending[: self._group_max], self._pending[self._group_max :]
            self._under_way += 1
            if is_for_us:
                self._write_here(group)
                return
            self._send(group)

    def _flush_soon(self) -> None:
        """Flush in the next turn of the loop: what is submitted in this one shares the group."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushes_soon = False
        self.flush()

    def commit_inline(self, live_runs: Sized, runs_one_task: Callable[[], bool]) -> None:
        """Let the event loop write by itself where that delays no other work: at most one of the engine's runs is live,
        and at most one of its bodies at work. A server is always written to from threads."""
        if not self._is_served:
            self._inline = InlineCommits(self._loop, live_runs, runs_one_task)

    def commit_in_threads(self) -> None:
        """Write from the writer's threads only, from now on."""
        self._inline = None

    def _write_here(self, group: list[tuple[Commit, CommitListener]]) -> None:
        """Write on the event loop, without a thread."""
        try:
            began = self._loop.time()
            outcomes, error = self._try(group, self._store.commit_if_free)
            if self._inline is not None:
                self._inline.took(self._loop.time() - began)
        except BaseException:  # a second Ctrl-C: if it was written, the writer is refused and the run is read again
            self._send(group)
            raise
        if outcomes is None:
            self._send(group)
            return
        self._lands_here = True
        try:
            self._land(group, outcomes, error)
        finally:
            self._lands_here = False

    def _send(self, group: list[tuple[Commit, CommitListener]]) -> None:
        self._writer.put_group(lambda: self._write(group))

    def _write(self, group: list[tuple[Commit, CommitListener]]) -> None:
        outcome = self._try(group, self._store.commit)
        self._call_loop(self._land, group, *outcome)

    def _try(
        self, group: list[tuple[Commit, CommitListener]], write: Callable[[list[Commit]], list[CommitResult] | None]
    ) -> tuple[list[CommitResult] | None, BaseException | None]:
        """The outcome of each commit, or the error; no outcomes when the store was not free to write."""
        if crash_points.hit is not None:
            crash_points.hit("commit.before")
        try:
            landed = write([commit for commit, _ in group])
            if crash_points.hit is not None and landed is not None:
                crash_points.hit("commit.after")
            return landed, None
        except Exception as e:  # noqa: BLE001 - whatever it is, those who wait must hear of it on the loop
            return [], e

    def _land(
        self,
        group: list[tuple[Commit, CommitListener]],
        outcomes: list[CommitResult] | None,
        error: BaseException | None,
    ) -> None:
        self._under_way -= 1
        if error is not None:
            self._fail(group, error)
            return
        self.commits += 1
        if self._is_served:
            self.flush()
        assert outcomes is not None
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
        self._calls += 1
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
        self._calls -= 1
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


# --- commits on the event loop --------------------------------------------------------------------------------------


class InlineCommits:
    """Whether the event loop may write a commit by itself. The hand-over to the writer's thread and back takes a
    quarter of a small step's time; but a loop that writes does nothing else meanwhile, and a disk may be busy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, live_runs: Sized, runs_one_task: Callable[[], bool]) -> None:
        self._loop = loop
        self._live_runs = live_runs
        self._runs_one_task = runs_one_task
        self._slow_until = 0.0

    def is_allowed(self, commit: Commit) -> bool:
        """Whether writing this commit on the loop would delay no other work."""
        if len(self._live_runs) > 1 or self._loop.time() < self._slow_until or not _is_small(commit):
            return False
        return self._runs_one_task() and watches_only_itself(self._loop) and not may_be_interrupted()

    def took(self, seconds: float) -> None:
        """Note how long a commit on the loop took."""
        if seconds > SLOW_SECONDS:
            self._slow_until = self._loop.time() + min(seconds / WAITING_SHARE, KEEPS_AWAY_SECONDS)


def _is_small(commit: Commit) -> bool:
    """Whether it takes hardly longer than the smallest commit. One that writes for other runs too is not small."""
    if commit.children or commit.messages or commit.gone:
        return False
    if len(commit.events) + len(commit.nodes) + len(commit.waits) + len(commit.timers) > ROWS_MAX:
        return False
    return sum([len(event[-1]) for event in commit.events]) <= BYTES_MAX  # its data, which is a row's last column
