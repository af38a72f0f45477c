"""Many runs that start at once share what they must ask the store for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.model.errors import StoreError
from tests.engine.kit import url

MANY = 50


@hf.node
async def next_number(x: int) -> int:
    return x + 1


@hf.workflow(name="starting-at-once")
def starting_at_once(x: int) -> int:
    return next_number(x)


class Asked:
    """A verb of the store that counts how often it is asked, and may fail the first time."""

    def __init__(self, store: Any, verb: str, *, fails_first: bool = False) -> None:
        self.times = 0
        self._fails_first = fails_first
        self._real: Callable[..., Any] = getattr(store, verb)
        setattr(store, verb, self)

    def __call__(self, *args: Any) -> Any:
        self.times += 1
        if self._fails_first and self.times == 1:
            raise StoreError("not now")
        return self._real(*args)


async def start_many(engine: hf.Engine) -> list[Any]:
    return await asyncio.gather(*(engine.start(starting_at_once, x=i) for i in range(MANY)), return_exceptions=True)


@pytest.mark.parametrize("verb", ["register_version", "reserve_run_numbers"])
async def test_runs_that_start_at_once_ask_for_their_version_and_their_numbers_once(tmp_path: Path, verb: str) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        asked = Asked(engine.store, verb)
        runs = await start_many(engine)
        assert [await run.result() for run in runs] == [i + 1 for i in range(MANY)]
        assert asked.times == 1


@pytest.mark.parametrize("verb", ["register_version", "reserve_run_numbers"])
async def test_whoever_waited_for_one_that_failed_asks_again(tmp_path: Path, verb: str) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        asked = Asked(engine.store, verb, fails_first=True)
        runs = await start_many(engine)
        assert isinstance(runs[0], StoreError)
        assert [await run.result() for run in runs[1:]] == [i + 1 for i in range(1, MANY)]
        assert asked.times == 2
        assert await (await engine.start(starting_at_once, x=1)).result() == 2


async def test_whoever_gives_up_asking_does_not_stop_those_who_wait(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        first = asyncio.create_task(engine.start(starting_at_once, x=1))
        second = asyncio.create_task(engine.start(starting_at_once, x=2))
        await asyncio.sleep(0)  # both have begun: one asks, one waits
        first.cancel()
        assert await (await second).result() == 3
