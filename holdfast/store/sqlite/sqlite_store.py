"""SQLite: the store of one machine, in one file.

Owns: opening and closing, the transaction around a group and around every other write, what a failed COMMIT means.
Never: decides what is written (the engine), in which statements (sqlite_writes.py), or reads
(sqlite_reads.py).
Invariants: one writer connection, one transaction at a time. What returned is on the disk (WAL, synchronous=FULL).
"database is locked" never leaves this module. A COMMIT whose outcome is unknown closes the store for good.
On crash: SQLite recovers from the WAL at the next open: every commit that returned is there, and none in part.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import apsw

from holdfast.model.errors import OutcomeUnknown, StoreDamaged, StoreError, StoreGone
from holdfast.model.views import command_line
from holdfast.store.row_types import Check, Commit, CommitResult, EngineRow, Health, MessageRow, Rebuilt, RunRow, Sent
from holdfast.store.sql_files import load, migrations
from holdfast.store.sqlite import foreign_wal
from holdfast.store.sqlite.open_files import OpenFile
from holdfast.store.sqlite.sqlite_connections import (
    database_path,
    patiently,
    translated,
)
from holdfast.store.sqlite.sqlite_opening import find_file, open_memory, open_writer
from holdfast.store.sqlite.sqlite_reads import Readers
from holdfast.store.sqlite.sqlite_versions import SqliteVersions
from holdfast.store.sqlite.sqlite_writes import claim, close_inbox, rebuild, release, send, write_group

_SQL = load("sqlite")
_T = TypeVar("_T")
_SYNCHRONOUS_FULL = 2


class SqliteStore(SqliteVersions):
    """The store in a SQLite file (`sqlite:///runs.db`, `sqlite:////var/lib/runs.db`, a path) or in memory (`sqlite://`).

    Any thread may call any operation. Raises StoreError or one of its kinds, and OutcomeUnknown from one that writes.
    `vfs` names an apsw VFS; tests inject faults with one. `allow_network`: also where file locks do not work.
    """

    is_shared: Final = False

    def __init__(self, url: str, *, vfs: str | None = None, create: bool = True, allow_network: bool = False) -> None:
        self.url = url
        self._allow_network = allow_network
        self._create = create
        self._path = database_path(url)
        self._where = str(self._path or ":memory:")
        self._vfs = vfs
        self._lock = threading.RLock()
        self._writer: apsw.Connection | None = None
        self._cursor: apsw.Cursor | None = None
        self._readers: Readers | None = None
        self._file: OpenFile | None = None
        self._seen = 0
        self._pid = 0
        self._closed_because = "it is not open"
        self._is_first_commit = True
        self._is_gone = False
        """The file at its path was found to be another one; the store stays closed."""

    @property
    def file(self) -> Path | None:
        return self._path

    # lifecycle ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the file (not with `create=False`), or migrate it to the newest schema; a refused file is
        untouched."""
        with self._lock:
            if self._writer is not None:
                raise StoreError(f"{self._where} is open already.")
            self._is_gone = False
            self._is_first_commit = True
            try:
                if self._path is None:
                    self._writer = open_memory()
                else:
                    self._file = find_file(self._path, create=self._create, allow_network=self._allow_network)
                    self._writer = open_writer(self._file, self._vfs)
                    self._readers = Readers(self._path, self._vfs)
                self._cursor = self._writer.cursor()
                self._pid = os.getpid()
                self._seen = self._data_version()
                self._refuse_other_file()
            except (apsw.Error, OSError, StoreError) as error:
                self._drop("it could not be opened", checkpoint=False)
                raise translated(error, self._where) from error

    def close(self) -> None:
        """Close every connection; the file then stands alone. Closing twice is allowed."""
        with self._lock:
            if self._writer is not None:
                self._check()
                self._drop("it was closed", checkpoint=True)

    # writing --------------------------------------------------------------------------------------------------

    def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        if not group:
            return []
        try:
            return self._transaction(lambda cursor: write_group(cursor, group))
        except StoreDamaged:
            return [self._commit_alone(commit) for commit in group]

    def _commit_alone(self, commit: Commit) -> CommitResult:
        """Commit alone. A page that cannot be read fails the transaction of every commit that needs it; in a
        transaction of its own a commit that does not need it succeeds, and a passing error of the disk is over."""
        try:
            (landed,) = self._transaction(lambda cursor: write_group(cursor, (commit,)))
        except StoreDamaged as error:
            return CommitResult("damaged", error.message)
        return landed

    def reserve_run_numbers(self, count: int) -> int:
        assert count > 0
        end: int = self._write("take_run_numbers", (count,))[0][0]
        return end - count

    def register_engine(self, row: EngineRow) -> None:
        self._write("put_engine", row)

    def set_offer(self, engine: str, can_run: bytes) -> bool:
        return self._change("set_offer", (engine, can_run)) == 1

    def renew_engine(self, engine: str, expires_at: int, awake_until: int = 0) -> bool:
        return self._change("renew_engine", (engine, expires_at, awake_until)) == 1

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
        won = self._transaction(lambda cursor: claim(cursor, engine, run_nos))
        return [won[run_no] for run_no in dict.fromkeys(run_nos) if run_no in won]

    def release(self, engine: str, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        return self._transaction(lambda cursor: release(cursor, engine, leases, unused)) if leases else 0

    def set_hold(self, run_no: int, token: int, engine: str | None, hold: str | None) -> bool:
        return self._change("set_hold", (run_no, token, engine, hold)) == 1

    def raise_token(self, run_no: int, token: int, engine: str | None, raised: int) -> bool:
        return self._change("raise_token", (run_no, token, engine, raised)) == 1

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        return self._transaction(lambda cursor: send(cursor, messages)) if messages else []

    # reading (see sqlite_reads.py and queries.py) -----------------------------------------------------------------

    def now(self) -> int:
        return time.time_ns() // 1_000

    def listen(self, wake: Callable[[], None]) -> None:
        """Do nothing: polling `changed` is cheap."""

    def changed(self) -> bool:
        """True if another process has written since the last call. False while a group is being written: the caller
        polls."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            before, self._seen = self._seen, self._data_version()
            return before != self._seen
        finally:
            self._lock.release()

    def health(self, *, thorough: bool) -> Health:
        said = [str(text) for (text,) in self._rows("integrity_check")] if thorough else ["ok"]
        (schema,) = self._rows("schema_version")[0]
        with self._lock:
            writer = self._check()
            kept = self._path is None or writer.pragma("journal_mode") == "wal"
            durable = kept and writer.pragma("synchronous") == _SYNCHRONOUS_FULL
        return Health([] if said == ["ok"] else said, durable, schema, len(migrations("sqlite")))

    # repairs ---------------------------------------------------------------------------------------------------

    def rebuild(self, rebuilt: Rebuilt) -> bool:
        return self._transaction(lambda cursor: rebuild(cursor, rebuilt))

    def remove_orphans(self, check: Check, run_no: int) -> int:
        return self._change(f"remove_{check}", (run_no,))

    def close_inbox(self, run_no: int) -> int:
        return self._transaction(lambda cursor: close_inbox(cursor, run_no))

    # the transaction ------------------------------------------------------------------------------------------

    def _write(self, name: str, bindings: tuple[Any, ...]) -> list[Any]:
        return self._transaction(lambda cursor: cursor.execute(_SQL[name], bindings).fetchall())

    def _change(self, name: str, bindings: tuple[Any, ...]) -> int:
        return self._transaction(lambda cursor: cursor.execute(_SQL[name], bindings).connection.changes())

    def _transaction(self, work: Callable[[apsw.Cursor], _T]) -> _T:
        """Call `work` in one transaction, durable when this returns; whatever is raised, it was rolled back."""
        self._check()  # before the lock: in a forked process it would never be released
        with self._lock:
            self._check()
            cursor = self._cursor
            assert cursor is not None
            try:
                try:
                    cursor.execute("BEGIN IMMEDIATE")
                except apsw.BusyError:
                    patiently(lambda: cursor.execute("BEGIN IMMEDIATE"))
                result = work(cursor)
                self._commit(cursor)
                return result
            except apsw.Error as error:
                raise translated(error, self._where) from error
            finally:
                if self._writer is not None and self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _commit(self, cursor: apsw.Cursor) -> None:
        """Commit. When this returns, the commit is on the disk, in the files that the paths name."""
        try:
            if self._is_first_commit and self._file is not None:
                foreign_wal.put_first_page(cursor)
            cursor.execute("COMMIT")
            self._is_first_commit = False
        except apsw.IOError as error:
            self._drop("an I/O error at COMMIT left the outcome open; open it again", checkpoint=False)
            raise OutcomeUnknown(
                f"{self._where}: an I/O error at COMMIT ({error}); it is not known whether it happened. "
                "The store is closed; opening it again tells."
            ) from error
        self._refuse_other_file()

    def _refuse_other_file(self) -> None:
        """Close the store if its file or its log was deleted, moved or replaced: what is written then is lost with this
        process."""
        gone = None if self._file is None else self._file.what_is_gone()
        if gone is not None:
            self._drop(gone, checkpoint=False)
            self._is_gone = True
            raise self._as_gone()

    def _as_gone(self) -> StoreGone:
        return StoreGone(
            f"{self._closed_because}, while the store was open here. The store is closed, and nothing is acknowledged "
            "any more; what was written just before may be lost. Put the database back "
            f"({command_line('db', 'restore', 'BACKUP')} if it is lost), then open it again."
        )

    def _check(self) -> apsw.Connection:
        if self._is_gone:
            raise self._as_gone()
        if self._writer is None:
            raise StoreError(f"{self._where} cannot be used: {self._closed_because}.")
        if self._pid != os.getpid():
            raise StoreError(f"{self._where} was opened by process {self._pid}; open it again in this one.")
        return self._writer

    def _drop(self, reason: str, *, checkpoint: bool) -> None:
        """Close every connection, the writer last: only it may checkpoint, and only when nothing is in doubt."""
        self._closed_because = reason
        readers, self._readers = self._readers, None
        writer, self._writer, self._cursor = self._writer, None, None
        file, self._file = self._file, None
        if readers is not None:
            readers.close()
        if file is not None:
            file.leave()
        if writer is not None:
            if not checkpoint:
                writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            writer.close(True)
        if file is not None and readers is not None:
            readers.when_all_are_back(file.close)
        elif file is not None:
            file.close()

    def _data_version(self) -> int:
        """A number that changes when another connection commits; read on the writer, so that its own commits do not
        count."""
        return cast(int, self._check().execute("PRAGMA data_version").fetchall()[0][0])
