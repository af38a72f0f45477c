"""SQLite connections: opening the file, its settings, who may use which connection.

Owns: addresses, file modes, pragmas, waiting for other processes, the pool of readers, what an apsw error means.
Never: knows a table of ours (see sqlite.py) or changes the schema (see migrate.py).
Invariants: one writer; readers are read-only connections and never checkpoint. No two threads use a connection at a
time: readers are lent, the writer has a lock (see sqlite.py). A file that is refused is untouched.
Files are 0600 from their first moment.
On crash: SQLite recovers from the WAL at the next open; nothing needs to be undone.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from holdfast.model.errors import HoldfastError, NotOurStore, StoreError, StoreFull, StoreMissing, StoreReadOnly
from holdfast.store.migrate import header_fits, inspect, migrate, migrations

BUSY_SECONDS = 600.0
"""How long we wait for another process's write lock: its transactions take milliseconds, so this is a stuck process."""

WAL_BYTES, WAL_REST_BYTES, WAL_QUICK_SECONDS = 4 * 1024 * 1024, 12 * 1024 * 1024, 0.006
"""A WAL that is already there is overwritten in place, which makes a commit 1.3 to 2 times as quick as one that makes
it grow. So it is made at each open, in 3 ms; where that was quick also the rest of what it becomes until its first
checkpoint, in another 7. It is removed when the last one closes."""

CHECKPOINT_PAGES = 4_000
"""16 MiB of WAL before it is copied into the database. Against SQLite's 1,000 pages: 100 long runs 29 instead of 35 us
a step, as the same pages are copied less often; 1,000 short ones no clear difference. Opening after a crash reads the
WAL (12 ms for 4,000 pages, 4 ms for 1,100), so it should not be much more."""

IDLE_READERS_MAX = 8
"""Reader connections kept open; each costs two file handles and its page cache."""

CACHE_KIB = 16_000
"""The writer's pages in memory: a group of 1,000 runs must not spill into the WAL before its commit."""

STATEMENT_CACHE = 256
"""Prepared statements per connection: eleven verbs in eight sizes, and the reads."""

_T = TypeVar("_T")
_MAGIC = b"SQLite format 3\0"


def database_path(url: str) -> Path | None:
    """The file an address names, absolute; None for a database in memory."""
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


def open_memory() -> apsw.Connection:
    """A database that lives as long as its only connection."""
    connection = apsw.Connection(":memory:", statementcachesize=STATEMENT_CACHE)
    _plan_once(connection)
    migrate(connection, ":memory:")
    return connection


def open_writer(path: Path, vfs: str | None = None, *, create: bool = True) -> apsw.Connection:
    """The writing connection of a file that is ours, new or with the newest schema; a refused one is untouched."""
    if create:
        _create(path)
    elif not path.exists():
        raise StoreMissing(f"there is no database {path}.")
    elif path.stat().st_size == 0:  # somebody is making one, or a full disk kept somebody from it
        raise StoreMissing(f"there is no database in {path} yet: the file is empty.")
    if path.stat().st_size == 0:
        _open_wal(path, vfs).close()  # the schema first, so that the WAL is free to be grown
    _probe(path, vfs)
    return _open_wal(path, vfs)


def _open_wal(path: Path, vfs: str | None) -> apsw.Connection:
    connection = open_bare(path, vfs)
    try:
        patiently(lambda: migrate(connection, str(path)))
    except BaseException:
        _leave(connection)
        raise
    return connection


def open_bare(path: Path, vfs: str | None = None) -> apsw.Connection:
    """A connection that writes, with our settings, to a file that is there; whose file that is nobody asked."""
    connection = _connect(path, apsw.SQLITE_OPEN_READWRITE, vfs)
    try:
        if connection.readonly("main"):
            raise StoreReadOnly(
                f"{path} cannot be written by this user, and reading needs that, too. Make it writable, or copy it."
            )
        patiently(lambda: connection.pragma("journal_mode", "wal"))
        connection.pragma("synchronous", "full")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.wal_autocheckpoint(CHECKPOINT_PAGES)
    except BaseException:
        _leave(connection)
        raise
    return connection


