"""Flows: the program that the supervisor starts and kills.

    python flows.py DATABASE EFFECTS WORKFLOW:RUN_ID ... resume:RUN_ID cancel:RUN_ID

It opens an engine, starts those of the runs that do not exist, and ends when nothing is unfinished. Every body and
step writes a line to the effects file before and after it acts, as an outside receiver would see it: what acted, under
which idempotency key, in which attempt. Each returns its own name, so that the journal tells what is completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import Any

import holdfast as hf

EFFECTS = os.environ.get("CRASH_EFFECTS", "")


def act(ctx: Any, what: str) -> str:
    """The outside effect of a body or a step."""
    name = f"{ctx.run_id}/{what}"
    line = {"name": name, "key": ctx.idempotency_key, "attempt": ctx.attempt, "pid": os.getpid()}
    fd = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, json.dumps(line).encode() + b"\n")
    os.close(fd)
    return name


def say(marker: str) -> None:
    print(marker, flush=True)


def wait_for_the_end(marker: str) -> None:
    """Stay inside a body until the supervisor kills the process; only the first life of the body waits."""
    if os.environ.get("CRASH_STAY") == marker:
        say(marker)
        while True:
            time.sleep(3600)


# --- a chain ---


@hf.node
async def one(ctx: hf.Context) -> str:
    name = act(ctx, "one")
    wait_for_the_end("inside one")
    return name


@hf.node
def two(ctx: hf.SyncContext, before: str) -> str:
    name = act(ctx, "two")
    wait_for_the_end("inside two")
    return name


@hf.node(inline=True)
def three(ctx: hf.Context, before: str) -> str:
    return act(ctx, "three")


@hf.workflow
def chain():
    return three(two(one()))


# --- two that want one place ---


@hf.node(concurrency=1)
async def alone(ctx: hf.Context, which: str) -> str:
    name = act(ctx, which)
    wait_for_the_end(f"inside {which}")
    return name


@hf.workflow
def queue():
    return [alone.named("first")("first"), alone.named("second")("second")]


# --- parallel branches and a join ---


@hf.node
async def branch(ctx: hf.Context, which: str) -> str:
    name = act(ctx, which)
    if os.environ.get("CRASH_STAY") == f"inside {which}":
        say(f"inside {which}")
        await asyncio.Event().wait()
    if os.environ.get("CRASH_STAY") == "inside all":
        await asyncio.Event().wait()
    return name


@hf.node
async def join(ctx: hf.Context, parts: list[str]) -> list[str]:
    act(ctx, "join")
    return sorted(parts)


@hf.workflow
def parallel():
    return join([branch.named(name)(name) for name in ("a", "b", "c")])


# --- durable code, also lazy ---


async def step(ctx: hf.Context, i: int) -> str:
    return act(ctx, f"step {i}")


async def _steps(ctx: hf.Context) -> list[str]:
    act(ctx, "body")
    done = [await ctx.step(step, i) for i in range(5)]
    if os.environ.get("CRASH_STAY") == "after five steps":
        say("after five steps")
        await asyncio.Event().wait()
    return done


@hf.workflow
async def steps(ctx: hf.Context) -> list[str]:
    return await _steps(ctx)


@hf.workflow(persistence="lazy")
async def lazy_steps(ctx: hf.Context) -> list[str]:
    return await _steps(ctx)


@hf.workflow(persistence="lazy")
async def lazy_sleep(ctx: hf.Context) -> list[str]:
    done = [await ctx.step(step, i) for i in range(3)]
    await ctx.sleep(0.01)
    done += [await ctx.step(step, i) for i in range(3, 6)]
    if os.environ.get("CRASH_STAY") == "after the sleep":
        say("after the sleep")
        await asyncio.Event().wait()
    return done


# --- what may not be repeated ---


@hf.node(on_crash="fail")
async def careful(ctx: hf.Context) -> str:
    name = act(ctx, "careful")
    wait_for_the_end("inside careful")
    return name


@hf.workflow
def once():
    return careful()


@hf.node(on_crash="fail", retry=hf.Retry(attempts=3, backoff=0))
async def careful_step(ctx: hf.Context) -> str:
    name = act(ctx, "careful step")
    path = f"{EFFECTS}.{ctx.run_id}.failed"
    if not os.path.exists(path):
        open(path, "w").close()
        raise OSError("the first try fails")
    wait_for_the_end("inside the second try")
    return name


@hf.workflow
async def once_in_code(ctx: hf.Context) -> str:
    return await ctx.step(careful_step)


# --- compensation ---


@hf.node
async def undo(ctx: hf.Context, output: str) -> str:
    name = act(ctx, f"undo {output.rpartition('/')[2]}")
    wait_for_the_end(f"inside undo {output.rpartition('/')[2]}")
    return name


@hf.node(compensate=undo)
async def booked(ctx: hf.Context, what: str, before: str = "") -> str:
    return act(ctx, what)


@hf.node
async def refused(ctx: hf.Context, before: str) -> str:
    act(ctx, "refused")
    raise ValueError("no seat")


@hf.workflow(on_failure="compensate")
def trip():
    flight = booked.named("flight")("flight")
    return refused(booked.named("hotel")("hotel", flight))


# --- everything at once ---


@hf.node
async def item(ctx: hf.Context, i: int) -> str:
    return act(ctx, f"item {i}")


@hf.node
def sync_item(ctx: hf.SyncContext, i: int) -> str:
    name = act(ctx, f"sync {i}")
    ctx.step(lambda: i)
    return name


@hf.node(retry=hf.Retry(attempts=4, backoff=0.001, max_delay=0.002))
async def flaky(ctx: hf.Context, parts: list[str]) -> str:
    name = act(ctx, "flaky")
    path = f"{EFFECTS}.{ctx.run_id}.failed"
    if not os.path.exists(path):
        open(path, "w").close()
        raise OSError("the first try fails")
    return name


@hf.node(inline=True)
def more(n: int) -> int:
    return n + 1


@hf.workflow
async def kid(ctx: hf.Context, n: int) -> list[str]:
    found = [await ctx.step(step, i) for i in range(n)]
    await ctx.sleep(0.002)
    return [*found, *await ctx.map(step, [10, 11, 12])]


@hf.workflow
def mixed():
    items = hf.map(item, [0, 1, 2, 3], limit=2)
    threads = hf.map(sync_item, [0, 1, 2])
    counted = hf.loop(more, start=0, until=lambda n: n >= 3)
    tried = flaky(items)
    child = kid(n=2)
    with hf.when(counted > 100):
        never = three.named("never")(tried)
    return {
        "items": items,
        "threads": threads,
        "counted": counted,
        "tried": tried,
        "child": child,
        "never": hf.first(never, None),
    }


WORKFLOWS = {
    w.name: w for w in (chain, queue, parallel, steps, lazy_steps, lazy_sleep, once, once_in_code, trip, mixed)
}


async def drive(database: str, wanted: list[str]) -> None:
    limit = os.environ.get("CRASH_MAX_RECOVERIES")
    async with hf.open(f"sqlite:///{database}", max_recoveries=int(limit) if limit else None) as engine:
        say("open")
        for entry in wanted:
            name, _, run_id = entry.partition(":")
            if name == "resume":
                await engine.resume(run_id)
            elif name == "cancel":
                await engine.get(run_id).cancel("enough")
            else:
                await engine.start(WORKFLOWS[name], run_id=run_id)
        say("started")
        for row in await engine.list(limit=100_000):
            if any(wait["kind"] == "hold" for wait in row["waits"]):
                continue
            with contextlib.suppress(hf.RunFailed, hf.RunCancelled):
                await engine.get(row["run_id"]).result()
        say("done")


if __name__ == "__main__":
    EFFECTS = sys.argv[2]
    asyncio.run(drive(sys.argv[1], sys.argv[3:]))
