"""A server that comes back without its last moments: a replica that was behind took over, or a backup was restored.

F45, F82. What is there is whole, and goes on; who drives a run of which something is missing says so.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from tests.engine.kit import check_journal, types, until
from tests.engine.shared_kit import beside
from tests.servers import PostgresServer, required_server


@pytest.fixture
def mortal() -> Iterator[PostgresServer]:
    server = required_server()
    try:
        yield server.start()
    finally:
        server.close()


def keep(server: PostgresServer, copy: Path) -> None:
    server.stop()
    shutil.copytree(server.data, copy, symlinks=True)
    server.start()


def lose_what_came_after(server: PostgresServer, copy: Path) -> None:
    server.kill()
    for child in server.data.iterdir():
        shutil.rmtree(child) if child.is_dir() else child.unlink()
    for child in copy.iterdir():
        (shutil.copytree if child.is_dir() else shutil.copy2)(child, server.data / child.name)
    if server._user is not None:
        for path in server.data.rglob("*"):
            shutil.chown(path, server._user, server._user)
    server.start()


async def test_f45_an_engine_that_lives_goes_on_from_where_the_server_stands(
    mortal: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began: dict[str, list[tuple[int, str]]] = {"first": [], "second": []}
    gates = {name: asyncio.Event() for name in began}

    @hf.node(name="restored_part")
    async def part(ctx: hf.Context, name: str, before: str = "") -> str:
        began[name].append((ctx.attempt, ctx.idempotency_key))
        await gates[name].wait()
        return name

    @hf.workflow(name="restored")
    def restored():
        return part.named("second")("second", part.named("first")("first"))

    url = mortal.url()
    async with hf.open(url, lease_seconds=1) as engine:
        run = await engine.start(restored, run_id="r")
        await until(lambda: began["first"])
        await asyncio.to_thread(keep, mortal, tmp_path / "copy")
        gates["first"].set()
        await until(lambda: began["second"])
        await asyncio.to_thread(lose_what_came_after, mortal, tmp_path / "copy")
        gates["second"].set()
        assert await run.result(timeout=60) == "second"
        assert types(await run.events()).count("RunTakenOver") == 1
    assert "run r stands at event 3 in the database, which had acknowledged event 6" in caplog.text
    with beside(url) as store:
        check_journal(store, store.run("r"))
    for name, lives in began.items():
        assert len({key for _, key in lives}) == 1, f"{name} ran again under another key"
    assert [attempt for attempt, _ in began["first"]] == [1, 2]


async def test_f45_who_waits_for_a_run_that_is_not_there_any_more_is_told(
    mortal: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    began = asyncio.Event()

    @hf.workflow(name="restored_away")
    async def lost(ctx: hf.Context) -> str:
        began.set()
        await gate.wait()
        return "nobody hears of it"

    async with hf.open(mortal.url(), lease_seconds=1) as engine:
        await asyncio.to_thread(keep, mortal, tmp_path / "copy")
        run = await engine.start(lost, run_id="r")
        await began.wait()
        await asyncio.to_thread(lose_what_came_after, mortal, tmp_path / "copy")
        waiting = asyncio.create_task(run.result(timeout=60))
        gate.set()
        with pytest.raises(hf.HoldfastError, match="there is no run 'r'"):
            await waiting
        await until(lambda: "run r is no longer in the database" in caplog.text)  # it is looked for beside all this
        assert (await (await engine.start(lost, run_id="r")).result(timeout=60)) == "nobody hears of it"


async def test_f45_an_engine_does_not_write_to_a_new_run_that_has_the_number_of_its_own(
    mortal: PostgresServer, tmp_path: Path
) -> None:
    began: list[str] = []
    gates = {name: asyncio.Event() for name in ("old", "new")}

    @hf.workflow(name="restored_number")
    async def numbered(ctx: hf.Context, name: str) -> str:
        began.append(name)
        await gates[name].wait()
        return name

    url = mortal.url()
    async with hf.open(url, recover=False, lease_seconds=60) as first:
        await asyncio.to_thread(keep, mortal, tmp_path / "copy")
        old = await first.start(numbered, run_id="old", name="old")
        await until(lambda: began == ["old"])
        (actor,) = first.actors.values()
        await asyncio.to_thread(lose_what_came_after, mortal, tmp_path / "copy")
        async with hf.open(url, recover=False, lease_seconds=60) as second:
            new = await second.start(numbered, run_id="new", name="new")
            await until(lambda: began == ["old", "new"])
            row = second.store.run("new")
            assert row is not None
            assert (row.run_no, row.token, row.last_seq) == (actor.run_no, actor.token, actor.expected_seq)
            gates["old"].set()
            with pytest.raises(hf.HoldfastError):
                await old.result(timeout=60)
            assert second.store.run("new") == row
            gates["new"].set()
            assert await new.result(timeout=60) == "new"
    with beside(url) as store:
        check_journal(store, store.run("new"))
