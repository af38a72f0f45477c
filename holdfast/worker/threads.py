"""Thread bodies: where the plain `def` bodies of an engine run.

Owns: the threads, the way a job gets into one, and the way its result gets back to the event loop.
Never: knows what a body is, kills a thread (which is not possible), retries.
Invariants: `done` is called on the loop's thread, at most once a job, and never after `give_up`; at most `threads`
threads take jobs; counts are changed on the loop's thread only.
On crash: nothing to undo; threads are daemons and hold nothing durable.

A job costs one queue put and one deque append. The loop is woken once for all results that are there when it looks,
not once a result: the wake (a write to a socket, a turn of the GIL) is what makes `asyncio.to_thread` slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.model.errors import UsageError
from holdfast.model.limits import GIVEN_UP_THREADS_MAX, GRACE_SECONDS, SYNC_THREADS

Done = Callable[[Any, BaseException | None], None]


class _Stage(Enum):
    QUEUED = "queued"
    STARTED = "started"
    ENDED = "ended"
    GIVEN_UP = "given up"


class ThreadJob:
    """One call in the pool. The loop's thread holds it to ask whether it began, or to give it up."""

    __slots__ = ("_context", "_done", "_job", "_lock", "_pool", "_stage", "_wanted", "started")

    def __init__(self, pool: ThreadBodies, job: Callable[[], Any], done: Done) -> None:
        self._pool = pool
        self._job = job
        self._done = done
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()  # between this job's thread and give_up only
        self._stage = _Stage.QUEUED
        self._wanted = True
        self.started = False
        """Whether the body began; final after `give_up`."""

    def give_up(self) -> bool:
        """Stop waiting: `done` will not be called. A queued job never begins; the thread of a started one is written
        off (another takes its place) until its body returns: True. A second call does nothing. On the loop's thread
        only."""
        if not self._wanted:
            return False
        self._wanted = False
        return self._pool._give_up(self)

    def give_up_unless_begun(self) -> bool:
        """Give up a job that still queues; False: it has begun, and nothing was done. On the loop's thread only."""
        with self._lock:
            if self._stage is not _Stage.QUEUED:
                return False
            self._stage = _Stage.GIVEN_UP
        self._wanted = False
        self._pool._settle()
        return True

    def _withdraw(self) -> _Stage:
        """Mark as given up; the stage that it was in."""
        with self._lock:
            was = self._stage
            if was is not _Stage.ENDED:
                self._stage = _Stage.GIVEN_UP
            return was

    def _run(self) -> tuple[Any, BaseException | None] | None:
        """Run the body in a thread of the pool; None when it was withdrawn before it began."""
        with self._lock:
            if self._stage is not _Stage.QUEUED:
                return None
            self._stage = _Stage.STARTED
            self.started = True
        try:
            return self._context.run(self._job), None
        except BaseException as error:  # noqa: BLE001 - user code; SystemExit must reach its node, not end our thread
            return None, error

    def _end(self) -> bool:
        """Mark as ended; False when it was given up meanwhile, and with it the thread that calls."""
        with self._lock:
            if self._stage is _Stage.GIVEN_UP:
                return False
            self._stage = _Stage.ENDED
            return True


class GivenUp:
    """How many threads are lost to functions that have not returned since they were given up, over all pools of an
    engine."""

    def __init__(self, limit: int = GIVEN_UP_THREADS_MAX) -> None:
        self.count = 0
        self.on_change: Callable[[int], None] = lambda count: None
        self._limit = limit
        self._fewer: asyncio.Event | None = None

    @property
    def too_many(self) -> bool:
        """Whether no further function should begin in a thread."""
        return self.count > self._limit

    def add(self, change: int) -> None:
        self.count += change
        if self._fewer is not None and not self.too_many:
            self._fewer.set()
            self._fewer = None
        self.on_change(self.count)

    async def fewer(self, timeout: float) -> None:
        """Wait until fewer are lost than the limit, or the time is over."""
        if self.too_many:
            self._fewer = self._fewer or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fewer.wait(), timeout)


