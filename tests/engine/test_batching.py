"""What many ask for at once is asked of the store once, and each asker hears what became of his, whoever gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.engine.event_loop import Batch
from holdfast.model.errors import StoreError
from tests.engine.kit import PATIENCE_SECONDS


class Desk:
    """Doubles numbers, one call after the other, and each only when it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self._answers: list[asyncio.Future[None]] = []
        self.batch: Batch[int, int] = Batch(self._double, self._spawn)
        self.worker: asyncio.Task[None] | None = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.worker = asyncio.create_task(work)
        return self.worker

    async def _double(self, numbers: list[int]) -> list[int]:
        self.calls.append(numbers)
        self._answers.append(asyncio.get_running_loop().create_future())
        await self._answers[-1]
        return [2 * number for number in numbers]

    async def ask(self, *numbers: int) -> list[asyncio.Task[int]]:
        asking = [asyncio.create_task(self.batch.put(number)) for number in numbers]
        await turns()
        return asking

    async def answer(self, error: Exception | None = None) -> None:
        """What is under way comes to its end."""
        if error is None:
            self._answers[-1].set_result(None)
        else:
            self._answers[-1].set_exception(error)
        await turns()


async def turns() -> None:
    """As many turns of the loop as anything here takes."""
    for _ in range(10):
        await asyncio.sleep(0)


async def heard(*asking: asyncio.Task[int]) -> list[int | str]:
    """What each asker was told; one who gave up hears nothing."""
    told = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), PATIENCE_SECONDS)
    return [str(one) if isinstance(one, BaseException) else one for one in told]


async def test_what_is_asked_while_a_call_is_under_way_is_one_call() -> None:
    desk = Desk()
    asking = await desk.ask(1, 2, 3)
    assert desk.calls == [[1]]
    await desk.answer()
    asking += await desk.ask(4)
    assert desk.calls == [[1], [2, 3]]
    await desk.answer()
    await desk.answer()
    assert desk.calls == [[1], [2, 3], [4]]
    assert await heard(*asking) == [2, 4, 6, 8]


async def test_a_batch_that_gathers_first_takes_at_most_its_limit_in_one_call() -> None:
    calls: list[list[int]] = []

    async def double(numbers: list[int]) -> list[int | Exception]:
        calls.append(numbers)
        return [ValueError(f"{number} is odd") if number % 2 else 2 * number for number in numbers]

    batch: Batch[int, int] = Batch(double, asyncio.create_task, at_once=False, limit=lambda: 3)
    asking = [asyncio.create_task(batch.put(number)) for number in range(5)]
    assert await heard(*asking) == [0, "1 is odd", 4, "3 is odd", 8]
    assert calls == [[0, 1, 2], [3, 4]]


async def test_whoever_asks_when_nothing_is_under_way_is_served_at_once() -> None:
    desk = Desk()
    for number in (1, 2):
        (asking,) = await desk.ask(number)
        await desk.answer()
        assert await heard(asking) == [2 * number]
    assert desk.calls == [[1], [2]]


@pytest.mark.parametrize("fails", [False, True], ids=["a call that is answered", "a call that fails"])
async def test_a_caller_who_gives_up_during_a_call_takes_nothing_from_the_others(fails: bool) -> None:
    desk = Desk()
    _, second, third, fourth = await desk.ask(1, 2, 3, 4)
    await desk.answer()
    assert desk.calls[-1] == [2, 3, 4]
    third.cancel()
    await turns()
    await desk.answer(StoreError("not now") if fails else None)
    assert await heard(second, third, fourth) == (["not now", "", "not now"] if fails else [4, "", 8])
    assert third.cancelled()


async def test_when_the_engine_stops_everybody_hears_of_it_but_those_who_gave_up() -> None:
    """In the call that is under way, and among those who wait for the next one."""
    desk = Desk()
    await desk.ask(1)
    under_way = await desk.ask(2, 3, 4)
    await desk.answer()
    waiting = await desk.ask(5, 6, 7)
    assert desk.calls == [[1], [2, 3, 4]]
    for gives_up in (under_way[1], waiting[1]):
        gives_up.cancel()
    await turns()
    assert desk.worker is not None
    desk.worker.cancel()
    assert await heard(*under_way, *waiting) == ["the engine is closed", "", "the engine is closed"] * 2
    with pytest.raises(asyncio.CancelledError):  # and nothing else was the matter
        await desk.worker


async def test_a_batch_goes_on_when_its_first_caller_gave_up() -> None:
    desk = Desk()
    first, second = await desk.ask(1, 2)
    first.cancel()
    await turns()
    assert desk.calls == [[1], [2]]
    await desk.answer()
    assert await heard(second) == [4]
