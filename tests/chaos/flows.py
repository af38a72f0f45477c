"""Flows: the workflows that run while everything is killed: one of every shape, and each body tells the outside.

Bodies and steps return their own names, so that what a run came to shows what it did.
"""

from __future__ import annotations

import asyncio
import random
import time

import holdfast as hf
from tests.chaos.outside import act, at_work

WORK_SECONDS = 0.1
"""How long a body is at work, at most: long enough to be killed in."""
SLOW = "slow"
"""The queue of child workflows, which not every worker serves."""
BASKET = "chaos"
"""Where questions lie."""
RUNS_AT_ONCE = 2
BODIES_AT_ONCE = 2


async def work(ctx: hf.Context, what: str) -> str:
    """Act, and stay at work for a moment before and after it."""
    await asyncio.sleep(random.uniform(0, WORK_SECONDS / 2))
    name = act(ctx, what)
    await asyncio.sleep(random.uniform(0, WORK_SECONDS / 2))
    return name


# --- a graph: branches, a join in a thread, and something that fails at first --------------------------------------


@hf.node
async def branch(ctx: hf.Context, which: str) -> str:
    return await work(ctx, which)


@hf.node
def join(ctx: hf.SyncContext, parts: list[str]) -> list[str]:
    time.sleep(random.uniform(0, WORK_SECONDS))
    act(ctx, "join")
    return sorted(parts)


@hf.node(retry=hf.Retry(attempts=3, backoff=0.05))
async def flaky(ctx: hf.Context, parts: list[str]) -> list[str]:
    await work(ctx, "flaky")
    if ctx.attempt == 1:
        raise ConnectionError("the first try fails")
    return parts


@hf.workflow
def chaos_graph():
    return flaky(join([branch.named(which)(which) for which in ("a", "b", "c")]))


# --- durable code, committed at every step and not -----------------------------------------------------------------


async def step(ctx: hf.Context, what: str) -> str:
    return await work(ctx, what)


@hf.workflow
async def chaos_code(ctx: hf.Context) -> list[str]:
    first = await ctx.step(step, "first")
    items = await ctx.map(step, ["item 0", "item 1", "item 2"])
    pair = await asyncio.gather(ctx.step(step, "left"), ctx.step(step, "right"))
    return [first, *items, *pair]


@hf.workflow(persistence="lazy")
async def chaos_lazy(ctx: hf.Context) -> list[str]:
    before = [await ctx.step(step, f"step {n}") for n in range(3)]
    await ctx.sleep(0.05)
    return [*before, *[await ctx.step(step, f"step {n}") for n in range(3, 6)]]


# --- children in another queue -------------------------------------------------------------------------------------


@hf.workflow(queue=SLOW)
async def chaos_errand(ctx: hf.Context, what: str) -> str:
    return await ctx.step(step, what)


@hf.workflow
async def chaos_family(ctx: hf.Context) -> list[str]:
    errands = [ctx.child(chaos_errand, what=what, run_id=f"{ctx.run_id}-{what}") for what in ("near", "far")]
    return [*await asyncio.gather(*errands), await ctx.step(step, "home")]


# --- waiting: for a person, for signals, for time, for nothing that will come --------------------------------------


@hf.workflow
async def chaos_question(ctx: hf.Context) -> list[str]:
    before = await ctx.step(step, "before")
    answer = await ctx.ask("Which?", schema=str, basket=BASKET)
    return [before, answer, await ctx.step(step, "after")]


@hf.workflow
async def chaos_letters(ctx: hf.Context, count: int) -> list[int]:
    received: list[int] = []
    for _ in range(count):
        received.append(await ctx.receive("letter", schema=int))
        await ctx.step(step, f"letter {received[-1]}")
    return received


@hf.workflow
async def chaos_sleeper(ctx: hf.Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return await ctx.step(step, "awake")


@hf.workflow
async def chaos_abandoned(ctx: hf.Context) -> str:
    await ctx.step(step, "begun")
    await ctx.sleep("1h")
    return await ctx.step(step, "never")


# --- limits over all engines ---------------------------------------------------------------------------------------


@hf.workflow(concurrency=RUNS_AT_ONCE)
async def chaos_crowd(ctx: hf.Context) -> str:
    with at_work(ctx, "chaos_crowd"):
        return await ctx.step(step, "alone enough")


@hf.node(concurrency=BODIES_AT_ONCE)
async def narrow(ctx: hf.Context, n: int) -> str:
    with at_work(ctx, "narrow"):
        return await work(ctx, f"narrow {n}")


@hf.workflow
def chaos_narrow():
    return hf.map(narrow, [0, 1, 2])


LIMITS = {"chaos_crowd": RUNS_AT_ONCE, "narrow": BODIES_AT_ONCE}
"""How many bodies of each pool may be at work at once."""


# --- compensation --------------------------------------------------------------------------------------------------


@hf.node
async def undo(ctx: hf.Context, booking: str) -> None:
    await work(ctx, f"undo {booking.rpartition('/')[2]}")


@hf.node(compensate=undo)
async def book(ctx: hf.Context, what: str, after: str = "") -> str:
    return await work(ctx, what)


@hf.node
async def refuse(ctx: hf.Context, after: str) -> str:
    await work(ctx, "refused")
    raise hf.Fail("no seat", retryable=False)


@hf.workflow(on_failure="compensate")
def chaos_trip():
    return refuse(book.named("hotel")("hotel", book.named("flight")("flight")))
