"""Scenarios: workflows that together use everything the engine can do, for the explorer to break.

Bodies are harmless to repeat unless a scenario is about that; the key is read where the engine's keys matter.
"""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast as hf


class Flaky(Exception):
    """Fails at first."""


@hf.node(idempotent=True)
async def xp_add(x: int, n: int = 1) -> int:
    return x + n


@hf.node(idempotent=True)
def xp_double(x: int) -> int:
    return 2 * x


@hf.node(idempotent=True, inline=True)
def xp_inline(x: int) -> int:
    return x + 100


@hf.node(idempotent=True, process=True)
def xp_process(x: int) -> int:
    return x * x


@hf.node
async def xp_keyed(ctx: hf.Context, x: int) -> str:
    return f"{ctx.idempotency_key[:3]}{x}"


@hf.node
def xp_keyed_sync(ctx: hf.SyncContext, x: int) -> str:
    return f"{ctx.idempotency_key[:3]}{x}"


@hf.node(idempotent=True)
async def xp_total(numbers: list[int]) -> int:
    return sum(numbers)


@hf.workflow(name="xp_chain")
def chain(x: int = 0) -> int:
    for _ in range(5):
        x = xp_add(x)
    return x


@hf.workflow(name="xp_places")
def places(x: int = 1) -> list[Any]:
    """Every kind of body, side by side."""
    return [xp_add(x), xp_double(x), xp_inline(x), xp_process(x), xp_keyed(x), xp_keyed_sync(x)]


@hf.workflow(name="xp_diamond")
def diamond(x: int = 1) -> int:
    left, right = xp_add(x), xp_double(x)
    return xp_total([left, right, xp_add.after(left)(right)])


@hf.workflow(name="xp_map")
def mapped(numbers: list[int] = [1, 2, 3]) -> int:  # noqa: B006 - never changed
    return xp_total(hf.map(xp_double, numbers, limit=2))


@hf.workflow(name="xp_loop")
def looped(x: int = 1) -> int:
    return hf.loop(xp_double, start=x, until=lambda r: r >= 8, max_visits=9)


@hf.workflow(name="xp_route")
def routed(x: int = 1) -> int:
    doubled = xp_double(x)
    with hf.route(doubled) as by:
        with by(2):
            two = xp_add(doubled)
        with by.otherwise():
            other = xp_inline(doubled)
    return hf.first(two, other)


@hf.node(retry=hf.Retry(attempts=3, backoff=0.01, jitter=0), idempotent=True)
async def xp_flaky(ctx: hf.Context, x: int) -> int:
    if ctx.attempt < 2:
        raise Flaky("not yet")
    return x


@hf.node(retry=hf.Retry(attempts=3, backoff=30, jitter=0), idempotent=True)
async def xp_slow_retry(ctx: hf.Context, x: int) -> int:
    if ctx.attempt < 2:
        raise Flaky("not yet")
    return x


@hf.workflow(name="xp_retry")
def retried(x: int = 1) -> list[int]:
    return [xp_flaky(x), xp_slow_retry(x)]


@hf.node(retry=hf.Retry(attempts=3, backoff=30, jitter=0), concurrency=1, idempotent=True)
async def xp_limited_retry(ctx: hf.Context, x: int) -> int:
    if ctx.attempt < 3:
        raise Flaky("not yet")
    return x


@hf.workflow(name="xp_retry_steps")
async def retried_steps(ctx: hf.Context, x: int = 1) -> list[int]:
    """Tries of steps that wait in memory, in timers one after the other, and in timers side by side."""
    first = await ctx.step(xp_flaky, x)
    second = await ctx.step(xp_slow_retry, first + 1)
    return [first, second, *await ctx.map(xp_limited_retry, [3, 4], limit=2)]


@hf.node(idempotent=True)
async def xp_undo(receipt: int) -> None:
    pass


@hf.node(idempotent=True, compensate=xp_undo)
async def xp_book(x: int) -> int:
    return x


@hf.node(idempotent=True)
async def xp_fail(x: int) -> int:
    raise ValueError("no")


@hf.workflow(name="xp_compensate", on_failure="compensate")
def compensated(x: int = 1) -> int:
    first = xp_book(x)
    second = xp_book(first)
    return xp_fail(second)


@hf.workflow(name="xp_compensate_code", on_failure="compensate")
async def compensated_code(ctx: hf.Context, x: int = 1) -> int:
    booked: int | None = ctx.checkpointed
    if booked is None:
        first = await ctx.step(xp_book, x)
        (booked,) = await ctx.map(xp_book, [first])
        await ctx.checkpoint(booked)
    return await ctx.step(xp_fail, booked)


@hf.workflow(name="xp_continue", on_failure="continue")
def continued(x: int = 1) -> list[Any]:
    return [xp_fail(x), xp_add(x)]


@hf.workflow(name="xp_child")
def child(x: int) -> int:
    return xp_double(xp_add(x))


@hf.workflow(name="xp_parent")
async def parent(ctx: hf.Context, x: int = 1) -> int:
    one = await ctx.child(child, x=x)
    two = await ctx.child(child, x=one)
    return one + two


@hf.workflow(name="xp_graph_parent")
def graph_parent(x: int = 1) -> int:
    return xp_add(child(x))


@hf.workflow(name="xp_slow_child")
async def slow_child(ctx: hf.Context, x: int) -> int:
    await ctx.sleep("1h")
    return await ctx.step(xp_step, x)


@hf.workflow(name="xp_slow_parent")
def slow_parent(x: int = 1) -> int:
    """The parent is evicted long before its child ends."""
    return xp_add(slow_child(x))


