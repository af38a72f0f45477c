"""What a type checker sees in durable code: what a step returns, with and without a ctx of its own."""

import logging
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import holdfast as hf


@dataclass
class Review:
    accept: bool


@hf.node(retry=hf.Retry(attempts=3))
async def fetch(ctx: hf.Context, url: str) -> bytes:
    return url.encode() + ctx.run_id.encode()


@hf.node
def count(text: str, word: str = "") -> int:
    return text.count(word)


async def plain(a: int, b: str) -> dict[str, int]:
    return {b: a}


def sync(a: int) -> float:
    return a / 2


async def with_ctx(ctx: hf.Context, a: int) -> str:
    return await ctx.step(inner, a)


def inner(a: int) -> str:
    return str(a)


@hf.workflow
async def study(ctx: hf.Context, topic: str, depth: int = 1) -> dict[str, int]:
    assert_type(await ctx.step(fetch, topic), bytes)
    assert_type(await ctx.step(count, topic, word="a"), int)
    assert_type(await ctx.step(plain, 1, "b"), dict[str, int])
    assert_type(await ctx.step(sync, 1), float)
    assert_type(await ctx.step(with_ctx, 1), str)
    assert_type(await ctx.keyed("again").step(count, topic), int)
    pages = await ctx.map(fetch, [topic], limit=10)
    assert len(pages) == 1
    await ctx.sleep("1h")
    await ctx.sleep(timedelta(days=1))
    await ctx.sleep(datetime(2030, 1, 1, tzinfo=UTC))
    assert_type(await ctx.race(ctx.step(count, topic), ctx.sleep("1h")), hf.Won[int | None])
    assert_type((await ctx.race(ctx.step(count, topic))).value, int)
    assert_type(await ctx.now(), datetime)
    assert_type(await ctx.uuid(), uuid.UUID)
    assert_type(await ctx.random(), float)
    assert_type(await ctx.ask("Good enough?", schema=Review), Review)
    assert_type(await ctx.ask("How many?", schema=int, about=topic, assignee="ann", basket="desk"), int)
    assert_type(await ctx.ask("Soon?", schema=bool, deadline="2d", default=False, remind="1d"), bool)
    assert_type(await ctx.ask("Anything?", escalate=hf.Escalate("2d", assignee="boss")), Any)
    assert_type(await ctx.ask("A number?", schema={"type": "integer"}, deadline=timedelta(days=1)), Any)
    assert_type(await ctx.receive("go", schema=Review, deadline=datetime(2030, 1, 1, tzinfo=UTC)), Review)
    assert_type(await ctx.receive("go", deadline=60, default=None), Any)
    assert_type(await ctx.signal("other", "go", {"n": 1}, id="one"), None)
    await ctx.checkpoint({"seen": 1})
    await ctx.child(study, topic=topic, run_id="study-2", detached=True)
    assert_type(ctx.run_id, str)
    assert_type(ctx.node, str)
    assert_type(ctx.path, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.leaving, bool)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.log, logging.LoggerAdapter[logging.Logger])
    variables: MutableMapping[str, Any] = ctx.vars
    variables["seen"] = 1
    ctx.progress(1, 2, "half of it")
    ctx.heartbeat()
    return {topic: depth}


@hf.node
def in_a_thread(ctx: hf.SyncContext, items: list[str]) -> int:
    ctx.sleep(1)
    ctx.checkpoint(len(items))
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.ask("Good enough?", schema=Review, assignee="ann"), Review)
    assert_type(ctx.receive("go", schema=int), int)
    ctx.signal("other", "go")
    if not items:
        return hf.pend("desk", rerun=True, error="nothing there")
    for item in items:
        ctx.step(count, item)
    return len(items)


@hf.workflow
async def wrong(ctx: hf.Context) -> None:
    await ctx.step(count, 1)  # type: ignore[call-overload]
    await ctx.step(plain, 1)  # type: ignore[call-overload]
    ctx.colour  # type: ignore[attr-defined]  # noqa: B018
    await ctx.sleep([1])  # type: ignore[arg-type]
    await ctx.ask("Soon?", dedline="2d")  # type: ignore[call-overload]
    await ctx.ask("Soon?", assignee=5)  # type: ignore[call-overload]
    hf.Escalate("2d", asignee="boss")  # type: ignore[call-arg]
