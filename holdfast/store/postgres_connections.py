"""PostgreSQL connections: addresses, what a server must be, who may use which connection, what an error means.

Owns: the options of an address, the settings of a connection, the event loop that each connection has for itself, the
pool, and telling weather (try again) from a mistake (say so).
Never: knows a table of ours (see postgres.py), keeps anything in a session that must be found there again: behind a
transaction pooler every statement may meet another one.
Invariants: a connection is lent to one caller at a time. One that may be in doubt is never lent again. The password of
an address is in no message.
On crash: the server ends the sessions by itself; nothing needs to be undone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import threading
from asyncio import events, tasks
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from holdfast.model.errors import HoldfastError, StoreError, StoreFull, StoreMissing, StoreReadOnly
from holdfast.store import postgres_arrays
from holdfast.store.statements import load

CONNECTIONS: Final = 8
"""Connections of one store: a commit under way, and reads beside it. A server has 100 for everybody."""

CONNECT_SECONDS: Final = 10.0
"""How long making one connection may take; over that the server is away."""

STATEMENT_SECONDS: Final = 60.0
"""How long an answer may take. Statements take milliseconds: over that the network lost us, or somebody else's lock
stands in the way; the connection is given up and what was asked is asked again."""

STATEMENTS_KEPT: Final = 250
"""Prepared statements per connection: some hundred reads and writes, and the combinations of parts of a group."""

OLDEST_SERVER: Final = 130_000
"""PostgreSQL 13: the first with `pg_current_xact_id` and `pg_current_snapshot`."""

OWN_SETTINGS: Final = {
    # Statements are written for nested loops over indexes, in the order of run numbers: few rows each, whatever the
    # tables hold. So they are planned once (planning a commit of one run takes as long as doing it). A plan that was
    # made while a table was small is kept; with a scan or a hash join in it, a commit would read the whole table for
    # as long as nobody analyses it, and lock runs in another order than that of their numbers.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""Only make things quick; sent where the connection is ours alone, that is, not behind a pooler. There statements are
planned each time, with the tables as they are."""

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
    asyncpg.InternalClientError,  # the server said good-bye while nobody listened; of several hosts none is the primary
    asyncpg.ReadOnlySQLTransactionError,  # the server became a replica: the next connection finds the new primary
)
"""The connection or the server is away: whether the last statement happened is not known."""

ROLLED_BACK: Final = (
    asyncpg.TransactionRollbackError,  # a deadlock, a serialization failure
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,  # a timeout that somebody set for the server
)
"""The transaction did not happen, and may when it is tried again."""

if TYPE_CHECKING:
    Raw = asyncpg.Connection[asyncpg.Record]
else:
    Raw = asyncpg.Connection

log = logging.getLogger("holdfast.store")

_ENDS_BY_ITSELF: Final = (
    "SELECT set_config('idle_in_transaction_session_timeout', '10s', true) "
    "WHERE current_setting('idle_in_transaction_session_timeout') = '0'"
)
"""Whoever stands still in the middle of a transaction would keep the locks that it holds for as long, and nobody could
take its runs over. After the time of an ordinary lease the server ends its session, which is as if the wire were cut; a
limit that somebody has set already stays. Of this transaction only: nothing is kept in a session."""


@asynccontextmanager
async def in_transaction(raw: Raw, *statements: str) -> AsyncIterator[None]:
    """Several statements, as one. They are prepared before it begins: asyncpg would do that when it comes to each, in a
    packet that asks for no end (Flush, not Sync), and a server that waits for what follows takes the session for busy
    and not for idle. Whoever stood still right there would keep its locks for ever, with no limit to it."""
    if raw._config.statement_cache_size:  # type: ignore[attr-defined]  # behind a pooler nothing is kept prepared
        for statement in statements:
            await raw._get_statement(statement, None)  # type: ignore[attr-defined]  # as `fetch` finds it then
    async with raw.transaction(isolation="read_committed"):
        await raw.execute(_ENDS_BY_ITSELF)
        yield


_T = TypeVar("_T")
_SCHEMES = ("postgresql", "postgres")
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SERVER = load("postgres")["server"]
_GIVEN_UP = "the store is being closed"


class Address(NamedTuple):
    """Where a store is: `postgresql://user:password@host:port/database?schema=holdfast`."""

    dsn: str
    """For asyncpg: without what is meant for us."""
    shown: str
    """For people: without the password."""
    schema: str
    """The schema that holds the tables; several stores in one database differ by it."""
    connections: int
    is_pooled: bool
    """`statement_cache_size=0`: a transaction pooler stands between; nothing may be prepared or set."""


