"""Corners that a review found: each of these hung, was lost or ran twice once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw
import pytest

import holdfast as hf
from holdfast.model.errors import StoreFull
from holdfast.testing import harness
from tests.engine.kit import attempts, check_file, hold_time, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.workflow
async def corner_leaf(ctx: hf.Context, n: int) -> int:
    return n


@hf.workflow
async def corner_sleeps(ctx: hf.Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


async def test_an_engine_that_was_declared_dead_goes_on_under_another_name(db: Path) -> None:
    bodies: list[int] = []

    @hf.workflow
    async def corner_body(ctx: hf.Context, n: int) -> int:
        bodies.append(n)
        await ctx.step(asyncio.sleep, 0.05)
        return n

    async with hf.open(url(db)) as first, hf.open(url(db)) as second:
        old = first.lease.engine
        connection = apsw.Connection(str(db))
        connection.set_busy_timeout(10_000)
        connection.execute("UPDATE engines SET awake_until = 1 WHERE engine = ?", (old,))
        connection.close()
        await second.claims.release_dead_engines()
        first.lease.renew_once()
        await until(lambda: first.lease.engine != old, "the engine takes a new name")
        await until(lambda: any(e.engine == first.lease.engine for e in second.store.engines()), "it is on the list")
        runs = [await first.start(corner_body, n=n) for n in range(3)]
        assert [await run.result() for run in runs] == [0, 1, 2]
        await second.claims.release_dead_engines()
        assert {e.engine for e in second.store.engines()} == {first.lease.engine, second.lease.engine}
        assert sorted(bodies) == [0, 1, 2], "no body ran twice"
    check_file(db)


async def test_more_children_in_one_turn_than_run_numbers_are_reserved_at_once(db: Path) -> None:
    @hf.workflow
    async def corner_parent(ctx: hf.Context, count: int) -> int:
        return sum(await asyncio.gather(*(ctx.child(corner_leaf, n=1) for _ in range(count))))

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(corner_parent, count=1100)).result() == 1100


async def test_a_parent_that_waits_for_a_run_it_did_not_start_is_woken_after_a_restart(db: Path) -> None:
    @hf.workflow
    async def corner_waits(ctx: hf.Context) -> str:
        return await ctx.child(corner_sleeps, seconds=0.3, run_id="other")

    async with hf.open(url(db), idle_seconds=0) as engine:
        hold_time(engine)
        await engine.start(corner_sleeps, seconds=0.3, run_id="other")
        parent = await engine.start(corner_waits, run_id="parent")
        await until_async(lambda: _has(parent, "suspended"), "the parent waits")
    async with hf.open(url(db), idle_seconds=0, recover=False) as engine:  # only the other run goes on here
        await engine.resume("other")
        assert await engine.get("other").result() == "slept"
    async with hf.open(url(db)) as engine:
        assert await engine.get("parent").result(timeout=20) == "slept"
    check_file(db)


async def test_a_child_that_is_born_in_its_parents_last_commit_is_cancelled(db: Path) -> None:
    @hf.workflow
    async def corner_forever(ctx: hf.Context) -> None:
        await ctx.sleep("1h")

    @hf.node
    async def breaks() -> None:
        raise ValueError("no")

    @hf.workflow
    def corner_breaking():
        return [corner_forever(), breaks()]

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(corner_breaking) for _ in range(30)]
        for run in runs:
            with pytest.raises(hf.RunFailed):
                await run.result()

        async def none_left() -> bool:
            return not [r for r in await engine.list(workflow="corner_forever") if r["status"] != "cancelled"]

        await until_async(none_left, "every child is cancelled")
    check_file(db)


async def test_due_timers_of_runs_whose_code_is_elsewhere_do_not_starve_ours(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        for _ in range(600):
            await engine.start(corner_sleeps, seconds=0.3)
        await until(lambda: not engine.actors, "all of them are evicted")
    connection = apsw.Connection(str(db))
    connection.execute("UPDATE run_state SET workflow = 'elsewhere'")
    connection.close()
    await asyncio.sleep(0.4)  # their timers are due, and nobody here has the code
    async with hf.open(url(db), idle_seconds=0) as engine:
        assert await (await engine.start(corner_sleeps, seconds=0.2)).result(timeout=20) == "slept"


async def test_a_step_that_raises_stop_iteration_fails(db: Path) -> None:
    def empty() -> int:
        return next(iter([]))

    @hf.workflow
    async def body(ctx: hf.Context) -> int:
        return await ctx.step(empty)

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="StopIteration"):
            await (await engine.start(body)).result(timeout=20)


async def test_a_heartbeat_is_not_wanted_while_a_body_sleeps() -> None:
    @hf.node(heartbeat=0.2)
    async def beats(ctx: hf.Context) -> str:
        await ctx.sleep(0.8)  # too short to be left: it is the same body that goes on
        return "alive"

    @hf.workflow
    def graph():
        return beats()

    async with harness() as h:
        run = await h.start(graph)
        await h.advance(seconds=1)
        assert await run.result() == "alive"
        assert attempts(await run.events(), "beats") == [1]


async def test_a_result_that_cannot_be_made_is_compensated_too(db: Path) -> None:
    undone: list[int] = []

    @hf.node(inline=True)
    def undo(n: int) -> None:
        undone.append(n)

    @hf.node(inline=True, compensate=undo)
    def zero() -> int:
        return 0

    @hf.workflow(on_failure="compensate")
    def graph():
        return 1 / zero()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="zero"):
            await (await engine.start(graph)).result()
        assert undone == [0]
    check_file(db)


async def test_a_queued_runs_timeout_counts_from_its_start(db: Path) -> None:
    gate = asyncio.Event()

    @hf.workflow(concurrency=1)
    async def one_at_a_time(ctx: hf.Context) -> None:
        await gate.wait()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(one_at_a_time)
        with pytest.raises(hf.RunFailed, match="timeout"):
            await (await engine.start(one_at_a_time, timeout=0.2)).result(timeout=20)
        gate.set()


async def test_a_cancelled_body_that_waits_may_clean_up_before_the_engine_closes(db: Path) -> None:
    cleaned: list[str] = []

    @hf.workflow
    async def body(ctx: hf.Context) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            await asyncio.sleep(0.2)
            cleaned.append("up")

    async with hf.open(url(db)) as engine:
        run = await engine.start(body)
        await until_async(lambda: _has(run, "suspended"), "it sleeps")
        await run.cancel()
    assert cleaned == ["up"]


async def test_exceptions_that_cannot_be_described_fail_their_node(db: Path) -> None:
    class Secretive(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise RuntimeError("no name")

    class Odd(Exception, metaclass=Secretive):
        pass

    @hf.workflow
    async def raises(ctx: hf.Context, what: str) -> None:
        raise Odd("odd") if what == "odd" else hf.Suspended

    async with hf.open(url(db)) as engine:
        for what in ("odd", "suspended"):
            with pytest.raises(hf.RunFailed):
                await (await engine.start(raises, what=what)).result(timeout=20)


async def test_closing_does_not_wait_for_ever_while_the_disk_is_full(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.engine.DRAIN_SECONDS", 0.2)
    began = time.monotonic()
    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(corner_leaf, n=1)
        await run.result()

        def full(group: object) -> object:
            raise StoreFull("no space")

        monkeypatch.setattr(engine.store, "commit", full)
        starting = asyncio.create_task(engine.start(corner_leaf, n=2))
        await until(lambda: not engine.committer.idle, "a commit waits for space")
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert time.monotonic() - began < 30


async def _has(run: hf.Run, status: str) -> bool:
    return await run.status() == status