class ThreadBodies:
    """The pool. Made on the event loop that it serves.

    job = bodies.start(lambda: charge(order), done)     # done(value, None) or done(None, exception), on the loop
    """

    def __init__(self, threads: int = SYNC_THREADS, given_up: GivenUp | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads_max = threads
        self._given_up = given_up or GivenUp()
        self._queue: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._ended: deque[tuple[ThreadJob, Any, BaseException | None]] = deque()
        self._woken = False
        self._threads = 0  # those that take jobs; given-up ones are not among them
        self._busy = 0  # jobs started here whose result has not been taken yet
        self._closed = False
        self._deaf = False
        self._quiet: asyncio.Future[None] | None = None

    @property
    def free(self) -> int:
        """How many more jobs would begin at once."""
        return max(0, self._threads_max - self._busy)

    def start(self, job: Callable[[], Any], done: Done) -> ThreadJob:
        """Run `job` in a thread, in a copy of the caller's context; it queues when no thread is free."""
        if self._closed:
            raise UsageError("the engine is closing and takes no more sync bodies")
        entry = ThreadJob(self, job, done)
        self._busy += 1
        self._grow()
        self._queue.put(entry)
        return entry

    async def close(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Take no more jobs, wait up to `grace_seconds` for the ones that are here, then end the threads.

        What has not ended by then is not reported. Its threads are daemons: they do not keep the interpreter.
        """
        self._closed = True
        if self._busy and grace_seconds > 0:
            self._quiet = self._loop.create_future()
            await asyncio.wait([self._quiet], timeout=grace_seconds)
        self._deaf = True
        with contextlib.suppress(Empty):
            while entry := self._queue.get_nowait():
                entry.give_up()
        for _ in range(self._threads):
            self._queue.put(None)

    # --- on the loop's thread ----------------------------------------------------------------------------------

    def _grow(self) -> None:
        if self._threads < min(self._busy, self._threads_max):
            try:
                threading.Thread(target=self._serve, name="holdfast-body", daemon=True).start()
            except RuntimeError:  # the system gives us no more threads
                if not self._threads:
                    self._busy -= 1
                    raise
            else:
                self._threads += 1

    def _give_up(self, entry: ThreadJob) -> bool:
        """Whether a thread is lost."""
        was = entry._withdraw()
        match was:
            case _Stage.QUEUED:
                self._settle()
            case _Stage.STARTED:
                self._threads -= 1
                self._settle()
                self._grow()  # what queues behind it must not wait for the lost thread
                self._given_up.add(1)
            case _Stage.ENDED | _Stage.GIVEN_UP:
                pass  # its result is on the way; _take drops it
        return was is _Stage.STARTED

    def _take(self) -> None:
        """Hand over the results that are here."""
        self._woken = False  # before the queue is read: a later result wakes the loop again
        count = len(self._ended)
        try:
            while count:
                count -= 1
                entry, value, error = self._ended.popleft()
                if entry._stage is _Stage.GIVEN_UP:
                    self._given_up.add(-1)  # a lost body has returned after all, and its thread has ended
                    continue
                self._settle()
                if entry._wanted and not self._deaf:
                    entry._wanted = False
                    entry._done(value, error)
        finally:
            if count:  # a `done` raised: the results behind it are not its fault
                self._loop.call_soon(self._take)

    def _settle(self) -> None:
        self._busy -= 1
        if not self._busy and self._quiet and not self._quiet.done():
            self._quiet.set_result(None)

    # --- in the threads ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            outcome = entry._run()
            if outcome is None:
                continue
            ours = entry._end()
            self._ended.append((entry, *outcome))
            del entry, outcome  # an idle thread keeps no result alive
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._take)
                except RuntimeError:  # the loop is closed: the result has no receiver
                    return
            if not ours:
                return
