"""A fork that becomes a run of its own: it shares the beginning, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.model import journal_format
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.branches import world
from tests.branches.world import World, add, ended, total
from tests.engine.kit import until_async, url


@hf.workflow(variables={"limit": int})
def br_shared(xs: list[int], x: int):
    listed = hf.map(add, xs)
    steps = remembers.after(listed)(x)
    return [total.after(steps)(listed), reads_limit.after(steps)(steps)]


async def step(name: str) -> str:
    world.here.enter(name)
    return name


@hf.node
async def remembers(ctx: hf.Context, x: int) -> int:
    ctx.vars["limit"] = x
    await ctx.step(step, "one")
    await ctx.step(step, "two")
    world.here.enter("remembers")
    return x


@hf.node
async def reads_limit(ctx: hf.Context, x: int) -> int:
    world.here.enter("reads_limit")
    return int(ctx.vars["limit"])


def own_rows(db: Path, run_id: str) -> list[Any]:
    """The events that are stored for a run itself."""
    store = SqliteStore(url(db))
    store.open()
    try:
        row = store.run(run_id)
        assert row is not None
        return [event for event in store.events(row.run_no) if event.run_no == row.run_no]
    finally:
        store.close()


async def test_maps_memos_variables_and_outputs_are_read_across_the_border(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"remembers"}
        run = await engine.start(br_shared, xs=[1, 2], x=7, run_id="first")
        assert "failed" in await ended(run)
        bodies.broken, bodies.ran = set(), []
        other = await run.fork(as_run="second")
        assert await ended(other) == [5, 7]
        assert bodies.again() == ["reads_limit", "remembers", "total"], "items and steps are reused"
        assert "failed" in await ended(run), "the first run is left alone"
        third = await other.fork(at="total", as_run="third")
        assert await ended(third) == [5, 7]
        assert bodies.again() == ["total"], "a fork of a fork reads through both borders"
        fourth = await third.fork(at="reads_limit", as_run="fourth", edits={"vars": {"limit": 9}})
        assert await ended(fourth) == [5, 9]


async def test_both_go_on(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_both(x: int):
        return add.named("after")(world.gated(add.named("before")(x)))

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_both, x=1, run_id="one")
        await bodies.waiting.wait()
        before = await run.events()
        other = await run.fork(as_run="two", edits={"outputs": {"before": 10}})
        assert await run.events() == before, "the origin is not touched, not even its journal"
        await until_async(lambda: _started(other, "gated"))
        bodies.gate.set()
        assert (await ended(run), await ended(other)) == (3, 11)
        assert bodies.ran.count("before") == 1


async def _started(run: hf.Run[Any], node: str) -> bool:
    return any(n["node"] == node and n["status"] == "running" for n in await run.nodes())


@pytest.mark.parametrize("broken", [False, True])
async def test_an_origin_that_ended_can_be_forked(db: Path, bodies: World, broken: bool) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"reads_limit"} if broken else set()
        run = await engine.start(br_shared, xs=[1], x=2, run_id="o")
        await ended(run)
        bodies.broken = set()
        assert await ended(await run.fork(as_run="copy")) == [2, 2]


async def test_no_event_is_copied_and_the_chain_goes_on_from_the_origin(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_shared, xs=list(range(50)), x=2, run_id="o")
        await ended(run)
        other = await run.fork(at="reads_limit", as_run="copy")
        await ended(other)
        shared, whole = await run.events(), await other.events()
    own = own_rows(db, "copy")
    cut = next(event for event in own if event.type == "BranchOpened")
    cutoff = msgspec.json.decode(cut.data)["cutoff_seq"]
    assert own[0].seq == cutoff + 1
    assert len(own) < 10 < len(shared)
    assert [e.seq for e in whole] == list(range(1, len(whole) + 1))
    assert whole[:cutoff] == shared[:cutoff]
    hashed = next(row for row in own_rows(db, "o") if row.seq == cutoff).hash
    first = own[0]
    link = (first.seq, first.branch, first.type, first.node, first.path, first.visit, first.at, first.token, first.data)
    assert journal_format.link(hashed, "copy", *link) == first.hash


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_a_fork_of_a_long_run_copies_none_of_its_events(db: Path, bodies: World, count: int) -> None:
    """The journal is made by hand: what counts is how many rows are written."""

    async def nothing() -> None:
        return None

    @hf.workflow
    async def br_long(ctx: hf.Context) -> int:
        for _ in range(100):
            await ctx.step(nothing)
        world.here.enter("end")
        return 1

    async with hf.open(url(db)) as engine:
        bodies.broken = {"end"}
        run = await engine.start(br_long, run_id="long", persistence="lazy")
        await ended(run)
    lengthen(db, "long", count)
    async with hf.open(url(db)) as engine:
        bodies.broken = set()
        other = await engine.get("long").fork(as_run="copy")
        assert await ended(other) == 1
        assert len(await other.events()) > count
    assert len(own_rows(db, "copy")) < 12


def lengthen(db: Path, run_id: str, count: int) -> None:
    """Put many step events into a failed run's journal, in front of its failure, with a chain that holds."""
    import apsw

    store = SqliteStore(url(db))
    store.open()
    row = store.run(run_id)
    assert row is not None
    events = store.events(row.run_no)
    store.close()
    at = next(i for i, event in enumerate(events) if event.type == "NodeFailed")
    sample = next(event for event in events if event.type == "StepCompleted")
    step = journal_format.decode(sample.type, sample.data)
    more = [
        sample._replace(data=journal_format.encode(msgspec.structs.replace(step, position=1000 + i)))
        for i in range(count)
    ]
    head, rows = b"", []
    for seq, event in enumerate([*events[:at], *more, *events[at:]], 1):
        fields = (seq, event.branch, event.type, event.node, event.path, event.visit, event.at, event.token, event.data)
        head = journal_format.link(head, run_id, *fields)
        rows.append((row.run_no, *fields[:-1], head, event.data))
    connection = apsw.Connection(str(db))
    with connection:
        connection.execute("DELETE FROM run_events WHERE run_no = ?", (row.run_no,))
        connection.executemany(
            "INSERT INTO run_events (run_no, seq, branch, type, node, path, visit, at, token, hash, data) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        moved = (len(rows), head, count, row.run_no)
        connection.execute("UPDATE run_state SET last_seq = ?1, head_hash = ?2 WHERE run_no = ?4", moved)
        connection.execute("UPDATE run_node_state SET output_seq = output_seq + ?3 WHERE run_no = ?4", moved)
    connection.close()


async def test_the_same_id_twice_is_the_same_run_and_another_fork_under_it_is_refused(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_shared, xs=[1], x=2, run_id="o")
        await ended(run)
        first = await run.fork(at="total", as_run="copy", edits={"input": {"x": 5}})
        assert await ended(first) == [2, 2]
        bodies.again()
        again = await run.fork(at="total", as_run="copy", edits={"input": {"x": 5}})
        assert await ended(again) == [2, 2]
        assert bodies.again() == []
        for different in ({"at": "remembers"}, {"at": "total", "edits": {"input": {"x": 6}}}, {"at": "total"}):
            with pytest.raises(hf.RunExists, match="copy exists, and it is not this fork of o"):
                await run.fork(as_run="copy", **different)  # type: ignore[arg-type]
        with pytest.raises(hf.RunExists):
            await engine.start(br_shared, xs=[1], x=5, run_id="copy")
        with pytest.raises(hf.UsageError, match="its own idempotency keys"):
            await run.fork(as_run="other", keys="inherit")
        at_once = await asyncio.gather(*(run.fork(at="total", as_run="racing") for _ in range(3)))
        assert [await ended(r) for r in at_once] == [[2, 2]] * 3


async def test_the_input_is_that_of_the_place_where_it_was_cut(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_shared, xs=[1], x=2, run_id="o")
        await ended(run)
        await run.fork(at="remembers", edits={"input": {"x": 50}})
        assert await ended(run) == [2, 50]
        early = await run.fork(at=1, as_run="early")
        assert (await ended(early), (await early.show())["input"]) == ([2, 2], {"xs": [1], "x": 2})
        late = await run.fork(at="reads_limit", as_run="late")
        assert (await ended(late), (await late.show())["input"]) == ([2, 50], {"xs": [1], "x": 50})
        start = await late.fork(at="start", as_run="start")
        assert (await start.show())["input"] == {"xs": [1], "x": 2}
        await ended(start)


async def test_keys_of_a_forked_run_are_its_own(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_keys(x: int):
        return add(x)

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_keys, x=1)
        await ended(run)
        await ended(await run.fork(at="add", as_run="other"))
        assert len(set(bodies.keys)) == 2


async def test_a_forked_run_can_be_retried_jumped_and_forked_like_any_other(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_shared, xs=[1, 2], x=2, run_id="o")
        await ended(run)
        bodies.broken = {"total"}
        other = await run.fork(at="total", as_run="copy")
        assert "failed" in await ended(other)
        bodies.broken, bodies.ran = set(), []
        await other.retry()
        assert await ended(other) == [5, 2]
        assert bodies.again() == ["total"]
        await other.jump(to="add@.add.1.")
        assert await ended(other) == [5, 2]
        assert bodies.again() == ["add@.add.1.", "one", "reads_limit", "remembers", "total", "two"]
        shared = next(e.seq for e in await run.events() if e.type == "NodeCompleted" and e.node == "remembers")
        below = await other.fork(at=shared, branch=2, as_run="below")  # below its own cut-off
        assert await ended(below) == [5, 2]


async def test_a_child_that_is_forked_reports_to_nobody(db: Path, bodies: World) -> None:
    @hf.workflow
    def br_forked_child(x: int):
        return add(x)

    @hf.workflow
    async def br_its_parent(ctx: hf.Context) -> int:
        return await ctx.child(br_forked_child, x=1, run_id="child")

    async with hf.open(url(db)) as engine:
        parent = await engine.start(br_its_parent)
        assert await ended(parent) == 2
        before = await parent.events()
        other = await engine.get("child").fork(at="add", as_run="free", edits={"input": {"x": 10}})
        assert await ended(other) == 11
        assert await parent.events() == before
