"""Engines whose database is taken away under them, or falls back to an earlier state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import apsw
import pytest

import holdfast as hf
from holdfast.model.errors import OutcomeUnknown, StoreGone
from tests.engine.kit import until, until_async, url
from tests.servers import PostgresServer
from tests.store.postgres_kit import sql


@hf.node
async def ground_listen(ctx: hf.Context) -> str:
    return str(await ctx.receive("more"))


@hf.workflow
def ground_waiting():
    return ground_listen()


async def test_an_idle_engine_stops_within_a_heartbeat_when_its_file_is_moved(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    async def program() -> None:
        async with hf.open(url(path), lease_seconds=0.3):
            path.rename(tmp_path / "moved.db")
            async with asyncio.timeout(30):
                await asyncio.Event().wait()

    with pytest.raises(StoreGone, match="deleted or moved"):
        await program()


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_caller_hears_that_the_outcome_is_unknown_when_the_file_is_deleted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "runs.db"
    heard: list[type[BaseException]] = []

    async def hear(work: Awaitable[object]) -> None:
        try:
            await work
        except OutcomeUnknown as error:
            heard.append(type(error))

    async def program() -> None:
        async with hf.open(url(path)) as engine:
            run = await engine.start(ground_waiting, run_id="r")
            result = asyncio.ensure_future(hear(run.result()))
            await until(lambda: engine.actors)
            Path(f"{path}{suffix}").unlink()
            try:
                await hear(run.signal("more", "x"))
            finally:
                await result

    with pytest.raises(StoreGone):
        await program()
    assert len(heard) == 2


# --- a database that lost its latest commits --------------------------------------------------------------------------


@hf.node
async def ground_one() -> int:
    return 1


@hf.workflow
def ground_kid():
    return ground_one()


@hf.workflow
async def ground_parent(ctx: hf.Context) -> int:
    await ctx.receive("go")
    return int(await ctx.child(ground_kid))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_run_numbers_that_were_given_out_again_are_replaced_by_new_ones(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "runs.db"
    server: PostgresServer | None = request.getfixturevalue("postgres") if kind == "postgres" else None
    where = url(path) if server is None else server.url()

    def fall_back() -> None:
        if server is None:
            apsw.Connection(str(path)).execute("UPDATE store_meta SET next_run_no = 2")
        else:
            sql(where, "UPDATE holdfast.store_meta SET next_run_no = 2")

    async with hf.open(where, recover=False) as engine:
        parents = [await engine.start(ground_parent) for _ in range(3)]
        await until_async(lambda: _all_wait(parents))
        await asyncio.to_thread(fall_back)
        async with hf.open(where, recover=False) as other:
            for _ in range(20):
                await (await other.start(ground_kid)).result()
        begun = await asyncio.gather(*(engine.start(ground_kid) for _ in range(5)))
        assert [await run.result() for run in begun] == [1] * 5
        await asyncio.to_thread(fall_back)
        async with hf.open(where, recover=False) as other:
            for _ in range(20):
                await (await other.start(ground_kid)).result()
        for parent in parents:
            await parent.signal("go", 1)
        assert [await parent.result() for parent in parents] == [1] * 3
        forked = await begun[0].fork("ground_one", as_run="forked")
        assert await forked.result() == 1


async def _all_wait(runs: list[hf.Run[int]]) -> bool:
    return all([await run.status() == "suspended" for run in runs])
