"""An engine that has lost too many threads starts no sync bodies, fails no run for it, and goes on when threads end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.inspect.why import why
from holdfast.model.limits import GIVEN_UP_THREADS_MAX
from tests.engine.kit import check_file, owner, types, until, url

TOO_MANY = GIVEN_UP_THREADS_MAX + 1


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Hanging:
    release = threading.Event()


@pytest.fixture(autouse=True)
def hanging() -> Iterator[type[Hanging]]:
    Hanging.release = threading.Event()
    yield Hanging
    Hanging.release.set()


@hf.node(timeout=0.02)
def lt_deaf(n: int) -> int:
    Hanging.release.wait(60)
    return n


@hf.node
def lt_sync() -> int:
    return 1


@hf.node
async def lt_async() -> int:
    return 2


@hf.workflow
def lt_loses_threads() -> list[Any]:
    return hf.map(lt_deaf, list(range(TOO_MANY)), errors="collect")


@hf.workflow
async def lt_loses_threads_of_steps(ctx: hf.Context) -> int:
    for n in range(TOO_MANY):
        with pytest.raises(TimeoutError, match="its thread was given up"):
            await ctx.step(lt_deaf, n)
    return TOO_MANY


@hf.workflow
def lt_wants_a_thread() -> int:
    return lt_sync()


@hf.workflow
def lt_wants_none() -> int:
    return lt_async()


@hf.workflow
async def lt_sync_step(ctx: hf.Context) -> int:
    return await ctx.step(lt_sync)


def opened(db: Path, **options: Any) -> Any:
    return hf.open(url(db), threads=20, grace_seconds=0.01, **options)


def told(engine: Engine, run_id: str) -> str:
    row = engine.store.run(run_id)
    assert row is not None
    return why(engine.store, row, engine.clock.now()).why


@pytest.mark.parametrize("loses", [lt_loses_threads, lt_loses_threads_of_steps], ids=["nodes", "steps"])
@pytest.mark.parametrize("wants", [lt_wants_a_thread, lt_sync_step], ids=["node", "step"])
async def test_a_run_that_needs_a_thread_waits_and_goes_on_when_threads_end(
    db: Path, loses: Any, wants: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(db) as engine:
        await (await engine.start(loses)).result(timeout=30)
        assert f"starts no more sync bodies: {TOO_MANY} threads are lost" in caplog.text
        run = await engine.start(wants)
        assert await (await engine.start(lt_wants_none)).result(timeout=30) == 2
        await until(lambda: f"has lost {TOO_MANY} threads to bodies that did not stop" in told(engine, run.run_id))
        assert "NodeFailed" not in types(await run.events())
        Hanging.release.set()
        assert await run.result(timeout=30) == 1
        await until(lambda: "starts sync bodies again" in caplog.text)
    check_file(db)


async def test_another_engine_takes_the_runs_that_need_a_thread(db: Path) -> None:
    async with opened(db) as engine:
        await (await engine.start(lt_loses_threads)).result(timeout=30)
        mine = await engine.start(lt_wants_a_thread)
        async with hf.open(url(db)) as other:
            assert await other.get(mine.run_id).result(timeout=30) == 1
        (offer,) = [e for e in engine.store.engines() if e.engine == engine.lease.engine]
        assert b'"lost_threads":' in offer.can_run
    check_file(db)


async def test_a_run_that_waits_for_a_thread_when_the_threads_are_lost_is_let_go(db: Path) -> None:
    """It was scheduled here while threads were busy, not lost."""
    async with hf.open(url(db), threads=TOO_MANY, grace_seconds=0.01) as engine:
        await engine.start(lt_loses_threads)
        waiting = await engine.start(lt_wants_a_thread)
        await until(lambda: engine.lost_threads.too_many)
        await until(lambda: owner(engine, waiting.run_id) is None)
        Hanging.release.set()
        assert await waiting.result(timeout=30) == 1
    check_file(db)


async def test_an_engine_with_lost_threads_closes_although_a_step_waits_for_a_thread(db: Path) -> None:
    async with opened(db) as engine:
        await (await engine.start(lt_loses_threads)).result(timeout=30)
        run = await engine.start(lt_sync_step)
        await asyncio.sleep(0)
    Hanging.release.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get(run.run_id).result(timeout=30) == 1
    check_file(db)
