"""Liveness: whether the process of an engine is alive, by its lock file and its lease.

Owns: the folder of lock files beside a SQLite file, this engine's lock file in it, and what the lock and the lease of
another engine say about it.
Never: follows a path from a row. A row gives a base name; the folder is the one beside the database that is open here.
So the row of a copied or foreign database leads to no file of another database.
Invariants: a lock file names its store and its engine, and the engine's row names the file's inode. A file is unlinked
only by a process that holds its lock. What an engine makes here, the folder and its file, has the owner of the database
file; the folder is never reached through a symbolic link.
On crash: the kernel drops the lock with the process; an engine that finds it free removes the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from pathlib import Path
from typing import Final, Literal, NamedTuple

from holdfast.model.errors import StoreError, StoreFull, StoreReadOnly
from holdfast.store.clocks import awake_micros, boot_id
from holdfast.store.contract import Store
from holdfast.store.row_types import EngineRow

Sight = Literal["held", "free", "unknown"]
"""What the lock of an engine says: its process is alive, its process has ended, or nothing."""

TRIES: Final = 1_000
"""How often an engine makes its lock file anew because another one, at its end, removes the folder at that moment. One
such race costs one try; this many in a row mean that something else removes the folder."""

_held: weakref.WeakSet[LockFile] = weakref.WeakSet()


class Mark(NamedTuple):
    """What an engine's row says about its lock file."""

    name: str
    inode: int
    boot: str


NO_LOCK: Final = Mark("", 0, "")
"""The mark of an engine whose store is no file: only its lease says whether it is alive."""


class LockFile:
    """A lock file that this process holds."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd: int | None = fd
        self.mark = Mark(path.name, os.fstat(fd).st_ino, boot_id())
        _held.add(self)

    def drop(self) -> None:
        """Unlink the file, then release the lock: no process sees a free lock of an engine that still has one. Where
        the file cannot be unlinked (the file system has become read-only), the free lock says the same."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self.forget()
            with contextlib.suppress(OSError):  # another engine's lock file is in it
                self._path.parent.rmdir()

    def forget(self) -> None:
        """Close the file descriptor. In a forked child that leaves the lock to the parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _leave_to_parent() -> None:
    """A lock belongs to the open file, which a forked child shares: unless the child closes it, the engine would appear
    alive for as long as the child lives."""
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_leave_to_parent)


class Locks:
    """The lock files beside one database, whichever links lead to it. `database` None: it is on a server or in memory,
    and there are none."""

    def __init__(self, database: Path | None, store_id: str) -> None:
        self._database = database = None if database is None else database.resolve()
        self._folder = None if database is None else database.with_name(database.name + "-engines")
        self._store_id = store_id

    @classmethod
    def of(cls, store: Store) -> Locks:
        """The lock files beside the database of an open store."""
        return cls(store.file, "" if store.file is None else store.store_id())

    def take(self, engine: str) -> LockFile | None:
        """Make the lock file of an engine and lock it. Raises StoreReadOnly when the folder belongs to another user."""
        if self._folder is None:
            return None
        path = self._folder / f"{engine}.lock"
        for _ in range(TRIES):
            try:
                return self._try_to_take(path, engine)
            except (FileNotFoundError, FileExistsError, BlockingIOError):
                continue  # an engine that ends at this moment has removed the folder
            except PermissionError as error:
                raise self._not_ours(error) from error
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise StoreError(
                        f"{self._folder} is a symbolic link or a file; engines keep their lock files in a folder of "
                        "that name. Remove it, then try again."
                    ) from error
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise StoreFull(f"The disk of {path} is full. Free some space, then resume.") from error
                raise StoreError(f"{path} cannot be made: {error}") from error
        raise StoreError(f"{path} cannot be made: another program removes {self._folder} again and again")

    def _try_to_take(self, path: Path, engine: str) -> LockFile:
        """Work through a descriptor of the folder, which is not a link: a link would let the owner of the database
        choose where root makes a file, and which folder root gives away."""
        is_new = True
        try:
            path.parent.mkdir(mode=0o700)
        except FileExistsError:
            is_new = False
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if is_new:
                self._give_to_owner(folder)
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(path.name, flags, 0o600, dir_fd=folder)
            try:
                self._give_to_owner(fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(fd, self._content(engine))
                return LockFile(path, fd)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path.name, dir_fd=folder)
                os.close(fd)
                raise
        finally:
            os.close(folder)

    def _give_to_owner(self, made: int) -> None:
        """Give what root has made to the owner of the database, who could not enter it otherwise."""
        assert self._database is not None
        if os.geteuid() == 0:
            owner = self._database.stat()
            with contextlib.suppress(PermissionError):  # a root that may not do this, in a container
                os.fchown(made, owner.st_uid, owner.st_gid)

    def _content(self, engine: str) -> bytes:
        return f"{self._store_id}\n{engine}\n".encode()

    def _not_ours(self, error: PermissionError) -> StoreReadOnly:
        folder = self._folder
        assert folder is not None
        try:
            owner = f"belongs to user {folder.stat().st_uid}"
        except OSError:
            owner = "cannot be read"
        return StoreReadOnly(
            f"{folder} {owner}, and this process (user {os.geteuid()}) may not write there: {error.strerror}. A "
            f"command of that user has left it. When no engine of that user is at work, remove it: rm -r {folder}"
        )

    def sight(self, row: EngineRow) -> Sight:
        """What the lock of an engine says. Only processes on one kernel see each other's locks."""
        path = self._path_of(row)
        if path is None or row.boot != boot_id():
            return "unknown"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return "free"
        except OSError:
            return "unknown"  # the file of another user
        try:
            if not self._is_of(fd, row):
                return "unknown"
            return "free" if _is_lockable(fd) else "held"
        finally:
            os.close(fd)

    def remove(self, dead: EngineRow) -> None:
        """Unlink the lock file of an engine that is gone, if no process holds it."""
        path = self._path_of(dead)
        if path is None:
            return
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if self._is_of(fd, dead) and _is_lockable(fd):
                    path.unlink(missing_ok=True)
            finally:
                os.close(fd)

    def _path_of(self, row: EngineRow) -> Path | None:
        name = Path(row.lock_file).name
        return None if self._folder is None or name in ("", "..") else self._folder / name

    def _is_of(self, fd: int, row: EngineRow) -> bool:
        """True if this is the file that the engine made, and not one that a copy or a person has put there."""
        content = self._content(row.engine)
        return os.fstat(fd).st_ino == row.lock_inode and os.pread(fd, len(content) + 1, 0) == content


def _is_lockable(fd: int) -> bool:
    """Take a shared lock, if no engine has an exclusive one; it ends with the file descriptor. Shared, so that two
    processes that test at the same moment do not take each other for the engine."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


Life = Literal["alive", "late", "dead"]


def life_of(row: EngineRow, now: int, locks: Locks) -> Life:
    """The state of an engine as far as this process can tell: on its own machine by the lock of its process, where a
    live one may be late with its lease; elsewhere by the lease alone."""
    match locks.sight(row):
        case "free":
            return "dead"
        case "held":
            return "late" if row.awake_until < awake_micros() else "alive"
        case _:
            return "dead" if row.expires_at < now else "alive"


def is_dead(row: EngineRow, now: int, locks: Locks) -> bool:
    """True if the process of an engine has ended, or its lease has expired."""
    return life_of(row, now, locks) != "alive"
