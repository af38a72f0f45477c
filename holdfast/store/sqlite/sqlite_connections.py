"""SQLite connections: opening the file, and its settings.

Owns: addresses, file modes, pragmas, waiting for other processes, what an apsw error means.
Never: knows a table of ours (see sqlite_store.py) or changes the schema (see sqlite_opening.py).
Invariants: readers are read-only connections and never checkpoint. No two threads use a connection at a time: readers
are lent (see sqlite_reads.py), the one writer has a lock (see sqlite_store.py).
On crash: SQLite recovers from the WAL at the next open; nothing needs to be undone.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.model.errors import (
    FilesystemReadOnly,
    HoldfastError,
    NotOurStore,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from holdfast.model.views import command_line

BUSY_SECONDS = 600.0
"""How long we wait for another process's write lock: its transactions take milliseconds, so this is a stuck process."""

CHECKPOINT_PAGES = 4_000
"""16 MiB of WAL before it is copied into the database. Against SQLite's 1,000 pages: 100 long runs 29 instead of 35 us
a step, as the same pages are copied less often; 1,000 short ones no clear difference. Opening after a crash reads the
WAL (12 ms for 4,000 pages, 4 ms for 1,100), so it should not be much more."""

CACHE_KIB = 16_000
"""The writer's pages in memory: a group of 1,000 runs must not spill into the WAL before its commit."""

STATEMENT_CACHE = 256
"""Prepared statements per connection: eleven writes in eight sizes, and the reads."""

_T = TypeVar("_T")


def database_path(url: str) -> Path | None:
    """The absolute path of the file that an address names; None for a database in memory."""
    rest = url.removeprefix("sqlite://") if url.startswith("sqlite://") else url
    if url.startswith("sqlite://"):
        if rest and not rest.startswith("/"):
            raise StoreError(f"{url}: a relative file has three slashes (sqlite:///{rest}), an absolute one four")
        rest = rest[1:]
        if not rest:
            return None
    if rest == ":memory:":
        return None
    if not rest:
        raise StoreError("the address of the database is empty")
    return Path(rest).absolute()


def open_bare(path: Path, vfs: str | None = None) -> apsw.Connection:
    """Connect for writing, with our settings, to a file that exists. Does not check whether it is a Holdfast
    database."""
    connection = connect_file(path, apsw.SQLITE_OPEN_READWRITE, vfs)
    try:
        if connection.readonly("main"):
            raise _read_only(path)
        patiently(lambda: connection.pragma("journal_mode", "wal"))
        connection.pragma("synchronous", "full")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.wal_autocheckpoint(CHECKPOINT_PAGES)
    except BaseException:
        close_untouched(connection)
        raise
    return connection


def _read_only(path: Path) -> StoreReadOnly:
    may_write = os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    if os.statvfs(path).f_flag & os.ST_RDONLY or may_write:  # ext4 keeps the flag after an error
        return FilesystemReadOnly(
            f"the file system of {path} accepts no writes, and reading needs that, too. Find out why (`dmesg`) and "
            "mount it for writing, or copy the database and its -wal."
        )
    return StoreReadOnly(
        f"{path} cannot be written by this user, and reading needs that, too. Make it writable, or copy it."
    )


def close_untouched(connection: apsw.Connection) -> None:
    """Close without touching the file."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(True)


def patiently(work: Callable[[], _T]) -> _T:
    """Retry what SQLite may refuse as busy without calling the busy handler (recovery, a change of the journal
    mode)."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return work()
        except apsw.BusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(random.uniform(0.001, 0.02))


def translated(error: Exception, where: str) -> HoldfastError:
    """What an error of SQLite or of the file system means to the caller; nothing was written."""
    match error:
        case HoldfastError():
            return error
        case apsw.FullError() | apsw.IOError() if _is_full(error):
            return StoreFull(f"The disk of {where} is full; nothing was written. Free some space, then resume.")
        case OSError(errno=errno.EROFS):
            return FilesystemReadOnly(f"{where}: the file system accepts no writes.")
        case apsw.ReadOnlyError() | PermissionError():
            return StoreReadOnly(f"{where} cannot be written: {error}")
        case apsw.NotADBError():
            return NotOurStore(f"{where} is not a Holdfast database: {error}")
        case apsw.CorruptError() | apsw.IOError() if _is_damaged(error):
            doctor = command_line("doctor", "--deep")
            return StoreDamaged(f"{where} is damaged: {error}. {doctor} shows what can still be read.")
        case apsw.BusyError():
            return StoreError(f"{where}: another process has held the write lock for {BUSY_SECONDS:.0f} s. Stop it.")
        case apsw.CantOpenError() if not os.access(Path(where).parent, os.W_OK):
            return StoreReadOnly(f"{where}: the directory cannot be written, and SQLite keeps two files there.")
        case _:
            return StoreError(f"{where}: {error}")


def _is_full(error: Exception) -> bool:
    """SQLite has a code of its own for a disk on which the -shm file has no space."""
    code = getattr(error, "extendedresult", 0)
    return isinstance(error, apsw.FullError) or code == apsw.SQLITE_IOERR_SHMSIZE


def _is_damaged(error: Exception) -> bool:
    """True if a page could not be read, or is not a page. (If a whole commit fails, `OutcomeUnknown` says so.)"""
    return isinstance(error, apsw.CorruptError) or getattr(error, "extendedresult", 0) in _UNREADABLE_PAGE


_UNREADABLE_PAGE = frozenset(
    {apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS}
)


def connect_file(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    flags |= apsw.SQLITE_OPEN_NOMUTEX  # one thread has it at a time; else SQLite locks it for every value of every row
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=STATEMENT_CACHE)
    connection.set_busy_handler(Waiting())
    plan_once(connection)
    if flags & apsw.SQLITE_OPEN_READONLY:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def plan_once(connection: apsw.Connection) -> None:
    """Keep SQLite from compiling statements with `LIMIT ?`, and some others, again for each bound value: 12 us instead
    of 5 for a page of events, 30 instead of 5 for what can be claimed."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


class Waiting:
    """Wait for another process, a little longer each time and never in step with it."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, times: int) -> bool:
        now = time.monotonic()
        if times == 0:
            self._since = now
        elif now - self._since > BUSY_SECONDS:
            return False
        time.sleep(random.uniform(0.0002, min(0.001 * (times + 1), 0.02)))
        return True
