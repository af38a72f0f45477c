"""`lazy` and `interval`: bodies may run ahead of the commit, nothing may leave the run before it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from tests.engine.kit import check_file, types, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.node(inline=True)
def add(a: int, b: int = 1) -> int:
    return a + b


@hf.node(inline=True)
def total(xs: list[int]) -> int:
    return sum(xs)


class Gate:
    def __init__(self) -> None:
        self.began, self.open = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.began.set()
        await self.open.wait()


def _rows(path: Path) -> list[str]:
    """What another connection can see of the journal."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [row[0] for row in connection.execute("SELECT type FROM run_events ORDER BY run_no, seq")]
    finally:
        connection.close()


async def test_every_mode_gives_the_same_journal_in_the_end(db: Path) -> None:
    journals = {}
    for mode in ("aggressive", "lazy", "interval:10s"):

        @hf.workflow(name=f"same_{mode.partition(':')[0]}", persistence=mode)
        def same():
            xs = hf.map(add, [1, 2, 3])
            y = hf.loop(add, start=0, until=lambda n: n >= 4)
            with hf.when(y > 100):
                z = add.named("never")(y)
            return [total(xs), y, hf.first(z, None)]

        async with hf.open(url(db)) as engine:
            run = await engine.start(same)
            assert await run.result(timeout=30) == [9, 4, None]
            events = [(e.type, e.node, e.path, e.data) for e in await run.events()]
        assert events[0][0] == "RunCreated"
        journals[mode] = events[1:]  # the first one has the names of the workflow and of the engine
    assert journals["lazy"] == journals["aggressive"]
    assert journals["interval:10s"] == journals["aggressive"]
    check_file(db)


async def test_a_lazy_run_commits_far_less_often(db: Path) -> None:
    @hf.workflow(persistence="lazy")
    def chain():
        x = add(0)
        for _ in range(49):
            x = add(x)
        return x

    async with hf.open(url(db)) as engine:
        before = engine.committer.commits
        assert await (await engine.start(chain)).result() == 50
        assert engine.committer.commits - before < 10
    check_file(db)


async def test_the_whole_output_of_a_map_can_be_read_before_it_is_committed(db: Path) -> None:
    @hf.node
    async def total_async(xs: list[int]) -> int:
        return sum(xs)

    @hf.node
    def total_sync(xs: list[int]) -> int:
        return sum(xs)

    @hf.workflow(persistence="lazy")
    def sums():
        xs = hf.map(add, list(range(10)))
        return [total(xs), total_async(xs), total_sync(xs), total.named("first")([xs[0]]), add(xs[3])]

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(sums)).result(timeout=30) == [55, 55, 55, 1, 5]
    check_file(db)


async def test_an_item_of_a_lazy_map_reads_what_is_the_same_for_all(db: Path) -> None:
    def body(x: Any, base: Any) -> Any:
        with hf.when(base > 1):
            y = add(x, base)
        return hf.first(y, 0)

    @hf.workflow(persistence="lazy")
    def params():
        base = add(1)
        return hf.map(body, [1, 2], base=base)

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(params)).result(timeout=30) == [3, 4]
    check_file(db)


async def test_the_result_is_committed_before_it_is_told(db: Path) -> None:
    @hf.workflow(persistence="lazy")
    def quick():
        return add(1)

    async with hf.open(url(db)) as engine:
        await (await engine.start(quick)).result()
        assert _rows(db)[-1] == "RunCompleted"


async def test_nothing_leaves_a_lazy_run_before_its_commit(db: Path) -> None:
    """A child and a timer are on the disk together with everything that led to them."""
    gate = Gate()
    seen: list[list[str]] = []

    @hf.workflow
    async def kid(ctx: hf.Context) -> int:
        seen.append(_rows(db))
        await gate.wait()
        return 1

    @hf.workflow(persistence="lazy")
    async def parent(ctx: hf.Context) -> int:
        for i in range(5):
            await ctx.step(add, i)
        assert "StepCompleted" not in _rows(db)
        return await ctx.child(kid)

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent)
        await gate.began.wait()
        assert seen[0].count("StepCompleted") == 5
        assert "ChildStarted" in seen[0]
        gate.open.set()
        assert await run.result() == 1

    @hf.workflow(persistence="lazy")
    async def sleeper(ctx: hf.Context) -> None:
        await ctx.step(add, 1)
        await ctx.sleep("1h")

    async with hf.open(url(db)) as engine:
        run = await engine.start(sleeper)
        await until_async(lambda: _is(run, "suspended"))
        kinds = types(await run.events())
        assert kinds.index("StepCompleted") < kinds.index("TimerSet")
        await run.cancel()
    check_file(db)


async def _is(run: hf.Run, status: str) -> bool:
    return await run.status() == status


