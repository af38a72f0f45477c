"""Workloads: W1, W2 and W4 of `holdfast bench`. Their bodies do nothing, so that the engine is what is measured.

Owns: the workflows, what is timed, and the figures that come of it.
Invariants: workflows are at module level, so that they can be imported by name; every repetition has a new database;
the first run, which registers the definition, is not timed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import holdfast as hf
from holdfast.cli.measuring import Bench, Figures, Place, S, Sample, median, percentile, with_reference

marks: list[float] = []
"""When each step of a chain began (`chain100`), or how long it took (`code`)."""


@hf.node
async def step(x: int) -> int:
    return x + 1


@hf.node
async def awaiting_step(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


@hf.node
async def marked_step(x: int) -> int:
    marks.append(time.perf_counter())
    return x + 1


@hf.workflow(name="bench-one")
def one(x: int) -> int:
    return step(x)


@hf.workflow(name="bench-chain10")
def chain10(x: int) -> int:
    for _ in range(10):
        x = step(x)
    return x


@hf.workflow(name="bench-awaiting10")
def awaiting10(x: int) -> int:
    for _ in range(10):
        x = awaiting_step(x)
    return x


@hf.workflow(name="bench-chain100")
def chain100(x: int) -> int:
    for _ in range(100):
        x = marked_step(x)
    return x


@hf.workflow(name="bench-code")
async def code(ctx: hf.Context, steps: int) -> int:
    x = 0
    for _ in range(steps):
        began = time.perf_counter()
        x = await ctx.step(step, x)
        marks.append(time.perf_counter() - began)
    return x


# --- the suites -----------------------------------------------------------------------------------------------------


def w1(bench: Bench[S]) -> Figures:
    """A chain of 100 durable steps, as a graph and as code: the time of one step."""
    figures: Figures = {}
    samples = latency(bench, figures, "", "W1 graph", lambda url: graph_times(url, bench.sizes.chains))
    samples += latency(bench, figures, "step_", "W1 ctx.step", lambda url: code_times(url, bench.sizes.chains))
    return with_reference(figures, samples)


def w2(bench: Bench[S]) -> Figures:
    """1,000 runs of 10 steps at once, with bodies that await once (the headline) and with bodies that never do."""
    runs = bench.sizes.runs
    figures = throughput(bench, "W2", 5, lambda place: asyncio.run(runs_at_once(place.url, runs)))
    never = throughput(
        bench, "W2 without an await", 5, lambda place: asyncio.run(runs_at_once(place.url, runs, chain10))
    )
    return figures | {f"no_await_{name}": never[name] for name in ("steps_per_s", "cpu_us_per_step")}


def w4(bench: Bench[S]) -> Figures:
    """A run of one node from start to end, one after the other."""
    figures: Figures = {}
    samples = latency(bench, figures, "", "W4", lambda url: run_times(url, bench.sizes.turns))
    return with_reference(figures, samples)


# --- what is timed --------------------------------------------------------------------------------------------------


async def graph_times(url: str, chains: int) -> list[float]:
    found: list[float] = []
    async with hf.open(url) as engine:
        for number in range(chains + 1):
            marks.clear()
            assert await (await engine.start(chain100, x=0)).result() == 100
            found += [later - earlier for earlier, later in pairwise(marks)] if number else []
    return found


async def code_times(url: str, chains: int) -> list[float]:
    found: list[float] = []
    async with hf.open(url) as engine:
        for number in range(chains + 1):
            marks.clear()
            assert await (await engine.start(code, steps=100)).result() == 100
            found += marks if number else []
    return found


async def run_times(url: str, turns: int) -> list[float]:
    times: list[float] = []
    async with hf.open(url) as engine:
        for number in range(turns + 1):
            began = time.perf_counter()
            assert await (await engine.start(one, x=number)).result() == number + 1
            times.append(time.perf_counter() - began)
    return times[1:]


async def runs_at_once(url: str, runs: int, workflow: hf.Workflow[[int], int] = awaiting10) -> Figures:
    async with hf.open(url) as engine:

        async def go(number: int) -> None:
            assert await (await engine.start(workflow, x=number)).result() == number + 10

        await go(0)
        return await timed(asyncio.gather(*(go(number) for number in range(runs))), runs * 10)


async def timed(work: Awaitable[object], steps: int) -> Figures:
    """Steps per second, and CPU per step of this process, while `work` is done."""
    began, cpu = time.perf_counter(), time.process_time()
    await work
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    return {"steps_per_s": steps / seconds, "cpu_us_per_step": cpu_seconds / steps * 1e6}


# --- from samples to figures ----------------------------------------------------------------------------------------


def latency(
    bench: Bench[S], figures: Figures, prefix: str, name: str, work: Callable[[str], Any]
) -> list[Sample[list[float]]]:
    """Measure the times that `work` returns; add their percentiles in ms and in raw commits to `figures`."""
    samples = [bench.sample(lambda place: asyncio.run(work(place.url))) for _ in bench.repeats(3)]
    p50s = [percentile(s.value, 50) for s in samples]
    figures[f"{prefix}p50_ms"] = median(p50s) * 1e3
    figures[f"{prefix}p99_ms"] = median([percentile(s.value, 99) for s in samples]) * 1e3
    commits = figures[f"{prefix}commits"] = median([p50 * s.ref for p50, s in zip(p50s, samples, strict=True)])
    each = "; ".join(f"{p50 * 1e3:.3f} ms at ref {s.ref:,.0f}" for p50, s in zip(p50s, samples, strict=True))
    bench.say(f"{name}: {figures[f'{prefix}p50_ms']:.3f} ms, {commits:.2f} raw commits ({each})")
    return samples


def throughput(bench: Bench[S], name: str, usual: int, work: Callable[[Place], Figures]) -> Figures:
    """Measure the figures that `work` returns; add the rate in raw commits."""
    samples: list[Sample[Figures]] = []
    for _ in bench.repeats(usual):
        samples.append(bench.sample(work))
        s = samples[-1]
        rate, cpu = s.value["steps_per_s"], s.value["cpu_us_per_step"]
        times = f"{rate / s.ref:.1f} x {s.ref:,.0f} raw commits/s"
        bench.say(f"{name}: {rate:,.0f} steps/s = {times}, {cpu:.1f} µs of CPU per step")
    figures: Figures = {key: median([s.value[key] for s in samples]) for key in samples[0].value}
    figures["x_ref"] = median([s.value["steps_per_s"] / s.ref for s in samples])
    return with_reference(figures, samples)
