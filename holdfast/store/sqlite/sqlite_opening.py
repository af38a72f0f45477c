"""Opening a SQLite file: creating it, refusing it, and the connection that writes.

Owns: file modes, recognising a file that is not ours before anything is written to it, and growing the WAL.
Never: changes a page itself: the schema is sqlite_schema.py's.
Invariants: a file that is refused is untouched. Files are 0600 from their first moment.
On crash: SQLite recovers from the WAL at the next open; nothing needs to be undone.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final
from urllib.parse import quote

import apsw

from holdfast.model.errors import FilesystemReadOnly, NotOurStore, StoreError, StoreMissing, StoreReadOnly
from holdfast.store.sqlite import filesystems, foreign_wal
from holdfast.store.sqlite.open_files import OpenFile
from holdfast.store.sqlite.sqlite_connections import (
    STATEMENT_CACHE,
    close_untouched,
    connect_file,
    open_bare,
    patiently,
    plan_once,
)
from holdfast.store.sqlite.sqlite_schema import SQLITE_MAGIC, header_fits, inspect, migrate

NAME_SECONDS = 5.0
"""How long a database may be locked while no process has the index of its log open: one that opens or closes it does
so for milliseconds."""

_JOURNAL_HEADER: Final = Struct(">8s3I")
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
"""How a rollback journal of SQLite begins; then the number of its records, a random number, and how many pages the
database had before."""

WAL_BYTES, WAL_REST_BYTES, WAL_QUICK_SECONDS = 4 * 1024 * 1024, 12 * 1024 * 1024, 0.006
"""A WAL that is already there is overwritten in place, which makes a commit 1.3 to 2 times as quick as one that makes
it grow. So it is made at each open, in 3 ms; where that was quick also the rest of what it becomes until its first
checkpoint, in another 7. It is removed when the last one closes."""


def open_memory() -> apsw.Connection:
    """A database that lives as long as its only connection."""
    connection = apsw.Connection(":memory:", statementcachesize=STATEMENT_CACHE)
    plan_once(connection)
    migrate(connection, ":memory:")
    return connection


def find_file(path: Path, *, create: bool, allow_network: bool) -> OpenFile:
    """The database file, empty if it is new. Without `create` one that is not there is not made."""
    filesystems.refuse_unsafe(path, allowed=allow_network)
    if create:
        _create(path)
    elif not path.exists():
        raise StoreMissing(f"there is no database {path}.")
    elif _is_unmade(path):  # a process is making one, or a full disk or a power loss kept a process from it
        raise StoreMissing(f"there is no database in {path} yet: the file is empty, or was never completed.")
    return OpenFile(path)


def open_writer(file: OpenFile, vfs: str | None = None) -> apsw.Connection:
    """The writing connection of a file that is ours, new or with the newest schema; a refused one is untouched."""
    path = file.path
    if file.is_alone:
        _refuse_another_name(file)
        foreign_wal.set_aside_foreign(file, Path(f"{path}-wal"))
        if _is_unmade(path):
            _open_wal(path, vfs).close()  # the schema first, so that the WAL is free to be grown
        if header_fits(file.header()):
            foreign_wal.renumber_backup(file, Path(f"{path}-wal"))
        _probe(path, file.header(), vfs)
    connection = _open_wal(path, vfs)
    file.connected(Path(connection.filename_wal), Path(f"{connection.filename}-shm"))
    return connection


def _is_unmade(path: Path) -> bool:
    """Whether a file is empty, or was empty until a process wrote its first page and the power was lost: then SQLite's
    rollback journal beside it says that it had no page, and SQLite makes it empty again. The page may be torn."""
    if path.stat().st_size == 0:
        return True
    try:
        with Path(f"{path}-journal").open("rb") as journal:
            header = journal.read(_JOURNAL_HEADER.size)
    except FileNotFoundError:
        return False
    if len(header) < _JOURNAL_HEADER.size:
        return False
    magic, _, _, pages_before = _JOURNAL_HEADER.unpack(header)
    return bool(magic == _JOURNAL_MAGIC and pages_before == 0)


def _refuse_another_name(file: OpenFile) -> None:
    """A process that is just opening or closing the database looks the same for a moment."""
    give_up = time.monotonic() + NAME_SECONDS
    while file.is_used_under_another_name():
        if time.monotonic() > give_up:
            raise StoreError(
                f"{file.path} is open in another process under another name (a hard link, or a mount of the file "
                "alone). Each name has a log of its own, and two logs destroy the database. Use one name everywhere; "
                "into a container mount the directory of the database, not the file. Nothing was changed."
            )
        time.sleep(random.uniform(0.001, 0.02))


def _open_wal(path: Path, vfs: str | None) -> apsw.Connection:
    connection = open_bare(path, vfs)
    try:
        patiently(lambda: migrate(connection, str(path)))
    except BaseException:
        close_untouched(connection)
        raise
    return connection


def _probe(path: Path, header: bytes, vfs: str | None) -> None:
    """Refuses a file that is not ours or newer than we are, by reading alone; grows the WAL of one that is ours."""
    if not header:
        return
    if not header.startswith(SQLITE_MAGIC):
        raise NotOurStore(f"{path} is not a database. Choose another file; nothing was changed.")
    if Path(f"{path}-wal").exists():
        connection = connect_file(path, apsw.SQLITE_OPEN_READONLY, vfs)
    elif header_fits(header):
        _grow_wal(path)
        return
    else:  # everything is in this one file, and looking at it must not leave others beside it
        address = f"file:{quote(str(path))}?immutable=1"
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs)
    try:
        patiently(lambda: inspect(connection, str(path)))
    finally:
        connection.close(True)


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
        kind = FilesystemReadOnly if error.errno == errno.EROFS else StoreReadOnly
        raise kind(f"{path} cannot be created: {error.strerror}.") from error


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
