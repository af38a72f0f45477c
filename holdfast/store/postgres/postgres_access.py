"""Access to a PostgreSQL server: send statements, and send them again after a lost connection.

Owns: opening and closing, retrying after a lost connection, noticing that another process has written.
Never: decides what is written, or in which statements (see postgres_store.py).
Invariants: what returned is on the server's disk. A caller never gets "unknown" as long as the server comes back: what
may have happened is looked up before it is retried. Nothing depends on a session.
On crash: the server rolls back what was not committed; every commit that returned is there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg

from holdfast.model.errors import HoldfastError, OutcomeUnknown, ServerReadOnly, StoreError
from holdfast.model.timers import Elapsed
from holdfast.store.postgres.change_hints import Changes, Listener
from holdfast.store.postgres.driver_internals import Raw, check_names, self_test
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import (
    LOST,
    ROLLED_BACK,
    STATEMENT_SECONDS,
    Connection,
    Connections,
    Patience,
    translated,
)
from holdfast.store.postgres.postgres_schema import Statements, migrate
from holdfast.store.queries import Ask, Queries

AWAY_SECONDS: Final = 600.0
"""How long an operation waits for an unreachable server: a restart takes seconds, a failover a minute or two."""

STARTING_SECONDS: Final = 10.0
"""How long opening waits for a server that is starting up; any other error is raised at once."""

RENEWAL_SECONDS: Final = 4.0
"""How long an answer to a renewal may take: of a lease of 10 s, a third of which has passed, it leaves time to retry
over another connection if this one has died."""

LOOK_SECONDS: Final = 2.0
"""How long reading a snapshot may take: the caller, often an event loop, does not wait for a network."""

_T = TypeVar("_T")

Work = Callable[[Raw, bool], Coroutine[Any, Any, _T]]
"""Work over one connection. True: it is a retry, and may have happened before."""


class PostgresAccess(Queries):
    """One schema of a server. Any thread may call any method, also one that runs an event loop."""

    is_shared: Final = True
    file: Final = None

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
        """The server could not be reached when it was last used."""
        self._awaiting: threading.Thread | None = None
        self._closing = threading.Event()
        self._pid = 0
        self._closed_because = "it is not open"

    # lifecycle ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the schema (not with `create=False`), or migrate it to the newest version; a refused server or
        database is untouched."""
        with self._lock:
            if self._connections is not None:
                raise StoreError(f"{self.url} is open already.")
            self._closing.clear()
            check_names()
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
            connection.wait(self_test(connection.raw))
            connection.wait(migrate(connection.raw, self._sql, self._address.schema, self.url, create=self._create))
            self._changes.look(_snapshot(connection, self._sql, STATEMENT_SECONDS))

    def close(self) -> None:
        """Close every connection. Callers that wait for the server give up. Closing twice is allowed."""
        if self._connections is not None:
            self._check()
            self._drop("it was closed")

    # reading (the operations are in queries.py) -----------------------------------------------------------------

    def now(self) -> int:
        moment: int = self._at_once("now")[0][0]
        return moment

    def listen(self, wake: Callable[[], None]) -> None:
        """Start listening, except behind a pooler, where only polling works."""
        self._check()
        if not self._address.is_pooled and self._listener is None:
            self._listener = Listener(self._address, wake)

    def changed(self) -> bool | None:
        """True if another process has written since the last call. False while all connections are in use: the caller
        polls. None: the server cannot be reached; a thread waits for it."""
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
        """Start a thread that retries until the server answers, unless there is one."""
        with self._lock:
            if self._awaiting is None or not self._awaiting.is_alive():
                self._awaiting = threading.Thread(target=self._ask_until_answered, name="holdfast-away", daemon=True)
                self._awaiting.start()

    def _ask_until_answered(self) -> None:
        with suppress(HoldfastError):
            self._rows("now")

    def _elapsed(self, elapsed: Elapsed | None) -> tuple[Any, ...]:
        return ()

    def _many(self, values: Sequence[int] | Sequence[str] | None) -> Any:
        return None if values is None else list(values)

    def _pairs(self, values: Sequence[tuple[int | str, int]]) -> tuple[Any, ...]:
        return [first for first, _ in values], [second for _, second in values]

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

    # retries --------------------------------------------------------------------------------------------------

    def _write(self, name: str, bindings: tuple[Any, ...]) -> list[Any]:
        async def write(raw: Raw, _: bool) -> list[Any]:
            return await raw.fetch(self._sql[name], *bindings)

        records = self._do(write)
        self._note(records)
        return [tuple(record)[:-1] for record in records]

    def _at_once(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """Send one statement over the connection that is reserved for the lease, without waiting for other work or for
        an unreachable server: the caller repeats it soon, with other values. Raises StoreError; the statement may have
        happened."""
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

    def _note(self, records: Sequence[Any]) -> None:
        """Record a transaction as our own; every statement that writes returns its number last."""
        if records:
            self._changes.add_own(records[0][-1])

    def _do(self, work: Work[_T], *, writes: bool = True) -> _T:
        return self._over(lambda connection, again: connection.wait(work(connection.raw, again)), writes=writes)

    def _over(self, work: Callable[[Connection, bool], _T], *, writes: bool) -> _T:
        """Call `work` over one connection. If the connection or the server is lost, wait for it and call `work` again,
        with the information that it may have happened before. Whatever is raised, it did not happen."""
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
            except (*LOST, ServerReadOnly) as error:
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
