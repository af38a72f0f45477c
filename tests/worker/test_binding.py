"""What a handler's code tells about its body before it runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from holdfast.worker.binding import never_awaits


async def straight(x: int) -> int:
    return x + 1


async def straight_with_an_inner_function(x: int) -> Any:
    async def inner() -> None:
        await asyncio.sleep(x)

    return inner


async def awaits(x: int) -> int:
    if x:
        await asyncio.sleep(x)
    return x


async def goes_through(numbers: AsyncIterator[int]) -> None:
    async for _ in numbers:
        pass


async def collects(numbers: AsyncIterator[int]) -> list[int]:
    return [n async for n in numbers]


async def enters(lock: asyncio.Lock) -> None:
    async with lock:
        pass


async def asks_for_its_task() -> Any:
    return asyncio.current_task()


async def yields() -> AsyncIterator[int]:
    yield 1


def plain() -> None:
    pass


@functools.wraps(straight)
async def wrapper(x: int) -> int:
    return await straight(x)


class Compiled:
    """A function of a compiler, whose code object has the flags of what it was made of, and no instructions."""

    __code__ = awaits.__code__.replace(co_code=plain.__code__.co_code)


@pytest.mark.parametrize("fn", [straight, straight_with_an_inner_function], ids=lambda fn: fn.__name__)
def test_an_async_function_without_an_await_never_waits(fn: Callable[..., Any]) -> None:
    assert never_awaits(fn)


@pytest.mark.parametrize(
    "fn",
    [
        awaits,
        goes_through,
        collects,
        enters,
        asks_for_its_task,
        yields,
        plain,
        wrapper,
        functools.partial(straight, 1),
        asyncio.sleep,
        AsyncMock(),
        Compiled(),
    ],
    ids=lambda fn: getattr(fn, "__qualname__", type(fn).__name__),
)
def test_any_other_may_wait(fn: Callable[..., Any]) -> None:
    assert not never_awaits(fn)
