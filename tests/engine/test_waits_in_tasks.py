"""Waits in tasks of a body: a body whose tasks all wait is suspended and leaves memory, however it waits for them.

Time is the harness's; the engine, the store and asyncio are real.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.testing import Harness, harness
from tests.engine.kit import check_file, hold_time, types, until, until_async, url

Wait = Callable[[hf.Context, list[float]], Awaitable[Any]]


async def _gathered(ctx: hf.Context, hours: list[float]) -> None:
    await asyncio.gather(*(ctx.sleep(timedelta(hours=h)) for h in hours))


async def _gathered_in_a_gather(ctx: hf.Context, hours: list[float]) -> None:
    first, *rest = hours
    await asyncio.gather(
        ctx.sleep(timedelta(hours=first)), asyncio.gather(*(ctx.sleep(timedelta(hours=h)) for h in rest))
    )


async def _in_a_group(ctx: hf.Context, hours: list[float]) -> None:
    async with asyncio.TaskGroup() as group:
        for h in hours:
            group.create_task(ctx.sleep(timedelta(hours=h)))


async def _awaited_at_once(ctx: hf.Context, hours: list[float]) -> None:
    await asyncio.wait([asyncio.create_task(ctx.sleep(timedelta(hours=h))) for h in hours])


async def _awaited_as_they_end(ctx: hf.Context, hours: list[float]) -> None:
    pending = {asyncio.create_task(ctx.sleep(timedelta(hours=h))) for h in hours}
    while pending:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


async def _awaited_one_by_one(ctx: hf.Context, hours: list[float]) -> None:
    for task in [asyncio.create_task(ctx.sleep(timedelta(hours=h))) for h in hours]:
        await task


async def _in_lanes(ctx: hf.Context, hours: list[float]) -> None:
    """Lanes that make their calls themselves, and more than one."""

    async def lane(h: float) -> None:
        await ctx.sleep(timedelta(hours=h / 2))
        await ctx.step(abs, -h)
        await ctx.sleep(timedelta(hours=h / 2))

    await asyncio.gather(*(lane(h) for h in hours))


async def _in_a_map(ctx: hf.Context, hours: list[float]) -> None:
    async def item(ctx: hf.Context, h: float) -> None:
        await ctx.sleep(timedelta(hours=h))

    await ctx.map(item, hours)


WAYS = [
    _gathered,
    _gathered_in_a_gather,
    _in_a_group,
    _awaited_at_once,
    _awaited_as_they_end,
    _awaited_one_by_one,
    _in_lanes,
    _in_a_map,
]


def _workflow(way: Wait, hours: list[float]) -> Any:
    @hf.workflow(name=f"waits{way.__name__}_{len(hours)}")
    async def waits(ctx: hf.Context) -> str:
        await way(ctx, hours)
        return "rested"

    return waits


async def _is_out_of_memory(h: Harness, run: Any) -> bool:
    await h.advance(seconds=10)
    return await run.status() == "suspended" and not h.engine.actors


async def _slept_once(run: Any, way: Wait, hours: list[float]) -> None:
    kinds = types(await run.events())
    sleeps = len(hours) * (2 if way is _in_lanes else 1)
    assert (kinds.count("WaitOpened"), kinds.count("TimerFired")) == (sleeps, sleeps)


@pytest.mark.parametrize("hours", [[1.0, 2.0], [3.0, 1.0, 2.0]], ids=["two", "three"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_body_whose_tasks_all_wait_leaves_memory_between_any_two_answers(way: Wait, hours: list[float]) -> None:
    async with harness() as h:
        run = await h.start(_workflow(way, hours))
        for _ in range(len(hours)):
            assert await _is_out_of_memory(h, run)
            await h.advance(hours=1)
        assert await run.status() == "completed"
        await _slept_once(run, way, hours)
        assert types(await run.events()).count("NodeStarted") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_crash_between_two_answers_asks_for_nothing_twice(way: Wait) -> None:
    hours = [1.0, 2.0, 3.0]
    async with harness() as h:
        run = await h.start(_workflow(way, hours))
        for _ in range(len(hours)):
            await h.advance(hours=1)
            await h.crash()
        assert await run.status() == "completed"
        await _slept_once(run, way, hours)


@pytest.mark.parametrize("way", WAYS)
async def test_a_real_engine_lets_it_go_and_finds_it_again(way: Wait, tmp_path: Path) -> None:
    lives: list[int] = []

    @hf.workflow(name=f"really_waits{way.__name__}")
    async def waits(ctx: hf.Context) -> str:
        lives.append(ctx.attempt)
        await way(ctx, [0.1 / 3600, 0.2 / 3600, 0.3 / 3600])
        return "rested"

    async with hf.open(url(tmp_path / "runs.db"), idle_seconds=0) as engine:
        run = await engine.start(waits)
        assert await run.result() == "rested"
    assert len(lives) > 1
    assert set(lives) == {1}
    check_file(tmp_path / "runs.db")


async def test_what_several_tasks_open_at_once_suspends_the_node_once() -> None:
    async with harness() as h:
        run = await h.start(_workflow(_gathered, [1.0] * 4))
        kinds = types(await run.events())
        assert kinds[-10:] == [*["WaitOpened", "TimerSet"] * 4, "NodeSuspended", "RunSuspended"]


async def test_a_body_that_does_something_else_beside_a_wait_stays() -> None:
    """An HTTP call, for what asyncio knows: something that the engine does not know of."""

    @hf.workflow
    async def busy_beside_a_wait(ctx: hf.Context) -> str:
        await asyncio.gather(ctx.sleep("2h"), asyncio.sleep(3600))
        return "both"

    async with harness() as h:
        run = await h.start(busy_beside_a_wait)
        await h.advance(minutes=59)
        assert await run.status() == "running"
        assert len(h.engine.actors) == 1
        await h.advance(minutes=1)
        assert await _is_out_of_memory(h, run), "it has ended: what is left waits"
        await h.crash()
        await h.advance(hours=2)
        assert await run.status() == "completed"


@pytest.mark.parametrize("works", ["in its own task", "in another task", "in a thread"])
async def test_a_body_is_suspended_when_its_other_work_has_ended(works: str) -> None:
    @hf.workflow(name=f"works {works}".replace(" ", "_"))
    async def works_beside_a_wait(ctx: hf.Context) -> None:
        nap = asyncio.create_task(ctx.sleep("2h"))
        match works:
            case "in its own task":
                await asyncio.sleep(60)
                await asyncio.sleep(60)
            case "in another task":
                await asyncio.create_task(asyncio.sleep(120))
            case _:
                await asyncio.get_running_loop().run_in_executor(None, len, "")
                await asyncio.sleep(120)
        await nap

    async with harness() as h:
        run = await h.start(works_beside_a_wait)
        await h.advance(seconds=119)
        assert await run.status() == "running"
        await h.advance(seconds=1)
        assert await _is_out_of_memory(h, run)


async def test_a_body_that_could_go_on_by_itself_at_any_time_stays() -> None:
    """A time limit of asyncio's is in memory, and so is what it limits."""

    @hf.workflow
    async def waits_with_a_limit_of_asyncio(ctx: hf.Context) -> int:
        nap = asyncio.create_task(ctx.sleep("2h"))
        done, _ = await asyncio.wait([nap], timeout=3600)
        nap.cancel()
        return len(done)

    async with harness() as h:
        run = await h.start(waits_with_a_limit_of_asyncio)
        await h.advance(minutes=59)
        assert await run.status() == "running"
        await h.advance(minutes=1)
        assert await run.result() == 0
        assert await run.waits() == []


