"""The harness: a workflow in a test whose time only the test moves."""

from __future__ import annotations

from datetime import timedelta

import pytest

import holdfast as hf
from holdfast.model.errors import InvalidInput, Refused, RunFailed, UsageError
from holdfast.testing import harness
from tests.explorer import scenarios, shop, waiting


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


# --- people ---------------------------------------------------------------------------------------------------------


@hf.node
async def harness_review(ctx: hf.Context, case: str) -> str:
    await ctx.sleep("1d")
    hf.pend("second_look", output=f"{case} was looked at")


@hf.node
async def harness_done(note: str) -> str:
    return note


@hf.workflow(name="harness_onboarding")
def onboarding(case: str) -> str:
    return harness_done(harness_review(case))


async def test_a_node_lies_in_its_basket_after_a_day_and_goes_on_when_it_is_resumed() -> None:
    async with harness() as h:
        run = await h.start(onboarding, case="ann")
        await h.advance(days=1)
        assert (await run.waits())[0].basket == "second_look"
        assert await h.wait(h.engine.baskets()) != []
        await run.resume(actor="bob")
        assert await run.result() == "ann was looked at"


async def test_a_question_is_answered_and_a_wrong_answer_leaves_it_open() -> None:
    async with harness() as h:
        run = await h.start(waiting.asks)
        (wait,) = await run.waits()
        with pytest.raises(InvalidInput, match="approved"):
            await run.respond(wait.wait_id, {"approved": "perhaps"})
        await run.respond(wait.wait_id, {"approved": True}, actor="ann")
        assert (await run.result())["decision"] == {"approved": True, "note": ""}
        with pytest.raises(Refused, match="was answered by ann"):
            await run.respond(wait.wait_id, {"approved": False}, actor="bob")


async def test_a_signal_is_kept_until_it_is_asked_for_also_over_a_crash() -> None:
    async with harness() as h:
        run = await h.start(waiting.receives_many)
        for number in (1, 2):
            await run.signal("note", number, id=str(number))
            await h.crash()
        await run.signal("note", 1, id="1")
        await run.signal("other", "x")
        await h.advance(seconds=15)
        assert await run.result() == [1, 2, "x", 2]


async def test_a_pause_holds_everything_until_it_is_resumed() -> None:
    async with harness() as h:
        run = await h.start(waiting.sleeps)
        await run.pause("the auditor is here", actor="ann")
        await h.advance(days=2)
        assert "xp_double" not in {n["node"] for n in await run.nodes() if n["status"] == "completed"}
        await run.resume()
        assert await run.result() == 4


async def test_reminders_come_by_the_clock_and_end_with_the_answer() -> None:
    async with harness() as h:
        run = await h.start(waiting.reminded)
        await h.advance(minutes=1)
        (wait,) = await run.waits()
        assert (wait.assignee, wait.basket) == ("boss", "managers")
        await run.respond(wait.wait_id, "yes")
        assert await run.result() == ["yes", 2]
        assert [e.type for e in await run.events()].count("RunEdited") == 4  # three reminders, and one handed it on


async def test_b2_a_question_that_was_abandoned_for_a_year_is_answered_as_if_it_were_new() -> None:
    """No recovery, no branch, no attempt: it has only waited, through restarts."""
    async with harness() as h:
        run = await h.start(waiting.asks_in_code)
        for _ in range(4):
            await h.advance(days=92)
            await h.crash()
        (wait,) = await run.waits()
        assert h.now - wait.since > timedelta(days=365)
        await run.respond(wait.wait_id, {"approved": True})
        (price,) = await run.waits()
        await run.respond(price.wait_id, 20)
        assert await run.result() == [2, True, 3, 20, 21]
        told = [e.type for e in await run.events()]
        assert {"RunRecovered", "BranchOpened", "RunTakenOver"}.isdisjoint(told)
        assert told.count("NodeStarted") == 1
