"""Suites: each workload, measured.

Owns: what is done, for how long, and which numbers come of it.
Never: says what is good enough (figures.py) or shows anything (report.py).
Invariants: every repetition has a database of its own; the first run, which registers the definition, does not count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import holdfast as hf
from benchmarks import bare, children, flat, restart, sharing, waiting, workflows
from benchmarks.sizes import SuiteSizes
from holdfast.cli import measuring, workloads
from holdfast.cli.measuring import Figures, Sample, median, percentile, with_reference
from holdfast.cli.workloads import throughput, timed
from holdfast.inspect.doctor.check import check
from holdfast.store.urls import store_at
from holdfast.testing import explore

Bench = measuring.Bench[SuiteSizes]


def w1(bench: Bench) -> Figures:
    """A chain of 100 durable steps, as a graph and as code."""
    figures = workloads.w1(bench)
    if bench.server is not None:
        samples = [
            bench.sample(lambda place: bare.step_times(place.url, bench.sizes.chains * 100)) for _ in bench.repeats(3)
        ]
        figures["bare_p50_ms"] = median([percentile(s.value, 50) for s in samples]) * 1e3
        figures["x_bare"] = figures["p50_ms"] / figures["bare_p50_ms"]
        bench.say(f"W1 of a bare loop: {figures['bare_p50_ms']:.3f} ms")
    return figures


def w2(bench: Bench) -> Figures:
    """1,000 runs of 10 steps at once, with bodies that await once (the headline) and with bodies that never do."""
    figures = workloads.w2(bench)
    with bench.place() as place:
        figures["group"] = asyncio.run(_runs_per_commit(place.url, bench.sizes.runs))
    if bench.server is not None:
        rates = [
            bench.sample(lambda place: bare.steps_per_second(place.url, bench.sizes.runs, 10)) for _ in bench.repeats(3)
        ]
        figures["bare_steps_per_s"] = median([s.value for s in rates])
        figures["x_bare"] = figures["steps_per_s"] / figures["bare_steps_per_s"]
        bench.say(f"W2 of a bare loop: {figures['bare_steps_per_s']:,.0f} steps/s")
    return figures


async def _runs_per_commit(url: str, runs: int) -> float:
    async with hf.open(url) as engine:

        async def go(number: int) -> None:
            assert await (await engine.start(workloads.awaiting10, x=number)).result() == number + 10

        await go(0)
        groups = engine.committer.commits
        await asyncio.gather(*(go(number) for number in range(runs)))
        return runs * 11 / (engine.committer.commits - groups)  # eleven commits of a run: its start, and one per step


def w8(bench: Bench) -> Figures:
    """W2 with outputs of 1 KB."""
    return throughput(bench, "W8", 3, lambda place: asyncio.run(_wide_runs(place.url, bench.sizes.runs)))


def w3(bench: Bench) -> Figures:
    """One run of 1,000 parallel nodes and a join."""
    return throughput(bench, "W3", 5, lambda place: asyncio.run(_fan_out(place.url, bench.sizes.width)))


def w2x(bench: Bench) -> Figures:
    """W2 with ten times the runs, in alternation with W2 itself: only the CPU is compared."""
    few: list[float] = []
    many: list[float] = []
    samples: list[Sample[Figures]] = []
    for _ in bench.repeats(3):
        found = bench.sample(lambda place: asyncio.run(workloads.runs_at_once(place.url, bench.sizes.runs)), disk=False)
        few.append(found.value["cpu_us_per_step"])
        samples.append(
            bench.sample(
                lambda place: asyncio.run(workloads.runs_at_once(place.url, bench.sizes.more_runs)), disk=False
            )
        )
        many.append(samples[-1].value["cpu_us_per_step"])
        bench.say(f"W2x: {few[-1]:.1f} µs of CPU per step, with ten times the runs {many[-1]:.1f}")
    figures: Figures = {
        "cpu_ratio": median(many) / median(few),
        "cpu_us_per_step": median(many),
        "cpu_us_per_step_few": median(few),
        "steps_per_s": median([s.value["steps_per_s"] for s in samples]),
    }
    return with_reference(figures, samples, disk=False)


async def _wide_runs(url: str, runs: int) -> Figures:
    async with hf.open(url) as engine:

        async def go() -> None:
            text = await (await engine.start(workflows.wide10, text=workflows.PAD)).result()
            assert len(text) == len(workflows.PAD)

        await go()
        return await timed(asyncio.gather(*(go() for _ in range(runs))), runs * 10)


async def _fan_out(url: str, width: int) -> Figures:
    fan = workflows.fan(width)
    async with hf.open(url) as engine:

        async def go() -> None:
            assert await (await engine.start(fan, x=0)).result() == width

        await go()
        return await timed(go(), width + 1)


def w5(bench: Bench) -> Figures:
    """Kill the process with SIGKILL half-way through W2, start it again, wait until everything is done."""
    samples: list[Sample[Figures]] = []
    for _ in bench.repeats(3):
        samples.append(bench.sample(lambda place: children.crash_and_restart(place, bench.sizes.runs)))
        value = samples[-1].value
        bench.say(f"W5: {value['seconds']:.2f} s from restart to all done, {value['run_twice']:,} steps ran twice")
    keys = ("seconds", "seconds_in_engine", "run_twice", "steps_after_restart")
    return with_reference({key: median([s.value[key] for s in samples]) for key in keys}, samples)


def restarts(bench: Bench) -> Figures:
    """How soon interrupted runs go on: beside 100,000 that wait, after 1,000,000 events, in another process."""
    figures: Figures = {}
    samples: list[Sample[Figures]] = []
    works: tuple[Callable[[str], Figures], ...] = (
        lambda url: restart.many_runs(url, bench.sizes),
        lambda url: restart.long_run(url, bench.sizes),
        restart.takeover_from_dead,
        restart.takeover_from_stopped,
    )
    for work in works:
        found = [bench.sample(lambda place: work(place.url), disk=False) for _ in bench.repeats(3)]  # noqa: B023
        figures |= {key: median([s.value[key] for s in found]) for key in found[0].value}
        samples += found
        shown = ", ".join(f"{key} {figures[key]:,.3g}" for key in found[0].value)
        bench.say(f"restart: {shown}")
    return with_reference(figures, samples, disk=False)


def w6(bench: Bench) -> Figures:
    """1,000 runs wait for a signal, in memory or not; all get it at once, and each does a step."""
    figures: Figures = {}
    measured: list[Sample[Figures]] = []
    for prefix, evicted in (("", False), ("evicted_", True)):
        samples = [
            bench.sample(lambda place: asyncio.run(_signalled(place.url, bench.sizes.runs, evicted)))  # noqa: B023
            for _ in bench.repeats(5)
        ]
        figures |= {f"{prefix}{key}": median([s.value[key] for s in samples]) for key in samples[0].value}
        measured += samples
        seconds, cpu = figures[f"{prefix}seconds"], figures[f"{prefix}cpu_us_per_run"]
        bench.say(f"W6{' evicted' if evicted else ''}: {seconds:.3f} s, {cpu:.1f} µs of CPU per run")
    return with_reference(figures, measured)


async def _signalled(url: str, runs: int, evicted: bool) -> Figures:
    idle_seconds = 0.05 if evicted else None
    async with hf.open(url, idle_seconds=idle_seconds) as engine:

        async def go(number: int, run: hf.Run[int]) -> None:
            await run.signal("go", number)
            assert await run.result() == number + 1

        await go(0, await engine.start(workflows.signalled))
        waiting = await asyncio.gather(*(engine.start(workflows.signalled) for _ in range(runs)))
        while engine.store.counts().get("suspended") != runs or (evicted and engine.actors):  # noqa: ASYNC110 - once
            await asyncio.sleep(0.01)
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(go(number, run) for number, run in enumerate(waiting)))
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        return {"seconds": seconds, "cpu_us_per_run": cpu_seconds / runs * 1e6}


def w7(bench: Bench) -> Figures:
    """One run of 50,000 steps: does a step cost the same at the end as at the beginning?"""
    samples: list[Sample[Figures]] = []
    for _ in bench.repeats(5):
        samples.append(bench.sample(lambda place: children.long_run(place.url, bench.sizes), disk=False))
        value = samples[-1].value
        bench.say(f"W7: the last steps cost {value['cpu_ratio']:.3f} times the CPU of the first (p50)")
    keys = ("cpu_ratio", "cpu_ratio_mean", "cpu_us_first", "cpu_us_last", "steps_per_s")
    return with_reference({key: median([s.value[key] for s in samples]) for key in keys}, samples, disk=False)


def small(bench: Bench) -> Figures:
    """What it costs before anything runs, and whether a wide map stays small."""
    with bench.place() as place:
        figures: Figures = {"idle_mib": children.idle_memory(place.url)}
    bench.say(f"small: an idle engine takes {figures['idle_mib']:.1f} MiB")
    figures["import_seconds"] = median([children.import_seconds() for _ in range(bench.sizes.starts + 1)][1:])
    figures["help_seconds"] = median([children.help_seconds() for _ in range(bench.sizes.starts + 1)][1:])
    bench.say(f"small: import {figures['import_seconds']:.3f} s, --help {figures['help_seconds']:.3f} s")
    few, many = bench.sizes.items
    with bench.place() as place:
        figures |= children.map_memory(place.url, few, many)
    bench.say(f"small: a map takes {figures['map_bytes_per_item']:,.0f} bytes per item more")
    return figures


def doctor(bench: Bench) -> Figures:
    """Checking a database of runs of 10 steps: every run by questions to the tables, every event by its fold."""
    samples: list[Sample[Figures]] = []
    for _ in bench.repeats(3):
        samples.append(bench.sample(lambda place: _check(place.url, bench.sizes.runs * 5), disk=False))
        value = samples[-1].value
        bench.say(f"doctor: {value['runs_per_s']:,.0f} runs/s, --deep {value['events_per_s']:,.0f} events/s")
    keys = ("runs_per_s", "events_per_s", "runs", "events")
    return {key: median([s.value[key] for s in samples]) for key in keys}


def _check(url: str, runs: int) -> Figures:
    asyncio.run(workloads.runs_at_once(url, runs))
    store = store_at(url)
    store.open()
    try:
        began = time.perf_counter()
        quick = check(store)
        between = time.perf_counter()
        deep = check(store, deep=True)
        ended = time.perf_counter()
    finally:
        store.close()
    assert not quick.violations
    assert not deep.violations
    return {
        "runs_per_s": quick.checked / (between - began),
        "events_per_s": deep.events / (ended - between),
        "runs": quick.checked,
        "events": deep.events,
    }


def explorer(bench: Bench) -> Figures:
    """Every crash of a chain of five nodes, in memory. What counts is the CPU: there is one thread and no disk."""
    found: list[Figures] = []
    for _ in range(1 + len(bench.repeats(5))):
        cpu = time.process_time()
        report = explore(workflows.chain5, idempotent=["step"])
        cpu_seconds = time.process_time() - cpu
        assert report.safe, report.explain()
        found.append(
            {
                "schedules_per_cpu_s": report.schedules / cpu_seconds,
                "schedules_per_s": report.schedules_per_second,
                "schedules": report.schedules,
                "run_to_end": report.schedules - report.alike,
            }
        )
        bench.say(f"explorer: {found[-1]['schedules_per_cpu_s']:,.0f} schedules per second of CPU")
    measured = found[1:]  # the first one only warms up
    return {key: median([figures[key] for figures in measured]) for key in measured[0]}


def waits(bench: Bench) -> Figures:
    """1,000,000 runs that wait for a signal, in one database; 100,000 timers that are due at once."""
    figures: Figures = {}
    samples: list[Sample[Figures]] = []
    for work in (waiting.many_runs, waiting.many_timers):
        found = [bench.sample(lambda place: work(place.url, bench.sizes), disk=False) for _ in bench.repeats(1)]  # noqa: B023
        figures |= {key: median([s.value[key] for s in found]) for key in found[0].value}
        samples += found
        bench.say("waiting: " + ", ".join(f"{key} {figures[key]:,.3g}" for key in found[0].value))
    return with_reference(figures, samples, disk=False)


def engines(bench: Bench) -> Figures:
    """1,000 runs of 10 steps that a client has started: one engine, and two that share them."""
    samples: dict[int, list[Sample[Figures]]] = {1: [], 2: []}
    for _ in bench.repeats(3):
        for count, found in samples.items():
            found.append(bench.sample(lambda place: sharing.steps_per_second(place.url, count, bench.sizes)))  # noqa: B023
            value = found[-1].value
            bench.say(
                f"engines: {count}, {value['steps_per_s']:,.0f} steps/s, the busiest {value['busiest']:.0%} of it"
            )
    one, two = (median([s.value["steps_per_s"] for s in found]) for found in samples.values())
    figures: Figures = {
        "one_steps_per_s": one,
        "two_steps_per_s": two,
        "two_against_one": two / one,
        "busiest": median([s.value["busiest"] for s in samples[2]]),
        "one_cpu_us_per_step": median([s.value["cpu_us_per_step"] for s in samples[1]]),
        "two_cpu_us_per_step": median([s.value["cpu_us_per_step"] for s in samples[2]]),
        "x_ref": median([s.value["steps_per_s"] / s.ref for s in samples[2]]),
    }
    return with_reference(figures, samples[1] + samples[2])


def finished(bench: Bench) -> Figures:
    """New runs, claims and lists beside 1,000 and beside 1,000,000 runs that have ended."""
    samples = [
        bench.sample(lambda place: flat.few_and_many(place.url, bench.sizes), disk=False) for _ in bench.repeats(1)
    ]
    figures: Figures = {key: median([s.value[key] for s in samples]) for key in samples[0].value}
    bench.say("flat: " + ", ".join(f"{key} {figures[key]:.2f}" for key in figures if key.endswith("_ratio")))
    return with_reference(figures, samples, disk=False)


SUITES: dict[str, Callable[[Bench], Figures]] = {
    "W1": w1,
    "W2": w2,
    "W2x": w2x,
    "W3": w3,
    "W4": workloads.w4,
    "W5": w5,
    "restart": restarts,
    "W6": w6,
    "W7": w7,
    "W8": w8,
    "small": small,
    "doctor": doctor,
    "explorer": explorer,
    "waiting": waits,
    "flat": finished,
    "engines": engines,
}
