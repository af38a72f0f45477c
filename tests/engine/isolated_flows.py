"""Isolated flows: workflows whose bodies are run in processes of their own by test_isolation.py.

In a module that imports little, because every such process imports it. Bodies say where they are, and wait for gates,
by files in a folder that the run is given.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import holdfast as hf


class Order(msgspec.Struct):
    name: str
    amount: int


def inside(ctx: Any, folder: str) -> None:
    """Say which process a body is in."""
    with open(f"{folder}/inside", "a") as found:
        found.write(f"{ctx.attempt} {os.getpid()}\n")


async def gate(folder: str, name: str = "gate") -> None:
    while not os.path.exists(f"{folder}/{name}"):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.005)


@hf.node
async def isolated_waiter(ctx: hf.Context, folder: str) -> int:
    ctx.progress(1, 2, "waits")
    inside(ctx, folder)
    await gate(folder)
    return os.getpid()


@hf.workflow
def isolated_gated(folder: str):
    return isolated_waiter(folder)


@hf.workflow(concurrency=1)
async def isolated_one_at_a_time(ctx: hf.Context, folder: str) -> int:
    inside(ctx, folder)
    await gate(folder)
    return os.getpid()


@hf.node
def isolated_blocking(ctx: hf.SyncContext, folder: str) -> int:
    inside(ctx, folder)
    while not (ctx.cancelled or os.path.exists(f"{folder}/gate")):
        time.sleep(0.005)
    return os.getpid()


@hf.node(timeout=0.2, retry=hf.Retry(attempts=2, backoff=0))
async def isolated_slow(ctx: hf.Context, folder: str) -> str:
    if ctx.attempt < 6:
        inside(ctx, folder)
        try:
            await asyncio.sleep(3600)
        finally:
            Path(folder, "cleaned up").touch()
    return "in time"


@hf.workflow
def isolated_timeout(folder: str):
    return isolated_slow(folder)


@hf.node(timeout=0.1)
async def isolated_deaf(ctx: hf.Context, folder: str) -> None:
    inside(ctx, folder)
    time.sleep(3600)


@hf.workflow
def isolated_stuck(folder: str):
    return isolated_deaf(folder)


@hf.workflow
def isolated_sync(folder: str):
    return isolated_blocking(folder)


@hf.node
async def double(x: int) -> int:
    return 2 * x


@hf.node(retry=hf.Retry(attempts=3, backoff=0))
async def flaky(ctx: hf.Context) -> int:
    if ctx.attempt < 3:
        raise OSError("not yet")
    return ctx.attempt


def in_a_thread(x: int) -> int:
    return x + 1


@hf.workflow
def isolated_kid(order: Order):
    return double(order.amount)


@hf.workflow
async def isolated_listener(ctx: hf.Context) -> Any:
    return await ctx.receive("news")


@hf.workflow(variables={"total": int})
async def isolated_everything(ctx: hf.Context, folder: str) -> dict[str, Any]:
    """Every call that durable code has."""
    inside(ctx, folder)
    state = ctx.checkpointed
    if state is None:
        ctx.vars["total"] = 40
        ctx.progress(1, 2, "half")
        ctx.heartbeat()
        ctx.log.warning("a line of %s", ctx.node)
        first = await ctx.step(double, 1)
        await ctx.checkpoint({"first": first})
        state = {"first": first}
    ctx.vars["total"] += 2
    found = {
        **state,
        "patched": ctx.patched("a new way"),
        "sync": await ctx.step(in_a_thread, 1),
        "keyed": await ctx.keyed("key").step(double, 2),
        "flaky": await ctx.step(flaky),
        "map": await ctx.map(double, [1, 2, 3], limit=2),
        "gather": await asyncio.gather(ctx.step(double, 5), ctx.step(double, 6)),
        "now": (await ctx.now()).year >= 2024,
        "uuid": len(str(await ctx.uuid())),
        "random": 0 <= await ctx.random() < 1,
        "child": await ctx.child(isolated_kid, order=Order("a", 4)),
        "race": list(await ctx.race(ctx.sleep(3600), ctx.step(double, 7))),
        "key": ctx.idempotency_key,
        "total": ctx.vars["total"],
        "cancelled": ctx.cancelled,
        "leaving": ctx.leaving,
    }
    await ctx.sleep(0.01)
    await ctx.signal("listener", "news", {"from": ctx.run_id})
    try:
        await ctx.signal("nobody", "news")
    except hf.UnknownRun as error:
        found["unknown"] = error.message
    try:
        await ctx.child(isolated_kid, order=Order("a", 4), run_id="listener")
    except hf.RunExists as error:
        found["exists"] = error.message
    found["answer"] = await ctx.ask("Ship it?", schema=bool)
    found["received"] = await ctx.receive("go", schema=Order)
    found["received"] = found["received"].name
    return found


@hf.workflow
async def isolated_changed(ctx: hf.Context, folder: str) -> int:
    """Its calls are not the same before and after it asks."""
    inside(ctx, folder)
    first = await ctx.step(double, 1 if len(Path(folder, "inside").read_text().splitlines()) == 1 else 2)
    return first + int(await ctx.ask("How many?", schema=int))


@hf.node
def isolated_sync_calls(ctx: hf.SyncContext, folder: str) -> list[Any]:
    inside(ctx, folder)
    return [ctx.step(in_a_thread, 1), ctx.map(in_a_thread, [1, 2]), ctx.ask("Ship it?", schema=str), ctx.attempt]


@hf.workflow
def isolated_sync_everything(folder: str):
    return isolated_sync_calls(folder)


@hf.node
async def isolated_pends(ctx: hf.Context, folder: str) -> int:
    inside(ctx, folder)
    hf.pend("later", output=7)


@hf.node
async def isolated_goes(ctx: hf.Context, folder: str, before: int) -> str:
    inside(ctx, folder)
    if ctx.visit == 1:
        hf.goto("isolated_goes", output="again")
    return f"visit {ctx.visit}"


@hf.node(inline=True)
def isolated_inline(before: str) -> str:
    return f"{before}, pid {os.getpid()}"


@hf.node
async def isolated_fails(ctx: hf.Context, before: str) -> str:
    raise ValueError(f"{before} is wrong")


@hf.workflow
def isolated_ends(folder: str):
    return isolated_fails(isolated_inline(isolated_goes(folder, isolated_pends(folder))))


@hf.node(concurrency=1)
async def isolated_alone(folder: str, n: int) -> int:
    """Raises FileExistsError beside another one of itself, in whichever process."""
    os.close(os.open(f"{folder}/alone", os.O_CREAT | os.O_EXCL))
    await asyncio.sleep(0.005)
    os.unlink(f"{folder}/alone")
    return n


@hf.workflow
async def isolated_limited(ctx: hf.Context, folder: str) -> list[int]:
    steps = [ctx.step(isolated_alone, folder, n) for n in range(3)]
    return list(await asyncio.gather(*steps))


@hf.node(concurrency=1)
async def isolated_nested(ctx: hf.Context, folder: str) -> int:
    return await ctx.step(isolated_nested, folder)


@hf.workflow
async def isolated_in_itself(ctx: hf.Context, folder: str) -> int:
    return await ctx.step(isolated_nested, folder)


@hf.workflow
async def isolated_arguments(ctx: hf.Context) -> str:
    return ascii(sys.argv)  # an argument need not be text


@hf.node(process=True)
def arguments_in_a_child() -> str:
    return ascii(sys.argv)  # an argument need not be text


@hf.workflow
def process_arguments() -> str:
    return arguments_in_a_child()
