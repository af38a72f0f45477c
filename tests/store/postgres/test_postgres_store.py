"""What is PostgreSQL's own: addresses, refusals, connections, what others wrote, values."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from holdfast.model.errors import (
    NewerStore,
    NotOurStore,
    StoreError,
    StoreMissing,
    StoreReadOnly,
)
from holdfast.store.postgres import postgres_connections
from holdfast.store.postgres.change_hints import Changes
from holdfast.store.postgres.postgres_address import CONNECTIONS, address
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import EngineRow
from holdfast.store.sql_files import load
from tests.servers import PostgresServer, Proxy
from tests.store.conformance.store import (
    change,
    make_runs,
    message,
    node_row,
    refusals,
    step,
)
from tests.store.postgres_kit import columns, sql

# --- addresses -------------------------------------------------------------------------------------------------------


def test_an_address_has_options_of_ours_and_of_the_servers() -> None:
    read = address(
        "postgres://ann:p%40ss@db:5433/shop?schema=till&sslmode=require&connections=3&statement_cache_size=0"
    )
    assert read.dsn == "postgres://ann:p%40ss@db:5433/shop?sslmode=require"
    assert (read.schema, read.connections, read.is_pooled) == ("till", 3, True)
    assert address("postgresql:///shop")[2:] == ("holdfast", CONNECTIONS, False)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cret@127.0.0.1:1/shop?schema=till",
        "postgresql://ann@127.0.0.1:1/shop?schema=till&password=s3cret",
    ],
)
def test_the_password_is_never_shown(url: str) -> None:
    store = PostgresStore(url)
    assert store.url == "postgresql://ann@127.0.0.1:1/shop?schema=till"
    with pytest.raises(StoreError, match="cannot be reached") as refused:
        store.open()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3c:ret@db:port/shop",
        "postgresql://ann:s3c/ret@db/shop",
        "postgresql://[ann:s3cret@db/shop",
        "mysql://ann:s3cret@db/shop",
        "postgresql://db/shop?schema=drop%20table",
        "postgresql://db/shop?schema=Upper",
        "postgresql://db/shop?connections=0",
        "postgresql://db/shop?connections=many",
        "postgresql://db/shop?statement_cache_size=-1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_and_tells_no_secret(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        PostgresStore(url).open()
    assert "ret@" not in str(refused.value)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_server_that_could_lose_what_it_acknowledged_is_refused(own_server: PostgresServer) -> None:
    url = own_server.url()
    own_server.start(fsync="off")
    with pytest.raises(StoreError, match="fsync=off"):
        PostgresStore(url).open()
    own_server.stop()
    own_server.start()
    sql(url, "ALTER ROLE postgres SET synchronous_commit = off")
    with pytest.raises(StoreError, match="synchronous_commit"):
        PostgresStore(url).open()
    assert columns(url) == set()
    sql(url, "ALTER ROLE postgres SET synchronous_commit = local")
    store = PostgresStore(url)
    store.open()
    store.close()


def test_a_read_replica_is_refused(own_server: PostgresServer) -> None:
    url = own_server.url()
    store = PostgresStore(url)
    own_server.start()
    store.open()
    store.close()
    own_server.stop()
    (own_server.data / "standby.signal").touch()
    own_server.start()
    with pytest.raises(StoreReadOnly, match="read replica"):
        store.open()


def test_a_user_who_may_not_write_is_refused(postgres: PostgresServer, url: str) -> None:
    for statement in ("CREATE ROLE reader LOGIN", "ALTER ROLE reader SET default_transaction_read_only = on"):
        sql(url, statement)
    with pytest.raises(StoreReadOnly, match="takes no writes"):
        PostgresStore(url.replace("postgres@", "reader@")).open()
    sql(url, "ALTER ROLE reader RESET default_transaction_read_only")
    with pytest.raises(StoreReadOnly, match="permission denied"):
        PostgresStore(url.replace("postgres@", "reader@")).open()
    sql(url, "DROP ROLE reader")


def test_a_user_who_may_not_make_tables_can_use_those_that_are_there(store: PostgresStore, url: str) -> None:
    schema = address(url).schema
    sql(
        url,
        "CREATE ROLE clerk LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO clerk",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO clerk",
    )
    clerk = PostgresStore(url.replace("postgres@", "clerk@"))
    clerk.open()
    (no,) = make_runs(clerk, 1)
    assert refusals(clerk, step(no, nodes=[node_row(no, "a")])) == [None]
    clerk.close()
    sql(url, "DROP OWNED BY clerk", "DROP ROLE clerk")


def test_an_old_server_and_one_that_does_not_know_unicode_are_refused(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(url, "CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match="ENCODING 'UTF8'"):
        PostgresStore(url.replace("@/postgres", "@/plain")).open()
    with pytest.raises(StoreMissing, match="createdb"):
        PostgresStore(url.replace("@/postgres", "@/nowhere")).open()
    monkeypatch.setattr(postgres_connections, "OLDEST_SERVER", 990_000)
    with pytest.raises(StoreError, match="13 or newer"):
        PostgresStore(url).open()


def test_tables_of_another_program_are_refused_and_untouched(url: str) -> None:
    sql(url, "CREATE SCHEMA holdfast;", "CREATE TABLE holdfast.photos (name text)")
    with pytest.raises(NotOurStore, match="another program"):
        PostgresStore(url).open()
    assert columns(url) == {("photos", "name")}


def test_a_newer_store_and_one_with_another_past_are_refused(store: PostgresStore, url: str) -> None:
    store.close()
    newer = "INSERT INTO holdfast.store_migrations (number, name, checksum) VALUES (99, 'future', 'x')"
    sql(url, newer, "UPDATE holdfast.store_meta SET schema_version = 99")
    with pytest.raises(NewerStore, match="schema 99"):
        store.open()
    with pytest.raises(StoreError, match="could not be opened"):
        store.runs()
    sql(
        url,
        "DELETE FROM holdfast.store_migrations WHERE number = 99",
        "UPDATE holdfast.store_meta SET schema_version = (SELECT max(number) FROM holdfast.store_migrations)",
    )
    sql(url, "UPDATE holdfast.store_migrations SET checksum = 'other'")
    with pytest.raises(StoreError, match="before the first release"):
        store.open()


# --- connections -----------------------------------------------------------------------------------------------------


async def test_a_running_loop_stands_still_and_goes_on_as_it_was(store: PostgresStore) -> None:
    ticks = itertools.count()

    async def tick() -> None:
        while True:
            next(ticks)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    me = asyncio.current_task()
    numbers = make_runs(store, 3)
    called_back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: called_back.set_result(len(store.runs())))
    assert await called_back == 3, "also where no task runs"
    assert asyncio.current_task() is me
    assert [row.run_no for row in store.runs()] == numbers[::-1]
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    assert next(ticks) > 0


def test_many_callers_share_few_connections(postgres: PostgresServer) -> None:
    with closing(Proxy(postgres)) as proxy, closing(PostgresStore(proxy.url(connections="2"))) as store:
        store.open()
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(lambda _: store.runs(), range(200))) == [[]] * 200
        assert proxy.meetings <= 2


def test_an_interrupted_call_leaves_a_connection_that_is_not_used_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(asyncpg.Connection, "fetch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.runs()
    assert store.runs() == []


def test_nothing_is_kept_in_a_session() -> None:
    """Behind a transaction pooler every transaction may meet another session."""
    for name, text in load("postgres").items():
        assert not re.search(
            r"\b(SET\s+(SESSION\s+)?\w+\s*(=|TO)|LISTEN|TEMP|pg_advisory_lock)\b", _bare_of_updates(text)
        ), name


def _bare_of_updates(text: str) -> str:
    return re.sub(r"(UPDATE|DO UPDATE)\b.*", "", text)


def test_the_servers_clock_tells_the_time(store: PostgresStore) -> None:
    before = sql_time(store)
    assert before <= store.now() <= sql_time(store)


def sql_time(store: PostgresStore) -> int:
    moment: int = store._rows("now")[0][0]
    return moment


# --- what others wrote -----------------------------------------------------------------------------------------------


def test_what_others_wrote_is_told_once_and_our_own_is_not() -> None:
    changes = Changes()
    changes.look("10:10:")
    assert not changes.look("10:10:")
    assert not changes.look("10:12:10,11"), "begun is not written"
    assert changes.look("11:12:11"), "10 has ended"
    assert not changes.look("11:12:11")
    changes.add_own(11)
    assert not changes.look("12:12:")
    changes.add_own(12)
    assert changes.look("14:14:"), "12 is ours, 13 is not"
    changes.add_own(13)
    assert not changes.look("14:14:"), "noted late, and told before: not told again"
    changes.add_own(15)
    assert not changes.look("14:16:14")
    assert changes.look("16:16:")


def test_places_of_an_engine_that_is_not_on_the_list_do_not_count_and_are_removed(
    store: PostgresStore, url: str
) -> None:
    """It took them at the moment in which it was taken off the list."""
    store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
    sql(
        url, "INSERT INTO holdfast.engine_slots (pool, engine, held) VALUES ('pool', 'ghost', 4), ('other', 'ghost', 1)"
    )
    assert store.take_slots("one", "pool", 3, 5) == 3
    left = sql(url, "SELECT pool, engine, held FROM holdfast.engine_slots ORDER BY pool")
    assert left == [("other", "ghost", 1), ("pool", "one", 3)]


def test_writes_of_another_store_are_noticed_and_ones_own_are_not(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    store.changed()
    other.changed()
    row = EngineRow("one", "host", 1, "lock", 1, 2, b"{}")
    (no,) = make_runs(store, 1)
    end = change(3, status="completed", engine=None, finished_at=9)
    writes: list[Callable[[], object]] = [
        lambda: store.commit([step(no)]),
        lambda: store.send([message("m", no)]),
        lambda: store.register_engine(row),
        lambda: store.renew_engine("one", 5),
        lambda: store.register_version("order", "h", b"{}", 1),
        lambda: store.release("one", [(no, 1)]),
        lambda: store.claim("one", [no]),
        lambda: store.set_hold(no, 2, "one", None),
        lambda: store.commit([step(no, 2, 2, change=end, ends=True)]),
        lambda: store.take_slots("one", "pool", 1, 1),
        lambda: store.give_slots("one", "pool", 1),
        lambda: store.remove_engine("one"),
    ]
    assert other.changed()
    for write in writes:
        assert write() is not False
        assert not store.changed()
        assert other.changed()
        assert not other.changed()
    other.close()
