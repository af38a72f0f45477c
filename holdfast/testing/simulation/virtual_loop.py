"""Virtual loop: the clock of a world, and the event loop of one simulated process.

Owns: time that advances only when the world advances it; what is ready to run and what waits for a time, for one
process. asyncio sees nothing else of the world.
Never: runs by itself (world.py gives the turns), or waits for anything real. What would (sockets, child processes,
signals) is refused with a hint at fakes.
On crash: the loop is discarded with everything in it; nothing of it runs again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, NoReturn

import msgspec

from holdfast.model.limits import SECOND

START = 1_767_225_600 * SECOND
"""The first instant of 2026: a fixed date, so that every exploration is the same."""


class VirtualClock:
    """The one clock of a world, in microseconds; every loop and every engine of it reads this one."""

    def __init__(self, start: int = START) -> None:
        self._start = start
        self._now = start

    def now(self) -> int:
        """Microseconds since 1970, UTC: what the engine calls its clock."""
        return self._now

    def elapsed(self) -> None:
        """None: a world has one time."""

    def lease_time(self) -> int:
        """The same time: a world has one."""
        return self._now

    def synchronise(self) -> None:
        """Do nothing: all processes read the same clock."""

    @property
    def seconds(self) -> float:
        """Seconds since the world began: what an event loop calls its time."""
        return (self._now - self._start) / SECOND

    def instant(self, seconds: float) -> int:
        """The instant at which `seconds` is read; never before it."""
        return self._start + -int(-seconds * SECOND // 1)

    def move_to(self, instant: int) -> None:
        """Advance to an instant, never back."""
        self._now = max(self._now, instant)


class Handle(msgspec.Struct, eq=False):
    """A callback that is ready. (asyncio's own would do; this one costs half, fifty times a schedule.)"""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class TimerHandle(Handle, eq=False):
    """The same, with a time."""

    due: float = 0.0

    def when(self) -> float:
        return self.due


class VirtualLoop(asyncio.AbstractEventLoop):
    """Callbacks of one process, run in turns by the world."""

    def __init__(
        self,
        clock: VirtualClock,
        refuse: Callable[[str], Exception],
        run_blocking: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], object],
    ) -> None:
        self.ready: deque[Handle] = deque()
        self._clock = clock
        self._refuse = refuse
        self._run_blocking = run_blocking
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._order = itertools.count()
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks ever: when the world ends, each is closed."""
        self._task_factory: Callable[..., Any] | None = None
        self.closed = False
        """The process is dead: no callback is accepted."""

    # --- for asyncio ---------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._clock.seconds

    def call_soon(  # type: ignore[override]  # the library's signature cannot be written with Callable[..., object]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        if not self.closed:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread at a time

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self._clock.seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(callback, args, copy_context() if context is None else context, due=when)
        if not self.closed:
            heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # only coroutines, as everywhere today
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any]
        if self._task_factory is None:
            task = asyncio.Task(coro, loop=self, name=name, context=context)
        else:
            task = self._task_factory(self, coro, **({} if context is None else {"context": context}))
        self.tasks.append(task)
        return task

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Callable[..., Any] | None:
        return self._task_factory

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self._run_blocking(lambda: func(*args), done)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.closed

    def is_closed(self) -> bool:
        return self.closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self.closed:  # in a dead process nothing waits for it
            raise error

    async def shutdown_asyncgens(self) -> None:
        return

    # --- for the world -------------------------------------------------------------------------------------

    def next_time(self) -> float | None:
        """When the next timer is due."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def wake_due(self) -> bool:
        """Make due timers ready; True if there are any."""
        if not self._timers:
            return False
        now = self._clock.seconds
        while self._timers and self._timers[0][0] <= now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self.ready.append(handle)
        return bool(self.ready)

    def cut(self) -> None:
        """Drop everything: the process has died."""
        self.closed = True
        self.ready.clear()
        self._timers.clear()

    # --- what does not exist here --------------------------------------------------------------------------

    def _outside(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._refuse("the event loop was asked for something outside the simulation (a socket, a child process)")


for _name, _member in vars(asyncio.AbstractEventLoop).items():
    if not _name.startswith("_") and callable(_member) and _name not in vars(VirtualLoop):
        setattr(VirtualLoop, _name, VirtualLoop._outside)
