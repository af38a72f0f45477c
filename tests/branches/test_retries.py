"""Retry by a person: what failed goes on, with what it remembers; nothing that completed runs again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, add, ended, total
from tests.engine.kit import attempts, hold_time, node_of, types, url


async def step(name: str) -> str:
    world.here.enter(name)
    return name


async def test_memos_and_checkpoints_stay_and_attempts_go_on(db: Path, bodies: World) -> None:
    @hf.workflow
    async def br_remembers(ctx: hf.Context) -> list[str]:
        done = ctx.checkpointed or []
        if not done:
            done = [await ctx.step(step, "one")]
            await ctx.checkpoint(done)
        done = [*done, await ctx.step(step, "two")]
        return [*done, await ctx.step(step, "three")]

    async with hf.open(url(db)) as engine:
        bodies.broken = {"three"}
        run = await engine.start(br_remembers)
        await ended(run)
        assert bodies.again() == ["one", "three", "two"]
        bodies.broken = set()
        await run.retry()
        assert await ended(run) == ["one", "two", "three"]
        assert bodies.again() == ["three"]
        assert attempts(await run.events(), "br_remembers") == [1, 2]


async def test_the_policy_counts_from_zero_again(db: Path, bodies: World) -> None:
    @hf.node(retry=hf.Retry(attempts=3, backoff=0))
    async def stubborn(ctx: hf.Context) -> int:
        bodies.keys.append(ctx.idempotency_key)
        bodies.enter("stubborn")
        return ctx.attempt

    @hf.workflow
    def br_stubborn():
        return stubborn()

    async with hf.open(url(db)) as engine:
        bodies.broken = {"stubborn"}
        run = await engine.start(br_stubborn)
        await ended(run)
        await run.retry()
        await ended(run)
        assert len(bodies.again()) == 6, "three tries on each branch"
        bodies.broken = set()
        await run.retry()
        assert await ended(run) == 7, "attempts go on"
        assert len(set(bodies.keys)) == 1, "the same idempotency key in all of them"


async def test_children_of_a_retried_node_are_new(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_child(x: int):
        return add(x)

    @hf.workflow
    async def br_parent(ctx: hf.Context) -> list[int]:
        one = await ctx.child(br_child, x=1)
        return [one, await ctx.child(br_child, x=10)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_parent, run_id="p")
        bodies.broken = {"add"}
        await ended(run)
        bodies.broken = set()
        before = {r["run_id"]: r["status"] for r in await engine.list() if r["run_id"] != "p"}
        await run.retry()
        assert await ended(run) == [2, 11]
        after = {r["run_id"]: r["status"] for r in await engine.list() if r["run_id"] != "p"}
        assert len(before) == 1
        assert before.items() < after.items(), "what failed stays as it is; its successor is another run"


async def test_a_completed_child_is_reused_and_a_failed_one_is_not(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_second_child(x: int):
        return add(x, 5)

    @hf.workflow
    async def br_second_parent(ctx: hf.Context) -> list[int]:
        first = await ctx.child(br_second_child, x=1)
        world.here.broken = set() if world.here.ran.count("add") > 1 else {"add"}
        return [first, await ctx.child(br_second_child, x=2)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_second_parent, run_id="p")
        assert "failed" in await ended(run)
        assert len(await engine.list()) == 3
        await run.retry()
        assert await ended(run) == [6, 7]
        assert len(await engine.list()) == 4, "one more child, not two"


async def test_what_was_cancelled_because_of_a_failure_goes_on_and_what_was_skipped_is_decided_anew(
    db: Path, bodies: World
) -> None:
    @hf.workflow
    def br_siblings(x: int):
        bad = add.named("bad")(x)
        slow = world.gated(x)
        return [add.named("behind")(bad), add.named("after")(slow)]

    async with hf.open(url(db)) as engine:
        bodies.broken = {"bad"}
        run = await engine.start(br_siblings, x=1)
        assert "bad is broken" in await ended(run)
        assert node_of(await run.nodes(), "gated")["status"] == "cancelled"
        bodies.broken, bodies.ran = set(), []
        shown = await run.preview("retry")
        assert shown["runs_again"] == ["bad", "gated"]
        bodies.gate.set()
        await run.retry()
        assert await ended(run) == [3, 2]
        assert bodies.again() == ["after", "bad", "behind", "gated"]


@hf.workflow(on_failure="continue")
def br_goes_on(x: int):
    one, two = add.named("one")(x), add.named("two")(x)
    behind = add.named("behind")(one)
    with hf.when(behind > 0):
        asked = add.named("asked")(x)
    return [hf.first(behind, asked, None), add.named("fine")(two)]


async def test_under_continue_the_dependents_that_were_skipped_run(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"one", "two"}
        run = await engine.start(br_goes_on, x=1)
        assert "is broken" in await ended(run)
        assert node_of(await run.nodes(), "behind")["status"] == "skipped"
        bodies.broken, bodies.ran = {"two"}, []
        await run.retry("one")
        assert "two is broken" in await ended(run), "one of two failures was retried"
        assert bodies.again() == ["asked", "behind", "one"], "also what a condition had skipped because of it"
        bodies.broken = set()
        await run.retry()
        assert await ended(run) == [3, 3]
        assert bodies.again() == ["fine", "two"]


@pytest.mark.parametrize("errors", ["fail", "collect"])
async def test_in_a_map_the_items_that_completed_stay(db: Path, bodies: World, errors: Any) -> None:
    @hf.workflow(name=f"br_map_{errors}")
    def mapped(xs: list[int]):
        return total(hf.map(add, xs, errors=errors, limit=1))

    async with hf.open(url(db)) as engine:
        bodies.broken = {"add@.add.1."}
        run = await engine.start(mapped, xs=[1, 2, 3])
        result = await ended(run)
        bodies.broken, bodies.ran = set(), []
        if errors == "fail":
            assert "failed" in result
            await run.retry()
            assert await ended(run) == 9
            assert bodies.again() == ["add@.add.1.", "add@.add.2.", "total"]
            return
        assert result == 6, "the run got over it"
        with pytest.raises(hf.Refused, match="nothing of the run has failed"):
            await run.retry()
        await run.retry("add@.add.1.")
        assert await ended(run) == 9
        assert bodies.again() == ["add@.add.1.", "total"], "whoever took the list gets the new one"


async def test_in_loops_and_nested_scopes_only_what_failed_runs_again(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_nested(xs: list[int]):
        def item(x: int) -> Any:
            def round(n: int) -> Any:
                return add.named("inner")(n, 10)

            return add.named("last")(hf.loop(round, start=x, until=lambda n: n > 25, max_visits=5))

        return total(hf.map(item, xs))

    async with hf.open(url(db)) as engine:
        where = "inner@.item.1.round.1."
        bodies.broken = {where}
        run = await engine.start(br_nested, xs=[1, 2])
        assert "failed" in await ended(run)
        done = set(bodies.again()) - {where}
        bodies.broken = set()
        await run.retry()
        assert await ended(run) == 65
        again = bodies.again()
        assert where in again
        assert "inner@.item.1.round.0." in done
        assert not done & set(again)


async def test_a_cancelled_run_goes_on_where_it_was(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_cancelled(x: int):
        return add.named("after")(world.gated(add.named("before")(x)))

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_cancelled, x=1)
        await bodies.waiting.wait()
        await run.cancel("not now")
        assert await ended(run) == "cancelled"
        bodies.gate.set()
        bodies.again()
        await run.retry()
        assert await ended(run) == 3
        assert bodies.again() == ["after", "gated"]


async def test_a_run_that_took_too_long_has_its_time_again(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_in_time(x: int):
        return world.gated(x)

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_in_time, x=1, timeout=0.05)
        assert "timeout" in await ended(run)
        bodies.gate.set()
        hold_time(engine)
        await run.retry()
        assert await ended(run) == 1
        assert types(await run.events(branch=2)).count("TimerSet") == 2


async def test_what_was_compensated_cannot_be_retried_but_jumped_to(db: Path, bodies: World) -> None:
    @hf.node
    async def undo(x: int) -> None:
        bodies.enter("undo")

    @hf.node(compensate=undo)
    async def book(ctx: hf.Context, x: int) -> int:
        bodies.enter("book")
        return x

    @hf.workflow(on_failure="compensate")
    def br_undone(x: int):
        return add(book(x))

    async with hf.open(url(db)) as engine:
        bodies.broken = {"add"}
        run = await engine.start(br_undone, x=1)
        await ended(run)
        assert bodies.again() == ["add", "book", "undo"]
        for refused in (run.retry, run.fork):
            with pytest.raises(hf.Refused, match="its compensations have run"):
                await refused()
        bodies.broken = set()
        await run.jump(to="add")
        assert await ended(run) == 2
        assert bodies.again() == ["add", "book"], "what was undone is done again"


async def test_nothing_to_retry_is_refused_and_changes_nothing(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_fine(x: int):
        return add(x)

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_fine, x=1)
        await ended(run)
        before = await run.events()
        with pytest.raises(hf.Refused, match="nothing of the run has failed; it has the status completed"):
            await run.retry()
        with pytest.raises(hf.Refused, match="add has not failed; failed: nothing"):
            await run.retry("add")
        assert await run.events() == before


async def test_a_failed_node_can_be_given_its_output(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_by_hand(x: int):
        return add.named("after")(add.named("bad")(x))

    async with hf.open(url(db)) as engine:
        bodies.broken = {"bad"}
        run = await engine.start(br_by_hand, x=1)
        await ended(run)
        bodies.again()
        shown = await run.preview("retry", edits={"outputs": {"bad": 41}})
        assert (shown["given"], shown["runs_again"], shown["repeats"]) == (["bad"], [], [])
        await run.retry(edits={"outputs": {"bad": 41}})
        assert await ended(run) == 42
        assert bodies.again() == ["after"]


async def test_a_child_that_is_retried_after_it_was_reported_does_not_report_again(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_reported(x: int):
        return add(x)

    @hf.workflow
    async def br_reports_to(ctx: hf.Context) -> str:
        try:
            await ctx.child(br_reported, x=1, run_id="child")
        except hf.ChildFailed:
            return "it failed"
        return "it completed"

    async with hf.open(url(db)) as engine:
        bodies.broken = {"add"}
        run = await engine.start(br_reports_to)
        assert await ended(run) == "it failed"
        bodies.broken = set()
        child = engine.get("child")
        await child.retry()
        assert await ended(child) == 2
        await asyncio.sleep(0)
        assert await ended(run) == "it failed"
