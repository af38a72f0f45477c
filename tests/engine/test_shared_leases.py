"""Leases of engines that share a PostgreSQL: who holds a run, who loses it, and what the loser may still do."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path

import asyncpg
import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.ownership import lease
from holdfast.model.errors import StoreError, UsageError
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_schema import in_schema
from holdfast.store.postgres.postgres_store import PostgresStore
from tests.engine.kit import attempts, owner, types, until
from tests.engine.shared_kit import Shop, beside
from tests.servers import PostgresServer, Proxy, Side
from tests.store.postgres_kit import sql

SHORT = {"HOLDFAST_LEASE_SECONDS": "1"}
"""Of somebody who is about to lose it."""
LONGER = {"HOLDFAST_LEASE_SECONDS": "4"}
"""Of somebody who must not lose it before his time, though the machine may stand still for a while."""


@pytest.fixture
async def shop(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(postgres.url(), tmp_path)
    yield shop
    shop.close()


def _expiry(shop: Shop, engine: str) -> int | None:
    return next((row.expires_at for row in shop.engines() if row.engine == engine), None)


async def _is_renewed(shop: Shop, engine: Engine, times: int = 2) -> None:
    """Wait until the engine has made its lease longer so often."""
    for _ in range(times):
        before = _expiry(shop, engine.lease.engine)
        assert before is not None
        await until(lambda before=before: (_expiry(shop, engine.lease.engine) or 0) > before, "the lease is renewed")


# --- the dead and the undead ---------------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_the_runs_of_a_process_that_was_killed_are_taken_over_when_its_lease_has_run_out(shop: Shop) -> None:
    survivor = await shop.other()
    victim = await shop.other("r", "s", **LONGER)
    await until(lambda: shop.attempts("r") and shop.attempts("s"))
    ((dead, expires_at),) = [(row.engine, row.expires_at) for row in shop.engines() if row.pid == victim.process.pid]
    victim.signal(signal.SIGKILL)
    shop.go("r")
    shop.go("s")
    async with hf.open(shop.url, recover=False) as engine:
        for name in ("r", "s"):
            run = engine.get(name)
            assert await run.result(timeout=60) == f"{name} went"
            (taken,) = [event for event in await run.events() if event.type == "RunTakenOver"]
            assert taken.at.timestamp() * 1_000_000 > expires_at, "it was taken over before its time"
            assert taken.data["previous"] == dead
    await survivor.ends()
    assert (shop.attempts("r"), shop.attempts("s")) == ([1, 2], [1, 2])
    shop.check()


async def test_k13_f69_a_process_that_stood_still_past_its_lease_is_refused_and_the_new_holder_finishes(
    shop: Shop,
) -> None:
    zombie = await shop.other("r", **SHORT)
    await until(lambda: shop.attempts("r"))
    zombie.signal(signal.SIGSTOP)
    heir = await shop.other()
    await until(lambda: shop.attempts("r") == [1, 2], "somebody else has begun again")
    before = shop.look(lambda store: store.events(store.run("r").run_no))
    shop.go("r")  # the zombie's body returns as soon as it goes on, and its engine wants to commit that
    zombie.signal(signal.SIGCONT)
    async with hf.open(shop.url, recover=False) as engine:
        assert await engine.get("r").result(timeout=60) == "r went"
        events = await engine.get("r").events()
    await until(lambda: zombie.process.pid in {row.pid for row in shop.engines()}, "it lives under another name")
    names, log = await zombie.ends()
    await heir.ends()
    lost = re.findall(r"^lease_lost run=(\S+) token=(\d+): .+$", log, re.MULTILINE)
    assert lost == [("r", "1")], log
    assert names[0] != names[1]
    assert types(events).count("RunTakenOver") == 1
    assert types(events).count("NodeCompleted") == 1
    tokens = [row.token for row in shop.look(lambda store: store.events(store.run("r").run_no))]
    assert tokens == sorted(tokens), "it wrote with a token that was over"
    assert len(before) < len(events)
    assert shop.attempts("r") == [1, 2]
    shop.check()


async def test_an_engine_that_was_declared_dead_stops_bodies_that_say_nothing_and_is_another_engine(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()
    lives: list[int] = []

    @hf.node(name="silent_on_postgres")
    async def silent(ctx: hf.Context) -> str:
        lives.append(ctx.attempt)
        if len(lives) > 1:
            return "second"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    @hf.workflow(name="quiet_on_postgres")
    def quiet():
        return silent()

    async with hf.open(shop.url, lease_seconds=0.6, grace_seconds=0.05) as engine:
        run = await engine.start(quiet, run_id="r")
        await began.wait()
        old = engine.lease.engine
        with caplog.at_level(logging.WARNING, logger="holdfast.engine"):
            assert shop.look(lambda store: store.remove_engine(old)) == 1
            await asyncio.wait_for(stopped.wait(), 30)
        assert await run.result(timeout=30) == "second"
        assert attempts(await run.events(), "silent_on_postgres") == [1, 2]
        assert [row.engine for row in shop.engines()] == [engine.lease.engine]
        assert engine.lease.engine != old
    warnings = [record.getMessage() for record in caplog.records if "lease_lost" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("lease_lost run=r token=1: ")
    shop.check()


# --- renewing ------------------------------------------------------------------------------------------------------


async def test_f47_the_lease_is_kept_while_every_connection_of_the_pool_is_in_use(shop: Shop) -> None:
    async with hf.open(f"{shop.url}&connections=2", lease_seconds=0.6, grace_seconds=0) as engine:
        run = await engine.start(shop.patient(), name="r", run_id="r")
        await until(lambda: shop.attempts("r"))
        assert isinstance(engine.store, PostgresStore)
        await asyncio.to_thread(_exhaust_pool, engine.store, shop, engine.lease.engine)
        shop.go("r")
        assert await run.result(timeout=30) == "r went"
        assert not engine.lease.lost
    assert shop.attempts("r") == [1]
    shop.check()


def _exhaust_pool(store: PostgresStore, shop: Shop, engine: str) -> None:
    """Use every connection of the pool for the time of some leases. The event loop stands still meanwhile: it reads."""
    connections = store._check()
    seen: set[int | None] = set()
    give_up_at = time.monotonic() + 30
    with ExitStack() as lent:
        for _ in range(store._address.connections):
            lent.enter_context(connections.lend())
        while len(seen) < 8:
            assert time.monotonic() < give_up_at, "the lease is not renewed"
            seen.add(_expiry(shop, engine))
            assert None not in seen, "somebody has declared the engine dead"
            time.sleep(0.01)


async def test_f47_a_hundred_handlers_that_call_back_into_the_engine_do_not_block_each_other(shop: Shop) -> None:
    @hf.node(name="calls_back")
    def calls_back(ctx: hf.Context, n: int) -> int:
        first = ctx.step(lambda: n)
        return ctx.step(lambda: first + 1)

    @hf.workflow(name="calling_back")
    def calling_back(n: int):
        return calls_back(n)

    async with hf.open(f"{shop.url}&connections=2", lease_seconds=1, threads=100) as engine:
        name = engine.lease.engine
        runs = [await engine.start(calling_back, n=n) for n in range(100)]
        assert [await run.result(timeout=60) for run in runs] == list(range(1, 101))
        assert engine.lease.engine == name
        assert not engine.lease.lost
    shop.check()


async def test_the_lease_is_kept_while_the_writer_waits_for_somebodys_lock(shop: Shop) -> None:
    async with hf.open(shop.url, lease_seconds=0.6, grace_seconds=0) as engine:
        run = await engine.start(shop.patient(), name="r", run_id="r")
        await until(lambda: shop.attempts("r"))
        stranger = await asyncpg.connect(address(shop.url).dsn)
        try:
            async with stranger.transaction():
                await stranger.fetch(in_schema("SELECT 1 FROM holdfast.run_state FOR UPDATE", address(shop.url).schema))
                shop.go("r")
                await until(lambda: not engine.committer.idle, "the body has ended")
                await _is_renewed(shop, engine, 8)
                assert not engine.committer.idle
        finally:
            await stranger.close()
        assert await run.result(timeout=30) == "r went"
        assert not engine.lease.lost
    assert shop.attempts("r") == [1]
    shop.check()


async def test_a_renewal_that_failed_is_tried_again(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Proxy(postgres)) as proxy:
        shop = Shop(proxy.url(), tmp_path)
        async with hf.open(shop.url, lease_seconds=0.6) as engine:
            with caplog.at_level(logging.WARNING, logger="holdfast.engine"), proxy.unplugged():
                await until(lambda: "could not renew the lease" in caplog.text)
            await _is_renewed(shop, engine)
            assert caplog.text.count("could not renew the lease") == 1, "once for each time that it cannot"


@pytest.mark.parametrize("side", ["there", "back"])
async def test_f72_a_renewal_of_which_nobody_knows_whether_it_happened_is_made_again(
    postgres: PostgresServer, tmp_path: Path, side: Side
) -> None:
    with closing(Proxy(postgres)) as proxy:
        shop = Shop(proxy.url(), tmp_path)
        async with hf.open(shop.url, lease_seconds=1.5, grace_seconds=0) as engine:
            run = await engine.start(shop.patient(), name="r", run_id="r")
            await until(lambda: shop.attempts("r"))
            name = engine.lease.engine
            for _ in range(3):
                cuts = proxy.cuts
                proxy.cut(side, name.encode())  # only a renewal says our name now
                await until(lambda cuts=cuts: proxy.cuts > cuts, "the wire is cut")
                await _is_renewed(shop, engine)
            shop.go("r")
            assert await run.result(timeout=30) == "r went"
            assert engine.lease.engine == name
        assert shop.attempts("r") == [1]
        shop.check()


async def test_f71_an_event_loop_that_a_body_blocks_past_the_lease_does_not_lose_it(shop: Shop) -> None:
    @hf.workflow(name="blocks_the_loop")
    async def blocks(ctx: hf.Context) -> int:
        time.sleep(6)  # this is the fault
        return ctx.attempt

    other = await shop.other()  # would take over whatever it may
    async with hf.open(shop.url, lease_seconds=4) as engine:
        run = await engine.start(blocks, run_id="r")
        assert await run.result(timeout=30) == 1
        assert "RunTakenOver" not in types(await run.events())
    await other.ends()
    shop.check()


async def test_a_loop_that_stands_still_for_too_long_keeps_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "LOOP_STALL_SECONDS", 0.5)
    async with hf.open(shop.url, lease_seconds=0.3) as engine:
        with beside(shop.url) as store:
            gone = threading.Event()

            def watch() -> None:
                while not gone.is_set():
                    if store.engines()[0].expires_at < store.now():
                        gone.set()
                    time.sleep(0.01)

            watcher = threading.Thread(target=watch)
            watcher.start()
            was_lost = gone.wait(30)  # on the loop, which stands still meanwhile
            gone.set()
            watcher.join()
            assert was_lost, "the lease is kept"
        await _is_renewed(shop, engine)
    assert "the event loop has not moved for 0.5 s" in caplog.text


async def test_a_lease_that_has_run_out_while_nobody_wanted_its_runs_is_simply_renewed(shop: Shop) -> None:
    async with hf.open(shop.url, lease_seconds=0.6, grace_seconds=0) as engine:
        run = await engine.start(shop.patient(), name="r", run_id="r")
        await until(lambda: shop.attempts("r"))
        assert shop.look(lambda store: store.renew_engine(engine.lease.engine, 0))
        await _is_renewed(shop, engine)
        shop.go("r")
        assert await run.result(timeout=30) == "r went"
    assert shop.attempts("r") == [1]


async def test_an_engine_whose_lease_has_run_out_begins_nothing_before_it_knows_whether_it_lives(shop: Shop) -> None:
    """Its places may be somebody else's by now."""
    gates: list[asyncio.Event] = []

    @hf.workflow(name="one_of_all_engines", concurrency=1)
    async def alone(ctx: hf.Context, name: str) -> str:
        gates.append(gate := asyncio.Event())
        try:
            await gate.wait()
        finally:
            gates.remove(gate)
        return name

    async with hf.open(shop.url, lease_seconds=1, grace_seconds=0) as late:
        await late.start(alone, name="a", run_id="a")
        await until(lambda: gates)
        late.lease.stop_renewing()
        async with hf.open(shop.url, grace_seconds=0) as heir:
            await until(lambda: len(gates) == 2, "the heir has begun")
            gates[0].set()
            await until(lambda: len(gates) == 1, "the other one ended, and was refused")
            await late.start(alone, name="b", run_id="b")
            assert owner(heir, "b") != late.lease.engine
            for run_id in ("a", "b"):
                await until(lambda: gates)
                gates[0].set()
                assert await heir.get(run_id).result(timeout=60) == run_id
    shop.check()


