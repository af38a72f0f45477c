"""`RunTakenOver.previous`: the engine that drove a run before, and nobody who only held it for a moment.

That it is the one that was killed, or that left in order, is shown with real processes in tests/cli/test_workers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.store.urls import store_at
from tests.engine.kit import types, until, until_async, url
from tests.servers import PostgresServer

GATE: dict[str, asyncio.Event] = {}
BEGAN: list[str] = []


@pytest.fixture(autouse=True)
def _closed_gate() -> None:
    GATE["open"] = asyncio.Event()
    BEGAN.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of its own, of either kind."""
    if request.param == "sqlite":
        yield url(tmp_path / "runs.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    yield server.url(schema=f"before_{abs(hash(request.node.name)):x}")


@hf.node
async def before_all() -> int:
    return 0


@hf.node
async def before_gate(ctx: hf.Context, nothing: int) -> int:
    BEGAN.append(ctx.run_id)
    await GATE["open"].wait()
    return ctx.attempt


@hf.workflow
def before_gated():
    return before_gate(before_all())


async def _dies_in(address: str, run_id: str) -> str:
    """Leave a run as an engine leaves it that dies in the middle of its body; the engine's name."""
    async with hf.open(address, recover=False, grace_seconds=0) as engine:
        await engine.start(before_gated, run_id=run_id)
        await until(lambda: BEGAN)
        name = engine.lease.engine
        store = store_at(address)
        store.open()
        assert store.remove_engine(name) == 1
        store.close()
    return name


async def _takeovers(engine: Engine, run_id: str) -> list[tuple[str, str | None, bool]]:
    """(engine, previous, graceful) of each."""
    events = [event.data for event in await engine.get(run_id).events() if event.type == "RunTakenOver"]
    return [(data["engine"], data.get("previous"), data.get("graceful", False)) for data in events]


async def test_each_takeover_names_the_engine_before(address: str) -> None:
    first = await _dies_in(address, "r")
    async with hf.open(address, grace_seconds=0) as engine:
        second = engine.lease.engine
        await until(lambda: BEGAN == ["r", "r"])
    GATE["open"].set()
    async with hf.open(address) as engine:
        assert await engine.get("r").result(timeout=30) == 2
        third = engine.lease.engine
        assert await _takeovers(engine, "r") == [(second, first, False), (third, second, True)]


async def test_a_run_that_was_only_written_down_is_not_taken_over_from_anybody(address: str) -> None:
    GATE["open"].set()
    async with hf.open(address, drive=False) as client:
        run = await client.start(before_gated, run_id="r")
        async with hf.open(address):
            assert await run.result(timeout=30) == 1
        assert "RunTakenOver" not in types(await run.events())
        row = client.store.run("r")
        assert row is not None
        assert row.last_engine is None


async def test_a_branch_of_a_live_run_is_taken_over_from_the_engine_that_opened_it(address: str) -> None:
    async with hf.open(address) as engine:
        run = await engine.start(before_gated, run_id="r")
        await until(lambda: BEGAN)
        await run.fork("before_gate")
        GATE["open"].set()
        assert await run.result(timeout=30) == 1
        assert await _takeovers(engine, "r") == [(engine.lease.engine, engine.lease.engine, True)]


async def test_a_run_of_its_own_that_was_forked_has_no_engine_before(address: str) -> None:
    GATE["open"].set()
    async with hf.open(address) as engine:
        run = await engine.start(before_gated, run_id="r")
        await run.result(timeout=30)
        assert await (await run.fork("before_gate", as_run="other")).result(timeout=30) == 1
        assert [previous for _, previous, _ in await _takeovers(engine, "other")] == [None]


# --- who only held it -----------------------------------------------------------------------------------------------


def _change(db: Path, sql: str) -> None:
    connection = apsw.Connection(str(db))
    connection.execute(sql)
    connection.close()


async def test_an_engine_that_only_put_a_run_on_hold_is_not_the_engine_before(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    died = await _dies_in(url(db), "r")
    _change(db, "CREATE TABLE kept AS SELECT fold FROM run_state; UPDATE run_state SET fold = CAST('[' AS BLOB)")

    async def is_held() -> bool:
        row: Any = engine.store.run("r")
        return row.hold is not None and row.engine is None

    async with hf.open(url(db)) as engine:
        await until_async(is_held)
    _change(db, "UPDATE run_state SET fold = (SELECT fold FROM kept); DROP TABLE kept")
    GATE["open"].set()
    async with hf.open(url(db)) as engine:
        await engine.resume("r")
        assert await engine.get("r").result(timeout=30) == 2
        assert await _takeovers(engine, "r") == [(engine.lease.engine, died, False)]
