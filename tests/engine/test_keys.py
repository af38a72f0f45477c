"""Keys: a call of a race that has lost leaves no trace; a keyed call finds what was done inside wherever it stands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness

BETWEEN = pytest.mark.parametrize("between", ["nothing", "eviction", "crash"])
"""What happens to the body between the end of its race and what it calls then."""


class Acts:
    """What a step did, and under which idempotency keys."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.hangs = False

    async def act(self, ctx: hf.Context, what: str) -> str:
        self.keys.append(ctx.idempotency_key)
        if self.hangs:
            await asyncio.Event().wait()
        return f"{what} {len(self.keys)}"


async def outcome(workflow: Any, acts: Acts, *, between: str) -> Any:
    """Run a workflow whose race ends after one hour and which then, if it is to be evicted or to crash, sleeps for
    one."""
    async with harness() as h:
        run = await h.start(workflow, sleeps=between != "nothing")
        await h.advance(minutes=45)
        acts.hangs = False
        await h.advance(minutes=45)
        if between == "crash":
            await h.crash()
        await h.advance(hours=1)
        return await run.result()


@BETWEEN
@pytest.mark.parametrize("loser_acts", [0, 1], ids=["cancelled before its step", "its step is remembered"])
async def test_a_key_of_a_call_that_lost_may_be_used_again_and_is_not_answered_by_it(
    loser_acts: int, between: str
) -> None:
    acts = Acts()

    @hf.workflow(name="kr_loser")
    async def kr_loser(ctx: hf.Context, sleeps: bool) -> Any:
        async def loser() -> str:
            if not loser_acts:
                await ctx.sleep("5h")
            await ctx.keyed("charge").step(acts.act, "o1")
            await ctx.sleep("5h")
            return "never"

        won = await ctx.race(loser(), ctx.sleep("1h"))
        if sleeps:
            await ctx.sleep("1h")
        return won.index, await ctx.keyed("charge").step(acts.act, "o1")

    assert await outcome(kr_loser, acts, between=between) == [1, f"o1 {loser_acts + 1}"]
    assert len(acts.keys) == loser_acts + 1
    assert len(set(acts.keys)) == 1, "the key names the same effect"


@BETWEEN
async def test_a_key_of_a_step_that_was_cancelled_by_a_race_may_be_used_again(between: str) -> None:
    acts = Acts()
    acts.hangs = True

    @hf.workflow(name="kr_cancelled")
    async def kr_cancelled(ctx: hf.Context, sleeps: bool) -> Any:
        async def loser() -> str:
            return await ctx.keyed("charge").step(acts.act, "o1")

        won = await ctx.race(loser(), ctx.sleep("1h"))
        if sleeps:
            await ctx.sleep("1h")
        return won.index, await ctx.keyed("charge").step(acts.act, "o1")

    assert await outcome(kr_cancelled, acts, between=between) == [1, "o1 2"]


@BETWEEN
async def test_a_key_of_the_winner_is_used_up(between: str) -> None:
    acts = Acts()

    @hf.workflow(name="kr_winner")
    async def kr_winner(ctx: hf.Context, sleeps: bool) -> Any:
        async def winner() -> str:
            found = await ctx.keyed("charge").step(acts.act, "o1")
            await ctx.sleep("1h")
            return found

        await ctx.race(winner(), ctx.sleep("5h"))
        if sleeps:
            await ctx.sleep("1h")
        return await ctx.keyed("charge").step(acts.act, "o1")

    with pytest.raises(hf.RunFailed, match="the key 'charge' is used by") as failed:
        await outcome(kr_winner, acts, between=between)
    assert failed.value.error.code == "duplicate_key"
    assert len(acts.keys) == 1


