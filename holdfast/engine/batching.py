"""Batching: what many ask of the store in one turn of the loop becomes one write.

Owns: gathering them, and telling each asker what became of his.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.model.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


class Batch(Generic[T, R]):
    """One call for everything that comes while the last one is under way. `do` answers each item, in order."""

    def __init__(
        self, do: Callable[[list[T]], Awaitable[Sequence[R]]], spawn: Callable[..., asyncio.Task[None]]
    ) -> None:
        self._do = do
        self._spawn = spawn
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._busy = False

    async def put(self, item: T) -> R:
        """What became of the item. The first one goes at once, so that what is asked before something is also done
        before it; the others wait for it, together."""
        if self._busy:
            future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, future))
            return await future
        self._busy = True
        try:
            return (await self._do([item]))[0]
        finally:
            self._busy = bool(self._waiting)
            if self._waiting:
                self._spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._do_one(batch)
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
                future.set_result(answer)
