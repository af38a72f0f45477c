"""Being told rather than looking: hints of the store make an engine look at once, and looking makes it certain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import holdfast as hf
from tests.engine.kit import until
from tests.engine.shared_kit import Shop
from tests.servers import PostgresServer

AN_HOUR = "3600"


@pytest.fixture
async def shop(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(postgres.url(), tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines look around once an hour, unless they are told."""
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", AN_HOUR)
    monkeypatch.setenv("HOLDFAST_SWEEP_SECONDS", AN_HOUR)


@hf.workflow(name="hinted")
async def hinted(ctx: hf.Context) -> str:
    return "done"


@hf.workflow(name="hinted_by_signals")
async def awaits_signal(ctx: hf.Context) -> str:
    return await ctx.receive("go")


@pytest.mark.usefixtures("rarely")
async def test_a_run_that_somebody_else_starts_is_driven_at_once(shop: Shop) -> None:
    async with hf.open(shop.url) as worker, hf.open(shop.url, drive=False) as client:
        run = await client.start(hinted, run_id="r")
        await until(lambda: worker.store.run("r").status == "completed", "the worker has heard of it")
        assert (await run.show())["result"] == "done"


@pytest.mark.usefixtures("rarely")
async def test_a_message_to_a_run_that_rests_wakes_it_at_once(shop: Shop) -> None:
    async with hf.open(shop.url, idle_seconds=0) as worker, hf.open(shop.url, drive=False) as client:
        await worker.start(awaits_signal, run_id="r")
        await until(lambda: worker.store.run("r").engine is None, "it rests")
        sending = asyncio.ensure_future(client.get("r").signal("go", "yes"))
        await until(lambda: worker.store.run("r").status == "completed", "the worker has heard of it")
        await sending


@pytest.mark.usefixtures("rarely")
async def test_what_an_engine_leaves_when_it_stops_goes_on_at_once_elsewhere(shop: Shop) -> None:
    async with hf.open(shop.url) as worker:
        async with hf.open(shop.url, recover=False, grace_seconds=0) as leaver:
            await leaver.start(shop.patient(), name="r", run_id="r")
            await until(lambda: shop.attempts("r"))
            assert not worker.actors
        await until(lambda: worker.actors, "the worker has heard of it")
        shop.go("r")
        await until(lambda: worker.store.run("r").status == "completed")
    assert shop.attempts("r") == [1, 1]


async def test_f51_without_hints_an_engine_finds_by_looking(shop: Shop) -> None:
    url = f"{shop.url}&statement_cache_size=0"  # behind a pooler nobody listens
    async with hf.open(url) as worker, hf.open(url, drive=False) as client:
        await client.start(hinted, run_id="r")
        await until(lambda: worker.store.run("r").status == "completed")


async def test_a_crowd_of_hints_leaves_time_for_everything_else(shop: Shop) -> None:
    async with hf.open(shop.url) as engine:
        looks = 0
        look = engine.poll_loop.poll_once

        async def counted() -> None:
            nonlocal looks
            looks += 1
            await look()

        engine.poll_loop.poll_once = counted  # type: ignore[method-assign]
        turns = 0
        while looks < 5:
            engine.poll_loop.hint()
            turns += 1
            await asyncio.sleep(0)
        assert turns > 50, "every hint was followed by a look"
