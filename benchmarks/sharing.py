"""Sharing: several engines on one server, and runs that any of them may take.

Owns: both sides. The parent writes the runs, starts `python -m benchmarks.sharing URL ROOM` as often as there
are engines, lets all of them go at the same moment, and watches until the last run has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from contextlib import ExitStack

import holdfast as hf
from benchmarks import workflows
from benchmarks.processes import Figures, child, hear, say, tell
from benchmarks.sizes import SuiteSizes
from holdfast.cli.measuring import connected
from holdfast.cli.process_setup import tune

LOOK_SECONDS = 0.01


# --- the parent's side ------------------------------------------------------------------------------------------


def steps_per_second(url: str, engines: int, sizes: SuiteSizes) -> Figures:
    """How quickly so many engines do `runs` runs of 10 steps that a client has started, how much of it the busiest
    of them has done, and what a step costs them."""
    asyncio.run(_write(url, sizes.runs))
    with ExitStack() as stack:
        processes = [stack.enter_context(child("sharing", url, sizes.concurrency)) for _ in range(engines)]
        for process in processes:
            hear(process)
        began = time.perf_counter()
        for process in processes:
            tell(process)
        _until_done(url)
        seconds = time.perf_counter() - began
        for process in processes:
            tell(process)
        done = [hear(process) for process in processes]
    steps = sizes.runs * 10
    return {
        "steps_per_s": steps / seconds,
        "busiest": max(one["steps"] for one in done) / steps,
        "cpu_us_per_step": sum(one["cpu_seconds"] for one in done) / steps * 1e6,
    }


async def _write(url: str, runs: int) -> None:
    async with hf.open(url, drive=False) as client:
        await asyncio.gather(*(client.start(workflows.counted10, x=number) for number in range(runs)))


def _until_done(url: str) -> None:
    with connected(url) as execute:
        while execute("SELECT 1 FROM run_state WHERE status IN ('created', 'running', 'recovering') LIMIT 1"):
            time.sleep(LOOK_SECONDS)


# --- the child's side -------------------------------------------------------------------------------------------


async def _work(url: str, room: int) -> None:
    """Takes runs, `room` of them at once, from when it is told to until it is told to stop."""
    cpu = time.process_time()
    async with hf.open(url, concurrency=room):
        await asyncio.to_thread(sys.stdin.readline)
        cpu_seconds = time.process_time() - cpu
    say({"steps": workflows.bodies_run, "cpu_seconds": cpu_seconds})


def main(arguments: list[str]) -> None:
    tune()
    url, room = arguments
    say({"ready": True})
    sys.stdin.readline()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_work(url, int(room)))


if __name__ == "__main__":
    main(sys.argv[1:])
