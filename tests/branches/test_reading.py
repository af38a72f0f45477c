"""Reading branches from a program: the tree, one branch, and what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from tests.branches.world import World, add, ended
from tests.engine.kit import types, url


@hf.workflow
def br_read(x: int):
    return add.named("b")(add.named("a")(x))


async def tale(engine: hf.Engine, bodies: World) -> hf.Run[int]:
    """Failed, retried, forked with another input."""
    bodies.broken = {"b"}
    run = await engine.start(br_read, x=0, run_id="r")
    await ended(run)
    bodies.broken = set()
    await run.retry(actor="ann")
    assert await ended(run) == 2
    await run.fork(at="a", edits={"input": {"x": 10}})
    assert await ended(run) == 12
    return run


async def test_the_journal_is_everything_and_a_branch_is_its_line_of_history(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await tale(engine, bodies)
        everything = await run.events()
        assert [e.seq for e in everything] == list(range(1, len(everything) + 1)), "no gap over all branches"
        first, second, third = [await run.events(branch=n) for n in (1, 2, 3)]
        assert first == [e for e in everything if e.branch == 1]
        assert types(first)[-2:] == ["RunFailed", "RetryRequested"]
        assert [e.seq for e in second] == sorted(e.seq for e in second)
        assert "NodeFailed" not in types(second)
        assert [e.node for e in third if e.type == "NodeCompleted"] == ["a", "b"]
        assert {e.branch for e in third} == {1, 2, 3}, "run-level events are shared"
        assert await run.events(after=first[-1].seq, branch=1) == []
        with pytest.raises(hf.InvalidInput, match="run r has no branch 7; it has 1, 2, 3"):
            await run.events(branch=7)


async def test_every_branch_shows_what_it_came_to(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await tale(engine, bodies)
        shown = [await run.show(branch=n) for n in (1, 2, 3)]
        assert [s["status"] for s in shown] == ["failed", "completed", "completed"]
        assert [s["result"] for s in shown] == [None, 2, 12]
        assert [s["input"]["x"] for s in shown] == [0, 0, 10]
        assert shown[0]["error"]["message"] == "ValueError: b is broken"
        assert shown[2] == await run.show(), "the current branch as the rows tell it"
        assert list(shown[0]) == list(shown[2]), "the shape of a run"


async def test_the_tree_says_where_each_branch_comes_from(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await tale(engine, bodies)
        tree = await run.branches()
        assert [(b["branch"], b["parent"], b["reason"], b["target"], b["current"]) for b in tree] == [
            (1, None, "start", None, False),
            (2, 1, "retry", "b", False),
            (3, 2, "fork", "a", True),
        ]
        assert [b["key_epoch"] for b in tree] == [1, 1, 2]
        assert [b["status"] for b in tree] == ["failed", "completed", "completed"]
        assert (tree[1]["actor"], tree[1]["reopened"], tree[2]["dropped"]) == ("ann", ["b"], ["a"])
        assert sum(b["events"] for b in tree) == len(await run.events())
        other = await run.fork(at="b", as_run="other")
        await ended(other)
        assert [b["origin"] for b in await other.branches()][-1] == "r"


async def test_a_diff_names_what_differs_and_nothing_else(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await tale(engine, bodies)
        found = await run.diff(1, 2)
        assert (found["one"]["status"], found["other"]["status"], found["other"]["result"]) == (
            "failed",
            "completed",
            2,
        )
        assert [n["node"] for n in found["nodes"]] == ["b"], "a is the same on both"
        (b,) = found["nodes"]
        assert (b["one"]["status"], b["one"]["output"], b["other"]["output"]) == ("failed", None, 2)
        assert (await run.diff(2, 2))["nodes"] == []


async def test_results_listings_and_follow_are_of_the_current_branch(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await tale(engine, bodies)
        assert await run.result() == 12
        (listed,) = await engine.list()
        assert (listed["status"], listed["branch"], listed["error"]) == ("completed", 3, None)
        assert [e.seq async for e in run.follow()] == [e.seq for e in await run.events()]
