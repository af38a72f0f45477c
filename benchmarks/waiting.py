"""Waiting: what a database with very many runs that wait costs, and very many timers that are due at once.

Owns: both sides. The parent's functions make the database, start `python -m benchmarks.waiting WORK ...` and
watch it; the clocks are the same for both.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import holdfast as hf
from benchmarks import workflows
from benchmarks.copies import copy_run, waiting_run
from benchmarks.processes import Figures, child, hear, memory_mib, say
from benchmarks.sizes import SuiteSizes
from holdfast.cli import workloads
from holdfast.cli.measuring import connected, median
from holdfast.cli.process_setup import tune

LOOK_SECONDS = 0.5
"""How often it is asked whether all runs are done, which takes some 10 ms beside the work that is measured."""
BUSY_SECONDS = 1.5
"""How long the other run does its steps before the timers are due: enough to know how quick it is by itself."""


# --- the parent's side ------------------------------------------------------------------------------------------


def many_runs(url: str, sizes: SuiteSizes) -> Figures:
    """Seconds from the start of a process until it has done something new beside all the runs that wait; what it costs
    to wait with them, and to look for one."""
    signalled = waiting_run(url, workflows.signalled)
    copy_run(url, signalled, sizes.waiting)
    copy_run(url, waiting_run(url, workflows.asked), sizes.questions)
    asked = waiting_run(url, workflows.asked)
    began = time.monotonic()
    with child("waiting", "idle", url, sizes.idle_seconds, signalled, asked) as process:
        figures = hear(process)
        process.wait()
    return {"ready_seconds": figures.pop("ready_at") - began, **figures}


def many_timers(url: str, sizes: SuiteSizes) -> Figures:
    """Seconds from the moment when all timers are due until the last one has fired, and until the last run is done."""
    due = datetime.now(UTC) + timedelta(seconds=3 + 2 * BUSY_SECONDS + sizes.timers / 20_000)
    copy_run(url, waiting_run(url, workflows.asleep, until=due.isoformat()), sizes.timers)
    with child("waiting", "timers", url, due.timestamp(), sizes.timers) as process:
        due_at = max(due.timestamp(), hear(process)["ready_at"])
        _until_fired(url, due_at)
        fired_at = time.time()
        figures = hear(process)
        process.wait()
    return {"fired_seconds": fired_at - due_at, "done_seconds": figures.pop("done_at") - due_at, **figures}


def _until_fired(url: str, due_at: float) -> None:
    time.sleep(max(0.0, due_at - time.time()))
    with connected(url) as execute:
        while execute("SELECT 1 FROM run_timers WHERE status = 'set' LIMIT 1"):
            time.sleep(0.02)


# --- the child's side -------------------------------------------------------------------------------------------


async def _idle(url: str, seconds: float, signalled: str, asked: str) -> None:
    async with hf.open(url) as engine:
        assert await (await engine.start(workloads.one, x=1)).result() == 2
        ready_at = time.monotonic()
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        figures = {
            "ready_at": ready_at,
            "idle_cpu_percent": (time.process_time() - cpu) / seconds * 100,
            "idle_mib": memory_mib("VmRSS"),
            "list_ms": await _timed(engine.list()),
            "list_suspended_ms": await _timed(engine.list(status="suspended")),
            "inbox_ms": await _timed(engine.asked()),
        }
        question = engine.get(asked)
        (wait,) = await question.waits()
        assert wait.wait_id is not None
        figures["respond_ms"] = await _timed(question.respond(wait.wait_id, True))
        assert await question.result() is True
        run = engine.get(signalled)

        async def signal() -> None:
            await run.signal("go", 1)
            assert await run.result() == 2

        figures["signal_ms"] = await _timed(signal())
        say(figures)


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def _timers(url: str, due_at: float, count: int) -> None:
    marks = workflows.marks
    async with hf.open(url) as engine:
        await asyncio.sleep(max(0.0, due_at - BUSY_SECONDS - time.time()))
        other = await engine.start(workflows.busy)
        await asyncio.sleep(BUSY_SECONDS / 2)
        say({"ready_at": time.time()})
        while (await asyncio.to_thread(engine.store.counts)).get("completed", 0) < count:  # noqa: ASYNC110 - the store tells
            await asyncio.sleep(LOOK_SECONDS)
        done_at = time.time()
        workflows.is_busy = False
        await other.result()
    before = [later - earlier for earlier, later in pairwise(mark for mark in marks if mark < due_at)]
    meanwhile = [later - earlier for earlier, later in pairwise(mark for mark in marks if due_at <= mark <= done_at)]
    say(
        {
            "done_at": done_at,
            "busy_worst_ms": max(meanwhile, default=0.0) * 1e3,
            "busy_p50_ms": median(meanwhile or [0.0]) * 1e3,
            "busy_before_ms": median(before or [0.0]) * 1e3,
            "timers_mib": memory_mib("VmHWM"),
        }
    )


def main(arguments: list[str]) -> None:
    tune()
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # the busy run has no checkpoint, and is told so
    work, url, *rest = arguments
    match work:
        case "idle":
            asyncio.run(_idle(url, float(rest[0]), rest[1], rest[2]))
        case "timers":
            asyncio.run(_timers(url, float(rest[0]), int(rest[1])))
        case _:
            raise SystemExit(f"no such work: {work}")


if __name__ == "__main__":
    main(sys.argv[1:])
