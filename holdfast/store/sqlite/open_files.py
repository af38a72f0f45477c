"""Open files: the files under an open SQLite store, and who else in this process may touch them.

Owns: which database files are open in this process; noticing that a file at its path is no longer the one that is open;
keeping other SQLite libraries from removing the log of an open store, and Python's own `sqlite3` from opening it here.
Never: opens a connection, or reads a page.
Invariants: while a store is open in this process, no connection of any process can get the exclusive lock that is
needed to remove the log, and no process takes the log's index for an unused one. POSIX locks are dropped with the first
handle of the file that the process closes; ours belong to the open handle and are not. Our handle is closed after the
last connection of this process.
On crash: the kernel drops the locks with the process.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from holdfast.model.errors import UsageError
from holdfast.model.views import command_line

PENDING_BYTE: Final = 0x40000000
SHARED_FIRST: Final = PENDING_BYTE + 2
SHARED_SIZE: Final = 510
"""Where SQLite locks a database file: every open connection has a read lock on the shared range, and a connection that
removes the log has a write lock on it."""
INDEX_IN_USE: Final = 128
"""The byte of the log's index on which every process that uses it has a read lock."""

COUNTER_AT: Final = 24
COUNTER_SIZE: Final = 4
"""Where the change counter is in the header of a database. It never falls, and grows by at most one with a commit."""
_VALID_FOR_AT: Final = 92
"""Where the header repeats the counter: other numbers in it count only while the two are equal."""
COUNTER_LEAP: Final = 1 << 24
"""More than it grows between two heartbeats, whatever is committed."""

_SET_LOCK: Final = getattr(fcntl, "F_OFD_SETLK", None) if sys.maxsize > 2**32 else None
_GET_LOCK: Final = getattr(fcntl, "F_OFD_GETLK", None) if sys.maxsize > 2**32 else None
_FLOCK: Final = struct.Struct("hhqqi0q")


