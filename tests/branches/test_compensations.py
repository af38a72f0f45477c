"""Compensations that failed: retried alone, with their keys; never a place to go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, ended
from tests.engine.kit import attempts, check_file, node_of, url, waiting


async def noted(name: str) -> None:
    world.here.enter(name)


@hf.node
async def cmp_undo(ctx: hf.Context, output: str) -> None:
    await ctx.step(noted, f"step of {output}")
    world.here.keys.append(ctx.idempotency_key)
    world.here.enter(f"undo {output}")


@hf.node(compensate=cmp_undo)
async def reserve() -> str:
    return "reserved"


@hf.node(compensate=cmp_undo)
async def charge(reserved: str) -> str:
    world.here.enter("charge")
    return "charged"


@hf.node(compensate=cmp_undo)
async def pack(charged: str) -> str:
    return "packed"


@hf.node
async def ship(packed: str) -> None:
    raise ValueError("no courier")


@hf.workflow(on_failure="compensate")
def cmp_saga() -> None:
    ship(pack(charge(reserve())))


@pytest.mark.parametrize("node", ["charge~undo", None])
async def test_a_failed_compensation_is_retried_alone_with_its_key(db: Path, bodies: World, node: str | None) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"undo charged"}
        run = await engine.start(cmp_saga, run_id="r")
        with pytest.raises(hf.RunFailed, match="no courier") as failed:
            await run.result()
        assert [other.node for other in failed.value.others] == ["charge~undo"]
        assert bodies.ran[1:4] == ["step of packed", "undo packed", "step of charged"]
        key = bodies.keys[1]
        bodies.again()
        bodies.keys.clear()
        shown = await run.preview("retry", node)
        assert (shown["runs_again"], shown["repeats"], shown["same_keys"]) == (["charge~undo"], ["charge~undo"], True)
        await run.retry(node)
        with pytest.raises(hf.RunFailed) as once_more:
            await run.result()
        assert [other.node for other in once_more.value.others] == ["charge~undo"], "it is still broken"
        assert bodies.again() == ["undo charged"], "what it remembers is not done again"
        bodies.broken = set()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await run.retry(node)
        with pytest.raises(hf.RunFailed, match="no courier") as mended:
            await run.result()
        assert mended.value.others == ()
        assert bodies.again() == ["undo charged"]
        assert set(bodies.keys) == {key}
        assert attempts(await run.events(), "charge~undo") == [1, 2, 3]
        assert node_of(await run.nodes(), "charge~undo")["status"] == "completed"
        for again in (None, "charge~undo"):
            with pytest.raises(hf.Refused, match=r"compensations have run|has not failed"):
                await run.retry(again)
    check_file(db)


async def test_several_failed_compensations_are_retried_one_at_a_time_in_their_order(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"undo packed", "undo reserved"}
        run = await engine.start(cmp_saga)
        with pytest.raises(hf.RunFailed):
            await run.result()
        bodies.broken = set()
        bodies.ran.clear()
        with pytest.raises(
            hf.Refused, match="charge~undo has not failed; compensations that failed: pack~undo, reserve~undo"
        ):
            await run.retry("charge~undo")
        await run.retry()
        with pytest.raises(hf.RunFailed) as failed:
            await run.result()
        assert failed.value.others == ()
        assert bodies.ran == ["undo packed", "undo reserved"]
    check_file(db)


async def test_compensations_of_a_cancelled_run_are_retried_and_it_stays_cancelled(db: Path, bodies: World) -> None:
    @hf.workflow(on_failure="compensate")
    def cmp_waits() -> None:
        charged = charge(reserve())
        hf.ask("Ship?", schema=bool, about=charged)

    async with hf.open(url(db)) as engine:
        bodies.broken = {"undo charged"}
        run = await engine.start(cmp_waits)
        await waiting(run, "input")
        await run.cancel(reason="changed my mind")
        with pytest.raises(hf.RunCancelled):
            await run.result()
        bodies.broken = set()
        await run.retry("charge~undo")
        with pytest.raises(hf.RunCancelled, match="changed my mind"):
            await run.result()
        assert node_of(await run.nodes(), "charge~undo")["status"] == "completed"
    check_file(db)


async def test_a_compensation_that_asks_suspends_the_run_while_others_wait_for_their_turn(
    db: Path, bodies: World
) -> None:
    @hf.node
    async def asks(ctx: hf.Context, output: str) -> None:
        world.here.enter(f"undo {output}")
        await ctx.ask(f"Undone {output}?", schema=bool)

    @hf.node(compensate=asks)
    async def one() -> str:
        return "one"

    @hf.node(compensate=asks)
    async def two(one: str) -> str:
        return "two"

    @hf.workflow(on_failure="compensate")
    def cmp_asking() -> None:
        ship(two(one()))

    async with hf.open(url(db), idle_seconds=0) as engine:
        bodies.broken = {"undo one", "undo two"}
        run = await engine.start(cmp_asking, run_id="r")
        with pytest.raises(hf.RunFailed):
            await run.result()
        bodies.broken = set()
        await run.retry()
        (asked,) = await waiting(run, "input")
        assert asked.question == "Undone two?"
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = engine.get("r")
        for question in ("Undone two?", "Undone one?"):
            (asked,) = await waiting(run, "input")
            assert asked.question == question
            await run.respond(asked.wait_id, True)
        with pytest.raises(hf.RunFailed) as failed:
            await run.result()
        assert failed.value.others == ()
    check_file(db)


@pytest.mark.parametrize("broken", [{"undo charged"}, set()])
async def test_a_compensation_is_no_place_to_jump_or_fork_to(db: Path, bodies: World, broken: set[str]) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = broken
        run = await engine.start(cmp_saga)
        with pytest.raises(hf.RunFailed):
            await run.result()
        bodies.again()
        before = len(await run.events())
        for ask in (lambda: run.jump("charge~undo"), lambda: run.fork("charge~undo")):
            with pytest.raises(hf.Refused, match="is the compensation of charge") as refused:
                await ask()
            assert ("retry charge~undo" in str(refused.value)) == bool(broken)
        with pytest.raises(hf.Refused, match="the compensation ship~undo has not run"):
            await run.retry("ship~undo")
        assert (bodies.again(), len(await run.events())) == ([], before)
        with pytest.raises(hf.Refused, match="its compensations have run"):
            await run.retry("ship")
        bodies.broken = set()
        await run.jump("charge")
        await ended(run)
        assert "charge" in bodies.again(), "what was undone is done again"
    check_file(db)


async def test_each_visit_has_its_own_compensation_and_one_of_them_is_retried(db: Path, bodies: World) -> None:
    @hf.node
    async def undo_round(output: int) -> None:
        world.here.enter(f"undo {output}")

    @hf.node(compensate=undo_round)
    async def spend(ctx: hf.Context) -> int:
        return ctx.visit

    @hf.node
    async def again(ctx: hf.Context, spent: int) -> Any:
        if spent < 3:
            return hf.goto("spend")
        raise ValueError("enough")

    @hf.workflow(on_failure="compensate")
    def cmp_rounds() -> None:
        again(spend())

    async with hf.open(url(db)) as engine:
        bodies.broken = {"undo 2"}
        run = await engine.start(cmp_rounds)
        with pytest.raises(hf.RunFailed):
            await run.result()
        assert bodies.again() == ["undo 1", "undo 2", "undo 3"]
        with pytest.raises(hf.Refused, match="#3 has not failed; compensations that failed: spend~undo@"):
            await run.retry("spend~undo#3")
        shown = await run.preview("retry", "spend~undo#2")
        assert shown["runs_again"] == ["spend~undo@.#2"]
        bodies.broken = set()
        await run.retry("spend~undo")  # the one of this name that failed
        with pytest.raises(hf.RunFailed) as failed:
            await run.result()
        assert (failed.value.others, bodies.again()) == ((), ["undo 2"])
    check_file(db)
