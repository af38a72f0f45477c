"""PostgreSQL connections: what a server must be, who may use which connection, what an error means.

Owns: the settings of a connection, the event loop that each connection has for itself, the pool, and telling transient
errors (retry) from the caller's mistakes.
Never: knows a table of ours (see postgres_store.py), or keeps anything in a session that must be found there again:
behind a transaction pooler every statement may use another one.
Invariants: a connection is lent to one caller at a time. One that may be in doubt is never lent again. The password of
an address is in no message.
On crash: the server ends the sessions by itself; nothing needs to be undone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg

from holdfast.model.errors import HoldfastError, ServerReadOnly, StoreDamaged, StoreError, StoreFull, StoreMissing
from holdfast.model.views import command_line
from holdfast.store.postgres import driver_internals
from holdfast.store.postgres.driver_internals import Raw, run_blocking
from holdfast.store.postgres.postgres_address import STATEMENTS_KEPT, Address
from holdfast.store.sql_files import load

CONNECT_SECONDS: Final = 10.0
"""How long making one connection may take; after that the server counts as unreachable."""

STATEMENT_SECONDS: Final = 60.0
"""How long an answer may take. Statements take milliseconds: after that the network has lost the connection, or a lock
of another program blocks it; the connection is given up and the statement is retried."""

OLDEST_SERVER: Final = 130_000
"""PostgreSQL 13: the first with `pg_current_xact_id` and `pg_current_snapshot`."""

OWN_SETTINGS: Final = {
    # Statements are written for nested loops over indexes, in the order of run numbers: few rows each, whatever the
    # tables hold. So they are planned once (planning a commit of one run takes as long as executing it). A plan that
    # was made while a table was small is kept; with a scan or a hash join in it, a commit would read the whole table
    # until the table is analysed, and lock runs in another order than that of their numbers.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""For speed only; sent where the connection is ours alone, that is, not behind a pooler. There statements are planned
each time, with the tables as they are."""

LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InternalClientError,  # the server closed an idle connection; or of several hosts none is the primary
    asyncpg.ReadOnlySQLTransactionError,  # the server became a replica: the next connection finds the new primary
)
"""The connection or the server is lost: whether the last statement happened is not known."""

ROLLED_BACK: Final = (
    asyncpg.TransactionRollbackError,  # a deadlock, a serialization failure
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,  # a timeout that an administrator set on the server
    asyncpg.InsufficientPrivilegeError,  # it was there when the store was opened, and an administrator may give it back
)
"""The transaction did not happen, and may succeed when it is retried."""

log = logging.getLogger("holdfast.store")

_ENDS_BY_ITSELF: Final = (
    "SELECT set_config('idle_in_transaction_session_timeout', '10s', true) "
    "WHERE current_setting('idle_in_transaction_session_timeout') = '0'"
)
"""A process that is suspended in the middle of a transaction would keep its locks, and no engine could take its runs
over. After the time of an ordinary lease the server ends its session, as if the connection were cut; a limit that an
administrator has set stays. For this transaction only: nothing is kept in a session."""


@asynccontextmanager
async def in_transaction(raw: Raw, *statements: str) -> AsyncIterator[None]:
    """Run several statements as one transaction. They are prepared before it begins: asyncpg would prepare each one
    when it is used, with a packet that does not end the exchange (Flush, not Sync), and a server that waits for the
    rest takes the session for busy and not for idle. A process that was suspended right there would keep its locks
    without a time limit."""
    await driver_internals.prepare(raw, statements)
    async with raw.transaction(isolation="read_committed"):
        await raw.execute(_ENDS_BY_ITSELF)
        yield


_T = TypeVar("_T")
_SERVER = load("postgres")["server"]
_GIVEN_UP = "the store is being closed"


