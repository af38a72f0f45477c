"""Children: works of the kernel's suites that need a process of their own.

Owns: both sides. The parent's functions start `python -m benchmarks.children WORK ...` and read one JSON line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.processes import Figures, ask, child, hear, memory_mib, run, say
from holdfast.cli.process_setup import tune

if TYPE_CHECKING:
    from benchmarks.sizes import SuiteSizes
    from holdfast.cli.measuring import Place

LEASE_SECONDS = 1.0
"""Of an engine that is killed. On a server its successor has to wait for this long; a file's lock is free at once."""


# --- the parent's side ------------------------------------------------------------------------------------------


def crash_and_restart(place: Place, runs: int) -> Figures:
    """Start `runs` runs of 10 steps, die in the middle, start again."""
    log = place.directory / "steps.log"
    with child("children", "crash", place.url, log, runs, runs * 5) as killed:
        if killed.wait() == 0:
            raise RuntimeError("the process that was to be killed ended by itself")
    before = log.read_bytes().count(b"\n")
    began = time.perf_counter()
    with child("children", "crash", place.url, log, runs, 0) as restarted:
        answer = hear(restarted)
        seconds = time.perf_counter() - began
        restarted.wait()
    lines = log.read_bytes().split()
    if len(set(lines)) != runs * 10:
        raise RuntimeError(f"{len(set(lines)):,} steps ran, not {runs * 10:,}")
    return {
        "seconds": seconds,
        "seconds_in_engine": answer["seconds"],
        "run_twice": len(lines) - len(set(lines)),
        "steps_after_restart": len(lines) - before,
    }


def long_run(url: str, sizes: SuiteSizes) -> Figures:
    return ask("children", "long", url, sizes.long_steps, sizes.long_window)


def idle_memory(url: str) -> float:
    """RSS of a process with an open engine that does nothing, in MiB."""
    return float(ask("children", "idle", url)["mib"])


def map_memory(url: str, few: int, many: int) -> Figures:
    """Peak memory of a map over a few and over many items, each in a process of its own."""
    peaks = [ask("children", "map", url, items)["peak_mib"] for items in (few, many)]
    per_item = (peaks[1] - peaks[0]) * 1024 * 1024 / (many - few)
    return {"map_mib_few": peaks[0], "map_mib_many": peaks[1], "map_bytes_per_item": max(0.0, per_item)}


def import_seconds() -> float:
    """`import holdfast` and the first use of a name, inside a new process."""
    program = "import time; t = time.perf_counter(); import holdfast; holdfast.node; print(time.perf_counter() - t)"
    return float(run("-c", program))


def help_seconds() -> float:
    """The whole process of `holdfast --help`."""
    began = time.perf_counter()
    run("-m", "holdfast", "--help")
    return time.perf_counter() - began


# --- the child's side -------------------------------------------------------------------------------------------


async def _crash(url: str, log: str, runs: int, kill_at: int) -> Figures:
    import holdfast as hf
    from benchmarks import workflows

    workflows.side_log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    workflows.kill_at = kill_at
    began = time.perf_counter()
    async with hf.open(url, lease_seconds=LEASE_SECONDS) as engine:

        async def go(number: int) -> None:
            x = number * 10  # every step of every run has an x of its own
            run = await engine.start(workflows.logged10, run_id=f"run-{number}", x=x)  # after the kill: the same run
            assert await run.result() == x + 10

        await asyncio.gather(*(go(number) for number in range(runs)))
        say({"seconds": time.perf_counter() - began})
    return {}


async def _long(url: str, steps: int, window: int) -> Figures:
    import holdfast as hf
    from benchmarks import workflows
    from holdfast.cli.measuring import median

    async with hf.open(url) as engine:
        await (await engine.start(workflows.long_code, steps=100)).result()
        workflows.marks.clear()
        began = time.perf_counter()
        assert await (await engine.start(workflows.long_code, steps=steps)).result() == steps
        seconds = time.perf_counter() - began
    marks = workflows.marks
    costs = [(later - earlier) * 1e6 for earlier, later in pairwise(marks)]
    first, last = costs[:window], costs[-window:]
    return {
        "cpu_ratio": median(last) / median(first),
        "cpu_ratio_mean": sum(last) / sum(first),
        "cpu_us_first": median(first),
        "cpu_us_last": median(last),
        "steps_per_s": steps / seconds,
    }


async def _idle(url: str) -> Figures:
    import holdfast as hf

    async with hf.open(url):
        await asyncio.sleep(0.3)  # its background work has had a few turns
        return {"mib": memory_mib("VmRSS")}


async def _map(url: str, items: int) -> Figures:
    import holdfast as hf
    from benchmarks import workflows

    async with hf.open(url) as engine:
        run = await engine.start(workflows.doubled, items=list(range(items)))
        assert await run.result() == items * (items - 1)
    return {"peak_mib": memory_mib("VmHWM")}


def main(arguments: list[str]) -> None:
    tune()
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # W7 has no checkpoint, and is told so
    work, url, *rest = arguments
    match work:
        case "crash":
            answer = asyncio.run(_crash(url, rest[0], int(rest[1]), int(rest[2])))
        case "long":
            answer = asyncio.run(_long(url, int(rest[0]), int(rest[1])))
        case "idle":
            answer = asyncio.run(_idle(url))
        case "map":
            answer = asyncio.run(_map(url, int(rest[0])))
        case _:
            raise SystemExit(f"no such work: {work}")
    if answer:
        say(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
