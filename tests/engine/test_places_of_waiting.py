"""Waiting and limits: what rests takes no place, and what wakes takes one like everybody else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast as hf
from tests.engine.kit import attempts, check_file, hold_time, node_of, until_async, url, waiting

LOCK = threading.Lock()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Crowd:
    """How many are at work at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        with LOCK:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with LOCK:
            self.now -= 1


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_bodies_that_wake_at_once_take_turns_where_their_kind_is_limited(db: Path, kind: str) -> None:
    crowd = Crowd()

    @hf.node(concurrency=1)
    async def wakes_async(ctx: hf.Context) -> str:
        told = await ctx.receive("go", schema=str)
        with crowd:
            await asyncio.sleep(0.02)
        return told

    @hf.node(concurrency=1)
    def wakes_sync(ctx: hf.SyncContext) -> str:
        told: str = ctx.receive("go", schema=str)
        with crowd:
            threading.Event().wait(0.02)
        return told

    @hf.workflow(name=f"places_wake_{kind}")
    def flow() -> str:
        return (wakes_async if kind == "async" else wakes_sync)()

    async with hf.open(url(db), idle_seconds=0.0) as engine:
        runs = [await engine.start(flow) for _ in range(6)]
        for run in runs:
            await waiting(run, "signal")
        await until_async(lambda: _none_live(engine), "all of them are evicted")
        await asyncio.gather(*(run.signal("go", "now") for run in runs))
        assert [await run.result(20) for run in runs] == ["now"] * 6
        assert crowd.most == 1
        for run in runs:
            node = "wakes_async" if kind == "async" else "wakes_sync"
            assert attempts(await run.events(), node) == [1]
    check_file(db)


async def _none_live(engine: hf.Engine) -> bool:
    return not engine.actors


async def test_who_waits_for_a_place_to_wake_in_loses_no_attempt_when_the_engine_stops(db: Path) -> None:
    working = asyncio.Event()

    @hf.node(concurrency=1)
    async def one_place(ctx: hf.Context) -> str:
        told: str = await ctx.receive("go", schema=str)
        if told == "long" and not working.is_set():
            working.set()
            await asyncio.sleep(30)
        return told

    @hf.workflow(name="places_stop")
    def flow() -> str:
        return one_place()

    async with hf.open(url(db), idle_seconds=0.0, grace_seconds=0.1) as engine:
        runs = [await engine.start(flow, run_id=f"r{n}") for n in range(2)]
        for run in runs:
            await waiting(run, "signal")
        await until_async(lambda: _none_live(engine), "all of them are evicted")
        await runs[0].signal("go", "long")
        await working.wait()
        await runs[1].signal("go", "short")
    async with hf.open(url(db)) as engine:
        assert await engine.get("r1").result(20) == "short"
        assert attempts(await engine.get("r1").events(), "one_place") == [1]
        assert await engine.get("r0").result(20) == "long"
    check_file(db)


async def test_a_run_that_waits_gives_its_workflows_place_to_the_next_at_once(db: Path) -> None:
    @hf.workflow(name="places_workflow", concurrency=1)
    async def flow(ctx: hf.Context) -> str:
        return await ctx.ask("go on?", schema=str)

    async with hf.open(url(db), idle_seconds=60) as engine:
        runs = [await engine.start(flow) for _ in range(5)]
        for run in runs:
            (asked,) = await waiting(run, "input")
        for run in runs:
            (asked,) = await run.waits()
            await run.respond(asked.wait_id, "yes")
        assert [await run.result(20) for run in runs] == ["yes"] * 5
    check_file(db)


async def test_a_compensation_that_asks_is_a_run_that_waits(db: Path) -> None:
    @hf.node
    async def unbook(ctx: hf.Context, booking: str) -> None:
        await ctx.ask(f"Was {booking} cancelled?", schema=bool)

    @hf.node(compensate=unbook)
    async def book() -> str:
        return "room 7"

    @hf.node
    async def breaks(booking: str) -> None:
        raise hf.Fail("no", retryable=False)

    @hf.workflow(name="places_undo", on_failure="compensate")
    def flow() -> None:
        breaks(book())

    async with hf.open(url(db), idle_seconds=0.0) as engine:
        run = await engine.start(flow, run_id="undo")
        with pytest.raises(hf.RunSuspended, match="Was room 7 cancelled"):
            await run.until_quiet()
        await until_async(lambda: _none_live(engine), "it is evicted like any other")
        assert await run.status() == "suspended"
        (asked,) = await run.waits()
        await run.respond(asked.wait_id, True)
        with pytest.raises(hf.RunFailed):
            await run.result(20)
        assert node_of(await run.nodes(), "book~undo")["status"] == "completed"
    check_file(db)


async def test_a_signal_that_was_sent_past_the_deadline_is_kept_for_later_although_nobody_was_awake(db: Path) -> None:
    @hf.workflow(name="places_late_signal")
    async def flow(ctx: hf.Context) -> list[str]:
        first = await ctx.receive("n", schema=str, deadline="150ms", default="nobody came")
        return [first, await ctx.receive("n", schema=str)]

    async with hf.open(url(db)) as engine:
        hold_time(engine)
        run = await engine.start(flow, run_id="late")
        await waiting(run, "signal")
    await asyncio.sleep(0.2)  # the deadline has passed
    async with hf.open(url(db), recover=False) as engine:
        await engine.get("late").signal("n", "late")
    async with hf.open(url(db)) as engine:
        assert await engine.get("late").result(20) == ["nobody came", "late"]
    check_file(db)
