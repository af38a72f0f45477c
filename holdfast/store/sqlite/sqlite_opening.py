"""Opening a SQLite file: create it, migrate it or refuse it, and connect for writing.

Owns: file modes, where a file may lie, recognising a file of another program before anything is written to it, applying
the migrations, and the length of the log.
Never: changes a file that it refuses, migrates backwards, or refuses a file system that it does not know.
Invariants: a refused file is untouched. Files are 0600 from the start. One transaction per migration, with its record
and the schema version in it.
On crash: SQLite recovers from the WAL at the next open. The database has the schema before or after a migration, never
one between; the next open continues.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import time
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final
from urllib.parse import quote

import apsw

from holdfast.model.errors import (
    FilesystemReadOnly,
    NotOurStore,
    StoreError,
    StoreMissing,
    StoreReadOnly,
    UnsafeFilesystem,
)
from holdfast.model.limits import LOG_BYTES
from holdfast.store.sql_files import Migration, load, migrations, pending
from holdfast.store.sqlite import foreign_wal
from holdfast.store.sqlite.open_files import OpenFile
from holdfast.store.sqlite.sqlite_connections import (
    CACHE_KIB,
    STATEMENT_CACHE,
    close_untouched,
    connect_file,
    open_bare,
    patiently,
    plan_once,
)

NAME_SECONDS = 5.0
"""How long a database may be locked while no process has the index of its log open: a process that opens or closes it
locks it for milliseconds."""

_JOURNAL_HEADER: Final = Struct(">8s3I")
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
"""How a rollback journal of SQLite begins; then the number of its records, a random number, and how many pages the
database had before."""


def open_memory() -> apsw.Connection:
    """A database that lives as long as its only connection."""
    connection = apsw.Connection(":memory:", statementcachesize=STATEMENT_CACHE)
    plan_once(connection)
    migrate(connection, ":memory:")
    return connection


def find_file(path: Path, *, create: bool, allow_network: bool) -> OpenFile:
    """Find the database file, or create an empty one. Without `create` a missing file is not created."""
    refuse_unsafe(path, allowed=allow_network)
    if create:
        _create(path)
    elif not path.exists():
        raise StoreMissing(f"there is no database {path}.")
    elif _is_unmade(path):  # a process is making one, or a full disk or a power loss kept a process from it
        raise StoreMissing(f"there is no database in {path} yet: the file is empty, or was never completed.")
    return OpenFile(path)


def open_writer(file: OpenFile, vfs: str | None = None) -> apsw.Connection:
    """Connect for writing to a file of ours, new or with the newest schema; a refused file is untouched."""
    path = file.path
    if file.is_alone:
        _refuse_another_name(file)
        log = Path(f"{path}-wal")
        foreign_wal.set_aside_foreign(file, log)
        if _is_unmade(path):
            _open_wal(path, vfs).close()  # a log that holds the schema could not be grown
        header = file.header()
        if header_fits(header) and foreign_wal.is_fresh_backup(header):
            foreign_wal.renumber_backup(file, log)
        _probe(path, header, vfs)
    connection = _open_wal(path, vfs)
    if file.is_alone:
        _grow_log(connection)
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
    """Refuse a file that is open under another name. A process that is opening or closing it looks the same for a
    moment."""
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
    """Refuse a file that is not ours or newer than this version, by reading alone."""
    if not header:
        return
    if not header.startswith(SQLITE_MAGIC):
        raise NotOurStore(f"{path} is not a database. Choose another file; nothing was changed.")
    if Path(f"{path}-wal").exists():
        connection = connect_file(path, apsw.SQLITE_OPEN_READONLY, vfs)
    elif header_fits(header):
        return
    else:  # everything is in this one file, and looking at it must not leave others beside it
        address = f"file:{quote(str(path))}?immutable=1"
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs)
    try:
        patiently(lambda: inspect(connection, str(path)))
    finally:
        connection.close(True)


def _create(path: Path) -> None:
    """Create an empty file, readable by its owner alone whatever the umask; SQLite gives its other files the same
    mode."""
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


def _grow_log(connection: apsw.Connection) -> None:
    """Make an empty log `LOG_BYTES` long, by a large insert that is rolled back: SQLite overwrites its frames with
    those of the first commits. It only saves time. Whatever keeps SQLite from it (a full disk, say) is left to the
    first commit to report. After a crash, SQLite ignores frames that no commit follows."""
    log = Path(connection.filename_wal)
    with suppress(apsw.Error, OSError):
        disk = os.statvfs(log)
        if log.stat().st_size or disk.f_bavail * disk.f_frsize < 10 * LOG_BYTES:
            return
        try:
            connection.pragma("cache_size", 10)  # so few pages that SQLite writes them to the log before a commit
            connection.execute("BEGIN IMMEDIATE")
            if log.stat().st_size == 0:  # else another process has committed to it meanwhile
                connection.execute(load("sqlite")["grow_log"], (LOG_BYTES,))
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.pragma("cache_size", -CACHE_KIB)


# --- the schema ------------------------------------------------------------------------------------------------------

SQLITE_MAGIC = b"SQLite format 3\0"
APPLICATION_ID = 0x486F6C64
"""`Hold`, in the header of every Holdfast database."""


def is_our_header(header: bytes) -> bool:
    """True if the first 100 bytes of a file are those of a Holdfast database, of any version."""
    return header.startswith(SQLITE_MAGIC) and int.from_bytes(header[68:72], "big") == APPLICATION_ID


def header_fits(header: bytes) -> bool:
    """True if the first 100 bytes of a SQLite file without a WAL are ours, and not newer than this version."""
    user_version, application_id = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    return application_id == APPLICATION_ID and 0 < user_version <= len(migrations("sqlite"))


def inspect(
    connection: apsw.Connection, where: str, known: tuple[Migration, ...] | None = None
) -> tuple[Migration, ...]:
    """The migrations to apply to this SQLite database. Only reads; raises NotOurStore, NewerStore or UnfinishedCopy."""
    if known is None:
        known = migrations("sqlite")
    if connection.in_transaction:
        return _inspect(connection, where, known)
    connection.execute("BEGIN")  # one snapshot: another process may migrate between two of our statements
    try:
        return _inspect(connection, where, known)
    finally:
        if connection.in_transaction:  # some errors have ended it already
            connection.execute("ROLLBACK")


def _inspect(connection: apsw.Connection, where: str, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    sql = load("sqlite")
    tables = {name for (name,) in connection.execute(sql["tables"])}
    application_id = connection.pragma("application_id")
    if not tables and application_id in (0, APPLICATION_ID):
        return known
    if application_id != APPLICATION_ID or not tables >= {"store_meta", "store_migrations"}:
        raise NotOurStore(f"{where} is a database of another program. Choose another file; nothing was changed.")
    applied = {number: checksum for number, _, checksum in connection.execute(sql["applied_migrations"])}
    versions = [version for (version,) in connection.execute(sql["schema_version"])]
    return pending(known, applied, versions, where)


def migrate(connection: apsw.Connection, where: str, known: tuple[Migration, ...] | None = None) -> int:
    """Migrate a SQLite database to the newest schema; return the number of migrations applied here.

    Safe while other processes do the same: what is to be done is decided again inside each transaction.
    """
    done = 0
    while inspect(connection, where, known):
        connection.execute("BEGIN IMMEDIATE")
        try:
            todo = inspect(connection, where, known)
            if todo:
                _apply(connection, todo[0])
                done += 1
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return done


def _apply(connection: apsw.Connection, migration: Migration) -> None:
    sql = load("sqlite")
    if migration.number == 1:
        connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", migration.number)
    connection.execute(migration.sql)
    connection.execute(sql["add_migration"], (migration.number, migration.name, migration.checksum))
    connection.execute(sql["set_schema_version"], (migration.number, secrets.token_hex(16)))


VARIABLE: Final = "HOLDFAST_ALLOW_NETWORK_FILESYSTEM"
MOUNTS: Final = Path("/proc/self/mountinfo")

UNSAFE: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda", "davfs"),
        *("ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "pvfs2", "gfs2", "ocfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.s3fs", "fuse.rclone"),
        *("fuse.gcsfuse", "fuse.goofys", "fuse.mount-s3", "fuse.blobfuse", "fuse.blobfuse2", "fuse.juicefs"),
        *("fuse.davfs", "fuse.davfs2", "fuse.curlftpfs", "fuse.smbnetfs", "fuse.nfs", "fuse.moosefs", "fuse.mfs"),
        *("fuse.lizardfs", "fuse.seaweedfs", "fuse.weed", "fuse.gvfsd-fuse", "fuse.google-drive-ocamlfuse"),
    }
)
"""As the kernel calls them. Other ones in user space (fuse-overlayfs, mergerfs, NTFS) support locks."""


def refuse_unsafe(path: Path, *, allowed: bool) -> None:
    """Raise UnsafeFilesystem if a database at this path could not be locked. `allowed`: the caller takes the risk. (The
    variable does so for a whole process.)"""
    kind = None if allowed or is_allowed_here() else filesystem_of(path.resolve().parent)
    if kind in UNSAFE:
        raise UnsafeFilesystem(
            f"{path} lies on a file system of type {kind}, where SQLite's locks do not work: two processes would "
            "damage the database. Use a local disk, or PostgreSQL for several machines. If one process on one machine "
            f"is all that opens it, set {VARIABLE}=1, or hf.open(..., allow_network_filesystem=True), at your own risk"
        )


def is_allowed_here() -> bool:
    """True if the variable allows it."""
    return os.environ.get(VARIABLE, "0").lower() not in ("", "0", "false", "no")


def filesystem_of(directory: Path) -> str | None:
    """The type of the file system of a directory; None if it is not known."""
    try:
        device = os.stat(directory).st_dev
        mounts = MOUNTS.read_text("utf-8", "replace")
    except OSError:
        return None
    return kind_in(mounts, f"{os.major(device)}:{os.minor(device)}")


def kind_in(mounts: str, device: str) -> str | None:
    """The type of the file system of a device, in the kernel's table of mounts."""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        fields = where.split(" ")
        if len(fields) > 2 and fields[2] == device:
            return what.partition(" ")[0]
    return None
