"""Flat: what a run costs beside very many that have ended.

Owns: what is timed beside a few finished runs and beside many: to start and to drive new ones, to claim them, to list
the newest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import holdfast as hf
from benchmarks.copies import copy_run, finished_run
from benchmarks.sizes import SuiteSizes
from holdfast.cli import workloads
from holdfast.cli.measuring import median
from holdfast.store.contract import Store
from holdfast.store.urls import store_at

Figures = dict[str, Any]
CLAIMS, LISTS = 7, 51
"""How often each is timed; the median counts, which is not the first one that fills the caches."""
LISTED = 100


def few_and_many(url: str, sizes: SuiteSizes) -> Figures:
    """Each cost beside a few finished runs and beside many, and how many times the one is the other."""
    few, many = sizes.finished
    model = finished_run(url, workloads.one, x=1)
    copy_run(url, model, few)
    before = _costs(url, sizes.runs)
    copy_run(url, model, many - few)
    after = _costs(url, sizes.runs)
    figures: Figures = {}
    for key, value in after.items():
        figures |= {key: value, f"{key}_few": before[key], key.rsplit("_", 1)[0] + "_ratio": value / before[key]}
    return figures


def _costs(url: str, runs: int) -> Figures:
    """In microseconds a run, or milliseconds a list."""
    found: Figures = {"run_us": median([asyncio.run(_drive(url, runs)) for _ in range(3)]) / runs * 1e6}
    asyncio.run(_write(url, runs))
    store = store_at(url)
    store.open()
    try:
        found["claim_us"] = median([_claim(store) for _ in range(CLAIMS)]) / runs * 1e6
        found["list_ms"] = _timed(lambda: store.runs(limit=LISTED)) * 1e3
        found["list_completed_ms"] = _timed(lambda: store.runs(status=["completed"], limit=LISTED)) * 1e3
        found["list_created_ms"] = _timed(lambda: store.runs(status=["created"], limit=LISTED)) * 1e3
    finally:
        store.close()
    asyncio.run(_take_all(url))
    return found


async def _drive(url: str, runs: int) -> float:
    """Seconds that so many runs take, from their start to their end."""
    async with hf.open(url) as engine:

        async def go(number: int) -> None:
            assert await (await engine.start(workloads.one, x=number)).result() == number + 1

        await go(0)
        began = time.perf_counter()
        await asyncio.gather(*(go(number) for number in range(runs)))
        return time.perf_counter() - began


async def _write(url: str, runs: int) -> None:
    async with hf.open(url, drive=False) as client:
        await asyncio.gather(*(client.start(workloads.one, x=number) for number in range(runs)))


def _claim(store: Store) -> float:
    """Seconds that finding and claiming everything that wants an owner takes; it is given back afterwards."""
    began = time.perf_counter()
    found = store.claimable(store.unowned_versions())
    claimed = store.claim("bench", [run_no for run_no, _, _ in found])
    seconds = time.perf_counter() - began
    assert len(claimed) == len(found) > 0
    store.release("bench", [(row.run_no, row.token) for row in claimed])
    return seconds


def _timed(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(LISTS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


async def _take_all(url: str) -> None:
    async with hf.open(url) as engine:
        while engine.store.counts().get("created") or engine.actors:  # noqa: ASYNC110 - between two measurements
            await asyncio.sleep(0.02)
