"""What time it is for engines of several machines: the store's clock, whatever their own clocks show."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.model.errors import StoreError
from holdfast.store.clocks import DRIFT, SharedClock, SystemClock, clock_of
from holdfast.store.liveness import Locks, life_of
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.engine.kit import types, until, until_async
from tests.engine.shared_kit import Shop
from tests.servers import PostgresServer

SECOND = 1_000_000
MINUTE = 60 * SECOND


class World:
    """A store's clock, a machine's time that nobody can set, and the way between them."""

    def __init__(self, *, pace: float = 1.0) -> None:
        self._pace = pace
        self.true = 1_700_000_000 * SECOND
        self.passed = 5_000 * SECOND
        self.way_there = self.way_back = 0
        self.is_away = False
        self.looks = 0
        self.clock = SharedClock(cast(Any, self), lambda: self.passed * 1000)

    def pass_by(self, microseconds: int) -> None:
        """Time passes; here a little faster than there, if the pace is above 1."""
        self.true += microseconds
        self.passed += int(microseconds * self._pace)

    def now(self) -> int:
        """The store is asked what time it is."""
        self.looks += 1
        self.pass_by(self.way_there)
        if self.is_away:
            raise StoreError("it is away")
        told = self.true
        self.pass_by(self.way_back)
        return told


def test_the_clock_shows_what_the_store_told_and_what_has_passed_since() -> None:
    world = World()
    assert world.clock.now() == world.true
    world.pass_by(2 * SECOND)
    assert world.true - 2 * SECOND * DRIFT - 1 <= world.clock.now() <= world.true
    assert world.looks == 1


@pytest.mark.parametrize("pace", [1.0, 1.0 + DRIFT, 1.0 - DRIFT])
def test_no_clock_is_ahead_of_the_stores_however_long_answers_take_and_however_fast_it_runs(pace: float) -> None:
    chance = random.Random(7)
    world = World(pace=pace)
    shown = 0
    for _ in range(2_000):
        world.way_there, world.way_back = chance.randrange(SECOND), chance.randrange(SECOND)
        if chance.random() < 0.3:
            world.clock.synchronise()
        world.pass_by(chance.randrange(4 * SECOND))
        assert world.clock.now() <= world.true
        assert world.clock.now() >= shown, "it went back"
        shown = world.clock.now()
        assert world.true - shown < 4 * SECOND + MINUTE


def test_a_slow_answer_makes_the_clock_stand_still_rather_than_go_back() -> None:
    world = World()
    world.clock.synchronise()
    world.pass_by(SECOND)
    before = world.clock.now()
    world.way_back = SECOND // 2
    world.clock.synchronise()  # what it tells is half a second old by now
    assert before <= world.clock.now() <= world.true
    world.pass_by(SECOND)
    assert before < world.clock.now() <= world.true


@pytest.mark.parametrize("jump", [10 * MINUTE, -10 * MINUTE])
def test_f76_a_store_whose_clock_was_set_is_followed_at_the_next_look(jump: int) -> None:
    world = World()
    before = world.clock.now()
    world.true += jump
    assert world.clock.now() == before
    world.clock.synchronise()
    assert world.clock.now() == world.true


def test_time_goes_on_while_the_store_is_away() -> None:
    world = World()
    before = world.clock.now()
    world.is_away = True
    world.pass_by(MINUTE)
    with pytest.raises(StoreError):
        world.clock.synchronise()
    assert world.true - SECOND < world.clock.now() <= world.true
    assert before < world.clock.now()


def test_a_store_of_one_machine_goes_by_that_machines_clock() -> None:
    assert isinstance(clock_of(SqliteStore("sqlite://")), SystemClock)


# --- engines whose machines' clocks are wrong ------------------------------------------------------------------------

TEN_YEARS = 10 * 365 * 86_400
LEASE_SECONDS = 4
"""Nobody may lose it, however long a busy machine stands still; and some of them have to pass."""


@pytest.fixture
async def shop(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(postgres.url(), tmp_path)
    yield shop
    shop.close()


@pytest.mark.parametrize("offset", [TEN_YEARS, 3600, -3600, 300], ids=["+10y", "+1h", "-1h", "+5min"])
async def test_f74_f75_f77_an_engine_whose_wall_clock_is_wrong_takes_nothing_fires_nothing_and_keeps_its_lease(
    shop: Shop, offset: int
) -> None:
    @hf.workflow(name="sleeps_beside_a_wrong_clock")
    async def sleeper(ctx: hf.Context) -> None:
        await ctx.sleep("30m")

    async with hf.open(shop.url, lease_seconds=LEASE_SECONDS, idle_seconds=0, grace_seconds=0) as engine:
        sleeping = await engine.start(sleeper, run_id="sleeping")
        await engine.start(shop.patient(), name="mine", run_id="mine")
        await until_async(lambda: _is_free(shop, "sleeping"), "the sleeping run is nobody's")
        mine = engine.lease.engine
        other = await shop.other("its", WALL_OFFSET_SECONDS=str(offset), HOLDFAST_LEASE_SECONDS=str(LEASE_SECONDS))
        await until(lambda: shop.attempts("its"))
        first = {row.engine: row.expires_at for row in shop.engines()}
        assert mine in first
        assert len(first) == 2
        await _renewals(shop, 4)
        now = engine.store.now()
        assert {row.engine: life_of(row, now, Locks.of(engine.store)) for row in shop.engines()} == dict.fromkeys(
            first, "alive"
        )
        assert await sleeping.status() == "suspended"
        assert "TimerFired" not in types(await sleeping.events())
        for name in ("mine", "its"):
            shop.go(name)
            run = engine.get(name)
            assert await run.result(timeout=30) == f"{name} went"
            assert "RunTakenOver" not in types(await run.events())
        names, _ = await other.ends()
        assert names[0] == names[1]
        assert engine.lease.engine == mine
        at = [event.at for event in await engine.get("its").events()]
        assert max(abs(instant.timestamp() - engine.store.now() / SECOND) for instant in at) < 300, "its own clock's"
    assert (shop.attempts("mine"), shop.attempts("its")) == ([1], [1])
    shop.check()


async def _is_free(shop: Shop, run_id: str) -> bool:
    await asyncio.sleep(0.05)
    row = shop.look(lambda store: store.run(run_id))
    return row.status == "suspended" and row.engine is None


async def _renewals(shop: Shop, count: int) -> None:
    """Wait until every engine has renewed its lease so often, and so beyond the lease that it had."""
    seen: dict[str, set[int]] = {row.engine: set() for row in shop.engines()}

    def renewed() -> bool:
        for row in shop.engines():
            seen.setdefault(row.engine, set()).add(row.expires_at)
        return all(len(expiries) > count for expiries in seen.values())

    await until(renewed, "every engine renews its lease")
