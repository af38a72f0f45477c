"""PostgreSQL: the store of many engines.

Owns: opening and closing, doing again what a lost connection left undone, and every write but a group's statements.
Never: decides what is written (the engine), in which statements (postgres_group.py), or reads (reads.py).
Invariants: what returned is on the server's disk. A caller never hears "unknown" for as long as the server comes back:
what may have happened is looked up before it is done again. Nothing depends on a session.
On crash: the server rolls back what was not committed; every commit that returned is there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import asyncpg

from holdfast.model.errors import HoldfastError, OutcomeUnknown, StoreError, StoreReadOnly
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.api import OPENS_BRANCH, Commit, EngineRow, Landed, MessageRow, RunRow, Sent
from holdfast.store.checks import Ask
from holdfast.store.postgres_changes import Changes
from holdfast.store.postgres_connections import (
    LOST,
    ROLLED_BACK,
    STATEMENT_SECONDS,
    Connection,
    Connections,
    Patience,
    Raw,
    address,
    in_transaction,
    translated,
)
from holdfast.store.postgres_doctor import PostgresDoctor, Work
from holdfast.store.postgres_group import Landing, portions
from holdfast.store.postgres_listening import Listener
from holdfast.store.postgres_migrate import migrate
from holdfast.store.postgres_statements import Statements
from holdfast.store.reads import run_row

AWAY_SECONDS: Final = 600.0
"""How long a verb waits for a server that is away: a restart takes seconds, a failover a minute or two."""

STARTING_SECONDS: Final = 10.0
"""How long opening waits for a server that says it is starting up; any other reason is told at once."""

CLAIM_ROUNDS: Final = 3
"""How often a claim looks again at runs that somebody was writing to: they are locked for a commit's time."""

RENEWAL_SECONDS: Final = 4.0
"""How long an answer to a renewal may take: of a lease of 10 s, a third of which has passed, it leaves time to try it
again over another connection, should this one have died."""

LOOK_SECONDS: Final = 2.0
"""How long a look at what has changed may take: whoever looks, often on an event loop, does not wait for a network."""

_T = TypeVar("_T")


