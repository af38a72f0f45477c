"""Retries of nodes that are called as steps: the same policy and the same durable timers as nodes of a graph.

Time is the harness's where a test is about delays; the engine, the store and asyncio are real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli import wording
from tests.engine.kit import attempts, check_file, check_harness, types, until_async, url

tries: list[tuple[str, int]] = []
"""(step, try) of every try, in order."""


SLOW = "tests.engine.test_step_retries.slow_retry"


class Flaky(Exception):
    """Fails at first."""


@pytest.fixture(autouse=True)
def _nothing_tried() -> None:
    tries.clear()


def _try(ctx: Any, name: str, fails: int) -> str:
    tries.append((name, ctx.attempt))
    if ctx.attempt <= fails:
        raise Flaky(f"{name} failed in try {ctx.attempt}")
    return f"{name} {ctx.attempt}"


@hf.node(retry=hf.Retry(attempts=4, backoff=30, factor=2, max_delay=600, jitter=0), idempotent=True)
async def slow_retry(ctx: hf.Context, name: str, fails: int = 2) -> str:
    return _try(ctx, name, fails)


@hf.node(retry=hf.Retry(attempts=4, backoff=0.5, factor=2, jitter=0), idempotent=True)
async def quick_then_slow(ctx: hf.Context, name: str) -> str:
    return _try(ctx, name, 2)


@hf.node(retry=hf.Retry(attempts=2, backoff=30, jitter=0), concurrency=1, idempotent=True)
async def one_at_a_time(ctx: hf.Context, name: str) -> str:
    return _try(ctx, name, 1)


@hf.node(retry=hf.Retry(attempts=3, backoff=30, jitter=0), idempotent=True)
async def never_works(ctx: hf.Context, name: str) -> str:
    return _try(ctx, name, 9)


@hf.workflow
async def retries_a_step(ctx: hf.Context) -> str:
    return await ctx.step(slow_retry, "a")


async def test_a_delay_over_a_second_suspends_the_run_and_evicts_its_body() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_a_step)
        await h.advance(seconds=0.5)
        assert await run.status() == "suspended"
        (wait,) = await run.waits()
        assert (wait.kind, wait.name, wait.node) == ("retry", SLOW, "retries_a_step")
        await h.advance(seconds=20)
        assert not h.engine.actors, "it costs a row"
        await h.advance(seconds=9)
        assert [number for _, number in tries] == [1]
        await h.advance(seconds=0.5)
        assert [number for _, number in tries] == [1, 2]
        await h.advance(seconds=59)
        assert [number for _, number in tries] == [1, 2]
        await h.advance(seconds=1)
        assert await run.result() == "a 3"
        events = await run.events()
        assert attempts(events, "retries_a_step") == [1], "the body was resumed, not retried"
        assert types(events).count("StepFailed") == types(events).count("TimerFired") == 2
        check_harness(h)


async def test_why_names_the_next_attempt_of_a_step_and_when_it_is() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_a_step)
        await h.advance(seconds=10)
        said = await run.why()
        assert f"retries_a_step retries step {SLOW} in " in said
        assert "it failed once; attempt 2 is at " in said
        assert "at 2026-01-01T00:00:30.000Z, in 20 s" in said
        await h.advance(seconds=30)
        assert "it failed 2 times; attempt 3 is at 2026-01-01T00:01:30.000Z" in await run.why()
        (wait,) = await run.waits()
        now = int(h.now.timestamp() * 1_000_000)
        assert wording.wait_text(wait, now) == f"retries step {SLOW} in 50s"


@pytest.mark.parametrize("after", [0.5, 15, 29.5], ids=["in memory", "evicted", "just before"])
async def test_a_crash_neither_shortens_nor_restarts_a_delay_nor_the_count_of_tries(after: float) -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_a_step)
        await h.advance(seconds=after)
        await h.crash()
        await h.advance(seconds=29.9 - after)
        assert [number for _, number in tries] == [1]
        await h.advance(seconds=10)
        assert [number for _, number in tries] == [1, 2]
        await h.crash()
        await h.advance(seconds=60)
        assert await run.result() == "a 3"
        assert [number for _, number in tries] == [1, 2, 3]
        check_harness(h)


@hf.workflow
async def retries_soon(ctx: hf.Context) -> str:
    return await ctx.step(quick_then_slow, "a")


async def test_a_delay_up_to_a_second_is_waited_for_in_memory() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_soon)
        await h.advance(seconds=0.4)
        assert (await run.status(), await run.waits()) == ("running", [])
        await h.advance(seconds=1.2)  # the second delay is one second as well
        assert await run.result() == "a 3"
        assert "TimerSet" not in types(await run.events())


@hf.workflow
async def gives_up(ctx: hf.Context) -> str:
    try:
        return await ctx.step(never_works, "a")
    except Flaky as e:
        return f"{e}"


async def test_the_last_failure_is_raised_in_the_body_when_the_tries_are_used_up() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(gives_up)
        await h.advance(seconds=40)
        await h.crash()
        await h.advance(seconds=60)
        assert await run.result() == "a failed in try 3"
        assert [number for _, number in tries] == [1, 2, 3]


@hf.workflow
async def retries_items(ctx: hf.Context) -> list[str]:
    return await ctx.map(slow_retry, ["a", "b", "c"], limit=2, fails=1)


async def test_items_of_a_map_are_retried_by_timers_while_others_run() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_items)
        await h.advance(seconds=10)
        assert tries == [("a", 1), ("b", 1)]
        assert [wait.kind for wait in await run.waits()] == ["retry", "retry"]
        await h.crash()
        await h.advance(seconds=25)
        assert sorted(tries) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)]
        await h.advance(seconds=30)
        assert await run.result() == ["a 2", "b 2", "c 2"]
        check_harness(h)


@hf.workflow
async def retries_with_a_limit(ctx: hf.Context) -> list[str]:
    return list(await asyncio.gather(ctx.step(one_at_a_time, "a"), ctx.step(one_at_a_time, "b")))


async def test_a_step_that_waits_for_its_next_try_holds_no_place_of_its_node() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_with_a_limit)
        await h.advance(seconds=10)
        assert tries == [("a", 1), ("b", 1)]
        assert await run.status() == "suspended"
        await h.advance(seconds=25)
        assert await run.result() == ["a 2", "b 2"]


@hf.node(idempotent=True)
def retries_in_a_thread(ctx: hf.SyncContext) -> str:
    return ctx.step(slow_retry, "a", fails=1)


@hf.workflow
def retries_in_a_sync_body() -> str:
    return retries_in_a_thread()


async def test_a_sync_body_gives_its_thread_back_during_the_delay() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_in_a_sync_body)
        await h.advance(seconds=1)
        assert await run.status() == "suspended"
        await h.advance(seconds=30)
        assert await run.result() == "a 2"
        assert attempts(await run.events(), "retries_in_a_thread") == [1]


async def test_a_cancel_during_the_delay_ends_the_run_and_its_timer() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_a_step)
        await h.advance(seconds=20)
        await run.cancel("enough")
        assert await run.status() == "cancelled"
        assert types(await run.events()).count("TimerCancelled") == 1
        await h.advance(seconds=60)
        assert [number for _, number in tries] == [1]
        check_harness(h)


async def test_no_try_begins_while_the_run_is_paused() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(retries_a_step)
        await h.advance(seconds=10)
        await run.pause()
        await h.advance(seconds=60)
        assert [number for _, number in tries] == [1]
        await run.resume()
        await h.advance(seconds=1)
        assert [number for _, number in tries] == [1, 2], "its time had come"
        await h.advance(seconds=60)
        assert await run.result() == "a 3"
        check_harness(h)


@hf.workflow
async def races_a_retry(ctx: hf.Context, limit: float = 10) -> list[Any]:
    index, value = await ctx.race(ctx.step(slow_retry, "a", fails=1), ctx.sleep(limit))
    return [index, value]


@pytest.mark.parametrize(("limit", "expected"), [(10, [1, None]), (60, [0, "a 2"])])
async def test_a_try_to_come_neither_wins_nor_loses_a_race(limit: float, expected: list[Any]) -> None:
    async with hf.testing.harness() as h:
        run = await h.start(races_a_retry, limit=limit)
        await h.advance(seconds=7)
        await h.crash()
        await h.advance(seconds=60)
        assert await run.result() == expected
        assert await run.waits() == []
        check_harness(h)


@hf.node(retry=hf.Retry(attempts=2, backoff=2, jitter=0), idempotent=True)
async def fails_beside_a_retry(ctx: hf.Context) -> str:
    async def beside() -> str:
        return await ctx.step(slow_retry, "a", fails=1)

    task = asyncio.create_task(beside())
    await ctx.sleep(10)
    if ctx.attempt == 1:
        raise Flaky("the body")
    return await task


@hf.workflow
def fails_beside() -> str:
    return fails_beside_a_retry()


async def test_the_next_attempt_of_a_body_calls_a_step_anew_that_was_to_be_tried_again() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(fails_beside)
        await h.advance(seconds=11)
        assert [wait.kind for wait in await run.waits()] == []
        await h.advance(seconds=2)
        assert tries == [("a", 1), ("a", 1)]
        await h.advance(seconds=31)
        assert await run.result() == "a 2"
        check_harness(h)


@hf.workflow
async def stops_waiting(ctx: hf.Context) -> str:
    try:
        async with asyncio.timeout(0.5):
            return await ctx.step(slow_retry, "a")
    except TimeoutError:
        await ctx.sleep(1)
        return "without it"


async def test_a_body_may_stop_waiting_for_the_next_try() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(stops_waiting)
        await h.advance(seconds=10)
        assert await run.result() == "without it"
        assert types(await run.events()).count("WaitClosed") == 2
        check_harness(h)


@hf.node(timeout=5, idempotent=True)
async def limited_body(ctx: hf.Context) -> str:
    return await ctx.step(slow_retry, "a", fails=1)


@hf.workflow
def limited() -> str:
    return limited_body()


async def test_the_delay_does_not_count_as_time_of_the_body() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(limited)
        await h.advance(seconds=31)
        assert await run.result() == "a 2"


@hf.node(on_crash="fail")
async def must_not_be_repeated(ctx: hf.Context) -> str:
    tries.append(("outer", ctx.attempt))
    return await ctx.step(slow_retry, "a", fails=1)


@hf.workflow
async def runs_it_once(ctx: hf.Context) -> str:
    return await ctx.step(must_not_be_repeated)


async def test_a_body_is_not_evicted_while_a_step_is_under_way_that_must_not_be_repeated() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(runs_it_once)
        await h.advance(seconds=20)
        assert await run.status() == "running"
        await h.advance(seconds=11)
        assert await run.result() == "a 2"
        assert tries == [("outer", 1), ("a", 1), ("a", 2)]


@hf.workflow
async def asks_after_running_it_once(ctx: hf.Context) -> str:
    async def beside() -> str:
        return await ctx.step(must_not_be_repeated)

    task = asyncio.create_task(beside())
    await ctx.receive("go")
    return await task


async def test_the_body_is_evicted_when_that_step_has_ended() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(asks_after_running_it_once)
        await h.advance(seconds=20)
        assert await run.status() == "running"
        await h.advance(seconds=20)
        assert (await run.status(), len(h.engine.actors)) == ("suspended", 0)
        await run.signal("go", None)
        assert await run.result() == "a 2"


async def test_a_pause_lets_such_a_step_end() -> None:
    async with hf.testing.harness() as h:
        run = await h.start(runs_it_once)
        await h.advance(seconds=10)
        await run.pause()
        await h.advance(seconds=60)
        assert await run.result() == "a 2"
        assert tries == [("outer", 1), ("a", 1), ("a", 2)]


# --- real time ---------------------------------------------------------------------------------------------------


@hf.node(retry=hf.Retry(attempts=2, backoff=1.2, jitter=0), idempotent=True)
async def retried_in_real_time(ctx: hf.Context) -> str:
    return _try(ctx, "a", 1)


@hf.workflow
async def really_retries(ctx: hf.Context) -> str:
    return await ctx.step(retried_in_real_time)


async def test_an_orderly_stop_during_the_delay_keeps_the_wait(tmp_path: Path) -> None:
    db = url(tmp_path / "runs.db")
    async with hf.open(db) as engine:
        run = await engine.start(really_retries, run_id="r")

        async def is_suspended() -> bool:
            return await run.status() == "suspended"

        await until_async(is_suspended)
        (wait,) = await run.waits()
    async with hf.open(db) as engine:
        assert await engine.get("r").result() == "a 2"
        events = await engine.get("r").events()
    (closed,) = [e for e in events if e.type == "WaitClosed"]
    assert closed.data["wait_id"] == wait.wait_id
    assert wait.until is not None
    assert closed.at >= wait.until
    check_file(tmp_path / "runs.db")