@BETWEEN
async def test_two_calls_of_a_race_may_use_the_same_key(between: str) -> None:
    acts = Acts()

    @hf.workflow(name="kr_rivals")
    async def kr_rivals(ctx: hf.Context, sleeps: bool) -> Any:
        async def rival(hours: int) -> str:
            found = await ctx.keyed("charge").step(acts.act, "o1")
            await ctx.sleep(f"{hours}h")
            return found

        won = await ctx.race(rival(3), rival(1))
        if sleeps:
            await ctx.sleep("1h")
        return [*won]

    assert await outcome(kr_rivals, acts, between=between) == [1, "o1 2"]
    assert len(acts.keys) == 2


@BETWEEN
async def test_a_key_that_the_body_used_while_the_race_went_on_is_refused_when_its_user_wins(between: str) -> None:
    acts = Acts()

    @hf.workflow(name="kr_beside")
    async def kr_beside(ctx: hf.Context, sleeps: bool) -> Any:
        async def winner() -> str:
            found = await ctx.keyed("charge").step(acts.act, "o1")
            await ctx.sleep("1h")
            return found

        race = asyncio.create_task(ctx.race(winner(), ctx.sleep("5h")))
        await ctx.sleep("30m")
        await ctx.keyed("charge").step(acts.act, "o1")
        try:
            await race
        except hf.DuplicateKey:
            if sleeps:
                await ctx.sleep("1h")
            return "refused"

    assert await outcome(kr_beside, acts, between=between) == "refused"


async def test_what_a_loser_did_does_not_make_a_patch_take_the_old_way() -> None:
    acts = Acts()

    @hf.workflow(name="kr_patched")
    async def kr_patched(ctx: hf.Context, sleeps: bool) -> Any:
        async def loser() -> None:
            await ctx.step(acts.act, "o1")
            await ctx.sleep("5h")

        await ctx.race(loser(), ctx.sleep("1h"))
        await ctx.sleep("1h")
        return ctx.patched("new way")

    assert await outcome(kr_patched, acts, between="crash") is True


async def test_a_race_that_is_found_by_its_key_finds_what_its_winner_did() -> None:
    acts, lives = Acts(), list[int]()

    @hf.workflow(name="kr_moved")
    async def kr_moved(ctx: hf.Context) -> Any:
        async def winner() -> str:
            found = await ctx.step(acts.act, "o1")
            await ctx.sleep("1h")
            return found

        lives.append(1)
        if len(lives) > 1:  # the code has changed
            await ctx.keyed("new").step(len, "abc")
        won = await ctx.keyed("race").race(winner(), ctx.sleep("5h"))
        await ctx.keyed("end").sleep("1h")
        return won.value

    async with harness() as h:
        run = await h.start(kr_moved)
        await h.advance(minutes=90)
        await h.crash()
        await h.advance(hours=1)
        assert await run.result() == "o1 1"
    assert len(acts.keys) == 1


@pytest.mark.parametrize("kind", ["race", "map", "step"])
async def test_a_keyed_call_that_was_cut_off_and_has_moved_in_the_code_finds_what_was_done_inside(kind: str) -> None:
    acts, lives = Acts(), list[int]()

    async def inner(ctx: hf.Context, what: str) -> str:
        found = await ctx.step(acts.act, what)
        await ctx.sleep("2h")
        return found

    @hf.workflow(name="kr_cut_off")
    async def kr_cut_off(ctx: hf.Context) -> Any:
        lives.append(1)
        if len(lives) > 1:  # the code has changed
            await ctx.keyed("new").step(len, "abc")
        keyed = ctx.keyed("moves")
        match kind:
            case "race":
                return (await keyed.race(inner(ctx, "o1"), ctx.keyed("limit").sleep("5h"))).value
            case "map":
                return (await keyed.map(inner, ["o1"]))[0]
        return await keyed.step(inner, "o1")

    async with harness() as h:
        run = await h.start(kr_cut_off)
        await h.advance(hours=1)
        await h.crash()
        await h.advance(hours=1)
        assert await run.result() == "o1 1"
    assert len(acts.keys) == 1
