"""Batching: what many callers ask for at the same time is done once.

Owns: gathering requests while one is being served, and answering each of them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.model.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


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
