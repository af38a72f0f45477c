"""Jumps: back to a node, forward past others, into maps and loops; and how instances are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, add, ended, total
from tests.engine.kit import check_file, hold_time, node_of, types, url


@hf.workflow
def br_chain(x: int):
    a = add.named("a")(x)
    b = add.named("b")(a)
    c = add.named("c")(b)
    return [add.named("d")(c), add.named("side")(a)]


async def test_a_jump_back_reopens_a_completed_run(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_chain, x=0)
        assert await ended(run) == [4, 2]
        bodies.again()
        await run.jump(to="c", actor="ann")
        assert await ended(run) == [4, 2]
        assert bodies.again() == ["c", "d"]
        assert [b["reason"] for b in await run.branches()] == ["start", "jump"]
        (requested,) = [e for e in await run.events() if e.type == "JumpRequested"]
        assert (requested.branch, requested.data) == (1, {"target": "c", "new_branch": 2, "actor": "ann"})


async def test_a_jump_to_the_first_node_keeps_nothing_of_the_parent(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_chain, x=0)
        await ended(run)
        bodies.again()
        await run.jump(to="a")
        await ended(run)
        assert bodies.again() == ["a", "b", "c", "d", "side"]


async def test_a_jump_forward_skips_what_lies_between_and_takes_the_data_from_edits(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"b"}
        run = await engine.start(br_chain, x=0)
        await ended(run)
        bodies.again()
        before = await run.events()
        with pytest.raises(hf.Refused, match=r'd needs the output of c, .* \{"outputs": \{"c": …\}\}'):
            await run.jump(to="d")
        assert await run.events() == before
        await run.jump(to="d", edits={"outputs": {"c": 40}})
        assert await ended(run) == [41, 2]
        assert "b" not in bodies.again()
        nodes = await run.nodes()
        assert (node_of(nodes, "b")["status"], node_of(nodes, "c")["output"]) == ("skipped", 40)
        skipped = next(e for e in await run.events() if e.type == "NodeSkipped" and e.branch == 2)
        assert (skipped.node, skipped.data["reason"], skipped.data["cause"]) == ("b", "jump", "d")


async def test_a_jump_forward_past_running_work_stops_it(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_ahead(x: int):
        slow = world.gated(x)
        return [add.named("needs")(slow), add.named("free").after(slow)(x)]

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_ahead, x=1)
        await bodies.waiting.wait()
        await run.jump(to="free")
        assert await ended(run) == [None, 2], "what needs the skipped one is skipped with it"
        assert node_of(await run.nodes(), "gated")["status"] == "skipped"


async def test_a_target_is_entered_whatever_its_condition_says(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_unlikely(x: int):
        a = add.named("a")(x)
        with hf.when(x > 100):
            b = add.named("b")(a)
        return hf.first(b, None)

    async with hf.open(url(db)) as engine:
        bodies.broken = {"a"}
        run = await engine.start(br_unlikely, x=0)
        await ended(run)
        await run.jump(to="b", edits={"outputs": {"a": 1}})
        assert await ended(run) == 2


@hf.workflow
def br_scopes(xs: list[int]):
    def item(x: int) -> Any:
        return add.named("second")(add.named("first")(x))

    listed = hf.map(item, xs)
    grown = hf.loop(add, start=0, until=lambda n: n >= 3, max_visits=9)
    return [total(listed), grown]


async def test_a_jump_into_an_item_runs_that_item_from_there_and_whoever_takes_the_list(
    db: Path, bodies: World
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_scopes, xs=[1, 2, 3])
        assert await ended(run) == [12, 3]
        bodies.again()
        await run.jump(to="second@.item.1.")
        assert await ended(run) == [12, 3]
        assert bodies.again() == ["second@.item.1.", "total"]


async def test_a_jump_into_a_round_runs_the_later_rounds_again(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_scopes, xs=[])
        assert await ended(run) == [0, 3]
        bodies.again()
        await run.jump(to="add@.add.1.", edits={})
        assert await ended(run) == [0, 3]
        assert bodies.again() == ["add@.add.1.", "add@.add.2."]


async def test_a_jump_to_a_map_runs_all_its_items_again(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_scopes, xs=[1, 2])
        await ended(run)
        bodies.again()
        await run.jump(to="item")
        await ended(run)
        assert bodies.again() == sorted([f"{n}@.item.{i}." for n in ("first", "second") for i in (0, 1)] + ["total"])


async def test_a_bare_name_with_several_instances_is_refused_with_the_list_of_them(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_scopes, xs=[1, 2])
        await ended(run)
        with pytest.raises(hf.Refused, match=r"second has 2 instances, .* second@\.item\.0\., second@\.item\.1\."):
            await run.jump(to="second")
        with pytest.raises(hf.Refused, match=r"second@[.]item[.]7[.] has not begun on this branch"):
            await run.jump(to="second@.item.7.")
        for text in ("second@", "@.item.0.", "second@item", "second@.item.0.#0"):
            with pytest.raises((hf.InvalidInput, hf.Refused)):
                await run.jump(to=text)


async def test_the_rest_of_a_run_goes_on_beside_a_jump(db: Path, bodies: World) -> None:
    """What was suspended and is not downstream of the target keeps its wait, and its timer."""

    @hf.node
    async def nap(ctx: hf.Context) -> str:
        await ctx.sleep(0.3)
        bodies.enter("nap")
        return "rested"

    @hf.workflow
    def br_beside(x: int):
        rested = nap()
        return [rested, add.named("b")(add.named("a")(x))]

    async with hf.open(url(db)) as engine:
        clock = hold_time(engine)
        run = await engine.start(br_beside, x=0)
        while await run.status() != "suspended":
            await world_turn()
        (wait,) = await run.waits()
        await run.jump(to="a")
        (kept,) = await run.waits()
        assert (kept.wait_id, kept.until) == (wait.wait_id, wait.until)
        clock.go_on()
        assert await ended(run) == ["rested", 2]
        assert bodies.again() == ["a", "a", "b", "b", "nap"]
        assert types(await run.events()).count("WaitOpened") == 1


async def world_turn() -> None:
    import asyncio

    await asyncio.sleep(0.005)


async def test_a_jump_to_a_node_that_was_skipped_runs_it_whatever_its_condition_says(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_conditional(x: int):
        a = add.named("a")(x)
        with hf.when(a > 100):
            b = add.named("b")(a)
        return hf.first(b, None)

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_conditional, x=0)
        assert await ended(run) is None
        bodies.again()
        await run.jump(to="b")
        assert await ended(run) == 2
        assert bodies.again() == ["b"]


async def test_a_jump_to_a_node_whose_condition_had_failed_leaves_a_journal_that_is_sound(db: Path) -> None:
    """What failed is tried again beside it; nobody takes the target for one that began too early."""

    @hf.node
    async def refuses(x: int) -> int:
        raise hf.Fail("no", retryable=False)

    @hf.workflow(on_failure="continue")
    def br_unknown(x: int):
        a = refuses.named("a")(x)
        with hf.when(a > 100):
            b = add.named("b")(x)
        return hf.first(b, None)

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_unknown, x=0)
        await ended(run)
        await run.jump(to="b")
        await ended(run)
    check_file(db)
