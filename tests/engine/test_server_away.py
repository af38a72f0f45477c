"""A PostgreSQL server that goes away: engines go on without it, come back to it, and stop without it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import connected
from tests.engine.kit import PATIENCE_SECONDS, types, until
from tests.engine.shared_kit import ROOT, Shop
from tests.servers import PostgresServer, Proxy, required_server

SHORT = {"HOLDFAST_LEASE_SECONDS": "1"}


@pytest.fixture
def mortal() -> Iterator[PostgresServer]:
    """A server of one's own, to be killed."""
    server = required_server()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def shop(mortal: PostgresServer, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(mortal.url(), tmp_path)
    yield shop
    shop.close()


async def test_f40_an_engine_goes_on_when_a_server_that_was_killed_is_back(mortal: PostgresServer, shop: Shop) -> None:
    async with hf.open(shop.url, lease_seconds=1) as engine:
        runs = [await engine.start(shop.patient(), name=f"r{n}", run_id=f"r{n}") for n in range(10)]
        await until(lambda: all(shop.attempts(f"r{n}") for n in range(10)))
        for _ in range(3):
            mortal.kill()
            mortal.start()
        for n in range(10):
            shop.go(f"r{n}")
        assert [await run.result(timeout=60) for run in runs] == [f"r{n} went" for n in range(10)]
    shop.check()


async def test_bodies_go_on_and_end_while_the_server_is_away(mortal: PostgresServer, shop: Shop) -> None:
    is_away, has_ended = threading.Event(), threading.Event()
    beats: list[int] = []

    @hf.workflow(name="beats_without_a_server")
    async def beating(ctx: hf.Context) -> int:
        while len(beats) < 200:
            beats.append(1)
            while len(beats) == 20 and not is_away.is_set():  # noqa: ASYNC110 - a thread of the test kills the server
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
        has_ended.set()
        return len(beats)

    def take_server_away() -> bool:
        """And bring it back when the body has ended; whether it has."""
        mortal.kill()
        is_away.set()
        went_on = has_ended.wait(PATIENCE_SECONDS)
        mortal.start()
        return went_on

    async with hf.open(shop.url, lease_seconds=1) as engine:
        run = await engine.start(beating, run_id="r")
        await until(lambda: len(beats) == 20)
        assert await asyncio.to_thread(take_server_away), "the body stood still"
        assert await run.result(timeout=60) == 200
    shop.check()


async def test_bodies_go_on_while_the_server_lets_every_read_wait(mortal: PostgresServer, shop: Shop) -> None:
    beats: list[int] = []

    @hf.workflow(name="beats_beside_reads")
    async def beating(ctx: hf.Context) -> int:
        while len(beats) < 200:
            beats.append(1)
            while len(beats) == 20:  # noqa: ASYNC110 - the test lets it go on
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
        return len(beats)

    async with hf.open(shop.url) as engine:
        run = await engine.start(beating, run_id="r")
        await until(lambda: len(beats) == 20)
        with locked(shop.url) as reads_under_way:
            status = asyncio.ensure_future(run.status())
            await until(lambda: reads_under_way() > 1, "the patrol reads, and so do we")
            beats.append(1)
            await until(lambda: len(beats) == 200)
            assert not status.done()
        assert await status == "running"
        assert await run.result(timeout=60) == 200
    shop.check()


@contextmanager
def locked(url: str) -> Iterator[Callable[[], int]]:
    """Nobody gets an answer from a table; how many wait for one."""
    where = address(url)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with closing(connected(where)) as other:
        tables = other.wait(other.raw.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", where.schema))
        transaction = other.raw.transaction()
        other.wait(transaction.start())
        names = ", ".join(f"{where.schema}.{name}" for (name,) in tables)
        other.wait(other.raw.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
        yield lambda: other.wait(other.raw.fetchval(waiting))
        other.wait(transaction.rollback())


@pytest.mark.parametrize("busy", [False, True], ids=["resting", "with a commit under way"])
async def test_an_engine_stops_while_the_server_is_away_and_another_one_goes_on(
    mortal: PostgresServer, shop: Shop, busy: bool
) -> None:
    async with hf.open(shop.url, lease_seconds=1, grace_seconds=0) as engine:
        await engine.start(shop.patient(), name="r", run_id="r")
        await until(lambda: shop.attempts("r"))
        mortal.kill()
        if busy:
            shop.go("r")
            await until(lambda: not engine.committer.idle, "the body has ended")
        closing_since = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - closing_since < 30, "it waited for the server"
    mortal.start()
    shop.go("r")
    async with hf.open(shop.url, lease_seconds=1) as heir:
        assert await heir.get("r").result(timeout=60) == "r went"
    assert shop.attempts("r")[0] == 1
    shop.check()


async def test_a_process_ends_when_it_is_told_to_while_the_server_cannot_be_reached(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    proxy = Proxy(postgres)
    shop = Shop(proxy.url(), tmp_path)
    try:
        other = await shop.other("r", **SHORT, HOLDFAST_POLL_SECONDS="0.001")  # it is always reading something
        await until(lambda: shop.attempts("r"))
        with proxy.unplugged():
            await other.ends()  # its orderly end: nothing is raised, nothing is waited for
        shop.patient()
        shop.go("r")
        async with hf.open(shop.url, lease_seconds=1) as heir:
            assert await heir.get("r").result(timeout=60) == "r went"
        shop.check()
    finally:
        shop.close()
        proxy.close()


IMPATIENT = """
import asyncio, contextlib, sys
import holdfast as hf

@hf.workflow
async def left_at_work(ctx: hf.Context) -> None:
    try:
        await asyncio.Event().wait()
    finally:  # the engine is being closed, and has just let go of this body
        main_task.cancel()

async def main(url: str) -> None:
    global main_task
    main_task = asyncio.current_task()
    async with hf.open(url, grace_seconds=0) as engine:
        await engine.start(left_at_work)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        reading = asyncio.create_task(engine.list())
        await asyncio.to_thread(sys.stdin.readline)
        assert not reading.done()

with contextlib.suppress(asyncio.CancelledError):
    asyncio.run(main(sys.argv[1]))
    sys.exit("nobody was impatient")
"""
"""A process that is interrupted while it closes its engine: its store stays open, and whoever reads goes on waiting."""


async def test_a_process_that_is_interrupted_while_it_closes_its_engine_ends_although_a_read_waits_for_the_server(
    postgres: PostgresServer,
) -> None:
    url = postgres.url()
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOLDFAST_POLL_SECONDS": "60"},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        with locked(url) as reads_under_way:
            process.stdin.write("read\n")
            process.stdin.flush()
            await until(reads_under_way, "it waits for the server")
            await asyncio.to_thread(process.communicate, "close\n", PATIENCE_SECONDS)
            assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


async def test_a_lease_that_ran_out_while_the_server_was_away_is_not_taken_from_those_who_were_cut_off_with_it(
    mortal: PostgresServer, shop: Shop
) -> None:
    """Nobody could renew; whoever is back first may bury the others, and nobody writes twice."""
    others = [await shop.other(f"r{n}", **SHORT) for n in range(3)]
    await until(lambda: all(shop.attempts(f"r{n}") for n in range(3)))
    mortal.kill()
    await asyncio.sleep(2)  # longer than the leases
    mortal.start()
    for n in range(3):
        shop.go(f"r{n}")
    async with hf.open(shop.url, recover=False) as engine:
        for n in range(3):
            assert await engine.get(f"r{n}").result(timeout=60) == f"r{n} went"
            assert types(await engine.get(f"r{n}").events()).count("NodeCompleted") == 1
    for other in others:
        await other.ends()
    shop.check()