class Connection:
    """One connection, with an event loop of its own that runs only while its caller waits for an answer.

    So there is no thread between a caller and its answer: on a busy machine with two cores a hand-over to one and back
    took 115 to 500 us, this takes 70. It may be used where a loop is running already; that one is blocked meanwhile, as
    it is while SQLite works.
    """

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._raw: Raw | None = None
        self._is_given_up = False

    def connect(self, where: Address, answer_seconds: float) -> None:
        """Connect to the server and verify it. A connection that is refused is never used."""
        self._raw = self.wait(_connect(where, answer_seconds))
        driver_internals.install_array_encoders(self._raw)
        self.wait(_verify(self._raw, where.shown))

    @property
    def raw(self) -> Raw:
        assert self._raw is not None
        return self._raw

    @property
    def is_new(self) -> bool:
        """True before it is connected."""
        return self._raw is None

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work`, which may use nothing but this connection, to its end."""
        if self._is_given_up:
            work.close()
            raise ConnectionAbortedError(_GIVEN_UP)
        try:
            return run_blocking(self._loop, work)
        except asyncio.CancelledError:
            raise ConnectionAbortedError(_GIVEN_UP) from None
        except asyncpg.InterfaceError as error:  # misuse, or a connection that ended before
            if self._raw is None or not self._raw.is_closed():
                raise
            raise ConnectionResetError(str(error)) from error

    def give_up(self) -> None:
        """Make a caller that waits for an answer over it give up. Any thread may call this, and no other method of a
        connection that is lent to another caller."""
        self._is_given_up = True
        with suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    @property
    def is_usable(self) -> bool:
        """True if it can be lent again: the server answers, and no transaction is in progress."""
        sound = self._raw is not None and not self._raw.is_closed() and not self._raw.is_in_transaction()
        return sound and not self._is_given_up

    def close(self) -> None:
        """Close the session on the server."""
        with suppress(*LOST, asyncpg.InterfaceError):
            self.wait(self.raw.close(timeout=1.0))
        self.drop()

    def drop(self) -> None:
        """Close at once; the server notices by itself."""
        if self._loop.is_closed():
            return
        if self._raw is not None:
            self._raw.terminate()
        with suppress(asyncio.CancelledError):
            run_blocking(self._loop, _end_tasks())
        self._loop.close()


def connected(where: Address) -> Connection:
    """Make a connection outside any pool."""
    connection = Connection()
    try:
        connection.connect(where, STATEMENT_SECONDS)
    except BaseException:
        connection.drop()
        raise
    return connection


async def _end_tasks() -> None:
    """End what asyncpg has left in progress (a cancel request, the end of a transport) before its loop."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)


async def _connect(where: Address, answer_seconds: float) -> Raw:
    settings = {"application_name": "holdfast"}
    return await asyncpg.connect(
        where.dsn,
        timeout=min(CONNECT_SECONDS, answer_seconds),
        command_timeout=answer_seconds,
        statement_cache_size=0 if where.is_pooled else STATEMENTS_KEPT,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
        server_settings=settings if where.is_pooled else settings | OWN_SETTINGS,
    )


async def _verify(raw: Raw, shown: str) -> None:
    """Refuse a server that could lose what it has acknowledged, or that accepts no writes. Checked for every
    connection: another server can take over an address, and a role can be given other settings."""
    number, version, is_replica, is_read_only, has_fsync, waits, encoding = (await raw.fetch(_SERVER))[0]
    if number < OLDEST_SERVER:
        raise StoreError(f"{shown} is PostgreSQL {version}; Holdfast needs 13 or newer.")
    if is_replica:
        raise ServerReadOnly(f"{shown} is a read replica. Give the address of the primary server.")
    if is_read_only:
        raise ServerReadOnly(f"{shown} takes no writes from this user: default_transaction_read_only is on.")
    if not has_fsync:
        raise StoreError(f"{shown} runs with fsync=off: a crash of the machine loses what was committed. Turn it on.")
    if not waits:
        raise StoreError(
            f"{shown} has synchronous_commit=off for this user or database: a crash of the server loses what was "
            "committed. ALTER ROLE ... SET synchronous_commit = on (or ALTER DATABASE), then open it again."
        )
    if encoding != "UTF8":
        raise StoreError(f"{shown} has the encoding {encoding}; make the database with ENCODING 'UTF8'.")


class Connections:
    """The connections of one store. Any thread may borrow one; if all are lent, it waits."""

    def __init__(self, where: Address, answer_seconds: float = STATEMENT_SECONDS) -> None:
        self._where = where
        self._answer_seconds = answer_seconds
        self._idle: list[Connection] = []
        self._at_work: set[Connection] = set()
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(where.connections)
        self._closed = False

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection for the time of a block: an idle one, else a new one."""
        with self._places, self._lent(self._take_idle() or Connection()) as connection:
            if connection.is_new:
                connection.connect(self._where, self._answer_seconds)
            yield connection

    @contextmanager
    def lend_idle(self) -> Iterator[Connection | None]:
        """Lend an idle connection, or None. Never waits, never connects."""
        if not self._places.acquire(blocking=False):
            yield None
            return
        try:
            connection = self._take_idle()
            if connection is None:
                yield None
            else:
                with self._lent(connection):
                    yield connection
        finally:
            self._places.release()

    @contextmanager
    def _lent(self, connection: Connection) -> Iterator[Connection]:
        with self._lock:
            self._at_work.add(connection)
            if self._closed:
                connection.give_up()
        try:
            yield connection
        except BaseException as error:
            self._give_back(connection, is_sound=isinstance(error, Exception) and not isinstance(error, LOST))
            raise
        self._give_back(connection, is_sound=True)

    @property
    def are_lent(self) -> bool:
        """True if a connection is lent."""
        return bool(self._at_work)

    def drop_idle(self) -> None:
        """Drop all idle connections, because the server was lost."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    def close(self) -> None:
        """Close the idle connections. The lent ones give up, and are closed when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._at_work:
                connection.give_up()
        for connection in idle:
            connection.close()

    def _take_idle(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: Connection, *, is_sound: bool) -> None:
        with self._lock:
            self._at_work.discard(connection)
            if is_sound and connection.is_usable:
                self._idle.append(connection)
                return
        connection.drop()


class Patience:
    """How long, and with which pauses, an operation is retried while a server cannot be reached."""

    def __init__(self, seconds: float, closing: threading.Event, shown: str) -> None:
        self._left = seconds
        self._closing = closing
        self._shown = shown
        self._pause = 0.02
        self._told = False

    def lasts(self, error: BaseException) -> bool:
        """Wait a little; False when the time is up, or the store is being closed."""
        if self._left <= 0 or self._closing.is_set():
            return False
        if not self._told and self._pause > 0.1:
            log.warning("%s cannot be reached, trying again: %s", self._shown, describe(error))
            self._told = True
        pause = random.uniform(self._pause / 2, self._pause)
        self._pause = min(self._pause * 2, 1.0)
        self._left -= pause
        return not self._closing.wait(pause)


def describe(error: BaseException) -> str:
    """The message of an asyncpg error, in one line."""
    said = str(error) or type(error).__name__
    return said.splitlines()[0]


def translated(error: Exception, shown: str) -> HoldfastError:
    """What an error of the server or of the network means to the caller; nothing was written."""
    match error:
        case HoldfastError():
            return error
        case asyncpg.DiskFullError():
            return StoreFull(f"The disk of {shown} is full; nothing was written. Free some space, then resume.")
        case OSError():
            return StoreError(f"{shown} cannot be reached: {describe(error)}. Is it up, and is the address right?")
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            doctor = command_line("doctor", "--deep")
            return StoreDamaged(f"{shown} is damaged: {describe(error)}. {doctor} shows what can still be read.")
        case asyncpg.InvalidCatalogNameError():
            return StoreMissing(f"{shown}: {describe(error)}. Make it with `createdb`, in UTF8.")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreError(f"{shown}: {describe(error)}. Check user and password of the address.")
        case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
            return ServerReadOnly(f"{shown}: {describe(error)}. The user of the address must own the schema.")
        case asyncpg.ProtocolViolationError() | asyncpg.InvalidSQLStatementNameError():
            return StoreError(
                f"{shown}: {describe(error)}. Behind a transaction pooler add ?statement_cache_size=0 to the address."
            )
        case _:
            return StoreError(f"{shown}: {describe(error)}")