async def test_a_body_that_goes_on_by_itself_is_not_left_in_its_middle(tmp_path: Path) -> None:
    """Its node is suspended when the limit cuts the wait off; what follows is work."""
    ended: list[str] = []
    limit = asyncio.timeout(None)
    working, go_on = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def goes_on_by_itself(ctx: hf.Context) -> str:
        with contextlib.suppress(TimeoutError):
            async with limit:
                await ctx.sleep("2h")
        working.set()
        try:
            await go_on.wait()
        finally:
            ended.append("left" if ctx.leaving else "ended")
        return "worked"

    path = tmp_path / "runs.db"
    async with hf.open(url(path), idle_seconds=60) as engine:
        run = await engine.start(goes_on_by_itself)
        await until_async(lambda: _is(run, "suspended"))
        _is_over(limit)
        await working.wait()
        _has_waited_long(engine)
        await until_async(lambda: _is(run, "running"))
        assert await run.waits() == []
        go_on.set()
        assert await run.result() == "worked"
    assert ended == ["ended"]
    check_file(tmp_path / "runs.db")


async def test_a_wait_that_was_given_up_is_opened_again_when_the_body_runs_again(tmp_path: Path) -> None:
    """Nobody answered it: to return as if it had ended would be a wrong value."""
    limits: list[asyncio.Timeout] = []

    @hf.workflow
    async def gives_a_wait_up(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await ctx.sleep("2h")
        except TimeoutError:
            await ctx.sleep(0.2)
            return "gave up"
        return "slept"

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        hold_time(engine)
        run = await engine.start(gives_a_wait_up, run_id="r")
        await until_async(lambda: _is(run, "suspended"))
        _is_over(limits[0])
        await until_async(lambda: _has(run, "WaitClosed"))
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        await until(lambda: len(limits) == 2, "the body runs again")
        await until_async(lambda: _has(engine.get("r"), "WaitOpened", 3), "it waits again")
        _is_over(limits[1])
        assert await engine.get("r").result() == "gave up"
    check_file(tmp_path / "runs.db")


async def test_a_wait_that_is_given_up_before_it_is_open_is_closed_all_the_same() -> None:
    @hf.workflow
    async def gives_a_wait_up_at_once(ctx: hf.Context) -> None:
        nap = asyncio.create_task(ctx.sleep("1h"))
        await asyncio.sleep(0)
        nap.cancel()
        await ctx.sleep("2h")

    async with harness() as h:
        run = await h.start(gives_a_wait_up_at_once)
        assert len(await run.waits()) == 1
        assert types(await run.events()).count("WaitOpened") == 2


async def test_a_body_that_lets_go_of_a_wait_is_not_left_in_its_middle(tmp_path: Path) -> None:
    """The wait stays open in its task; the body, which waited for that task, goes on by itself."""
    ended: list[str] = []
    limit = asyncio.timeout(None)
    working, go_on = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def lets_go_of_a_wait(ctx: hf.Context) -> str:
        nap = asyncio.create_task(ctx.sleep("2h"))
        with contextlib.suppress(TimeoutError):
            async with limit:
                await asyncio.wait([nap])
        working.set()
        try:
            await go_on.wait()
        finally:
            ended.append("left" if ctx.leaving else "ended")
        return "worked"

    async with hf.open(url(tmp_path / "runs.db"), idle_seconds=60) as engine:
        run = await engine.start(lets_go_of_a_wait)
        await until_async(lambda: _is(run, "suspended"))
        _is_over(limit)
        await working.wait()
        assert await run.status() == "suspended"
        _has_waited_long(engine)
        go_on.set()
        assert await run.result(timeout=30) == "worked"
    assert ended == ["ended"]
    check_file(tmp_path / "runs.db")


async def test_a_step_in_a_task_is_work_also_when_the_body_made_the_call() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("x")

    @hf.workflow
    async def steps_beside_a_wait(ctx: hf.Context) -> str:
        step = asyncio.create_task(ctx.step(slow))
        await ctx.sleep("1h")
        await step
        return "both"

    async with harness() as h:
        run = await h.start(steps_beside_a_wait)
        await h.advance(seconds=30)
        assert await run.status() == "running"
        await h.advance(seconds=30)
        assert await _is_out_of_memory(h, run)
        await h.advance(hours=1)
        assert await run.result() == "both"
    assert ended == ["x"]


async def test_an_answer_that_finds_the_body_in_memory_leaves_the_rest_suspended() -> None:
    async with harness() as h:
        run = await h.start(_workflow(_gathered, [0.1 / 3600, 0.2 / 3600, 1.0]))
        assert await run.status() == "suspended"
        for _ in range(2):
            await h.advance(seconds=0.1)
            assert h.engine.actors
            assert await run.status() == "suspended"
        assert types(await run.events()).count("NodeResumed") == 2


async def test_a_task_that_has_its_answer_works_also_when_another_one_begins_to_wait_in_the_same_turn() -> None:
    @hf.workflow
    async def answers_and_asks_at_once(ctx: hf.Context) -> None:
        async def first() -> None:
            await ctx.sleep("1h")
            await asyncio.sleep(60)

        async def second() -> None:
            await asyncio.sleep(3600)
            await ctx.sleep("1h")

        await asyncio.gather(first(), second())

    async with harness() as h:
        run = await h.start(answers_and_asks_at_once)
        await h.advance(hours=1)
        await h.advance(seconds=30)
        assert await run.status() == "running"
        await h.advance(seconds=30)
        assert await _is_out_of_memory(h, run)


async def _has(run: Any, kind: str, times: int = 1) -> bool:
    return types(await run.events()).count(kind) >= times


def _is_over(limit: asyncio.Timeout) -> None:
    """What a body's own limit cuts off is cut off now."""
    limit.reschedule(asyncio.get_running_loop().time())


def _has_waited_long(engine: Engine) -> None:
    """The time is over that a run which waits stays in memory."""
    (actor,) = engine.actors.values()
    engine.custody.evict(actor)


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


async def test_what_a_body_leaves_behind_when_it_ends_is_closed() -> None:
    left: list[asyncio.Task[None]] = []

    @hf.workflow
    async def leaves_a_wait_behind(ctx: hf.Context) -> str:
        left.append(asyncio.create_task(ctx.sleep("2h")))
        await ctx.sleep("1h")
        return "done"

    async with harness() as h:
        run = await h.start(leaves_a_wait_behind)
        await h.advance(hours=1)
        assert await run.result() == "done"
        assert await run.waits() == []
        assert left[-1].cancelled()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_map_in_a_body_whose_items_wait_one_after_another(kind: str) -> None:
    """Also in a thread: it is given back when the last of them waits, and nothing is done twice."""
    done: list[int] = []

    async def item(ctx: hf.Context, i: int) -> int:
        await ctx.step(done.append, i)
        await ctx.sleep(f"{i}h")
        await ctx.step(done.append, i * 10)
        return i

    @hf.node
    async def asynchronous(ctx: hf.Context) -> list[int]:
        return await ctx.map(item, [1, 2, 3], limit=2)

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> list[int]:
        return ctx.map(item, [1, 2, 3], limit=2)

    body = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"maps_items_that_wait_{kind}")
    def maps():
        return body()

    async with harness() as h:
        run = await h.start(maps)
        for _ in range(4):
            assert await _is_out_of_memory(h, run)
            await h.advance(hours=1)
        assert await run.result() == [1, 2, 3]
    assert sorted(done) == [1, 2, 3, 10, 20, 30]


