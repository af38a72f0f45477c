"""Faults: what a life of flows.py can be told to suffer, by its environment. Runs in the child process.

HOLDFAST_DIE_AT=label:n     ends by SIGKILL at a place of crash_points.py, or at `transaction.end`: everything of a
                            transaction is written but its COMMIT; with a server: a statement is sent, and nobody
                            hears the answer;
                            or `transaction.open`, with a server: of several statements only the COMMIT is not sent;
                            or `transaction.packet`, with a server: whatever is sent in the middle of a transaction
CRASH_STOP_AT=label:n       stands still there (SIGSTOP) until somebody continues it
CRASH_FILE_BYTES=n          no file may grow beyond this (RLIMIT_FSIZE)
CRASH_SYNC_FAILS=n          the n-th sync of a WAL fails, and every one after it
CRASH_STATEMENT=n           ends by SIGKILL before the n-th statement of bringing the schema up to date
CRASH_IDLE_SECONDS=n        every other transaction on a server stands still for so long before its end
CRASH_ROLLED_BACK=1         the first try of whatever is asked of a server is rolled back, for one reason or another
"""

from __future__ import annotations

import functools
import itertools
import os
import resource
import signal
import threading
import time
from asyncio import selector_events
from collections.abc import Callable
from typing import Any

import apsw
import asyncpg
from asyncpg.transaction import Transaction

from holdfast import opening
from holdfast.engine import crash_points
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.sqlite import sqlite_opening
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.servers import EXECUTE

kept: list[object] = []
"""What must live as long as the process: apsw forgets a VFS whose object is gone."""


def arrange() -> None:
    """Everything that the environment asks for."""
    environ = os.environ
    crash_points.die_at(environ.get("HOLDFAST_DIE_AT"))
    if place := environ.get("CRASH_STOP_AT"):
        crash_points.hit = _countdown(place, _stop_between_transactions())
    if crash_points.hit is not None:
        _reach_the_end_of_transactions()
        _reach_statements_under_way()
        _reach_open_transactions()
    if limit := environ.get("CRASH_FILE_BYTES"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write that is too long fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    if number := environ.get("CRASH_SYNC_FAILS"):
        kept.append(FailingSync(int(number)))
        opening.store_at = functools.partial(SqliteStore, vfs="failing-sync")
    if number := environ.get("CRASH_STATEMENT"):
        _die_in_migrations(int(number))
    if idle := environ.get("CRASH_IDLE_SECONDS"):
        _stand_still_in_transactions(float(idle))
    if "CRASH_ROLLED_BACK" in environ:
        _roll_back_first_tries()


def _countdown(place: str, act: Callable[[], None]) -> Callable[[str], None]:
    label, _, count = place.partition(":")
    left = int(count)

    def at(here: str) -> None:
        nonlocal left
        if here == label:
            left -= 1
            if left == 0:
                act()

    return at


def _stop_between_transactions() -> Callable[[], None]:
    """To stand still (SIGSTOP) while no other thread is in the middle of a transaction on a file: a lease that is just
    being renewed would keep everybody else out for as long as we stand still."""
    transaction = SqliteStore._transaction
    between = threading.RLock()

    def whole(self: SqliteStore, work: Callable[[apsw.Cursor], Any]) -> Any:
        with between:
            return transaction(self, work)

    def stop() -> None:
        with between:
            # to this very thread: sent to the process, it might go a little further, and stop with a lock in its hand
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    SqliteStore._transaction = whole  # type: ignore[method-assign]
    return stop


def _reach_the_end_of_transactions() -> None:
    """One more place. The store is below the engine and does not know of such things."""
    commit = SqliteStore._commit

    def dying_commit(self: SqliteStore, cursor: Any) -> None:
        assert crash_points.hit is not None
        crash_points.hit("transaction.end")
        commit(self, cursor)

    SqliteStore._commit = dying_commit  # type: ignore[method-assign]


def _reach_statements_under_way() -> None:
    """The same place with a server: it goes on with what it was sent, whatever becomes of us."""
    write = selector_events._SelectorSocketTransport.write

    def dying_write(self: Any, data: bytes) -> None:
        write(self, data)
        sent = bytes(data)
        assert crash_points.hit is not None
        if EXECUTE in sent or b"COMMIT" in sent:
            crash_points.hit("transaction.end")
        if b"BEGIN" in sent:
            self._is_in_transaction = True
        elif b"COMMIT" in sent or b"ROLLBACK" in sent:
            self._is_in_transaction = False
        if getattr(self, "_is_in_transaction", False):
            crash_points.hit("transaction.packet")

    selector_events._SelectorSocketTransport.write = dying_write


def _reach_open_transactions() -> None:
    """With a server: everything of a transaction of several statements is done but its COMMIT."""
    end = Transaction.__aexit__

    async def dying_end(self: Transaction, *how: Any) -> None:
        assert crash_points.hit is not None
        crash_points.hit("transaction.open")
        await end(self, *how)

    Transaction.__aexit__ = dying_end  # type: ignore[method-assign]


def _stand_still_in_transactions(idle_seconds: float) -> None:
    end = Transaction.__aexit__
    stands_still = itertools.cycle([True, False])

    async def late_end(self: Transaction, *how: Any) -> None:
        if next(stands_still):
            time.sleep(idle_seconds)
        await end(self, *how)

    Transaction.__aexit__ = late_end  # type: ignore[method-assign]


def _roll_back_first_tries() -> None:
    """What the server says when transactions are in each other's way; nothing was done then."""
    over = PostgresStore._over
    reasons = itertools.cycle(
        [asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError]
    )

    def rolled_back(self: PostgresStore, work: Callable[[Any, bool], Any], *, writes: bool) -> Any:
        is_first = True

        def again(connection: Any, has_tried: bool) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                raise next(reasons)("injected")
            return work(connection, has_tried)

        return over(self, again, writes=writes)

    PostgresStore._over = rolled_back  # type: ignore[method-assign]


def _die_in_migrations(number: int) -> None:
    migrate = sqlite_opening.migrate
    left = number

    def trace(cursor: apsw.Cursor, statement: str, bindings: object) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def traced(connection: apsw.Connection, where: str) -> int:
        connection.exec_trace = trace
        try:
            return migrate(connection, where)
        finally:
            connection.exec_trace = None

    sqlite_opening.migrate = traced  # type: ignore[assignment]


class FailingSync(apsw.VFS):
    """The system's files, until a sync of a WAL fails; from then on the disk cannot be trusted at all."""

    def __init__(self, number: int) -> None:
        self.left = number
        super().__init__("failing-sync", "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, vfs: FailingSync, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._vfs = vfs
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:
        if self._is_wal:
            self._vfs.left -= 1
            if self._vfs.left <= 0:
                raise apsw.IOError("injected: the sync failed")
        super().xSync(flags)