class _Held:
    """One database file that is open in this process, however many stores have it open."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.index_handle: int | None = None
        self.spare: list[int] = []
        self.users = 0


_held: dict[Identity, _Held] = {}
_lock = threading.Lock()
_hook_is_installed = False


class OpenFile:
    """The database file of one store, from before its first connection until after its last one."""

    def __init__(self, path: Path) -> None:
        """Record which file it is; nothing is locked yet. Raises OSError."""
        self.path = path.resolve()
        """Its path without links: SQLite keeps the log there."""
        self.identity, self.is_alone = _hold(path)
        """`is_alone`: no other store of this process had the file open already."""
        self._handle = _held[self.identity].handle
        self._watched = WatchedPath(path)
        self._watched_log: WatchedPath | None = None
        self._log_identity: Identity | None = None
        self._counter = b""
        """The change counter in the header, as of the last look."""
        self._is_locked = False

    def is_used_under_another_name(self) -> bool:
        """Whether a process has the database open, and none the index of the log that is beside it here. Then it was
        opened by another hard link, or where the file alone is mounted, and each name has a log of its own."""
        if not _is_locked(_held[self.identity].handle, SHARED_FIRST, SHARED_SIZE):
            return False
        try:
            index = os.open(f"{self.path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            return not _is_locked(index, INDEX_IN_USE, 1)
        finally:
            os.close(index)

    def header(self) -> bytes:
        """The first 100 bytes. (Through the handle that stays open: closing another one would drop locks.)"""
        return os.pread(_held[self.identity].handle, 100, 0)

    def write_counter(self, counter: int) -> None:
        """Give the database another change counter, on the disk; only `exclusively`, and while no log has page 1."""
        handle = _held[self.identity].handle
        write_counter(handle, counter)
        os.fsync(handle)

    @contextmanager
    def exclusively(self) -> Iterator[bool]:
        """Keep every connection of any process out for a moment; False when one is open already. Only before this
        store has connections of its own, and while it is alone in this process."""
        handle = _held[self.identity].handle
        is_ours = lock_range(handle, fcntl.F_WRLCK, PENDING_BYTE, SHARED_FIRST + SHARED_SIZE - PENDING_BYTE)
        try:
            yield is_ours
        finally:
            if is_ours:
                lock_range(handle, fcntl.F_UNLCK, PENDING_BYTE, SHARED_FIRST + SHARED_SIZE - PENDING_BYTE)

    def connected(self, log_path: Path, index_path: Path) -> None:
        """Called after the first connection: keep other processes from removing its log."""
        self._watched_log = WatchedPath(log_path)
        with _lock:
            held = _held[self.identity]
            lock_range(held.handle, fcntl.F_RDLCK, SHARED_FIRST, SHARED_SIZE)
            if held.index_handle is None:
                with suppress(OSError):  # none: the file is read by one process alone
                    held.index_handle = os.open(index_path, os.O_RDONLY | os.O_CLOEXEC)
            if held.index_handle is not None:
                lock_range(held.index_handle, fcntl.F_RDLCK, INDEX_IN_USE, 1)
        self._is_locked = True

    def what_is_gone(self) -> str | None:
        """Compare the files that the paths of the database and its log name with those that are open: None while they
        are the same, else what has happened. The identity of the log is recorded at the first look."""
        try:
            if self._watched.identity() != self.identity:
                return f"another file is at {self._watched.path} now"
            if self._watched_log is not None:
                log = self._watched_log.identity()
                if log != self._log_identity:
                    if self._log_identity is not None:
                        return f"another file is at {self._watched_log.path} now"
                    self._log_identity = log
                if self._read_counter() != self._counter and not self._is_written_by_sqlite():
                    return f"{self._watched.path} has been overwritten with another database"
        except FileNotFoundError as error:
            return f"{error.filename} has been deleted or moved"
        except OSError as error:
            return f"{error.filename or self.path} cannot be read any more ({error.strerror})"
        return None

    def _read_counter(self) -> bytes:
        return os.pread(self._handle, COUNTER_SIZE, COUNTER_AT)

    def _is_written_by_sqlite(self) -> bool:
        """Whether a change counter that differs from the last one can be that of the same database: `cp` over a
        database keeps its inode. Reads twice, because a checkpoint may be writing the header at this moment."""
        before = int.from_bytes(self._counter, "big")
        for _ in range(2):
            read = self._read_counter()
            if not before or before <= int.from_bytes(read, "big") < before + COUNTER_LEAP:
                self._counter = read
                return True
        return False

    def leave(self) -> None:
        """Called before the last connection is closed: it may remove the log, unless another process has it open."""
        with _lock:
            held = _held.get(self.identity)
            if held is not None and held.users == 1 and self._is_locked:
                self._is_locked = False
                lock_range(held.handle, fcntl.F_UNLCK, SHARED_FIRST, SHARED_SIZE)
                if held.index_handle is not None:
                    lock_range(held.index_handle, fcntl.F_UNLCK, INDEX_IN_USE, 1)

    def close(self) -> None:
        """Called when no connection of the store is open any more."""
        with _lock:
            held = _held.get(self.identity)
            if held is None:  # a forked process
                return
            held.users -= 1
            if held.users == 0:
                del _held[self.identity]
                _close(held)


def lock_range(handle: int, kind: int, start: int, length: int) -> bool:
    """Lock a range of bytes for as long as the handle is open, or unlock it; False if a lock of another handle prevents
    that, or this system has no such locks."""
    if _SET_LOCK is None:
        return False
    try:
        fcntl.fcntl(handle, _SET_LOCK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError:
        return False
    return True


def write_counter(handle: int, counter: int) -> None:
    """Give a database that no process has open, and that has no log, another change counter."""
    for at in (COUNTER_AT, _VALID_FOR_AT):
        os.pwrite(handle, counter.to_bytes(4, "big"), at)


def _is_locked(handle: int, start: int, length: int) -> bool:
    """True if another handle has a lock in a range of bytes; False also where this system does not tell."""
    if _GET_LOCK is None:
        return False
    try:
        found = fcntl.fcntl(handle, _GET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except OSError:
        return False
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def is_open_here(path: Path) -> bool:
    """True if a store of this process has this file open, under whatever name."""
    try:
        return of_stat(os.stat(path)) in _held
    except OSError:
        return False


def _hold(path: Path) -> tuple[Identity, bool]:
    _install_hook()
    with _lock:
        identity = of_stat(os.stat(path))
        is_alone = identity not in _held
        if is_alone:
            handle = _open(path)
            identity = of_stat(os.fstat(handle))
            if identity in _held:  # it was replaced by one that is open: to close the handle would drop locks
                _held[identity].spare.append(handle)
                is_alone = False
            else:
                _held[identity] = _Held(handle)
        _held[identity].users += 1
    return identity, is_alone


def _open(path: Path) -> int:
    """Open a file so that it can be locked for writing, if it may be written."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _close(held: _Held) -> None:
    for handle in (held.handle, held.index_handle, *held.spare):
        if handle is not None:
            os.close(handle)


