"""Branches of a loop whose rounds return what it carries: each round of a branch has that branch's own values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, add, ended, named
from tests.engine.kit import url

STEPS: dict[str, int] = {}
"""What instances of `n` add, if not 1."""


@pytest.fixture(autouse=True)
def _all_add_one() -> None:
    STEPS.clear()


@hf.node
async def br_step(ctx: hf.Context, x: int) -> int:
    world.here.enter(named(ctx))
    return x + STEPS.get(named(ctx), 1)


@hf.workflow
def br_carried(x: int) -> Any:
    first = add.named("first")(x)

    def round_(acc: Any) -> Any:
        def each(i: Any) -> Any:
            return {"i": i["i"], "n": br_step.named("n")(i["n"]), "before": i["n"]}

        return hf.map(each, acc)

    start = [{"i": "a", "n": first}, {"i": "b", "n": 100}]
    grown = hf.loop(round_, start=start, until=lambda r: hf.size(r) > 5, max_visits=3, at_limit="take")
    return {"grown": grown, "last": add.named("last")(grown[0]["before"])}


def carried(first: int, steps: tuple[int, int, int] = (1, 1, 1)) -> Any:
    """The result; `steps`: what `n` adds in each round to the first item."""
    before, n, other = first, first, 100
    for step in steps:
        before, n, other = n, n + step, other + 1
    grown = [{"i": "a", "n": n, "before": before}, {"i": "b", "n": other, "before": other - 1}]
    return {"grown": grown, "last": before + 1}


async def completed(engine: hf.Engine, bodies: World, run_id: str = "r") -> hf.Run[Any]:
    run = await engine.start(br_carried, x=0, run_id=run_id)
    assert await ended(run) == carried(1)
    bodies.again()
    return run


async def test_a_fork_inside_a_round_runs_the_later_rounds_with_its_values(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        STEPS["n@.round_.1.each.0."] = 48
        await run.fork(at="n@.round_.1.each.0.")
        assert await ended(run) == carried(1, (1, 48, 1))
        rounds = [".1.each.0.", ".2.each.0.", ".2.each.1."]
        assert bodies.again() == ["last", *(f"n@.round_{path}" for path in rounds)]


async def test_a_fork_without_edits_comes_to_the_same_result(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        for at in ("n@.round_.0.each.1.", "n@.round_.1.each.0.", "n@.round_.2.each.1.", "last"):
            await run.fork(at=at)
            assert await ended(run) == carried(1)


async def test_every_event_can_be_forked_at(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        for event in await run.events(branch=1):
            other = await run.fork(at=event.seq, branch=1, as_run=f"at-{event.seq}")
            assert await ended(other) == carried(1), event


async def test_a_jump_to_the_node_before_the_loop_begins_its_rounds_anew(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        await run.jump("first", edits={"input": {"x": 10}})
        assert await ended(run) == carried(11)
        assert len(bodies.again()) == 2 + 6


async def test_a_retry_of_an_item_continues_its_round(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"n@.round_.1.each.1."}
        run = await engine.start(br_carried, x=0, run_id="r")
        assert await ended(run) == "failed: ValueError: n@.round_.1.each.1. is broken"
        bodies.broken = set()
        bodies.again()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await run.retry()
        assert await ended(run) == carried(1)
        assert "n@.round_.0.each.0." not in bodies.again()


async def test_a_retry_after_the_loop_reads_its_rounds_from_the_rows(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"last"}
        run = await engine.start(br_carried, x=0, run_id="r")
        assert await ended(run) == "failed: ValueError: last is broken"
        bodies.broken = set()
        bodies.again()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await run.retry()
        assert await ended(run) == carried(1)
        assert bodies.again() == ["last"]
