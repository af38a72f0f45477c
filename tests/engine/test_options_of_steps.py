"""Nodes that durable code calls as steps keep their options: concurrency, heartbeat and timeout, as in graphs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import check_file, until, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Crowd:
    """How many are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.count = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.count += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.fixture(autouse=True)
def crowd() -> Crowd:
    global _crowd, _outer
    _crowd, _outer = Crowd(), Crowd()
    return _crowd


_crowd = _outer = Crowd()


@hf.node(concurrency=2)
async def os_fetch(n: int) -> int:
    with _crowd:
        await asyncio.sleep(0.01)
    return n


@hf.node(concurrency=2)
def os_fetch_blocking(n: int) -> int:
    with _crowd:
        threading.Event().wait(0.01)
    return n


@hf.workflow
async def os_mapped(ctx: hf.Context, blocking: bool = False) -> list[int]:
    return await ctx.map(os_fetch_blocking if blocking else os_fetch, list(range(8)), limit=8)


@hf.workflow
def os_graph() -> list[int]:
    return hf.map(os_fetch, list(range(8)))


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_concurrency_limit_bounds_the_steps_of_all_runs(db: Path, blocking: bool) -> None:
    async with hf.open(url(db)) as engine:
        runs = [await engine.start(os_mapped, blocking=blocking) for _ in range(3)]
        for run in runs:
            assert await run.result(timeout=30) == list(range(8))
        assert not [pool for pool in engine.slots.used() if pool.startswith("handler:")]
    assert (_crowd.most, _crowd.count) == (2, 24)
    check_file(db)


async def test_steps_and_nodes_of_a_graph_share_the_places_of_their_node_over_all_engines(db: Path) -> None:
    async with hf.open(url(db)) as one, hf.open(url(db)) as two:
        runs = [await engine.start(flow) for engine in (one, two) for flow in (os_graph, os_mapped)]
        for run in runs:
            assert await run.result(timeout=60) == list(range(8))
    assert (_crowd.most, _crowd.count) == (2, 32)
    check_file(db)


@hf.node(concurrency=3)
async def os_crawl(ctx: hf.Context, site: int) -> list[int]:
    with _outer:
        return await ctx.map(os_fetch, [site, site + 1])


@hf.workflow
def os_crawls() -> list[list[int]]:
    return hf.map(os_crawl, list(range(6)))


async def test_a_limited_body_may_call_steps_with_another_limit_and_both_hold(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        assert await (await engine.start(os_crawls)).result(timeout=30) == [[n, n + 1] for n in range(6)]
    assert (_outer.most, _crowd.most) == (3, 2)
    check_file(db)


@hf.node(concurrency=4)
async def os_recursive(ctx: hf.Context, depth: int) -> int:
    return 0 if depth == 0 else 1 + await ctx.step(os_recursive, depth - 1)


@hf.node(concurrency=4)
async def os_ping(ctx: hf.Context, left: int) -> int:
    return left if left == 0 else await ctx.step(os_pong, left - 1)


@hf.node(concurrency=4)
async def os_pong(ctx: hf.Context, left: int) -> int:
    return left if left == 0 else await ctx.step(os_ping, left - 1)


@hf.workflow
def os_recursion() -> int:
    return os_recursive(1)


@hf.workflow
async def os_rally(ctx: hf.Context, left: int) -> int:
    return await ctx.step(os_ping, left)


@hf.workflow
async def os_return(ctx: hf.Context, left: int) -> int:
    return await ctx.step(os_pong, left)


async def test_limited_steps_that_could_wait_for_each_other_are_refused_at_once(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match=r"os_recursive has a concurrency limit and was called as a step inside"):
            await (await engine.start(os_recursion)).result(timeout=30)
        assert await (await engine.start(os_rally, left=1)).result(timeout=30) == 0
        with pytest.raises(hf.RunFailed, match=r"inside .*os_pong, .* was called inside .*os_ping before"):
            await (await engine.start(os_return, left=1)).result(timeout=30)
        assert not [pool for pool in engine.slots.used() if pool.startswith("handler:")]
    check_file(db)


async def test_a_step_that_waits_for_a_place_is_given_up_with_its_body(db: Path) -> None:
    held = asyncio.Event()
    entered = asyncio.Event()

    @hf.node(concurrency=1)
    async def only_one(n: int) -> int:
        entered.set()
        await held.wait()
        return n

    @hf.workflow
    async def wants_one(ctx: hf.Context, n: int) -> int:
        index, _ = await ctx.race(ctx.step(only_one, n), ctx.sleep(0.05 if n else 3_600))
        return index

    async with hf.open(url(db), grace_seconds=30) as engine:
        first = await engine.start(wants_one, n=0)
        await entered.wait()
        assert await (await engine.start(wants_one, n=1)).result(timeout=30) == 1  # it lost: there was no place
        held.set()
        assert await first.result(timeout=30) == 0
        held.clear()
        entered.clear()
        first = await engine.start(wants_one, n=0)
        await entered.wait()
        waiting = await engine.start(wants_one, n=0)
        await until(lambda: len(engine.actors) == 2)
        asyncio.get_running_loop().call_later(0.3, held.set)
    async with hf.open(url(db)) as engine:
        assert await engine.get(waiting.run_id).result(timeout=30) == 0
        assert await engine.get(first.run_id).result(timeout=30) == 0
    check_file(db)


@hf.node(heartbeat=0.05, retry=hf.Retry(attempts=2, backoff=0))
async def os_silent(ctx: hf.Context) -> int:
    if ctx.attempt == 1:
        await asyncio.sleep(30)
    return ctx.attempt


@hf.node(heartbeat=0.25)
async def os_beats(ctx: hf.Context) -> int:
    for _ in range(8):
        await asyncio.sleep(0.05)
        ctx.heartbeat()
    return 8


@hf.node(heartbeat=0.25)
def os_beats_blocking() -> int:
    for _ in range(8):
        threading.Event().wait(0.05)
        hf.current().heartbeat()
    return 8


@hf.workflow
async def os_hearts(ctx: hf.Context) -> list[Any]:
    return [await ctx.step(os_silent), await ctx.step(os_beats), await ctx.step(os_beats_blocking)]


async def test_a_step_that_misses_its_heartbeat_is_tried_again(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(os_hearts)
        assert await run.result(timeout=30) == [2, 8, 8]
        (failed,) = [e for e in await run.events() if e.type == "StepFailed"]
        assert failed.data["error"]["code"] == "heartbeat_lost"
        assert "did not call ctx.heartbeat() for 0.05 s" in failed.data["error"]["message"]
    check_file(db)


@hf.node(timeout=0.2, heartbeat=0.2)
async def os_waits_inside(ctx: hf.Context) -> str:
    await ctx.sleep(0.5)
    return await ctx.step(os_waits_deeper)


@hf.node(timeout=0.2)
async def os_waits_deeper(ctx: hf.Context) -> str:
    await ctx.sleep(0.5)
    return "in time"


@hf.workflow
async def os_patient(ctx: hf.Context) -> str:
    return await ctx.step(os_waits_inside)


async def test_time_that_a_step_waits_in_calls_on_ctx_does_not_count(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(os_patient)
        assert await run.result(timeout=30) == "in time"
        assert "StepFailed" not in [e.type for e in await run.events()]
    check_file(db)