def _forget() -> None:
    """Forget all files in a forked process: they belong to its parent."""
    for held in _held.values():
        with suppress(OSError):
            _close(held)
    _held.clear()


# --- sqlite3 of the standard library --------------------------------------------------------------------------------


def _install_hook() -> None:
    """Install the hook with the first store, for as long as the process lives: a hook cannot be removed."""
    global _hook_is_installed
    if not _hook_is_installed:
        _hook_is_installed = True
        sys.addaudithook(_audit)
        os.register_at_fork(after_in_child=_forget)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect" and _held:
        _refuse_second_library(args[0])


def _refuse_second_library(database: Any) -> None:
    """Refuse the standard library's sqlite3, another copy of SQLite than ours. Locks of one process do not keep its own
    copies apart: when the second one closes the file, it takes itself for the last user and removes the log of the
    first."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return  # sqlite3 says what is wrong with it
    if name.startswith("file:"):
        name = unquote(name.removeprefix("file:").partition("?")[0].partition("#")[0])
        if name.startswith("//"):
            name = "/" + name[2:].partition("/")[2]
    if name and is_open_here(Path(name)):
        raise UsageError(
            f"{name} is open in this process as a Holdfast store, and sqlite3 must not open it here: the two would "
            "remove each other's log, and runs would be lost. Use the engine (engine.list, run.show), read the file "
            f"from another process, or copy it with {command_line('db', 'backup')} and read the copy."
        )


Identity = tuple[int, int, int]
"""Inode, and major and minor number of the device: which file it is, whatever its name."""

_CURRENT_FOLDER: Final = -100
_NO_SYNCHRONISATION: Final = 0x4000
_INODE_ONLY: Final = 0x100
"""AT_FDCWD, AT_STATX_DONT_SYNC and STATX_INO of Linux."""
_ANSWER_BYTES: Final = 256
_read_identity = struct.Struct("=32xQ96xII").unpack_from
"""`stx_ino`, `stx_dev_major` and `stx_dev_minor` of `struct statx`, which has the same layout on every architecture."""


class WatchedPath:
    """A path whose identity is read repeatedly, by one thread at a time."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self._encoded = os.fsencode(path)
        self._answer = ctypes.create_string_buffer(_ANSWER_BYTES)

    def identity(self) -> Identity:
        """The identity of the file that the path names now. Raises OSError, as `os.stat` does."""
        if _statx is not None and not _statx(
            _CURRENT_FOLDER, self._encoded, _NO_SYNCHRONISATION, _INODE_ONLY, self._answer
        ):
            found: Identity = _read_identity(self._answer)
            return found
        return of_stat(os.stat(self.path))


def of_stat(found: os.stat_result) -> Identity:
    return found.st_ino, os.major(found.st_dev), os.minor(found.st_dev)


def _find_statx() -> Callable[..., Any] | None:
    """`statx` of the C library; None where it is missing, forbidden, or does not agree with `os.stat`."""
    if sys.platform != "linux":
        return None
    try:
        function: Callable[..., Any] = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None
    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    if function(_CURRENT_FOLDER, b"/", _NO_SYNCHRONISATION, _INODE_ONLY, answer):
        return None
    return function if _read_identity(answer) == of_stat(os.stat("/")) else None


_statx = _find_statx()