class PostgresStore(PostgresDoctor):
    """The store in a schema of a PostgreSQL database: `postgresql://user:password@host:5432/database?schema=holdfast`.

    Any thread may call any verb, also one that runs an event loop, which stands still meanwhile. Raises StoreError or
    one of its kinds, and OutcomeUnknown from a verb that writes when the server did not come back in time.
    """

    is_shared: Final = True

    def __init__(self, url: str, *, create: bool = True) -> None:
        self._address = address(url)
        self._create = create
        self.url = self._address.shown
        self._sql = Statements(self._address.schema)
        self._lock = threading.Lock()
        self._connections: Connections | None = None
        self._reserved = self._of_the_lease()
        self._listener: Listener | None = None
        self._changes = Changes()
        self._is_away = False
        """The last that was heard of the server is that it could not be reached."""
        self._awaiting: threading.Thread | None = None
        self._closing = threading.Event()
        self._pid = 0
        self._closed_because = "it is not open"

    # lifecycle ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Makes the schema (not with `create=False`), or brings it to the newest version; a server or a database that
        is refused is untouched."""
        with self._lock:
            if self._connections is not None:
                raise StoreError(f"{self.url} is open already.")
            self._closing.clear()
            connections = Connections(self._address)
            self._reserved = self._of_the_lease()
            patience = Patience(STARTING_SECONDS, self._closing, self.url)
            while True:
                try:
                    self._prepare(connections)
                    break
                except (*LOST, asyncpg.PostgresError, asyncpg.InterfaceError, HoldfastError) as error:
                    if isinstance(error, asyncpg.CannotConnectNowError) and patience.lasts(error):
                        continue
                    self._closed_because = "it could not be opened"
                    connections.close()
                    raise translated(error, self.url) from error
            self._pid = os.getpid()
            self._connections = connections

    def _of_the_lease(self) -> Connections:
        return Connections(self._address._replace(connections=1), RENEWAL_SECONDS)

    def _prepare(self, connections: Connections) -> None:
        with connections.lend() as connection:
            connection.wait(migrate(connection.raw, self._sql, self._address.schema, self.url, create=self._create))
            self._changes.look(_snapshot(connection, self._sql, STATEMENT_SECONDS))

    def close(self) -> None:
        """Closes every connection. Whoever waits for the server gives up. Closing twice is allowed."""
        if self._connections is not None:
            self._check()
            self._drop("it was closed")

    # writing --------------------------------------------------------------------------------------------------

    def commit(self, group: Sequence[Commit]) -> list[Landed]:
        return [landed for portion in portions(group) for landed in self._land(portion)]

    def commit_if_free(self, group: Sequence[Commit]) -> list[Landed] | None:
        return self.commit(group)  # a server lets others write beside us, and tidies up by itself

    def _land(self, group: Sequence[Commit]) -> list[Landed]:
        return self._do(lambda raw, again: self._landing(raw, again).land(group))

    def reserve_run_numbers(self, count: int) -> int:
        assert count > 0
        end: int = self._write("take_run_numbers", (count,))[0][0]
        return end - count

    def register_version(self, workflow: str, content_hash: str, definition: bytes, now: int) -> int:
        while True:
            rows = self._rows("version_of_hash", (workflow, content_hash))
            rows = rows or self._write("add_version", (workflow, content_hash, definition, now))
            if rows:
                return cast(int, rows[0][0])

    def register_engine(self, row: EngineRow) -> None:
        self._write("put_engine", row)

    def renew_engine(self, engine: str, expires_at: int) -> bool:
        renewed = self._at_once("renew_engine", (engine, expires_at))
        self._note(renewed)
        return len(renewed) == 1

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        freed: int | None = self._write("remove_engine", (engine, expires_at))[0][0]
        return freed

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        return self._change_slots(pool, "take_slots", (engine, pool, wanted, limit))

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        self._change_slots(pool, "give_slots", (engine, pool, count))

    def _change_slots(self, pool: str, name: str, bindings: tuple[Any, ...]) -> int:
        """Changes places of a pool, once: what may have happened before is asked of the server, by the number of the
        transaction, when nobody else is at this pool."""
        key = f"holdfast {self._address.schema} {pool}"
        earlier: list[tuple[int, int]] = []

        async def write(raw: Raw, _: bool) -> int:
            async with in_transaction(raw, *(self._sql[used] for used in ("lock_pool", "has_committed", name))):
                await raw.fetch(self._sql["lock_pool"], key)
                for places, transaction in earlier:
                    if await raw.fetchval(self._sql["has_committed"], str(transaction)):
                        return places
                ((places, transaction),) = await raw.fetch(self._sql[name], *bindings)
                self._changes.add_own(transaction)
                earlier.append((places, transaction))
            return cast(int, places)

        return self._do(write)

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        won: dict[int, RunRow] = {}
        left = list(run_nos)
        for _ in range(CLAIM_ROUNDS):
            free = self._rows("free_to_claim", (left,)) if left else []
            if not free:
                break
            won |= self._claim(engine, free)
            left = [run_no for run_no, _ in free if run_no not in won]
        return [won[run_no] for run_no in dict.fromkeys(run_nos) if run_no in won]

    def _claim(self, engine: str, free: list[tuple[int, int]]) -> dict[int, RunRow]:
        bindings = (engine, *self._pairs(free))

        async def take(raw: Raw, again: bool) -> list[Any]:
            won = await raw.fetch(self._sql["claimed"], *bindings) if again else []
            taken = await raw.fetch(self._sql["claim"], *bindings)
            self._note(taken)
            return [*won, *(row[:-1] for row in map(tuple, taken))]

        return {row[0]: run_row(tuple(row)) for row in self._do(take)}

    def release(self, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        return len(self._write("release", (*self._pairs(sorted(leases)), unused))) if leases else 0

    def set_hold(self, run_no: int, token: int, hold: str | None) -> bool:
        return len(self._write("set_hold", (run_no, token, hold))) == 1

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        if not messages:
            return []
        columns = zip(*(message[:5] for message in messages), strict=True)
        met = self._write("send", (*columns, sorted({message.run_no for message in messages})))
        raced = [message.message_id for message, one in zip(messages, met, strict=True) if _was_raced(message, one)]
        earlier = {row[0]: row[1:] for row in self._rows("known_messages", (raced,))} if raced else {}
        became: list[Sent] = []
        said: dict[str, tuple[Any, ...]] = {}
        for message, (status, is_known, is_same, is_stored) in zip(messages, met, strict=True):
            says = (message.run_no, message.kind, message.payload)
            if is_known:
                became.append("duplicate" if is_same else "conflict")
            elif (before := said.get(message.message_id) or earlier.get(message.message_id)) is not None:
                became.append("duplicate" if before == says else "conflict")
            elif status is None:
                became.append("unknown_run")
            elif not _is_taken(message, status):
                became.append("finished")
            else:
                assert is_stored
                became.append("new")
                said[message.message_id] = says
        return became

    # reading (the verbs are in reads.py and checks.py) ----------------------------------------------------------

    def now(self) -> int:
        moment: int = self._at_once("now")[0][0]
        return moment

    def listen(self, wake: Callable[[], None]) -> None:
        """Behind a pooler nobody can be listened to, and asking again and again has to do."""
        self._check()
        if not self._address.is_pooled and self._listener is None:
            self._listener = Listener(self._address, wake)

    def changed(self) -> bool | None:
        """Whether somebody else has written since this was last asked. While all connections are in use the answer is
        no: whoever asks, asks again soon. None: the server is away; a thread waits for it to come back."""
        connections = self._check()
        try:
            with connections.lend_idle() as connection:
                if connection is not None:
                    told = self._changes.look(_snapshot(connection, self._sql, LOOK_SECONDS))
                    self._is_away = False
                    return told
                if connections.are_lent and not self._is_away:
                    return False
        except (*LOST, asyncpg.InterfaceError):
            connections.drop_idle()
        self._is_away = True
        self._await_server()
        return None

    def _await_server(self) -> None:
        """Lets a thread try until the server answers, should nobody else be trying."""
        with self._lock:
            if self._awaiting is None or not self._awaiting.is_alive():
                self._awaiting = threading.Thread(target=self._ask_until_answered, name="holdfast-away", daemon=True)
                self._awaiting.start()

    def _ask_until_answered(self) -> None:
        with suppress(HoldfastError):
            self._rows("now")

    def _rows(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        async def read(raw: Raw, _: bool) -> list[Any]:
            return await raw.fetch(self._sql[name], *bindings)

        return [tuple(record) for record in self._do(read, writes=False)]

    def _at_one_moment(self, work: Callable[[Ask], _T]) -> _T:
        def read(connection: Connection, _: bool) -> _T:
            def ask(name: str, bindings: tuple[Any, ...]) -> list[Any]:
                return list(map(tuple, connection.wait(connection.raw.fetch(self._sql[name], *bindings))))

            transaction = connection.raw.transaction(isolation="repeatable_read", readonly=True)
            connection.wait(transaction.start())
            found = work(ask)
            connection.wait(transaction.rollback())
            return found

        return self._over(read, writes=False)

    # doing it again -------------------------------------------------------------------------------------------

    def _write(self, name: str, bindings: tuple[Any, ...]) -> list[Any]:
        async def write(raw: Raw, _: bool) -> list[Any]:
            return await raw.fetch(self._sql[name], *bindings)

        records = self._do(write)
        self._note(records)
        return [tuple(record)[:-1] for record in records]

    def _at_once(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """One statement over the connection that is kept for the lease: nobody else's work is waited for, and a server
        that is away is not. Whoever asks, asks again soon, and for something else by then. Raises StoreError; what was
        asked may have happened."""
        self._check()
        for is_last in (False, True):  # the connection may have died since it was last used
            try:
                with self._reserved.lend() as connection:
                    return list(map(tuple, connection.wait(connection.raw.fetch(self._sql[name], *bindings))))
            except (*LOST, *ROLLED_BACK, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self._reserved.drop_idle()
                if is_last:
                    raise translated(error, self.url) from error
        raise AssertionError

    def _landing(self, raw: Raw, again: bool) -> Landing:
        return Landing(raw, self._sql, self._changes.add_own, in_doubt=again)

    def _note(self, records: Sequence[Any]) -> None:
        """Remembers a transaction as our own; every statement that writes gives its number last."""
        if records:
            self._changes.add_own(records[0][-1])

    def _do(self, work: Work[_T], *, writes: bool = True) -> _T:
        return self._over(lambda connection, again: connection.wait(work(connection.raw, again)), writes=writes)

    def _over(self, work: Callable[[Connection, bool], _T], *, writes: bool) -> _T:
        """Does `work` over one connection. When the connection or the server goes away, waits for it to come back and
        does it again: `work` is told that it may have happened before. Whatever is raised, it did not happen."""
        patience = Patience(AWAY_SECONDS, self._closing, self.url)
        again = False
        while True:
            connections = self._check()
            lent: Connection | None = None
            try:
                with connections.lend() as lent:
                    done = work(lent, again)
                    self._is_away = False
                return done
            except (*LOST, StoreReadOnly) as error:
                self._is_away = True
                again = again or lent is not None
                connections.drop_idle()
                self._wait(patience, error, in_doubt=again and writes)
            except ROLLED_BACK as error:
                again = True  # of a group that was cut in halves the first may have landed
                self._wait(patience, error, in_doubt=False)
            except asyncpg.InterfaceError as error:
                if lent is None or lent.is_usable:
                    raise translated(error, self.url) from error
                again = True
                self._wait(patience, error, in_doubt=writes)
            except asyncpg.PostgresError as error:
                raise translated(error, self.url) from error

    def _wait(self, patience: Patience, error: Exception, *, in_doubt: bool) -> None:
        if patience.lasts(error):
            return
        if not in_doubt:
            raise translated(error, self.url) from error
        self._drop("the server did not come back, and the outcome of the last write is open; open it again")
        raise OutcomeUnknown(
            f"{self.url}: the connection was lost and the server did not come back; it is not known whether the last "
            "write happened. The store is closed; opening it again tells."
        ) from error

    def _check(self) -> Connections:
        if self._connections is None:
            raise StoreError(f"{self.url} cannot be used: {self._closed_because}.")
        if self._pid != os.getpid():
            raise StoreError(f"{self.url} was opened by process {self._pid}; open it again in this one.")
        return self._connections

    def _drop(self, reason: str) -> None:
        with self._lock:
            self._closed_because = reason
            connections, self._connections = self._connections, None
            listener, self._listener = self._listener, None
        self._closing.set()
        self._reserved.close()
        if listener is not None:
            listener.close()
        if connections is not None:
            connections.close()


def _snapshot(connection: Connection, sql: Statements, seconds: float) -> str:
    ((text,),) = connection.wait(connection.raw.fetch(sql["snapshot"], timeout=seconds))
    return str(text)


def _is_taken(message: MessageRow, status: str) -> bool:
    """Whether a run of this status takes the message."""
    return status not in RUN_TERMINAL or message.kind in OPENS_BRANCH


def _was_raced(message: MessageRow, met: tuple[Any, ...]) -> bool:
    """Not known when we looked, and not stored by us though its run takes it: somebody was quicker with the same id."""
    status, is_known, _, is_stored = met
    return not is_known and not is_stored and status is not None and _is_taken(message, status)