def _leave(connection: apsw.Connection) -> None:
    """Closes without touching the file."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(True)


def _probe(path: Path, vfs: str | None) -> None:
    """Refuses a file that is not ours or newer than we are, by reading alone; grows the WAL of one that is ours."""
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return
    if not header.startswith(_MAGIC):
        raise NotOurStore(f"{path} is not a database. Choose another file; nothing was changed.")
    if Path(f"{path}-wal").exists():
        connection = _connect(path, apsw.SQLITE_OPEN_READONLY, vfs)
    elif header_fits(header):
        _grow_wal(path)
        return
    else:  # everything is in this one file, and looking at it must not leave others beside it
        address = f"file:{quote(str(path))}?immutable=1"
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs)
    try:
        patiently(lambda: inspect(connection, str(path), migrations("sqlite")))
    finally:
        connection.close(True)


def patiently(work: Callable[[], _T]) -> _T:
    """Does what SQLite may refuse as busy without asking the busy handler (recovery, a change of the journal mode)."""
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
        case apsw.ReadOnlyError() | PermissionError():
            return StoreReadOnly(f"{where} cannot be written: {error}")
        case apsw.NotADBError():
            return NotOurStore(f"{where} is not a Holdfast database: {error}")
        case apsw.BusyError():
            return StoreError(f"{where}: another process has held the write lock for {BUSY_SECONDS:.0f} s. Stop it.")
        case apsw.CantOpenError() if not os.access(Path(where).parent, os.W_OK):
            return StoreReadOnly(f"{where}: the directory cannot be written, and SQLite keeps two files there.")
        case _:
            return StoreError(f"{where}: {error}")


def _is_full(error: Exception) -> bool:
    """SQLite has a name of its own for a disk on which the -shm file has no space."""
    code = getattr(error, "extendedresult", 0)
    return isinstance(error, apsw.FullError) or code == apsw.SQLITE_IOERR_SHMSIZE


class Readers:
    """Reader connections, lent to one caller at a time. Any thread may ask."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._path = path
        self._vfs = vfs
        self._idle: list[apsw.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def borrow(self) -> apsw.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def give_back(self, connection: apsw.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_READERS_MAX:
                self._idle.append(connection)
                return
        connection.close(True)

    def connect(self) -> apsw.Connection:
        """A connection that its caller keeps, and closes."""
        return _connect(self._path, apsw.SQLITE_OPEN_READONLY, self._vfs)

    def close(self) -> None:
        """Closes the idle ones now, and those that are lent when they come back."""
        with self._lock:
            self._closed = True
        while self._idle:  # one that somebody borrows at this moment is his
            with suppress(IndexError):
                self._idle.pop().close(True)


def _connect(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    flags |= apsw.SQLITE_OPEN_NOMUTEX  # one thread has it at a time; else SQLite locks it for every value of every row
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=STATEMENT_CACHE)
    connection.set_busy_handler(Waiting())
    _plan_once(connection)
    if flags & apsw.SQLITE_OPEN_READONLY:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _plan_once(connection: apsw.Connection) -> None:
    """Without this SQLite compiles statements with `LIMIT ?`, and some others, anew with each value that is bound:
    12 us instead of 5 for a page of events, 30 instead of 5 for what can be claimed."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


class Waiting:
    """Waits for another process, a little longer each time and never in step with it."""

    def __init__(self) -> None:
        self.is_patient = True
        self._since = 0.0

    def __call__(self, times: int) -> bool:
        if not self.is_patient:
            return False
        now = time.monotonic()
        if times == 0:
            self._since = now
        elif now - self._since > BUSY_SECONDS:
            return False
        time.sleep(random.uniform(0.0002, min(0.001 * (times + 1), 0.02)))
        return True


def _create(path: Path) -> None:
    """An empty file, readable by its owner alone whatever the umask; SQLite gives its other files the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise StoreMissing(f"{path} is not a file.") from None
    except (FileNotFoundError, NotADirectoryError):
        raise StoreMissing(f"{path}: there is no directory {path.parent}. Make it first.") from None
    except OSError as error:
        raise StoreReadOnly(f"{path} cannot be created: {error.strerror}.") from error


def _is_roomy(handle: int) -> bool:
    """Whether the disk hardly notices a large WAL."""
    disk = os.fstatvfs(handle)
    return disk.f_bavail * disk.f_frsize > 10 * WAL_REST_BYTES


def _grow_further(handle: int) -> None:
    try:
        _write_zeros(handle, WAL_REST_BYTES)
    except OSError:  # a quota, say
        os.ftruncate(handle, WAL_BYTES)


def _write_zeros(handle: int, number: int) -> None:
    if os.write(handle, bytes(number)) < number:
        raise OSError(errno.ENOSPC, "the last of the disk's space is for others")
    os.fsync(handle)


def _grow_wal(path: Path) -> None:
    """Puts a WAL of zeros in place where there is none: SQLite takes it as empty and overwrites it.

    It is complete before it gets its name, and is given that name only if there is no such file, so that nobody can
    have begun to write there. Only makes things quick: whatever is in its way, SQLite makes its own.
    """
    wal, fresh = Path(f"{path}-wal"), Path(f"{path}-wal-{os.getpid()}-{random.getrandbits(32):08x}")
    with suppress(OSError):
        try:
            owner = path.stat()
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(handle, stat.S_IMODE(owner.st_mode))
                if os.geteuid() == 0:
                    os.fchown(handle, owner.st_uid, owner.st_gid)
                began = time.monotonic()
                _write_zeros(handle, WAL_BYTES)
                if time.monotonic() - began < WAL_QUICK_SECONDS and _is_roomy(handle):
                    _grow_further(handle)
            finally:
                os.close(handle)
            os.link(fresh, wal)
        finally:
            with suppress(FileNotFoundError):
                fresh.unlink()
