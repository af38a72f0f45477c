"""File identity: which file a path names, asked without asking for its times.

Owns: reading device and inode of a path.
Never: opens a file, or decides what a changed identity means (open_files.py).

Since Linux 6.13, a program that reads the modification time of a file makes the next write to it record a new, exact
time; `os.stat` always reads the times. The write-ahead log is written with every commit, so an `os.stat` after each
commit makes every following one change the inode in the journal of the file system as well: a commit took 1.4 times as
long. The system call `statx` can be asked for the inode alone. Where it is missing or forbidden, `os.stat` is used.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

Identity = tuple[int, int, int]
"""Inode, and major and minor number of the device: what a file is, whatever its name."""

_CURRENT_FOLDER: Final = -100
_NO_SYNCHRONISATION: Final = 0x4000
_INODE_ONLY: Final = 0x100
"""AT_FDCWD, AT_STATX_DONT_SYNC and STATX_INO of Linux."""
_ANSWER_BYTES: Final = 256
_read_identity = struct.Struct("=32xQ96xII").unpack_from
"""`stx_ino`, `stx_dev_major` and `stx_dev_minor` of `struct statx`, which has the same layout on every architecture."""


class WatchedPath:
    """A path whose identity is read again and again, by one thread at a time."""

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