async def test_a_lazy_run_commits_after_a_thousand_events(db: Path) -> None:
    gate = Gate()

    @hf.workflow(persistence="lazy")
    async def long(ctx: hf.Context) -> int:
        for i in range(1500):
            await ctx.step(add, i)
        await gate.wait()
        return 1

    async with hf.open(url(db)) as engine:
        run = await engine.start(long)
        await gate.began.wait()
        committed = len(await run.events())
        assert 1000 <= committed < 1500
        gate.open.set()
        await run.result()
    check_file(db)


async def test_an_interval_run_commits_by_itself_after_its_interval(db: Path) -> None:
    gate = Gate()

    @hf.workflow(persistence="interval:1s")
    async def steady(ctx: hf.Context) -> int:
        await ctx.step(add, 1)
        assert "StepCompleted" not in _rows(db)
        await gate.wait()
        return 1

    async with hf.open(url(db)) as engine:
        run = await engine.start(steady)
        await gate.began.wait()
        await until(lambda: "StepCompleted" in _rows(db), "the interval's commit")
        gate.open.set()
        assert await run.result() == 1
    check_file(db)


async def test_leaving_the_engine_commits_what_a_lazy_run_held_back(db: Path) -> None:
    gate = Gate()
    steps: list[int] = []

    def note(i: int) -> int:
        steps.append(i)
        return i

    @hf.workflow(persistence="lazy")
    async def lazily(ctx: hf.Context) -> int:
        for i in range(5):
            await ctx.step(note, i)
        await gate.wait()
        return 5

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(lazily, run_id="r")
        await gate.began.wait()
    gate.open.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == 5
    assert steps == [0, 1, 2, 3, 4]
    check_file(db)


async def test_variables_of_a_lazy_run_are_seen_before_they_are_committed(db: Path) -> None:
    @hf.node
    async def sets(ctx: hf.Context, n: int) -> int:
        ctx.vars["n"] = n
        return n

    @hf.node
    async def reads(ctx: hf.Context, after: int) -> int:
        return ctx.vars["n"]

    @hf.workflow(persistence="lazy", variables={"n": int})
    def varied():
        a = reads.named("a")(sets.named("set_a")(1))
        b = reads.named("b")(sets.named("set_b").after(a)(2))
        return [a, b]

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(varied)).result(timeout=30) == [1, 2]
    check_file(db)


async def test_a_cancel_reaches_a_lazy_run(db: Path) -> None:
    gate = Gate()

    @hf.workflow(persistence="lazy")
    async def lazily(ctx: hf.Context) -> None:
        await ctx.step(add, 1)
        await gate.wait()

    async with hf.open(url(db)) as engine:
        run = await engine.start(lazily)
        await gate.began.wait()
        await run.cancel("stop")
        with pytest.raises(hf.RunCancelled):
            await run.result()
        assert "StepCompleted" in types(await run.events())
    check_file(db)


async def test_an_unknown_mode_is_refused_before_anything_is_written(db: Path) -> None:
    @hf.workflow
    async def any_mode(ctx: hf.Context) -> int:
        return 1

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.HoldfastError):
            await engine.start(any_mode, persistence="sometimes")
        assert await engine.list() == []


@pytest.mark.parametrize("mode", ["lazy", "interval:10s"])
async def test_the_start_of_a_body_that_a_crash_must_not_repeat_is_committed_first(db: Path, mode: str) -> None:
    seen: list[int] = []

    @hf.node(on_crash="fail", inline=True)
    def pay(amount: int) -> int:
        seen.append(_starts(db, "pay"))
        return amount

    @hf.workflow(name=f"careful_{mode.partition(':')[0]}", persistence=mode)
    def careful():
        first = pay(add(1))
        return hf.map(lambda n, first: pay(add(n, first)), [2, 3], limit=1, first=first)

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(careful)).result(timeout=30) == [4, 5]
    assert seen == [1, 2, 3]
    check_file(db)


@pytest.mark.parametrize("mode", ["lazy", "aggressive"])
async def test_a_lazy_run_undoes_what_it_has_done(db: Path, mode: str) -> None:
    undone: list[int] = []

    @hf.node
    async def give_back(amount: int | None) -> None:
        undone.append(amount or 0)

    @hf.node(compensate=give_back, inline=True)
    def take(amount: int) -> int:
        return amount

    @hf.node(inline=True)
    def refuse(amount: int) -> int:
        raise hf.Fail("no", retryable=False)

    @hf.workflow(name=f"undone_{mode}", persistence=mode, on_failure="compensate")
    def undoing():
        return refuse(take(take(add(1))))

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="no"):
            await (await engine.start(undoing)).result(timeout=30)
    assert undone == [2, 2]
    check_file(db)


def _starts(path: Path, node: str) -> int:
    """How many bodies of nodes that are called so have begun, for all that another connection can see."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        query = "SELECT count(*) FROM run_events WHERE type = 'NodeStarted' AND node GLOB ? || '*'"
        return int(connection.execute(query, (node,)).get)
    finally:
        connection.close()
