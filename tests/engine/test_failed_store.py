"""What an engine does when its store fails: a run that cannot be written is held, an engine that stops says so."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.model.errors import StoreDamaged, StoreError
from holdfast.store.row_types import Commit, CommitResult
from tests.engine.kit import until, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.workflow
async def failing_store_sleeps(ctx: hf.Context) -> None:
    await ctx.sleep("1h")


@hf.node
async def failing_store_step(ctx: hf.Context) -> int:
    return ctx.attempt


@hf.workflow
def failing_store_steps():
    return [failing_store_step.named(f"s{i}")() for i in range(5)]


def fail(engine: Engine) -> StoreError:
    """From now on nothing can be committed."""
    error = StoreError("the disk is on fire")

    def commit(group: Sequence[Commit]) -> list[CommitResult]:
        raise error

    engine.store.commit = commit  # type: ignore[method-assign]
    return error


def damage(db: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    with closing(sqlite3.connect(db)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    with db.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)


async def test_one_damaged_page_holds_the_run_that_needs_it_and_the_others_go_on(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        await (await engine.start(failing_store_steps)).result()
    damage(db, "run_timers")
    async with hf.open(url(db)) as engine:
        runs = await asyncio.gather(
            engine.start(failing_store_sleeps, run_id="guilty"),
            *(engine.start(failing_store_steps, run_id=f"innocent{i}") for i in range(5)),
        )
        for run in runs[1:]:
            assert await run.result(timeout=30) == [1] * 5
        await until(lambda: (row := engine.store.run("guilty")) and row.engine is None and row.hold)
        row = engine.store.run("guilty")
        assert row is not None
        assert str(row.hold).startswith("corrupt: ")
        assert "holdfast doctor guilty --deep" in await engine.get("guilty").why()
        assert engine.fatal is None


async def test_an_engine_whose_store_has_failed_lets_another_one_take_its_runs_over_at_once(db: Path) -> None:
    began, go = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    @hf.node
    async def work(ctx: hf.Context) -> int:
        seen.append(ctx.attempt)
        began.set()
        await go.wait()
        return ctx.attempt

    @hf.workflow
    def failing_store_works():
        return work()

    async def give_up() -> None:
        async with hf.open(url(db), lease_seconds=3600, grace_seconds=0) as engine:
            await engine.start(failing_store_works, run_id="r")
            await began.wait()
            fail(engine)
            go.set()
            await asyncio.Event().wait()

    failing = asyncio.ensure_future(give_up())
    await began.wait()
    async with hf.open(url(db)) as heir:
        with pytest.raises(StoreError, match="the disk is on fire"):
            await failing
        assert await heir.get("r").result(timeout=30) == 2
    assert seen == [1, 2]


async def test_an_engine_that_has_given_up_begins_and_claims_nothing(db: Path) -> None:
    async def program() -> None:
        async with hf.open(url(db), lease_seconds=3600) as engine:
            fail(engine)
            with pytest.raises(StoreError):
                await engine.start(failing_store_steps, run_id="r")
            assert engine.lease.has_run_out
            assert engine.custody.room() == 0
            with pytest.raises(StoreError):
                await engine.start(failing_store_steps)
            await asyncio.Event().wait()

    with pytest.raises(StoreError, match="the disk is on fire"):
        await program()
    assert list(db.parent.glob("*-engines/*")) == []


async def _waits(_: Engine) -> None:
    await asyncio.Event().wait()


async def _swallows(engine: Engine) -> None:
    while engine.fatal is None:
        try:
            await engine.start(failing_store_steps)
        except StoreError:
            break
    await asyncio.Event().wait()


async def _reports(engine: Engine) -> None:
    await (await engine.start(failing_store_steps)).result()


@pytest.mark.parametrize("body", [_waits, _swallows, _reports])
async def test_the_block_is_left_with_the_error_whatever_the_program_does_in_it(
    db: Path, body: Callable[[Engine], Any]
) -> None:
    async def program() -> None:
        async with hf.open(url(db)) as engine:
            error = fail(engine)
            if body is _waits:
                asyncio.ensure_future(engine.start(failing_store_steps)).add_done_callback(lambda t: t.exception())
            try:
                await body(engine)
            finally:
                assert engine.fatal is error

    task = asyncio.ensure_future(program())
    with pytest.raises(StoreError, match="the disk is on fire"):
        await task
    assert task.cancelling() == 0


async def test_a_block_that_its_caller_cancels_is_cancelled(db: Path) -> None:
    inside = asyncio.Event()

    async def program() -> None:
        async with hf.open(url(db)):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(program())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_run_that_cannot_even_be_put_on_hold_stops_the_engine(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be owned by a live engine that does not drive it."""

    def damaged(group: Sequence[Commit]) -> list[CommitResult]:
        return [CommitResult("damaged", "a bad sector") for _ in group]

    def no_hold(*_: object) -> bool:
        raise StoreError("no hold")

    async def program() -> None:
        async with hf.open(url(db)) as engine:
            monkeypatch.setattr(engine.store, "set_hold", no_hold)
            monkeypatch.setattr(engine.store, "commit", damaged)
            with pytest.raises(StoreDamaged, match="a bad sector"):
                await engine.start(failing_store_steps)
            await asyncio.Event().wait()

    with pytest.raises(StoreError, match="no hold"):
        await program()
