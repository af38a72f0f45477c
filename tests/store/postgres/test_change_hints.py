"""Who is told, and of what, when something is written that wants an owner; and connections that are given up."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import asyncpg

from holdfast.model.errors import HoldfastError, OutcomeUnknown
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import Connections
from holdfast.store.postgres.postgres_schema import in_schema
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import EngineRow
from tests.servers import PostgresServer, Proxy
from tests.store.conformance.store import change, make_runs, message, refusals, step
from tests.store.postgres_kit import asking, sql

PATIENCE_SECONDS = 30.0
OF_LISTENER = " FROM pg_stat_activity WHERE query LIKE 'LISTEN \"CHANNEL\"%'"


def told(url: str, write: Callable[[], object]) -> bool:
    """Whether writing this tells those who listen. What is told comes in the order of commits, so that our own last
    word comes behind it."""
    channel = address(url).schema
    words: list[str] = []
    last_word = asyncio.Event()

    def hear(_: Any, __: int, ___: str, word: str) -> None:
        words.append(word)
        if word == "the last word":
            last_word.set()

    async def listen(connection: asyncpg.Connection[Any]) -> bool:
        await connection.add_listener(channel, hear)
        await asyncio.to_thread(write)
        await connection.fetch("SELECT pg_notify($1, 'the last word')", channel)
        await asyncio.wait_for(last_word.wait(), PATIENCE_SECONDS)
        return words != ["the last word"]

    return asking(url, listen)


def _engine(store: PostgresStore, name: str = "one") -> None:
    store.register_engine(EngineRow(name, "here", 1, "", 0, 50, b"{}"))


# --- what is told ----------------------------------------------------------------------------------------------------


def test_a_message_is_told_and_one_that_is_not_stored_is_not(store: PostgresStore, url: str) -> None:
    (no,) = make_runs(store, 1)
    assert told(url, lambda: store.send([message("m", no)]))
    assert not told(url, lambda: store.send([message("m", no)]))


def test_a_run_that_nobody_owns_is_told_and_one_that_its_engine_keeps_is_not(store: PostgresStore, url: str) -> None:
    assert told(url, lambda: make_runs(store, 1, engine=None, status="created"))
    assert told(url, lambda: (make_runs(store, 1), make_runs(store, 3, engine=None)))
    assert not told(url, lambda: make_runs(store, 3))


def test_steps_are_not_told_whatever_they_do(store: PostgresStore, url: str) -> None:
    """Only one transaction that tells anything ends at a time: steps would wait for each other."""
    numbers = make_runs(store, 3)
    ended = change(3, status="completed", engine=None, finished_at=50)

    def steps() -> None:
        assert refusals(store, *(step(no) for no in numbers)) == [None] * 3
        assert refusals(store, step(numbers[0], 2, change=ended, ends=True)) == [None]
        assert refusals(store, step(numbers[1], 2, change=change(3, status="suspended", engine=None))) == [None]

    assert not told(url, steps)


def test_a_lease_that_is_given_back_is_told_unless_the_run_only_waits(store: PostgresStore, url: str) -> None:
    running, suspended = *make_runs(store, 1), *make_runs(store, 1, status="suspended")
    assert not told(url, lambda: store.release("one", [(suspended, 1)]))
    assert told(url, lambda: store.release("one", [(running, 1)]))


def test_the_end_of_an_engine_that_held_runs_is_told(store: PostgresStore, url: str) -> None:
    make_runs(store, 1)
    _engine(store)
    _engine(store, "two")
    assert not told(url, lambda: store.remove_engine("one", 49)), "it lives"
    assert not told(url, lambda: store.remove_engine("two")), "it held nothing"
    assert told(url, lambda: store.remove_engine("one", 50))


def test_what_is_written_in_another_schema_is_not_told(
    store: PostgresStore, url: str, postgres: PostgresServer
) -> None:
    with closing(PostgresStore(postgres.url())) as other:
        other.open()
        assert not told(url, lambda: make_runs(other, 1, engine=None))


# --- who hears it ----------------------------------------------------------------------------------------------------


class Ear:
    """Somebody who listens, and waits until something is told."""

    def __init__(self, store: PostgresStore) -> None:
        self._heard = threading.Semaphore(0)
        store.listen(self._heard.release)
        self.hears()  # whoever is connected now may have missed something before

    def hears(self) -> None:
        assert self._heard.acquire(timeout=PATIENCE_SECONDS), "nothing was told"


def _soon(condition: Callable[[], Any]) -> Any:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    return found


def test_whoever_listens_is_woken_each_time(store: PostgresStore) -> None:
    ear = Ear(store)
    for _ in range(3):
        make_runs(store, 1, engine=None)
        ear.hears()


def test_f51_a_listener_whose_connection_was_ended_connects_again(postgres: PostgresServer) -> None:
    with closing(Proxy(postgres)) as proxy, closing(PostgresStore(proxy.url())) as store:
        store.open()
        ear = Ear(store)
        with proxy.unplugged():
            pass
        ear.hears()  # it is back, and what it missed is looked for
        make_runs(store, 1, engine=None)
        ear.hears()


def test_f51_a_listener_whose_session_the_server_has_killed_connects_again(store: PostgresStore, url: str) -> None:
    ear = Ear(store)
    assert sql(url, "SELECT pg_terminate_backend(pid)" + OF_LISTENER.replace("CHANNEL", address(url).schema)) == [
        (True,)
    ]
    ear.hears()
    make_runs(store, 1, engine=None)
    ear.hears()


def test_f48_behind_a_pooler_nobody_listens(postgres: PostgresServer) -> None:
    before = set(_listeners())  # of others, which may take a moment to end
    with closing(PostgresStore(postgres.url(statement_cache_size="0"))) as pooled:
        pooled.open()
        pooled.listen(lambda: None)
        assert set(_listeners()) <= before


def _listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-listener"]


def test_a_store_that_is_closed_listens_no_more(store: PostgresStore, url: str) -> None:
    before = set(_listeners())
    Ear(store)
    listening = "SELECT pid" + OF_LISTENER.replace("CHANNEL", address(url).schema)
    assert len(sql(url, listening)) == 1
    (ours,) = set(_listeners()) - before
    store.close()
    _soon(lambda: ours not in _listeners())
    _soon(lambda: not sql(url, listening))


# --- connections that are given up -----------------------------------------------------------------------------------


def test_asking_for_changes_leaves_every_connection_to_others(store: PostgresStore) -> None:
    connections = store._check()
    with connections.lend():  # the only one that was made so far
        for _ in range(store._address.connections):
            assert store.changed() is False
    lent = [connections.lend() for _ in range(store._address.connections)]
    for one in lent:
        one.__enter__()
    for one in lent:
        one.__exit__(None, None, None)


def test_closing_ends_the_wait_for_an_answer(url: str) -> None:
    """However long the answer would take: here a lock that is never released."""
    store = PostgresStore(url)
    store.open()
    (no,) = make_runs(store, 1)
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            store.set_hold(no, 1, "one", "x")
        except HoldfastError as error:
            outcome.append(error)

    async def lock(connection: asyncpg.Connection[Any]) -> None:
        async with connection.transaction():
            await connection.fetch(in_schema("SELECT 1 FROM holdfast.run_state FOR UPDATE", address(url).schema))
            waiting = threading.Thread(target=wait)
            waiting.start()
            blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not await connection.fetch(blocked):  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.01)
            await asyncio.to_thread(store.close)
            await asyncio.to_thread(waiting.join, PATIENCE_SECONDS)
            assert not waiting.is_alive()

    asking(url, lock)
    assert [type(error) for error in outcome] == [OutcomeUnknown]


def test_closing_ends_the_wait_for_a_connection() -> None:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connections = Connections(address(f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/postgres"))
        outcome: list[BaseException] = []

        def connect() -> None:
            try:
                with connections.lend():
                    pass
            except OSError as error:
                outcome.append(error)

        waiting = threading.Thread(target=connect)
        waiting.start()
        with silent.accept()[0]:
            connections.close()
            waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()
    assert [type(error) for error in outcome] == [ConnectionAbortedError]
