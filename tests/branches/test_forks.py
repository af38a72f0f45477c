"""Forking: where it may be cut, what is kept, what is edited, and whose keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches.world import World, add, ended, named, total
from tests.engine.kit import types, url

# a ─▶ b ─▶ d
#  └─▶ c ─▶ e      result: [d, e]


@hf.workflow
def br_two_lines(x: int):
    a = add.named("a")(x)
    b, c = add.named("b")(a, 10), add.named("c")(a, 100)
    return [add.named("d")(b), add.named("e")(c)]


async def completed(engine: hf.Engine, bodies: World, x: int = 0, run_id: str = "r") -> hf.Run[Any]:
    run = await engine.start(br_two_lines, x=x, run_id=run_id)
    assert await ended(run) == [x + 12, x + 102]
    assert bodies.again() == ["a", "b", "c", "d", "e"]
    return run


async def test_a_fork_at_a_node_runs_it_and_what_is_downstream_again_and_nothing_else(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        await run.fork(at="b")
        assert await ended(run) == [12, 102]
        assert bodies.again() == ["b", "d"]


async def test_a_fork_at_the_first_node_keeps_nothing(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        await run.fork(at="a")
        await ended(run)
        assert bodies.again() == ["a", "b", "c", "d", "e"]


async def test_a_fork_at_the_start_keeps_nothing(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        await run.fork(at="start", edits={"input": {"x": 5}})
        assert await ended(run) == [17, 107]
        assert bodies.again() == ["a", "b", "c", "d", "e"]
        branch = (await run.branches())[-1]
        assert (branch["cutoff_seq"], branch["parent"]) == (1, 1)


async def test_a_fork_behind_an_event_is_the_run_as_it_was_then(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        events = await run.events()
        done = next(e.seq for e in events if e.type == "NodeCompleted" and e.node == "b")
        before = {e.node for e in events if e.type == "NodeCompleted" and e.seq <= done}
        await run.fork(at=done)
        assert await ended(run) == [12, 102]
        assert set(bodies.again()) == {"a", "b", "c", "d", "e"} - before


async def test_every_event_of_a_line_can_be_forked_at(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        for event in await run.events(branch=1):
            other = await run.fork(at=event.seq, branch=1, as_run=f"at-{event.seq}")
            assert await ended(other) == [12, 102]


async def test_an_old_branch_goes_on_by_forking_it_at_its_end(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"e"}
        run = await engine.start(br_two_lines, x=0, run_id="r")
        assert await ended(run) == "failed: ValueError: e is broken"
        await run.fork(at="a", edits={"input": {"x": 1000}})
        assert await ended(run) == "failed: ValueError: e is broken"
        bodies.broken, bodies.ran = set(), []
        await run.fork(branch=1)
        assert await ended(run) == [12, 102], "the first branch, with its own input"
        assert bodies.again() == ["e"]


async def test_a_fork_of_a_fork_below_its_cut_leaves_out_what_the_first_one_dropped(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        first = await run.events()
        late = next(e.seq for e in reversed(first) if e.type == "NodeCompleted" and e.node in "ce")
        await run.fork(at="b", edits={"outputs": {"b": 500}})  # b of the first branch is not on this line any more
        assert await ended(run) == [501, 102]
        bodies.again()
        await run.fork(at=late)  # an event of branch 1 that branch 2 has taken over
        assert await ended(run) == [12, 102]
        assert bodies.again() == ["b", "d"], "b was dropped by branch 2, and its edit came later"
        assert (await run.branches())[-1]["parent"] == 1, "the parent is the branch that holds the event"
        assert [e.node for e in await run.events(branch=3) if e.type == "NodeCompleted"].count("b") == 1


async def test_an_event_of_another_line_is_refused(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        dropped = next(e.seq for e in await run.events() if e.type == "NodeCompleted" and e.node == "b")
        await run.fork(at="b")
        await ended(run)
        with pytest.raises(hf.Refused, match=f"event {dropped} is not on this branch"):
            await run.fork(at=dropped)


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("z", "there is no node z in workflow br_two_lines; it has a, b, c, d, e"),
        ("b@.nowhere.0.", "b@.nowhere.0. has not begun"),
        (9999, "event 9999 is not on this branch"),
    ],
)
async def test_a_place_that_is_not_there_is_refused_and_nothing_is_changed(
    db: Path, bodies: World, at: Any, why: str
) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        before = await run.events()
        with pytest.raises(hf.Refused, match=why):
            await run.fork(at=at)
        assert await run.events() == before
        assert bodies.again() == []


async def test_a_node_that_has_not_begun_cannot_be_forked_at(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"a"}
        run = await engine.start(br_two_lines, x=0, run_id="r")
        await ended(run)
        with pytest.raises(hf.Refused, match=r"d has not begun .* jump to d"):
            await run.fork(at="d")


async def test_an_event_while_the_run_was_ending_is_refused(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"a"}
        run = await engine.start(br_two_lines, x=0, run_id="r")
        await ended(run)
        failed = next(e.seq for e in await run.events() if e.type == "NodeFailed")
        with pytest.raises(hf.Refused, match="already ending"):
            await run.fork(at=failed)


# --- edits ---------------------------------------------------------------------------------------------------------


@hf.node
async def read_limit(ctx: hf.Context, x: int) -> int:
    ctx.vars["limit"] = x
    return x


@hf.node
async def use_limit(ctx: hf.Context, x: int) -> int:
    return ctx.vars["limit"] + x


@hf.workflow(variables={"limit": int})
def br_with_variable(x: int, y: int = 0):
    first = read_limit(x)
    return use_limit.after(first)(y)


async def test_the_input_is_merged_the_variables_and_outputs_are_given_whole(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_with_variable, x=1, y=2, run_id="v")
        assert await ended(run) == 3
        await run.fork(at="use_limit", edits={"vars": {"limit": 50}})
        assert await ended(run) == 52
        await run.fork(at="use_limit", edits={"input": {"y": 7}})
        assert await ended(run) == 57, "the branch before it had set the limit"
        await run.fork(at="use_limit", branch=1, edits={"outputs": {"use_limit": 99}})
        assert await ended(run) == 99, "a node whose output is given does not run"
        assert (await run.show())["input"] == {"x": 1, "y": 2}
        assert (await run.show(branch=3))["input"] == {"x": 1, "y": 7}


async def test_edits_steer_what_conditions_read(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_conditional(x: int):
        a = add.named("a")(x)
        with hf.when(a > 10):
            b = add.named("b")(a)
        with hf.when(x > 100):
            c = add.named("c")(x)
        return [hf.first(b, None), hf.first(c, None)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_conditional, x=1)
        assert await ended(run) == [None, None]
        await run.fork(at="b", edits={"outputs": {"a": 20}})
        assert await ended(run) == [21, None]
        await run.fork(at="c", edits={"input": {"x": 200}})
        assert await ended(run) == [21, 201]


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"inptu": {}}, "edits know input, vars, outputs"),
        ({"input": {"x": "many"}}, "input x"),
        ({"input": {"z": 1}}, "unknown z"),
        ({"input": {"x": None}}, "missing x"),
        ({"input": 5}, "inputs by name"),
        ({"vars": {"limit": "high"}}, "variable limit"),
        ({"vars": {"speed": 1}}, "variable speed is not declared"),
        ({"outputs": {"use_limit": "text"}}, "the output of use_limit"),
        ({"outputs": {"nobody": 1}}, "no node nobody"),
        ({"version": "two"}, "a version is a number"),
        ({"answers": {"w_1": True}}, "no question w_1"),
    ],
)
async def test_bad_edits_are_told_and_change_nothing(db: Path, edits: dict[str, Any], why: str) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_with_variable, x=1, y=2, run_id="v")
        await ended(run)
        before = await run.events()
        with pytest.raises(hf.InvalidInput, match=why):
            await run.fork(at="read_limit", edits=edits)
        with pytest.raises(hf.InvalidInput, match=why):
            await run.fork(at="read_limit", edits=edits, as_run="other")
        assert await run.events() == before
        assert [r["run_id"] for r in await engine.list()] == ["v"]


async def test_the_list_of_a_map_can_be_edited_as_a_whole_and_its_items_while_it_is_open(
    db: Path, bodies: World
) -> None:
    @hf.workflow
    def br_edited_map(xs: list[int]):
        return total(hf.map(add, xs, errors="collect"))

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_edited_map, xs=[1, 2])
        assert await ended(run) == 5
        shown = await run.preview("fork", "add", edits={"outputs": {"add": [100, 200]}})
        assert (shown["given"], shown["runs_again"], shown["repeats"]) == (["add"], ["total"], ["total"])
        await run.fork(at="total", edits={"outputs": {"add": [100, 200]}})
        assert await ended(run) == 300
        assert bodies.again().count("total") == 2
        with pytest.raises(hf.InvalidInput, match="the output of add"):
            await run.fork(at="total", edits={"outputs": {"add": 5}})
        with pytest.raises(hf.Refused, match=r"the map or loop around add@.add.0. has ended"):
            await run.fork(at="total", branch=1, edits={"outputs": {"add@.add.0.": 7}})


async def test_another_version_keeps_what_it_has_with_the_same_handler_and_the_same_upstream(
    db: Path, bodies: World
) -> None:
    def declare(second: Any) -> Any:
        @hf.workflow(name="br_versions")
        def br_versions(x: int):
            a = add.named("a")(x)
            b = second.named("b")(a)
            return [add.named("c")(b), add.named("d")(a)]

        return br_versions

    @hf.node
    async def double(ctx: hf.Context, x: int) -> int:
        bodies.enter(named(ctx))
        return 2 * x

    old = declare(add)
    async with hf.open(url(db)) as engine:
        run = await engine.start(old, x=1, run_id="r")
        assert await ended(run) == [4, 3]
        assert bodies.again() == ["a", "b", "c", "d"]
        hf_new = declare(double)
        await engine.start(hf_new, x=1, run_id="new")
        await ended(engine.get("new"))
        bodies.again()
        shown = await run.preview("fork", None, edits={"version": 2})
        assert (shown["reused"], shown["runs_again"]) == (["a", "d"], ["b", "c"])
        await run.fork(edits={"version": 2})
        assert await ended(run) == [5, 3]
        assert bodies.again() == ["b", "c"]
        assert ((await run.show())["version"], (await run.show(branch=1))["version"]) == (2, 1)
        with pytest.raises(hf.InvalidInput, match="version 9"):
            await run.fork(edits={"version": 9})


# --- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "same"), [("renew", False), ("inherit", True)])
async def test_what_a_fork_runs_again_has_new_keys_unless_they_are_inherited(
    db: Path, bodies: World, keys: str, same: bool
) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        before, bodies.keys = set(bodies.keys), []
        assert (await run.preview("fork", "a", keys=keys))["same_keys"] is same
        await run.fork(at="a", keys=keys)
        await ended(run)
        assert (set(bodies.keys) == before) is same
        assert set(bodies.keys) <= before if same else not set(bodies.keys) & before
        with pytest.raises(hf.UsageError, match="renew"):
            await run.fork(at="a", keys="new")


async def test_one_commit_leaves_a_branch_and_opens_the_next(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await completed(engine, bodies)
        ended_at = len(await run.events())
        await run.fork(at="e", actor="ann")
        await ended(run)
        opened = (await run.events())[ended_at : ended_at + 3]
        assert types(opened) == ["ForkRequested", "BranchOpened", "MessageConsumed"]
        assert [e.branch for e in opened] == [1, 2, 2]
        assert len({e.at for e in opened}) == 1
        assert (opened[0].data["actor"], opened[1].data["actor"]) == ("ann", "ann")
        assert opened[1].data["dropped"] == ["e"], "roots, not everything that follows from them"


@hf.workflow
async def br_kid(ctx: hf.Context, x: int) -> int:
    return x + 1


@pytest.mark.parametrize("named", [None, "kid"])
async def test_children_are_found_again_under_inherited_keys_and_under_names_of_their_own(
    db: Path, bodies: World, named: str | None
) -> None:
    @hf.workflow(name=f"br_mother_{named}")
    async def mother(ctx: hf.Context) -> int:
        bodies.enter("mother")
        return await ctx.child(br_kid, x=1, run_id=named)

    async with hf.open(url(db)) as engine:
        run = await engine.start(mother, run_id="m")
        assert await ended(run) == 2
        asked = next(e.seq for e in await run.events() if e.type == "ChildStarted")
        await run.fork(at=asked, keys="inherit")
        assert await ended(run) == 2
        await run.jump(to=f"br_mother_{named}", keys="inherit")
        assert await ended(run) == 2
        assert len(bodies.again()) == 3
        assert len(await engine.list()) == 2, "one child, waited for three times"
        await run.jump(to=f"br_mother_{named}")
        assert await ended(run) == 2
        assert len(await engine.list()) == (3 if named is None else 2)
