"""Backups: copy a SQLite database while it is in use, restore it, and activate it for engines.

Owns: what a backup file is, how one replaces a database, and which databases engines may work on.
Never: makes or restores a backup of a server (its own tools do that, and do it better), or touches a database that a
process has open.
Invariants: a file gets its name when it is complete, verified and on the disk. Engines do not work on a backup, nor on
what was restored from one, until an operator activates it; then it has an epoch of its own, and higher tokens than any
engine was ever given. The database that `restore` replaces is kept beside it; `backup` replaces an older backup of the
same store, and any other file only if it is told to.
On crash: the old database is there or the new one, never a mixture; a file with `.making-` in its name is a leftover.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import apsw

from holdfast.model.errors import NotOurStore, StoreDamaged, StoreError, StoreMissing, UsageError
from holdfast.model.views import command_line
from holdfast.store.copying import IsDead, next_epoch, open_once, refuse_engines
from holdfast.store.row_types import Standing
from holdfast.store.sql_files import load
from holdfast.store.sqlite import foreign_wal
from holdfast.store.sqlite.open_files import OpenFile, write_counter
from holdfast.store.sqlite.sqlite_connections import open_bare, translated
from holdfast.store.sqlite.sqlite_contents import SqliteContents
from holdfast.store.sqlite.sqlite_opening import is_our_header
from holdfast.store.sqlite.sqlite_reads import Readers
from holdfast.store.urls import contents_at, database_file, is_postgres, shown

PAGES_AT_ONCE: Final = 2_000
"""Pages copied between two reports of progress: 8 MiB, a few reports a second."""

RESTORED_TOKENS: Final = 1_000_000
"""How much higher tokens are in a restored store: no run has been claimed as often since its backup was made, so no
token that an engine was given after the backup is given out again."""

Replaces = Literal["nothing", "backup", "anything"]
"""Which existing file a backup may replace: none, an older backup of the same store, or any."""

OLDER_BACKUP: Final = "an older backup of the same store"

Progress = Callable[[int, int], None]
"""Called with the number of pages copied, and of all pages."""


class Restored(NamedTuple):
    """What a restore did."""

    epoch: int
    replaced: Path | None
    """Where the replaced database is kept."""


def backup(
    url: str, target: Path, *, replaces: Replaces = "nothing", progress: Progress = lambda done, total: None
) -> int:
    """Copy a database, which engines may be using, into a file that stands alone; return its size in bytes. Raises
    UsageError if a file exists that must not be replaced."""
    source = _file_of(url)
    open_once(url, create=False)
    with closing(SqliteContents(source)) as contents:
        store_id = contents.meta().store_id
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the database itself; name another file")
    _refuse_to_replace(target, store_id, replaces)
    with _made_beside(target) as making:
        with closing(open_bare(source)) as reading:
            _copy_pages(reading, making, progress)
        with closing(SqliteContents(making)) as copy:
            copy.mark(Standing(copy.meta().epoch, "backup"), token_step=1)
        size = _finish(making)
        _refuse_to_replace(target, store_id, replaces)  # copying takes its time, and another file may be there by now
        if replaces == "nothing":
            _put(making, target, replaces=False)
        else:
            _replace(target, making, keeps=False)
    return size


def _refuse_to_replace(target: Path, store_id: str, replaces: Replaces) -> None:
    """Raise UsageError if a backup of this store must not replace what is there."""
    if not os.path.lexists(target):
        return
    what = _what_is_at(target, store_id)
    if not target.is_file() or target.is_symlink():
        raise UsageError(f"{target} is {what}; name another file")
    if what == OLDER_BACKUP and replaces == "nothing":
        raise UsageError(f"{target} is there already; name another file, or replace it with --force")
    if what != OLDER_BACKUP and replaces != "anything":
        raise UsageError(
            f"{target} is there already, and it is {what}. --force replaces older backups of the same store only. Name "
            "another file, or replace this one with --replace-any"
        )


def _what_is_at(path: Path, store_id: str) -> str:
    """Describe a file relative to the store that is backed up. Changes nothing."""
    if path.is_symlink():
        return "a symbolic link"
    if not path.is_file():
        return "not a file"
    if not is_our_header(_header(path)):
        return "no Holdfast database"
    try:
        with closing(_unused(path)) as connection:
            ((found, _, _, _, closed),) = connection.execute(load("sqlite")["store_itself"]).fetchall()
    except (apsw.Error, ValueError):
        return "a Holdfast database that cannot be read, or of another version"
    if found != store_id:
        return f"{'a backup of' if closed == 'backup' else 'the database of'} another store ({found})"
    return OLDER_BACKUP if closed == "backup" else "a database of the same store, not a backup"


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def restore(url: str, backup: Path, *, is_dead: IsDead, progress: Progress = lambda done, total: None) -> Restored:
    """Replace a database by a backup; the replaced one is kept under another name. Engines do not work on the restored
    one until it is activated."""
    target = _file_of(url)
    if not backup.is_file():
        raise StoreMissing(f"there is no backup {backup}.")
    if target.exists() and target.samefile(backup):
        raise UsageError(f"{backup} is the database itself; name a backup of it")
    before = _epoch_of(target, is_dead)
    with _made_beside(target) as making:
        try:
            with closing(_unused(backup)) as reading:
                _copy_pages(reading, making, progress)
        except apsw.NotADBError as error:
            raise NotOurStore(f"{backup} is not a Holdfast database. Nothing was changed.") from error
        if not is_our_header(_header(making)):  # an empty file would become a new store, and replace all runs
            raise NotOurStore(f"{backup} is not a Holdfast database, or is empty. Nothing was changed.")
        open_once(str(making), create=False)  # refuses one that is newer, and brings an old one up to date
        with closing(SqliteContents(making)) as copy:
            epoch = next_epoch(max(copy.meta().epoch, before), copy.now())
            copy.mark(Standing(epoch, "restored"), token_step=RESTORED_TOKENS)
        _finish(making, replaces=target)
        return Restored(epoch, _replace(target, making, keeps=True))


def activate(url: str, *, is_dead: IsDead, restored: bool = False) -> Standing | None:
    """Let engines work on a store again; return what it is now, or None if they could already. `restored`: it was
    restored by other means than `restore`, and gets an epoch and tokens of its own first."""
    open_once(url, create=False)
    with closing(contents_at(url)) as contents:
        refuse_engines(contents, is_dead)
        meta = contents.meta()
        if not meta.closed and not restored:
            return None
        was_restored = meta.closed == "restored"
        epoch = meta.epoch if was_restored else next_epoch(meta.epoch, contents.now())
        standing = Standing(epoch, "")
        contents.mark(standing, token_step=0 if was_restored else RESTORED_TOKENS)
        return standing


def _file_of(url: str) -> Path:
    if is_postgres(url):
        raise UsageError(
            f"{shown(url)} is a PostgreSQL database, whose backups are the server's: make one with `pg_dump "
            "--schema=holdfast`, put it back with `pg_restore`, then run "
            f"{command_line('db', 'activate', '--restored')} before any engine starts. {command_line('db', 'copy')} "
            "copies a database that no engine works on into a SQLite file, and back"
        )
    path = database_file(url)
    if path is None:
        raise UsageError("a database in memory has no backup: it is gone with its process")
    return path.resolve()


@contextmanager
def _made_beside(target: Path) -> Iterator[Path]:
    """Create an empty file in the same directory, for its owner alone; remove it at the end unless it was renamed."""
    making = target.with_name(f"{target.name}.making-{secrets.token_hex(4)}")
    try:
        os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreMissing(f"{target}: there is no directory {target.parent}. Make it first.") from None
    except OSError as error:
        raise translated(error, str(target)) from error
    try:
        yield making
    except (apsw.Error, OSError) as error:
        raise translated(error, str(target)) from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{making}{suffix}").unlink(missing_ok=True)


def _unused(path: Path) -> apsw.Connection:
    """Connect to a file that no process writes to, to read it. Unless it has a log, no file is created beside it."""
    if Path(f"{path}-wal").exists():
        return Readers(path, None).connect()
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    return apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _copy_pages(reading: apsw.Connection, target: Path, progress: Progress) -> None:
    """Copy all pages of a database as of one moment, whatever is written to it meanwhile."""
    reading.execute("BEGIN")
    reading.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the moment
    with closing(apsw.Connection(str(target))) as writing, writing.backup("main", reading, "main") as copying:
        while not copying.step(PAGES_AT_ONCE):
            progress(copying.page_count - copying.remaining, copying.page_count)


def _finish(path: Path, *, replaces: Path | None = None) -> int:
    """Verify a copy that no process has open, give it the access rights of the database that it is to replace, sync it
    to the disk, and keep any process from taking another log for its own; return its size."""
    with closing(_unused(path)) as connection:
        damage = [str(line) for (line,) in connection.execute("PRAGMA integrity_check")]
    if damage != ["ok"]:
        raise StoreDamaged(f"what was copied is damaged, and so is what it was copied from: {damage[0]}")
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if replaces is not None and replaces.exists():
            _give_access(handle, replaces.stat())
        write_counter(handle, foreign_wal.backup_counter())
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _give_access(handle: int, replaced: os.stat_result) -> None:
    """Give a file the owner and the mode of the one that it is to replace: what root restores stays readable for the
    user whose database it is. A user that may not give files away keeps the new one to itself."""
    if os.geteuid() == 0:
        os.fchown(handle, replaced.st_uid, replaced.st_gid)
    made = os.fstat(handle)
    if (made.st_uid, made.st_gid) == (replaced.st_uid, replaced.st_gid):
        os.fchmod(handle, stat.S_IMODE(replaced.st_mode))


def _put(making: Path, target: Path, *, replaces: bool) -> None:
    """Give a finished file its name."""
    if replaces:
        making.replace(target)
    else:
        try:
            os.link(making, target)
        except FileExistsError:
            raise UsageError(f"{target} exists already; another process has just made it") from None
    _sync_directory(target)


def _epoch_of(target: Path, is_dead: IsDead) -> int:
    """The epoch of the database that is to be replaced, 0 if there is none that can be read. Raises UsageError for a
    file of another program, and for a database with a live engine."""
    if not target.exists() or not target.stat().st_size:
        return 0
    try:
        open_once(str(target), create=False)
        with closing(SqliteContents(target)) as contents:
            refuse_engines(contents, is_dead)
            return contents.meta().epoch
    except NotOurStore as error:
        raise UsageError(f"{error.message} Move it away before a backup is put in its place") from error
    except StoreError:  # it is damaged, or of another version: perhaps that is why it is replaced
        return 0


def _replace(target: Path, making: Path, *, keeps: bool) -> Path | None:
    """Replace a database that no process has open, if there is one, by a finished file; return where the old one is
    kept. With `keeps` False the old one is removed at the moment in which the new one takes its name."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = target.with_name(f"{target.name}.replaced-{moment}-{secrets.token_hex(2)}")
    if not target.exists():
        _keep_log(target, kept)
        _put(making, target, replaces=False)
        return None
    file = OpenFile(target)
    try:
        with file.exclusively() as is_ours:
            if not (is_ours and file.is_alone):
                raise UsageError(f"a process has {target} open; stop it, then try again. Nothing was changed")
            if keeps:
                os.link(target, kept)
            _keep_log(target, kept)
            _put(making, target, replaces=True)
            if not keeps:
                Path(f"{kept}-wal").unlink(missing_ok=True)
    finally:
        file.close()
    return kept if keeps else None


def _keep_log(target: Path, kept: Path) -> None:
    """Move the log of the replaced database with it. There is none unless the database is damaged: the last connection
    that closes it, here the one that has just read it, copies the log into it."""
    with suppress(FileNotFoundError):
        Path(f"{target}-wal").rename(f"{kept}-wal")
    Path(f"{target}-shm").unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    handle = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