async def test_nobody_is_declared_dead_who_has_renewed_his_lease_since_it_was_looked_at(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(shop.url, lease_seconds=3) as engine:
        (row,) = shop.engines()
        await _is_renewed(shop, engine)
        async with hf.open(shop.url, recover=False) as other:
            monkeypatch.setattr(other.lease, "dead_engines", lambda now: [row])  # it looked, and then slept
            await other.claims.release_dead_engines()
            assert {found.engine for found in shop.engines()} == {engine.lease.engine, other.lease.engine}


@pytest.mark.parametrize("seconds", [0.05, 0, -1])
async def test_f83_a_lease_that_is_shorter_than_a_commit_may_take_is_refused(shop: Shop, seconds: float) -> None:
    with pytest.raises(UsageError, match=r"lease_seconds must be at least 0\.2"):
        async with hf.open(shop.url, lease_seconds=seconds):
            pass


def test_a_renewal_waits_for_no_server_that_is_away(postgres: PostgresServer) -> None:
    with closing(Proxy(postgres)) as proxy, closing(PostgresStore(proxy.url())) as store:
        store.open()
        with proxy.unplugged():
            for ask in (lambda: store.renew_engine("e", 1), store.now):
                with pytest.raises(StoreError, match=r"cannot be reached|closed"):
                    ask()
        assert store.now() > 0
        assert store.renew_engine("e", 1) is False


async def test_a_right_that_is_missing_for_a_while_stops_no_engine(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.url()
    schema = address(url).schema
    role = f"app_{schema}"
    await asyncio.to_thread(sql, url, f"CREATE ROLE {role} LOGIN", f"GRANT CREATE ON DATABASE postgres TO {role}")
    shop = Shop(url.replace("postgres@", f"{role}@"), tmp_path)
    async with hf.open(shop.url, lease_seconds=60) as engine:
        run = await engine.start(shop.patient(), name="r", run_id="r")
        await until(lambda: shop.attempts("r"))
        await asyncio.to_thread(sql, url, f"REVOKE INSERT ON {schema}.run_events FROM {role}")
        shop.go("r")
        await until(lambda: "permission denied" in caplog.text, "the engine says what it waits for")
        await asyncio.to_thread(sql, url, f"GRANT INSERT ON {schema}.run_events TO {role}")
        assert await run.result(timeout=30) == "r went"
    assert shop.attempts("r") == [1]