async def test_time_that_tasks_spend_waiting_does_not_count_against_the_timeout() -> None:
    @hf.node(timeout=60)
    async def waits_in_tasks(ctx: hf.Context) -> str:
        await asyncio.gather(ctx.sleep("1h"), ctx.sleep("2h"))
        await asyncio.sleep(30)
        return "in time"

    @hf.workflow
    def times_waits_in_tasks():
        return waits_in_tasks()

    async with harness() as h:
        run = await h.start(times_waits_in_tasks)
        await h.advance(hours=2)
        await h.advance(seconds=31)
        assert await run.result() == "in time"


async def test_a_failed_task_ends_the_body_and_with_it_the_waits_of_the_others() -> None:
    @hf.workflow
    async def fails_beside_a_wait(ctx: hf.Context) -> None:
        async def fail() -> None:
            await ctx.sleep("1h")
            raise LookupError("nothing there")

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("2h"))
            group.create_task(fail())

    async with harness() as h:
        run = await h.start(fails_beside_a_wait)
        assert await _is_out_of_memory(h, run)
        await h.advance(hours=1)
        with pytest.raises(hf.RunFailed, match="unhandled errors in a TaskGroup"):
            await run.result()
        assert await run.waits() == []


async def test_an_orderly_stop_leaves_waiting_tasks_and_the_next_engine_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    @hf.workflow
    async def waits_over_a_stop(ctx: hf.Context) -> list[None]:
        return await asyncio.gather(ctx.sleep(0.3), ctx.sleep(0.3))

    async with hf.open(url(path)) as engine:
        hold_time(engine)
        run = await engine.start(waits_over_a_stop, run_id="r")
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result() == [None, None]
        assert types(await engine.get("r").events()).count("WaitOpened") == 2
    check_file(path)
