"""Foreign logs: whether the write-ahead log beside a database file was written for it.

Owns: recognising a log that belongs to another state of the file (a backup was copied over a database whose process had
been killed), and setting it aside before SQLite replays it into the wrong pages.
Never: deletes a log, touches the log of a database that a process has open, or acts without proof.
Invariants: the proof is the change counter in the header of the database, which is part of page 1. A connection that
writes page 1 to the log gives it the counter that it had when the connection last read the page, plus one; a checkpoint
copies it into the file. So in every crash the counter of the file is at least that of the first page 1 in the log minus
one, and at most that of the last. The first commit of every store writes page 1, so that there is one. A backup made by
SQLite begins at 1; one made by `holdfast db backup` has a random multiple of `BACKUP_COUNTER_STEP`. A backup that is
opened for the first time gets a random counter that no backup has: otherwise the log of the database that was made from
it would also fit the backup itself, if that is restored once more.
On crash: the log has its old name or its new one.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from pathlib import Path
from struct import Struct, unpack
from typing import Final, NamedTuple

import apsw

from holdfast.model.limits import BACKUP_COUNTER_STEP, CHOSEN_COUNTER_MIN
from holdfast.model.views import command_line
from holdfast.store.sqlite.open_files import COUNTER_AT, OpenFile

log = logging.getLogger("holdfast.store")

_LOG_HEADER: Final = Struct(">8I")
_FRAME_HEADER: Final = Struct(">6I")
_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""How a log begins, and in which byte order its checksums are computed."""


class Counters(NamedTuple):
    """The change counters of the first and the last page 1 in a log."""

    first: int
    last: int


def set_aside_foreign(file: OpenFile, log_path: Path) -> Path | None:
    """Rename the log of a database that no process has open, if it was not written for it; return its new name. The
    file is alone in this process."""
    if not _may_hold_frames(log_path):
        return None
    with file.exclusively() as is_ours:
        if not is_ours:  # a process has it open, and uses this log
            return None
        counter = int.from_bytes(file.header()[COUNTER_AT : COUNTER_AT + 4], "big")
        found = counters(log_path)
        if found is None or found.first - 1 <= counter <= found.last:
            return None
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = log_path.with_name(f"{log_path.name}.foreign-{moment}-{secrets.token_hex(4)}")
        log_path.rename(aside)
    log.warning(
        "%s was not written for the database beside it (a backup was copied over a database whose process had been "
        "killed?): it is not replayed and was renamed to %s. It holds what was committed after that database was last "
        "checkpointed; delete it when you do not need it. To put a backup back use %s",
        log_path,
        aside,
        command_line("db", "restore"),
    )
    return aside


def backup_counter() -> int:
    """A change counter for a new backup."""
    return CHOSEN_COUNTER_MIN + secrets.randbelow(CHOSEN_COUNTER_MIN // BACKUP_COUNTER_STEP) * BACKUP_COUNTER_STEP


def renumber_backup(file: OpenFile, log_path: Path) -> None:
    """Give a backup that is opened for the first time a change counter that no other state of a database has. The file
    is alone in this process."""
    with file.exclusively() as is_ours:
        if is_ours and (not _may_hold_frames(log_path) or counters(log_path) is None):
            file.write_counter(CHOSEN_COUNTER_MIN + secrets.randbelow(CHOSEN_COUNTER_MIN) | 1)


def is_fresh_backup(header: bytes) -> bool:
    """True if a database has the change counter of a backup: SQLite's backup and `VACUUM INTO` count from 1. (Of the
    databases that were made from a backup one in `BACKUP_COUNTER_STEP` has such a counter by chance, and gets another
    one.)"""
    counter = int.from_bytes(header[COUNTER_AT : COUNTER_AT + 4], "big")
    return counter == 1 or (counter >= CHOSEN_COUNTER_MIN and counter % BACKUP_COUNTER_STEP == 0)


def put_first_page(cursor: apsw.Cursor) -> None:
    """Make page 1 part of the open transaction, unchanged: a log without it proves nothing."""
    ((version,),) = cursor.execute("PRAGMA user_version").fetchall()
    cursor.execute(f"PRAGMA user_version = {version}")


def _may_hold_frames(log_path: Path) -> bool:
    try:
        return log_path.stat().st_size > _LOG_HEADER.size + _FRAME_HEADER.size
    except OSError:
        return False


def counters(log_path: Path) -> Counters | None:
    """The counters of page 1 in the log; None if it has no page 1, and so proves nothing."""
    with log_path.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        if len(header) < _LOG_HEADER.size:
            return None
        magic, _, page_size, _, *salts, sum_1, sum_2 = _LOG_HEADER.unpack(header)
        order = _MAGIC.get(magic)
        if order is None or not 512 <= page_size <= 65_536 or page_size % 512:
            return None
        first, last, sums = 0, 0, (sum_1, sum_2)
        while len(frame := file.read(_FRAME_HEADER.size + COUNTER_AT + 4)) == _FRAME_HEADER.size + COUNTER_AT + 4:
            page, _, *found, sum_1, sum_2 = _FRAME_HEADER.unpack(frame[: _FRAME_HEADER.size])
            if found != salts:  # of an earlier use of the file
                break
            rest = page_size - COUNTER_AT - 4
            if page == 1:
                counter = int.from_bytes(frame[-4:], "big")
                content = frame[_FRAME_HEADER.size :] + file.read(rest)
                if not first:
                    if _checksum(order, sums, frame[:8] + content) != (sum_1, sum_2):
                        return None  # it was torn, and proves nothing
                    first = counter
                last = max(last, counter)
            else:
                file.seek(rest, os.SEEK_CUR)
            sums = (sum_1, sum_2)
    return Counters(first, last) if first else None


def _checksum(order: str, sums: tuple[int, int], data: bytes) -> tuple[int, int]:
    """SQLite's checksum of a frame, which continues that of the frame before."""
    one, two = sums
    words = unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(words), 2):
        one = (one + words[at] + two) & 0xFFFFFFFF
        two = (two + words[at + 1] + one) & 0xFFFFFFFF
    return one, two
