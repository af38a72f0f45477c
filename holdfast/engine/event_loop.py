"""Event loop: small tools of everything that runs on one event loop.

Owns: batching (what many callers ask for at the same time is done once), wake-ups of callers that wait for a run, the
check that a public coroutine runs on its engine's loop, and a loop that ends although a body does not.
Never: knows what a batch or a wake-up is about. A lost wake-up costs a poll, never an event.
Invariant: a call from another loop raises UsageError and changes nothing, so that the caller may repeat it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from holdfast.engine.asyncio_internals import abandon
from holdfast.model.errors import StoreError, UsageError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Batch(Generic[T, R]):
    """One call for everything that is asked while the last call is under way. `do` answers each item, in order; an
    answer that is an Exception is raised to the caller that asked.

    `at_once`: the first item does not wait for others, so that what is asked before something else is also done before
    it. Otherwise everything that is asked in one turn of the event loop is in one call. `limit` is how many items one
    call takes.
    """

    def __init__(
        self,
        do: Callable[[list[T]], Awaitable[Sequence[R | Exception]]],
        spawn: Callable[..., asyncio.Task[None]],
        *,
        at_once: bool = True,
        limit: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self._do = do
        self._spawn = spawn
        self._at_once = at_once
        self._limit = limit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._busy = False

    async def put(self, item: T) -> R:
        """The answer to an item. The error of a call is raised to every caller whose item was in it; a caller that is
        cancelled takes nothing from the others."""
        if self._busy or not self._at_once:
            future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, future))
            if not self._busy:
                self._busy = True
                self._spawn(self._work())
            return await future
        self._busy = True
        try:
            (answer,) = await self._do([item])
        finally:
            self._busy = bool(self._waiting)
            if self._waiting:
                self._spawn(self._work())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                limit = self._limit()
                batch, self._waiting = self._waiting[:limit], self._waiting[limit:]
                await self._do_one(batch)
                if len(batch) == limit:  # many are waiting: everything else has a turn of the loop in between
                    await asyncio.sleep(0)
        finally:
            self._busy = False
            for _, future in self._waiting:  # the engine stops under us
                if not future.done():
                    future.set_exception(StoreError("the engine is closed"))
            self._waiting = []

    async def _do_one(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._do([item for item, _ in batch])
        except BaseException as e:
            for _, future in batch:
                if not future.done():
                    future.set_exception(e if isinstance(e, Exception) else StoreError("the engine is closed"))
            if not isinstance(e, Exception):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)


# --- wake-ups -------------------------------------------------------------------------------------------------------


class Hub:
    """One event per caller that follows a run."""

    def __init__(self) -> None:
        self.listeners: dict[int, list[asyncio.Event]] = {}
        """The events of callers that follow a run, by its number."""

    def listen(self, run_no: int) -> asyncio.Event:
        """An event that is set whenever the run may have moved. Give it back with `leave`."""
        event = asyncio.Event()
        self.listeners.setdefault(run_no, []).append(event)
        return event

    def leave(self, run_no: int, event: asyncio.Event) -> None:
        listeners = self.listeners.get(run_no)
        if listeners is not None:
            listeners.remove(event)
            if not listeners:
                del self.listeners[run_no]

    def notify(self, run_no: int) -> None:
        """A run of this engine has a new event."""
        for event in self.listeners.get(run_no, ()):
            event.set()

    def notify_all(self) -> None:
        """Another process has written: every caller reads again."""
        for listeners in self.listeners.values():
            for event in listeners:
                event.set()

    @property
    def listening(self) -> bool:
        return bool(self.listeners)


# --- calls from programs --------------------------------------------------------------------------------------------


class OnLoop(Protocol):
    """An object whose coroutines belong to one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


S = TypeVar("S", bound=OnLoop)


def on_its_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Decorate a public coroutine of `Engine` or `Run`: check the loop, then yield to it once.

    The yield is needed because a read of a file returns without suspending: a caller that polls (`while await
    run.status() != "completed": pass`) would otherwise keep the loop from driving the run, and `asyncio.wait_for`
    would never fire.
    """

    @functools.wraps(method)
    async def on_loop(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_loop(self, method.__name__)
        await asyncio.sleep(0)
        return await method(self, *args, **kwargs)

    return on_loop


def check_loop(owner: OnLoop, method: str) -> None:
    """Raise UsageError unless the caller runs on the owner's event loop."""
    if asyncio.get_running_loop() is not owner.loop:
        name = type(owner).__name__.lower()
        raise UsageError(
            f"{name}.{method} was awaited on another event loop than its engine's; nothing was done. From another "
            f"thread: asyncio.run_coroutine_threadsafe({name}.{method}(...), {name}.loop).result()"
        )


# --- a loop for one main coroutine ----------------------------------------------------------------------------------


log = logging.getLogger("holdfast.engine")
LEAVING_SECONDS = 1.0
"""Bodies have had their grace time before; this is for what they have started beside themselves."""


def run(main: Coroutine[Any, Any, R]) -> R:
    """What the coroutine returns or raises."""
    return asyncio.run(_alone_at_the_end(main))


async def _alone_at_the_end(main: Coroutine[Any, Any, R]) -> R:
    try:
        return await main
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            _, deaf = await asyncio.wait(others, timeout=LEAVING_SECONDS)
            for task in deaf:
                _leave(task)


def _leave(task: asyncio.Task[Any]) -> None:
    log.warning("%s ignored its cancellation; abandoning it", task.get_name())
    abandon(task)
