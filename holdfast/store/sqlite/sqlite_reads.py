"""Reading from SQLite: the reading half of the store, and the connections that it borrows.

Owns: the pool of readers, sending a statement of queries.py over one of them, and how lists are bound.
Never: writes, or decides what is read (see queries.py).
Invariants: readers are read-only connections and never checkpoint; each is lent to one thread at a time. A database in
memory has one connection, which the writer's lock protects.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.model.errors import StoreError
from holdfast.model.timers import Elapsed
from holdfast.store.queries import Ask, Queries
from holdfast.store.sql_files import load
from holdfast.store.sqlite.sqlite_connections import connect_file, patiently, translated

IDLE_READERS_MAX = 8
"""Reader connections kept open; each costs two file handles and its page cache."""

_SQL = load("sqlite")
_T = TypeVar("_T")


class SqliteReads(Queries):
    """Answers the queries of the contract over the readers; while the store is closed there are none."""

    _where: str
    _lock: threading.RLock
    _readers: Readers | None

    @abstractmethod
    def _check(self) -> apsw.Connection:
        """Return the writer; raise StoreError if the store is closed."""

    def _rows(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        readers = self._readers
        if readers is None:
            return self._at_one_moment(lambda ask: ask(name, bindings))
        try:
            return readers.rows(_SQL[name], bindings)
        except apsw.Error as error:
            raise translated(error, self._where) from error

    def _at_one_moment(self, work: Callable[[Ask], _T]) -> _T:
        readers = self._readers
        if readers is None:
            self._check()  # before the lock: in a forked process it would never be released
            with self._lock:
                execute = self._check().execute
                return work(lambda name, bindings: execute(_SQL[name], bindings).fetchall())
        try:
            with readers.snapshot() as fetch:
                return work(lambda name, bindings: fetch(_SQL[name], bindings))
        except apsw.Error as error:
            raise translated(error, self._where) from error

    def _elapsed(self, elapsed: Elapsed | None) -> tuple[Any, ...]:
        return elapsed or ("", 0)

    def _many(self, values: Sequence[int] | Sequence[str] | None) -> Any:
        return None if values is None else as_json(values)

    def _pairs(self, values: Sequence[tuple[int | str, int]]) -> tuple[Any, ...]:
        return (as_json(values),)


def as_json(values: Sequence[int] | Sequence[str] | Sequence[tuple[int | str, int]]) -> str:
    """Bind a list as one value; SQLite expands it with json_each."""
    return msgspec.json.encode(values).decode()


class Readers:
    """Reader connections, lent to one caller at a time. Any thread may borrow one."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._path = path
        self._vfs = vfs
        self._pid = os.getpid()
        self._idle: list[apsw.Connection] = []
        self._lock = threading.Lock()
        self._lent = 0
        self._is_closed = False
        self._when_all_are_back: Callable[[], None] | None = None

    def borrow(self) -> apsw.Connection:
        if self._pid != os.getpid():
            raise StoreError(f"{self._path} was opened by process {self._pid}; open it again in this one.")
        with self._lock:
            self._lent += 1
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self.connect()
        except BaseException:
            self._came_back()
            raise

    def give_back(self, connection: apsw.Connection) -> None:
        with self._lock:
            is_kept = not self._is_closed and len(self._idle) < IDLE_READERS_MAX
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close(True)
        self._came_back()

    def _came_back(self) -> None:
        with self._lock:
            self._lent -= 1
            told = None if self._lent else self._when_all_are_back
        if told is not None:
            told()

    def rows(self, sql: str, bindings: tuple[Any, ...]) -> list[Any]:
        """All rows of one statement."""
        reader = self.borrow()
        try:
            return _fetch(reader, sql, bindings)
        finally:
            self.give_back(reader)

    @contextmanager
    def snapshot(self) -> Iterator[Callable[[str, tuple[Any, ...]], list[Any]]]:
        """Give a function that returns all rows of a statement; all of its calls read the same moment."""
        reader = self.borrow()
        try:
            reader.execute("BEGIN")
            try:
                yield lambda sql, bindings: _fetch(reader, sql, bindings)
            finally:
                reader.execute("COMMIT")
        finally:
            self.give_back(reader)

    def connect(self) -> apsw.Connection:
        """Make a connection that the caller keeps and closes."""
        return connect_file(self._path, apsw.SQLITE_OPEN_READONLY, self._vfs)

    def close(self) -> None:
        """Close the idle ones now, and the lent ones when they are returned."""
        with self._lock:
            self._is_closed = True
        while self._idle:  # another thread may borrow one at this moment
            with suppress(IndexError):
                self._idle.pop().close(True)

    def when_all_are_back(self, told: Callable[[], None]) -> None:
        """Call this, once, when no connection is lent any more; after `close`."""
        with self._lock:
            is_now = not self._lent
            if not is_now:
                self._when_all_are_back = told
        if is_now:
            told()


def _fetch(reader: apsw.Connection, sql: str, bindings: tuple[Any, ...]) -> list[Any]:
    try:
        return reader.execute(sql, bindings).fetchall()
    except apsw.BusyError:
        return patiently(lambda: reader.execute(sql, bindings).fetchall())
