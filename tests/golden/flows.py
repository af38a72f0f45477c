"""Workflows whose journals contain every type of event. Recorded by record.py, resumed by later versions.

Do not change a workflow once its journal is frozen: add another one. `GOLDEN_LIFE=2` is the code that is deployed after
the first process has ended: one body differs, so that a journal has `CodeChanged`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import holdfast as hf
from holdfast.model import handlers
from holdfast.model.definition import Definition, Milestone, NodeDef
from holdfast.model.handlers import CodeLocation, RegisteredWorkflow

IS_SECOND_LIFE = os.environ.get("GOLDEN_LIFE") == "2"


@hf.node(idempotent=True)
async def price(n: int) -> int:
    return n * 10


@hf.node(idempotent=True)
async def total(prices: list[int], extra: int) -> int:
    return sum(prices) + extra


@hf.node(idempotent=True)
async def never() -> int:
    return 1


def halve(n: int) -> int:
    return half(n)


@hf.node(idempotent=True)
async def half(n: int) -> int:
    return n // 2


@hf.workflow(name="golden_graph")
def graph(numbers: list[int]) -> int:
    """Phases, a map, a loop, a node that is skipped."""
    with hf.phase("prices"):
        prices = hf.map(price, numbers)
    with hf.phase("sum", after="prices"):
        small = hf.loop(halve, start=hf.size(numbers), until=lambda r: r <= 1, max_visits=5, at_limit="take")
        with hf.when(small > 100):
            extra = never()
        result = total(prices, hf.first(extra, small))
    return result


@hf.workflow(name="golden_question", variables={"checked": bool})
def question(sum: int) -> str:
    """A question with reminders, which is reassigned and answered; then a question that stays open."""
    first = hf.ask("Pay?", about=sum, schema=bool, basket="finance", deadline="30d", remind="1d")
    return text_of(first, hf.ask("Anything else?", schema=str))


@hf.node(idempotent=True)
async def text_of(paid: bool, words: str) -> str:
    return f"{paid} {words}"


@hf.workflow(name="golden_code")
async def code(ctx: hf.Context, n: int) -> str:
    """Steps, a retried step, a sleep, a race, a child, a signal that is refused, and one that is not."""
    one = await ctx.step(price, n)
    two = await ctx.step(retried)
    three = await ctx.step(at_most_once, n)
    await ctx.sleep("10ms")
    won = await ctx.race(ctx.receive("go", schema=int), ctx.sleep("30d"))
    child = await ctx.child(graph, numbers=[n])
    with contextlib.suppress(hf.Fail):
        await ctx.step(fails)
    return f"{one} {two} {three} {won.value} {child}"


@hf.workflow(name="golden_checkpoint")
async def checkpoint(ctx: hf.Context, n: int) -> int:
    """A checkpoint, behind which a replay begins."""
    left = ctx.checkpointed or n
    while left > 0:
        await ctx.step(price, left)
        left -= 1
        await ctx.checkpoint(left)
    return left


@hf.node(idempotent=True, retry=hf.Retry(attempts=3, backoff=0.01))
async def retried() -> int:
    return await unstable_result()


calls = 0


async def unstable_result() -> int:
    global calls
    calls += 1
    if calls == 1:
        raise RuntimeError("not yet")
    return 2


@hf.node(on_crash="fail")
async def at_most_once(n: int) -> int:
    return n


async def fails() -> None:
    raise hf.Fail("on purpose", retryable=False)


@hf.node
async def cancel_room(booking: str) -> None:
    return None


@hf.node(compensate=cancel_room)
async def book_room(city: str) -> str:
    return f"room in {city}"


@hf.node
async def book_flight(city: str) -> str:
    raise hf.Fail(f"no flight to {city}", retryable=False)


@hf.workflow(name="golden_undone", on_failure="compensate")
def undone(city: str) -> str:
    """A failure that is compensated."""
    return book_flight.after(book_room(city))(city)


@hf.node(idempotent=True)
async def slow() -> int:
    return 1


@hf.workflow(name="golden_cancelled")
def cancelled() -> int:
    """A run that is cancelled while it waits."""
    return slow.after(hf.receive("never"))()


@hf.workflow(name="golden_branched", variables={"rate": int})
def branched(n: int) -> str:
    """Forked with edits of an input and an answer, jumped with an edited output, retried, recovered."""
    ready = hf.ask("Ready?", schema=bool)
    return joined(first_part.after(ready)(n), second_part.after(ready)(n))


@hf.node(idempotent=True)
async def first_part(ctx: hf.Context, n: int) -> int:
    ctx.vars["rate"] = n
    return n + 1


@hf.node(idempotent=True)
async def second_part(n: int) -> int:
    if n < 0:
        raise hf.Fail("negative", retryable=False)
    return n + 2


@hf.node(idempotent=True)
async def joined(one: int, two: int) -> str:
    return f"{one} {two}"


@hf.node(idempotent=True)
async def collect(ctx: hf.Context) -> int:
    return ctx.visit


@hf.node(idempotent=True)
async def verify(visit: int) -> int:
    if visit < 2:
        return hf.goto("collect")
    return hf.pend("second_look", output=visit) if visit < 3 else visit


@hf.workflow(name="golden_journey")
def journey() -> int:
    """A jump back by a body, and a basket."""
    return verify(collect())


@hf.node(name="golden_unit", idempotent=True)
async def unit(ctx: hf.Context) -> Any:
    """Every unit of `golden_paths`: one of them pends, the parallel one names the branches that open."""
    if ctx.node == "examine":
        return hf.pend("desk", output="examined")
    return ["inside", "outside"] if ctx.node == "split" else ctx.node


def _paths() -> RegisteredWorkflow:
    """Parallel paths that meet, a basket with a milestone that moves what waits in it, a ticket that reopens."""
    definition = Definition(
        name="golden_paths",
        nodes=(
            NodeDef(
                id="split",
                unit="parallel",
                uses="golden_unit",
                join="meet",
                branches={"inside": "examine", "outside": "measure"},
            ),
            NodeDef(id="examine", unit="step", uses="golden_unit", next="meet"),
            NodeDef(id="measure", unit="step", uses="golden_unit", next="meet"),
            NodeDef(id="meet", unit="join", next="close"),
            NodeDef(id="close", unit="step", uses="golden_unit", next="end"),
        ),
        start="split",
        tickets={"appeal": "close"},
        milestones=(
            Milestone(
                name="late", set_on="entry", clears="exit", basket="desk", after=0.01, action="move", to="supervisor"
            ),
        ),
    )
    return RegisteredWorkflow(definition=definition, code=CodeLocation(kind="process"), params=(), returns=Any)


handlers.register_workflow("golden_paths", _paths)


if IS_SECOND_LIFE:

    @hf.node(idempotent=True)
    async def deployed() -> str:
        return "new code"

else:

    @hf.node(idempotent=True)
    async def deployed() -> str:
        await asyncio.sleep(3600)  # the process ends meanwhile
        return "old code"


@hf.workflow(name="golden_changed")
def changed() -> str:
    """A body that was at work when its process ended, and whose code has changed since."""
    return deployed()
