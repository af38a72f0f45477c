"""A run's memory is its open scopes: wide maps and long codes stay flat."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import url

MEBI = 1024 * 1024


@hf.node(inline=True)
def trivial(i: int) -> int:
    return i


@hf.node(inline=True)
def total(xs: list[int]) -> int:
    return sum(xs)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.node(inline=True)
def numbers(n: int) -> list[int]:
    return list(range(n))


@hf.workflow
def wide(n: int):
    return hf.map(trivial, numbers(n), limit=1000)


class Probe:
    """The most memory that Python held while a run was at work, above what it held before."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._calls = 0
        self.most = 0

    def look(self) -> None:
        self._calls += 1
        if self._calls % self._every == 0:
            self.most = max(self.most, tracemalloc.get_traced_memory()[0])


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_a_map_over_a_hundred_thousand_items_keeps_only_its_open_ones(db: Path) -> None:
    """Held are the input as slices, the counters and at most `limit` items; the cache of outputs is bounded."""
    probe = Probe(1000)

    @hf.node(inline=True)
    def watched(i: int) -> int:
        probe.look()
        return i

    @hf.workflow(persistence="lazy")
    def watched_map(n: int):
        mapped = hf.map(watched, numbers(n), limit=1000)
        return hf.size(mapped)

    async with hf.open(url(db)) as engine:
        await (await engine.start(watched_map, n=2_000)).result()
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            run = await engine.start(watched_map, n=100_000)
            assert await run.result() == 100_000
            grown = probe.most - before
            del run
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    # 100,000 node states would be over 50 MiB; the slices of the input and the output cache are what is allowed
    assert grown < 40 * MEBI, f"{grown / MEBI:.1f} MiB while the map ran"
    assert left < 8 * MEBI, f"{left / MEBI:.1f} MiB after it"


async def test_finished_runs_leave_nothing_in_memory(db: Path) -> None:
    @hf.workflow
    async def short(ctx: hf.Context, n: int) -> int:
        return await ctx.step(trivial, n)

    async def some(engine: hf.Engine, count: int) -> None:
        for i in range(count):
            await (await engine.start(short, n=i)).result()

    async with hf.open(url(db)) as engine:
        await some(engine, 50)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await some(engine, 300)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert not engine.actors
        assert _held(engine) == {}
    assert grown < 300 * 1024, f"{grown / 300:.0f} bytes a run"


def _held(engine: Any) -> dict[str, int]:
    return {name: n for name, n in engine.slots.used().items() if n}


async def test_a_wide_map_gives_every_item_in_its_place(db: Path) -> None:
    @hf.workflow
    def sums(n: int):
        return total(hf.map(trivial, numbers(n), limit=500))

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(sums, n=3000)).result() == sum(range(3000))
        assert await (await engine.start(wide, n=3000)).result() == list(range(3000))
