"""The harness: a workflow in a test whose time only the test moves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.model.errors import RunFailed, UsageError
from holdfast.testing import harness
from tests.explorer import scenarios, shop


async def test_whatever_needs_no_time_has_happened_when_a_call_returns() -> None:
    async with harness() as h:
        run = await h.start(scenarios.chain, x=5)
        assert await run.status() == "completed"
        assert await run.result() == 10


async def test_a_sleep_ends_when_the_test_moves_the_clock() -> None:
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        assert [wait.kind for wait in await run.waits()] == ["timer"]
        began = h.now
        await h.advance(minutes=59)
        assert await run.status() == "suspended"
        await h.advance(timedelta(minutes=1))
        assert await run.status() == "completed"
        assert h.now - began == timedelta(hours=1)


async def test_a_result_that_needs_time_says_so_instead_of_waiting() -> None:
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        with pytest.raises(UsageError, match="advance the clock"):
            await run.result()
        await h.advance(days=1)
        assert (await run.result())["a"] == 2


async def test_a_crash_loses_nothing_that_was_committed() -> None:
    async with harness() as h:
        run = await h.start(scenarios.slow_parent, x=1)
        await h.advance(minutes=30)
        await h.crash()
        await h.advance(minutes=31)
        assert await run.result() == 3
        assert [e.type for e in await run.events()].count("RunCreated") == 1


async def test_retries_and_sync_bodies_follow_the_same_clock() -> None:
    async with harness() as h:
        retried = await h.start(scenarios.retried)
        sync = await h.start(scenarios.sync_code, x=1)
        assert await retried.status() == "running"  # a short delay is waited for in memory
        assert await sync.status() == "suspended"
        await h.advance(seconds=31)
        assert await retried.result() == [1, 1]
        assert await sync.result() == 3


async def test_a_failed_run_raises_as_it_does_everywhere() -> None:
    async with harness() as h:
        run = await h.start(scenarios.compensated)
        with pytest.raises(RunFailed, match="no"):
            await run.result()
        assert {n["node"] for n in await run.nodes()} >= {"xp_book~undo", "xp_book_2~undo"}


async def test_events_are_followed_as_far_as_they_go() -> None:
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        before = [event.type async for event in run.follow()]
        assert before[-1] == "RunSuspended"
        await h.advance(hours=1)
        after = [event.type async for event in run.follow(after=len(before))]
        assert after[-1] == "RunCompleted"


async def test_a_cancel_is_applied_at_once() -> None:
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        await run.cancel("enough")
        assert await run.status() == "cancelled"


async def test_time_only_goes_forward() -> None:
    async with harness() as h:
        with pytest.raises(UsageError, match="forward"):
            await h.advance(seconds=-1)


async def test_a_callable_can_be_faked() -> None:
    async def fake(amount: int, idempotency_key: str | None = None) -> str:
        return "fake"

    async with harness(fakes={"tests.explorer.shop.charge": fake}) as h:
        assert await (await h.start(shop.with_key)).result() == "fake"
    async with harness() as h:
        assert await (await h.start(shop.with_key)).result() == "charged 10"


async def test_a_socket_is_refused_with_a_word_about_fakes() -> None:
    async with harness() as h:
        run = await h.start(shop.real_connection)
        with pytest.raises(RunFailed, match="--fake"):
            await run.result()
