"""A run that is led into a block of `hf.when`: from the target on the block counts as entered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches.world import World, add, ended
from tests.engine.kit import check_file, url


@hf.workflow
def blk_nested(x: int) -> Any:
    a = add.named("a")(x)
    with hf.when(a > 100):
        first = add.named("first")(a)
        target = add.named("target")(a)
        rest = add.named("rest")(target)
        beside = add.named("beside")(first)
        with hf.when(a > 200):
            inner = add.named("inner")(rest)
        with hf.when(rest > 0):
            deeper = add.named("deeper")(rest)
        last = add.named("last")(hf.first(inner, deeper))
    with hf.when(a > 300):
        other = add.named("other")(a)
    return {"last": last, "beside": beside, "other": other}


async def test_a_jump_into_a_block_runs_the_rest_of_it_and_the_preview_says_what_is_skipped(
    db: Path, bodies: World
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(blk_nested, x=0)
        assert await ended(run) == {"last": None, "beside": None, "other": None}
        assert bodies.again() == ["a"]
        shown = await run.preview("jump", "target")
        assert shown["runs_again"] == ["target", "rest"], "deeper and last depend on what rest returns"
        assert shown["skipped"] == ["inner"]
        await run.jump("target")
        assert await ended(run) == {"last": 5, "beside": None, "other": None}
        assert bodies.again() == ["deeper", "last", "rest", "target"]
        await run.jump("rest")  # behind the target, which is kept
        assert await ended(run) == {"last": 5, "beside": None, "other": None}
        assert bodies.again() == ["deeper", "last", "rest"]
        for again in (run.jump, run.fork):
            await again("target")
            assert (await ended(run))["last"] == 5
            assert bodies.again() == ["deeper", "last", "rest", "target"]
        await run.jump("inner")
        assert (await ended(run))["last"] == 5
        assert bodies.again() == ["inner", "last"]
        await run.fork("a")
        assert (await ended(run))["last"] is None, "everything is decided anew"
        assert bodies.again() == ["a"]
    check_file(db)


@pytest.mark.parametrize("x", [0, 500])
async def test_a_fork_decides_conditions_anew_unless_the_run_was_led_there(db: Path, bodies: World, x: int) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(blk_nested, x=x)
        await ended(run)
        bodies.again()
        if x == 0:
            await run.jump("target")
            await ended(run)
            bodies.again()
        await run.fork("target", edits={"input": {"x": 1}})
        assert (await ended(run))["last"] is not None, "a is kept, and so is what its block was entered for"
        assert "rest" in bodies.again()
    check_file(db)


async def test_a_failed_node_of_an_entered_block_is_retried_and_the_block_stays_entered(
    db: Path, bodies: World
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(blk_nested, x=0, run_id="r")
        await ended(run)
        bodies.broken = {"target"}
        await run.jump("target")
        await ended(run)
        bodies.broken = set()
        bodies.again()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await run.retry()
        assert (await ended(run))["last"] == 5
        assert bodies.again() == ["deeper", "last", "rest", "target"]
    check_file(db)


async def test_a_jump_forward_into_a_block_enters_it(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"a"}
        run = await engine.start(blk_nested, x=0)
        await ended(run)
        bodies.again()
        shown = await run.preview("jump", "target", edits={"outputs": {"a": 1}})
        assert shown["skipped"] == ["first", "beside", "inner", "other"]
        await run.jump("target", edits={"outputs": {"a": 1}})
        assert await ended(run) == {"last": 5, "beside": None, "other": None}
        assert bodies.again() == ["deeper", "last", "rest", "target"]
    check_file(db)


@hf.node
async def decides(x: int) -> Any:
    return hf.goto("fix") if x < 3 else x


@hf.workflow
def blk_route(x: int, kind: str = "plain") -> Any:
    with hf.route(kind) as kinds:
        with kinds("broken"):
            fix = add.named("fix")(x, 10)
            polish = add.named("polish")(fix)
        with kinds.otherwise():
            plain = add.named("plain")(x)
    decided = decides(hf.first(polish, plain))
    return {"fix": hf.first(fix, None), "polish": hf.first(polish, None), "decided": decided}


async def test_a_ticket_into_a_branch_of_a_route_runs_the_rest_of_it(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(blk_route, x=1)
        assert await ended(run) == {"fix": 11, "polish": 12, "decided": 12}
        assert bodies.again() == ["fix", "plain", "polish"]
        await run.fork("polish#2")
        assert await ended(run) == {"fix": 11, "polish": 12, "decided": 12}
        assert bodies.again() == ["polish"]
    check_file(db)