@hf.workflow(name="xp_lazy_parent", persistence="lazy")
def lazy_parent(x: int = 1) -> int:
    return xp_add(child(xp_add(x)))


@hf.workflow(name="xp_ordered")
def ordered(x: int = 1) -> int:
    """The last node takes nothing from those before it, and still has to wait for all of them."""
    left, right = xp_add(xp_add(x)), xp_double(x)
    return xp_add.after(left, right)(x)


async def xp_step(x: int) -> int:
    return x + 1


def xp_sync_step(x: int) -> int:
    return x + 1


@hf.workflow(name="xp_code")
async def code(ctx: hf.Context, x: int = 1) -> dict[str, Any]:
    a = await ctx.step(xp_step, x)
    b = await ctx.map(xp_sync_step, [a, a + 1], limit=2)
    when = await ctx.now()
    await ctx.sleep("1h")
    c = await ctx.step(xp_keyed, a)
    return {"a": a, "b": b, "c": c, "when": when.isoformat(), "id": str(await ctx.uuid())}


async def xp_fetch(name: str) -> str:
    await asyncio.sleep(3 if name == "a" else 1)
    return name


@hf.node(idempotent=True)
async def xp_charge(ctx: hf.Context, name: str) -> str:
    await asyncio.sleep(5)
    return name


async def _overtaking(ctx: hf.Context, keyed: bool) -> list[str]:
    """Tasks are created as others end: in the order of time, and when the body runs again in that of the code."""

    async def handle(name: str) -> str:
        call = ctx.keyed(f"charge {name}") if keyed else ctx
        return await call.step(xp_charge, name)

    pages = [asyncio.create_task(ctx.step(xp_fetch, name)) for name in "ab"]
    charged = [asyncio.create_task(handle(await page)) for page in asyncio.as_completed(pages)]
    return sorted([await task for task in charged])


@hf.workflow(name="xp_overtaking")
async def overtaking(ctx: hf.Context) -> list[str]:
    return await _overtaking(ctx, keyed=True)


@hf.workflow(name="xp_overtaking_without_keys")
async def overtaking_without_keys(ctx: hf.Context) -> list[str]:
    return await _overtaking(ctx, keyed=False)


@hf.workflow(name="xp_checkpoint")
async def checkpointed(ctx: hf.Context, rounds: int = 3) -> int:
    state = ctx.checkpointed or {"round": 0, "sum": 0}
    while state["round"] < rounds:
        got = await ctx.step(xp_step, state["round"])
        state = {"round": state["round"] + 1, "sum": state["sum"] + got}
        await ctx.checkpoint(state)
    total: int = state["sum"]
    return total


@hf.workflow(name="xp_lazy", persistence="lazy")
def lazy(x: int = 0) -> int:
    for _ in range(4):
        x = xp_add(x)
    return x


@hf.node(on_crash="fail")
async def xp_once(x: int) -> int:
    return x


@hf.node(on_crash="ask")
async def xp_ask(x: int) -> int:
    return x


@hf.workflow(name="xp_once_only")
def once_only(x: int = 1) -> int:
    return xp_once(xp_add(x))


@hf.workflow(name="xp_ask_first")
def ask_first(x: int = 1) -> int:
    return xp_ask(xp_add(x))


@hf.workflow(name="xp_vars", variables={"seen": int})
def with_vars(x: int = 1) -> int:
    return xp_set(xp_add(x))


@hf.node(idempotent=True)
async def xp_set(ctx: hf.Context, x: int) -> int:
    ctx.vars["seen"] = x
    return x


@hf.workflow(name="xp_sync_code")
def sync_code(x: int = 1) -> int:
    return xp_sync_body(x)


@hf.node(idempotent=True)
def xp_sync_body(ctx: hf.SyncContext, x: int) -> int:
    a = ctx.step(xp_sync_step, x)
    ctx.sleep(10)
    return ctx.step(xp_sync_step, a)


async def xp_slow_step(x: int) -> int:
    await asyncio.sleep(1)
    return x + 1


@hf.node(idempotent=True)
async def xp_leaver(ctx: hf.Context, x: int) -> int:
    beside = asyncio.create_task(ctx.step(xp_slow_step, x))
    await asyncio.sleep(0.1)
    return x if not beside.done() else -1


@hf.node(idempotent=True)
async def xp_patient(x: int) -> int:
    await asyncio.sleep(5)
    return x


@hf.workflow(name="xp_leaves_a_step")
def leaves_a_step(x: int = 1) -> int:
    """A body returns while a step of it is under way."""
    return xp_patient(xp_leaver(x))


@hf.node(idempotent=True, retry=hf.Retry(attempts=3, on=(Flaky,), backoff=0.01))
async def xp_flaky_beside(ctx: hf.Context, x: int) -> int:
    async def fails_at_first() -> None:
        await asyncio.sleep(0.1)
        if ctx.attempt == 1:
            raise Flaky

    return (await asyncio.gather(ctx.step(xp_slow_step, x), fails_at_first()))[0]


@hf.workflow(name="xp_tries_beside_a_step")
def tries_beside_a_step(x: int = 1) -> int:
    """A body fails while a step of it is under way, and is tried again."""
    return xp_flaky_beside(x)


ALWAYS_THE_SAME = {
    workflow.name: workflow
    for workflow in (
        chain, places, diamond, mapped, looped, routed, retried, retried_steps, compensated, compensated_code,
        continued, parent, graph_parent, code,
        checkpointed, lazy, lazy_parent, slow_parent, ordered, with_vars, sync_code,
        leaves_a_step, tries_beside_a_step, overtaking,
    )
}  # fmt: skip
"""Workflows whose outcome no crash may change."""