def address(url: str) -> Address:
    """Reads an address. Options of ours: `schema`, `connections`, `statement_cache_size`; others are asyncpg's."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # refused here, where the message does not quote it
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise StoreError(
            "the address of the database cannot be read; it looks like postgresql://user:password@host:5432/database, "
            "with special characters of the password written as %XX"
        ) from None
    if parts.scheme not in _SCHEMES:
        raise StoreError(f"{parts.scheme}:// is not PostgreSQL; use postgresql://host/database")
    schema = options.pop("schema", "holdfast")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise StoreError(f"the schema name {schema!r} is not usable: small letters, digits and _, at most 63 of them")
    connections = _count(options.pop("connections", str(CONNECTIONS)), "connections", least=1)
    kept = _count(options.pop("statement_cache_size", str(STATEMENTS_KEPT)), "statement_cache_size", least=0)
    dsn = urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
    return Address(dsn, _without_password(url), schema, connections, kept == 0)


def _count(text: str, name: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise StoreError(f"{name}={text!r} in the address of the database is not a number from {least} on")
    return int(text)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    options = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if "password" not in k]
    query = urlencode(options, quote_via=quote, safe="/")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))


class Connection:
    """One connection, with an event loop of its own that runs only while its caller waits for an answer.

    So there is no thread between a caller and its answer: on a busy machine with two cores a hand-over to one and back
    took 115 to 500 us, this takes 70. It may be used where a loop is running already; that one stands still meanwhile,
    as it does while SQLite works.
    """

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._raw: Raw | None = None
        self._is_given_up = False

    def connect(self, where: Address, answer_seconds: float) -> None:
        """Meets the server. Nobody uses a connection that is refused."""
        self._raw = self.wait(_connect(where, answer_seconds))
        postgres_arrays.use(self._raw)
        self.wait(_verify(self._raw, where.shown))

    @property
    def raw(self) -> Raw:
        assert self._raw is not None
        return self._raw

    @property
    def is_new(self) -> bool:
        """Whether it was not connected yet."""
        return self._raw is None

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Does `work`, which may use nothing but this connection, and returns when it is done."""
        if self._is_given_up:
            work.close()
            raise ConnectionAbortedError(_GIVEN_UP)
        try:
            return self._run(work)
        except asyncio.CancelledError:
            raise ConnectionAbortedError(_GIVEN_UP) from None
        except asyncpg.InterfaceError as error:  # asyncpg's word for misuse, and for a connection that ended before
            if self._raw is None or not self._raw.is_closed():
                raise
            raise ConnectionResetError(str(error)) from error

    def give_up(self) -> None:
        """Lets whoever waits for an answer over it wait no longer. Any thread may call this, and no other method of a
        connection that is lent to somebody else."""
        self._is_given_up = True
        with suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in tasks.all_tasks(self._loop):
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        running = events._get_running_loop()
        if running is None:
            return self._loop.run_until_complete(work)
        # What "Extending asyncio" offers to whoever brings a loop of their own: for as long as ours runs, this thread
        # runs no other loop and no other task.
        task = tasks.current_task(running)
        if task is not None:
            tasks._leave_task(running, task)
        events._set_running_loop(None)
        try:
            return self._loop.run_until_complete(work)
        finally:
            events._set_running_loop(running)
            if task is not None:
                tasks._enter_task(running, task)

    @property
    def is_usable(self) -> bool:
        """Whether it can be lent again: the server answers, and no transaction is under way."""
        sound = self._raw is not None and not self._raw.is_closed() and not self._raw.is_in_transaction()
        return sound and not self._is_given_up

    def close(self) -> None:
        """Says good-bye to the server."""
        with suppress(*LOST, asyncpg.InterfaceError):
            self.wait(self.raw.close(timeout=1.0))
        self.drop()

    def drop(self) -> None:
        """Leaves at once; the server notices by itself."""
        if self._loop.is_closed():
            return
        if self._raw is not None:
            self._raw.terminate()
        with suppress(asyncio.CancelledError):
            self._run(_end_tasks())
        self._loop.close()


def connected(where: Address) -> Connection:
    """A connection of one's own, of no pool."""
    connection = Connection()
    try:
        connection.connect(where, STATEMENT_SECONDS)
    except BaseException:
        connection.drop()
        raise
    return connection


async def _end_tasks() -> None:
    """What asyncpg has left under way (a cancel request, the end of a transport) ends before its loop does."""
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
    """Refuses a server that could lose what it has acknowledged, or that takes no writes. Asked of every connection:
    a server can become another one behind its address, and a role can be given other settings."""
    number, version, is_replica, is_read_only, has_fsync, waits, encoding = (await raw.fetch(_SERVER))[0]
    if number < OLDEST_SERVER:
        raise StoreError(f"{shown} is PostgreSQL {version}; Holdfast needs 13 or newer.")
    if is_replica:
        raise StoreReadOnly(f"{shown} is a read replica. Give the address of the primary server.")
    if is_read_only:
        raise StoreReadOnly(f"{shown} takes no writes from this user: default_transaction_read_only is on.")
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
    """The connections of one store. Any thread may ask for one; who finds all of them lent waits."""

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
        """A connection for the time of a block: an idle one, else a new one."""
        with self._places, self._lent(self._take_idle() or Connection()) as connection:
            if connection.is_new:
                connection.connect(self._where, self._answer_seconds)
            yield connection

    @contextmanager
    def lend_idle(self) -> Iterator[Connection | None]:
        """The same for what can be left undone: nothing when none is idle. Never waits, never connects."""
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
        """Whether anybody has one now."""
        return bool(self._at_work)

    def drop_idle(self) -> None:
        """The server was away: what was connected before is not any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    def close(self) -> None:
        """Closes the idle ones. Those that are lent answer no more, and are closed when they come back."""
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
    """How long, and with which pauses, somebody tries again while a server is away."""

    def __init__(self, seconds: float, closing: threading.Event, shown: str) -> None:
        self._left = seconds
        self._closing = closing
        self._shown = shown
        self._pause = 0.02
        self._told = False

    def lasts(self, error: BaseException) -> bool:
        """Waits a little; False when it was long enough, or the store is being closed."""
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
    """What an error of asyncpg says, in one line."""
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
        case asyncpg.InvalidCatalogNameError():
            return StoreMissing(f"{shown}: {describe(error)}. Make it with `createdb`, in UTF8.")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreError(f"{shown}: {describe(error)}. Check user and password of the address.")
        case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
            return StoreReadOnly(f"{shown}: {describe(error)}. The user of the address must own the schema.")
        case asyncpg.ProtocolViolationError() | asyncpg.InvalidSQLStatementNameError():
            return StoreError(
                f"{shown}: {describe(error)}. Behind a transaction pooler add ?statement_cache_size=0 to the address."
            )
        case _:
            return StoreError(f"{shown}: {describe(error)}")
