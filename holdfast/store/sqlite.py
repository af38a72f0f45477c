"""SQLite: the store of one machine, in one file.

Owns: opening and closing, the transaction around a group and around every other write, what a failed COMMIT means.
Never: decides what is written (the engine), in which statements (sqlite_group.py), or reads (reads.py).
Invariants: one writer connection, one transaction at a time. What returned is on the disk (WAL, synchronous=FULL).
"database is locked" stays in here. A COMMIT whose outcome is unknown closes the store for good.
On crash: SQLite recovers from the WAL at the next open: every commit that returned is there, no other is half there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import apsw
import msgspec

from holdfast.model.errors import OutcomeUnknown, StoreError
from holdfast.store.api import OPENS_BRANCH, Commit, EngineRow, Health, Landed, MessageRow, RunRow, Sent
from holdfast.store.checks import Ask
from holdfast.store.migrate import migrations
from holdfast.store.reads import run_row
from holdfast.store.sqlite_connections import (
    CHECKPOINT_PAGES,
    Readers,
    Waiting,
    database_path,
    open_memory,
    open_writer,
    patiently,
    translated,
)
from holdfast.store.sqlite_doctor import SqliteDoctor
from holdfast.store.sqlite_group import BAD_COMMIT, Fenced, add_messages, write_one_by_one, write_together
from holdfast.store.sqlite_reads import as_json
from holdfast.store.statements import Repeated, load

_SQL = load("sqlite")
_T = TypeVar("_T")
_SYNCHRONOUS_FULL = 2
_winnable = msgspec.json.Decoder(list[list[Any]]).decode
_HEAD_HASH, _FOLD = (RunRow.__struct_fields__.index(name) for name in ("head_hash", "fold"))


class _Busy(Exception):
    """Another process writes, and whoever asked cannot wait."""


class SqliteStore(SqliteDoctor):
    """The store in a SQLite file (`sqlite:///runs.db`, `sqlite:////var/lib/runs.db`, a path) or in memory (`sqlite://`).

    Any thread may call any verb. Raises StoreError or one of its kinds, and OutcomeUnknown from a verb that writes.
    `vfs` names an apsw VFS; tests inject faults with one.
    """

    is_shared: Final = False

    def __init__(self, url: str, *, vfs: str | None = None, create: bool = True) -> None:
        self.url = url
        self._create = create
        self._path = database_path(url)
        self._where = str(self._path or ":memory:")
        self._vfs = vfs
        self._lock = threading.RLock()
        self._waiting = Waiting()
        self._has_long_wal = False
        """Whether it is time for a checkpoint, which nobody made yet."""
        self._writer: apsw.Connection | None = None
        self._cursor: apsw.Cursor | None = None
        self._readers: Readers | None = None
        self._seen = 0
        self._pid = 0
        self._closed_because = "it is not open"

    # lifecycle ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Creates the file (not with `create=False`), or brings it to the newest schema; a file that is refused is
        untouched."""
        with self._lock:
            if self._writer is not None:
                raise StoreError(f"{self._where} is open already.")
            try:
                if self._path is None:
                    self._writer = open_memory()
                else:
                    self._writer = open_writer(self._path, self._vfs, create=self._create)
                    self._readers = Readers(self._path, self._vfs)
                self._writer.set_busy_handler(self._waiting)
                self._cursor = self._writer.cursor()
                self._pid = os.getpid()
                self._seen = self._data_version()
            except (apsw.Error, OSError, StoreError) as error:
                self._drop("it could not be opened", checkpoint=False)
                raise translated(error, self._where) from error

    def close(self) -> None:
        """Closes every connection; the file then stands alone. Closing twice is allowed."""
        with self._lock:
            if self._writer is not None:
                self._check()
                self._drop("it was closed", checkpoint=True)

    # writing --------------------------------------------------------------------------------------------------

    def commit(self, group: Sequence[Commit]) -> list[Landed]:
        if not group:
            return []
        return self._transaction(lambda cursor: _land(cursor, group))

    def commit_if_free(self, group: Sequence[Commit]) -> list[Landed] | None:
        """A checkpoint is left to the next `commit`."""
        writer = self._check()
        if self._has_long_wal:
            self._has_long_wal = False
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._waiting.is_patient = False
            writer.set_wal_hook(self._note_wal)
            return self.commit(group)
        except _Busy:
            return None
        finally:
            self._waiting.is_patient = True
            if self._writer is not None:
                writer.wal_autocheckpoint(CHECKPOINT_PAGES)
            self._lock.release()

    def _note_wal(self, _writer: apsw.Connection, _database: str, pages: int) -> int:
        self._has_long_wal = pages >= CHECKPOINT_PAGES
        return apsw.SQLITE_OK

    def reserve_run_numbers(self, count: int) -> int:
        assert count > 0
        end: int = self._write("take_run_numbers", (count,))[0][0]
        return end - count

    def register_version(self, workflow: str, content_hash: str, definition: bytes, now: int) -> int:
        def register(cursor: apsw.Cursor) -> int:
            rows = cursor.execute(_SQL["version_of_hash"], (workflow, content_hash)).fetchall()
            if not rows:
                rows = cursor.execute(_SQL["add_version"], (workflow, content_hash, definition, now)).fetchall()
            return cast(int, rows[0][0])

        return self._transaction(register)

    def register_engine(self, row: EngineRow) -> None:
        self._write("put_engine", row)

    def renew_engine(self, engine: str, expires_at: int) -> bool:
        return self._change("renew_engine", (engine, expires_at)) == 1

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        def remove(cursor: apsw.Cursor) -> int | None:
            cursor.execute(_SQL["delete_engine"], (engine, expires_at))
            if cursor.execute(_SQL["is_engine"], (engine,)).fetchall():
                return None
            cursor.execute(_SQL["delete_slots"], (engine,))
            return cursor.execute(_SQL["free_runs"], (engine,)).connection.changes()

        return self._transaction(remove)

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        def take(cursor: apsw.Cursor) -> int:
            rows = cursor.execute(_SQL["free_slots"], (engine, pool, limit)).fetchall()
            free = cast(int, rows[0][0]) if rows else 0
            taken = max(0, min(wanted, free))
            if taken:
                cursor.execute(_SQL["take_slots"], (engine, pool, taken))
            return taken

        return self._transaction(take)

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        def give(cursor: apsw.Cursor) -> None:
            cursor.execute(_SQL["give_slots"], (engine, pool, count))
            cursor.execute(_SQL["drop_empty_slots"], (engine, pool))

        self._transaction(give)

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        won = self._transaction(lambda cursor: _claim(cursor, engine, run_nos))
        return [won[run_no] for run_no in dict.fromkeys(run_nos) if run_no in won]

    def release(self, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        return self._transaction(lambda cursor: _release(cursor, leases, unused)) if leases else 0

    def set_hold(self, run_no: int, token: int, hold: str | None) -> bool:
        return self._change("set_hold", (run_no, token, hold)) == 1

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        return self._transaction(lambda cursor: _send(cursor, messages)) if messages else []

    # reading (the verbs are in reads.py and checks.py) ----------------------------------------------------------

    def now(self) -> int:
        return time.time_ns() // 1_000

    def listen(self, wake: Callable[[], None]) -> None:
        """Nobody tells anything here: to ask again and again is cheap."""

    def changed(self) -> bool:
        """Whether somebody else has written since this was last asked. While a group is being written the answer is no:
        whoever asks, asks again soon."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            before, self._seen = self._seen, self._data_version()
            return before != self._seen
        finally:
            self._lock.release()

    def _rows(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        self._check()
        readers = self._readers
        if readers is None:
            with self._lock:
                return self._check().execute(_SQL[name], bindings).fetchall()
        try:
            reader = readers.borrow()
            try:
                try:
                    return reader.execute(_SQL[name], bindings).fetchall()
                except apsw.BusyError:
                    return patiently(lambda: reader.execute(_SQL[name], bindings).fetchall())
            finally:
                readers.give_back(reader)
        except apsw.Error as error:
            raise translated(error, self._where) from error

    def health(self, *, thorough: bool) -> Health:
        said = [str(text) for (text,) in self._rows("integrity_check")] if thorough else ["ok"]
        (schema,) = self._rows("schema_version")[0]
        with self._lock:
            writer = self._check()
            kept = self._path is None or writer.pragma("journal_mode") == "wal"
            durable = kept and writer.pragma("synchronous") == _SYNCHRONOUS_FULL
        return Health([] if said == ["ok"] else said, durable, schema, len(migrations("sqlite")))

    def _at_one_moment(self, work: Callable[[Ask], _T]) -> _T:
        with self._moment() as ask:
            return work(ask)

    @contextmanager
    def _moment(self) -> Iterator[Ask]:
        self._check()
        readers = self._readers
        if readers is None:
            with self._lock:
                connection = self._check()
                yield lambda name, bindings: connection.execute(_SQL[name], bindings).fetchall()
            return
        reader = readers.borrow()

        def ask(name: str, bindings: tuple[Any, ...]) -> list[Any]:
            try:
                return reader.execute(_SQL[name], bindings).fetchall()
            except apsw.BusyError:
                return patiently(lambda: reader.execute(_SQL[name], bindings).fetchall())

        try:
            reader.execute("BEGIN")
            try:
                yield ask
            finally:
                reader.execute("COMMIT")
        except apsw.Error as error:
            raise translated(error, self._where) from error
        finally:
            readers.give_back(reader)

    # the transaction ------------------------------------------------------------------------------------------

    def _write(self, name: str, bindings: tuple[Any, ...]) -> list[Any]:
        return self._transaction(lambda cursor: cursor.execute(_SQL[name], bindings).fetchall())

    def _change(self, name: str, bindings: tuple[Any, ...]) -> int:
        return self._transaction(lambda cursor: cursor.execute(_SQL[name], bindings).connection.changes())

    def _transaction(self, work: Callable[[apsw.Cursor], _T]) -> _T:
        """Does `work` in one transaction, durable when this returns; whatever is raised, it was rolled back."""
        self._check()  # before the lock: in a forked process nobody would ever release it
        with self._lock:
            self._check()
            cursor = self._cursor
            assert cursor is not None
            try:
                try:
                    cursor.execute("BEGIN IMMEDIATE")
                except apsw.BusyError:
                    if not self._waiting.is_patient:
                        raise
                    patiently(lambda: cursor.execute("BEGIN IMMEDIATE"))
                result = work(cursor)
                self._commit(cursor)
                return result
            except apsw.Error as error:
                if isinstance(error, apsw.BusyError) and not self._waiting.is_patient:
                    raise _Busy from error
                raise translated(error, self._where) from error
            finally:
                if self._writer is not None and self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _commit(self, cursor: apsw.Cursor) -> None:
        try:
            cursor.execute("COMMIT")
        except apsw.IOError as error:
            self._drop("an I/O error at COMMIT left the outcome open; open it again", checkpoint=False)
            raise OutcomeUnknown(
                f"{self._where}: an I/O error at COMMIT ({error}); it is not known whether it happened. "
                "The store is closed; opening it again tells."
            ) from error

    def _check(self) -> apsw.Connection:
        if self._writer is None:
            raise StoreError(f"{self._where} cannot be used: {self._closed_because}.")
        if self._pid != os.getpid():
            raise StoreError(f"{self._where} was opened by process {self._pid}; open it again in this one.")
        return self._writer

    def _drop(self, reason: str, *, checkpoint: bool) -> None:
        """Closes every connection, the writer last: only it may checkpoint, and only when nothing is in doubt."""
        self._closed_because = reason
        readers, self._readers = self._readers, None
        writer, self._writer, self._cursor = self._writer, None, None
        if readers is not None:
            readers.close()
        if writer is not None:
            if not checkpoint:
                writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            writer.close(True)

    def _data_version(self) -> int:
        """A number that moves when another connection commits; asked of the writer, so that its own do not count."""
        return cast(int, self._check().execute("PRAGMA data_version").fetchall()[0][0])


def _land(cursor: apsw.Cursor, group: Sequence[Commit]) -> list[Landed]:
    try:
        return write_together(cursor, group)
    except (Fenced, *BAD_COMMIT):
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN IMMEDIATE")
        return write_one_by_one(cursor, group)


def _claim(cursor: apsw.Cursor, engine: str, run_nos: Sequence[int]) -> dict[int, RunRow]:
    ((found,),) = cursor.execute(_SQL["winnable"], (engine, as_json(run_nos))).fetchall()
    won: dict[int, RunRow] = {}
    for row in _decode_winnable(cast(bytes, found)):
        row[_HEAD_HASH] = bytes.fromhex(row[_HEAD_HASH])
        row[_FOLD] = None if row[_FOLD] is None else row[_FOLD].encode(errors="surrogateescape")
        won[row[0]] = run_row(row)
    if won:
        cursor.execute(_SQL["claim"], (engine, as_json(list(won))))
    return won


def _decode_winnable(found: bytes) -> list[list[Any]]:
    try:
        return _winnable(found)
    except UnicodeDecodeError:  # one of them is damaged, and must not keep us from the others
        damaged: list[list[Any]] = json.loads(found.decode(errors="surrogateescape"))
        return damaged


def _send(cursor: apsw.Cursor, messages: Sequence[MessageRow]) -> list[Sent]:
    ids, run_nos = as_json([m.message_id for m in messages]), as_json(sorted({m.run_no for m in messages}))
    known = {row[0]: row[1:] for row in cursor.execute(_SQL["known_messages"], (ids,))}
    is_finished = {row[0]: row[1] for row in cursor.execute(_SQL["are_runs_finished"], (run_nos,))}
    became: list[Sent] = []
    new: list[tuple[Any, ...]] = []
    for message in messages:
        said = (message.run_no, message.kind, message.payload)
        if message.message_id in known:
            became.append("duplicate" if known[message.message_id] == said else "conflict")
        elif message.run_no not in is_finished:
            became.append("unknown_run")
        elif is_finished[message.run_no] and message.kind not in OPENS_BRANCH:
            became.append("finished")
        else:
            became.append("new")
            known[message.message_id] = said
            new.append(message[:7])
    add_messages(cursor, new)
    return became


def _release(cursor: apsw.Cursor, leases: Sequence[tuple[int, int]], unused: bool) -> int:
    released = 0
    for start, end, sql in _RELEASE.batches(len(leases)):
        bindings = [value for lease in leases[start:end] for value in (*lease, unused)]
        released += cursor.execute(sql, bindings).connection.changes()
    return released


_RELEASE = Repeated("release", _SQL["release"])
