"""Backups: made while engines work, of one moment, and never in the place of a file that is something else."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.model.errors import NotOurStore, StoreError, StoreFull, StoreMissing, UsageError
from holdfast.store import backups
from holdfast.store.row_types import Standing
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.store.urls import contents_at
from tests.store.backup_kit import activate, files, fill, look, store_id
from tests.store.conformance.engines import engine_row
from tests.store.conformance.store import make_runs, step


def test_a_backup_of_a_database_in_use_is_of_one_moment_and_for_its_owner_alone(path: Path, kept: Path) -> None:
    store = SqliteStore(str(path))
    store.open()
    store.register_engine(engine_row("eng", expires_at=2**60))
    (no, *_) = make_runs(store, 300)
    writes: list[Any] = []
    before = os.umask(0)
    try:
        size = backups.backup(str(path), kept, progress=lambda done, total: writes.append(store.commit([step(no)])))
    finally:
        os.umask(before)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.stat().st_size == size
    assert store.standing() == (1, ""), "the original goes on"
    store.close()
    assert look(kept) == (300, Standing(1, "backup"))
    assert files(path.parent) == {"runs.db", "backup.db"}
    with closing(contents_at(str(kept))) as contents:
        assert contents.engines() == []
        assert contents.meta().store_id == store_id(path)


def test_an_older_backup_of_the_same_store_is_replaced_when_told_to(path: Path, kept: Path) -> None:
    fill(path, 2)
    backups.backup(str(path), kept)
    fill(path, 1)
    with pytest.raises(UsageError, match="--force"):
        backups.backup(str(path), kept)
    assert look(kept)[0] == 2
    backups.backup(str(path), kept, replaces="backup")
    assert look(kept)[0] == 3
    assert files(path.parent) == {"runs.db", "backup.db"}
    with pytest.raises(UsageError, match="the database itself"):
        backups.backup(str(path), path, replaces="anything")


def a_text(path: Path) -> None:
    path.write_text("mine")


def another_store(path: Path) -> None:
    fill(path, 7)


def a_backup_of_another_store(path: Path) -> None:
    fill(path.with_name("other.db"), 7)
    backups.backup(str(path.with_name("other.db")), path)


def an_active_copy(path: Path) -> None:
    backups.backup(str(path.with_name("runs.db")), path)
    activate(path)


def a_damaged_backup(path: Path) -> None:
    backups.backup(str(path.with_name("runs.db")), path)
    path.write_bytes(path.read_bytes()[:100] + bytes(5_000))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (a_text, "no Holdfast database"),
        (another_store, "the database of another store"),
        (a_backup_of_another_store, "a backup of another store"),
        (an_active_copy, "a database of the same store, not a backup"),
        (a_damaged_backup, "cannot be read"),
    ],
)
def test_any_other_file_is_replaced_only_when_told_exactly_that(
    path: Path, kept: Path, make: Callable[[Path], None], what: str
) -> None:
    fill(path, 2)
    make(kept)
    before = kept.read_bytes()
    for replaces in ("nothing", "backup"):
        with pytest.raises(UsageError, match=f"{what}.*--replace-any"):
            backups.backup(str(path), kept, replaces=replaces)  # type: ignore[arg-type]  # two of its literals
    assert kept.read_bytes() == before
    backups.backup(str(path), kept, replaces="anything")
    assert look(kept) == (2, Standing(1, "backup"))
    assert not list(path.parent.glob("backup.db?*"))


def test_a_link_or_a_directory_is_not_replaced_by_a_backup(path: Path, kept: Path) -> None:
    fill(path, 1)
    kept.symlink_to(path.with_name("nowhere.db"))
    with pytest.raises(UsageError, match="a symbolic link"):
        backups.backup(str(path), kept, replaces="anything")
    kept.unlink()
    kept.mkdir()
    with pytest.raises(UsageError, match="not a file"):
        backups.backup(str(path), kept, replaces="anything")


def test_what_came_to_its_place_while_a_backup_was_made_stays(
    path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "PAGES_AT_ONCE", 5)
    fill(path, 20)

    def put_there(done: int, total: int) -> None:
        kept.write_text("mine")

    with pytest.raises(UsageError, match="no Holdfast database"):
        backups.backup(str(path), kept, replaces="backup", progress=put_there)
    assert kept.read_text() == "mine"


def test_a_file_that_appears_at_the_last_moment_stays(path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 2)
    looks = []

    def look_early(*_: object) -> None:
        looks.append(1)
        if len(looks) == 2:
            kept.write_text("mine")

    monkeypatch.setattr(backups, "_refuse_to_replace", look_early)
    with pytest.raises(UsageError, match="exists already"):
        backups.backup(str(path), kept)
    assert kept.read_text() == "mine"


def test_a_backup_that_a_process_has_open_is_not_replaced(path: Path, kept: Path) -> None:
    fill(path, 1)
    backups.backup(str(path), kept)
    with closing(SqliteStore(str(kept))) as reading:
        reading.open()
        with pytest.raises(UsageError, match="a process has"):
            backups.backup(str(path), kept, replaces="backup")


def test_a_backup_is_of_the_moment_at_which_it_began_whoever_writes(
    path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "PAGES_AT_ONCE", 5)
    store = SqliteStore(str(path))
    store.open()
    (no, *_) = make_runs(store, 300)
    seqs = iter(range(1, 11))

    def write(done: int, total: int) -> None:
        if (seq := next(seqs, None)) is not None:
            assert [result.refusal for result in store.commit([step(no, seq)])] == [None]

    backups.backup(str(path), kept, progress=write)
    store.close()
    with closing(SqliteStore(str(kept))) as copy:
        copy.open()
        row = copy.run_by_no(no)
        assert row is not None
        assert row.last_seq == 1
        assert next(seqs, None) is None, "it was written to meanwhile"


def test_what_cannot_be_backed_up_is_refused_and_leaves_nothing(path: Path, kept: Path) -> None:
    with pytest.raises(StoreMissing):
        backups.backup(str(path), kept)
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(NotOurStore):
        backups.backup(str(path), kept)
    path.unlink()
    fill(path, 200)
    with pytest.raises(StoreMissing, match="no directory"):
        backups.backup(str(path), path.parent / "nowhere" / "backup.db")
    with closing(apsw.Connection(str(path))) as connection:
        page: Any = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'run_events'").fetchall()[0][0]
    data = bytearray(path.read_bytes())
    data[4096 * (page - 1) : 4096 * page] = bytes(range(256)) * 16
    path.write_bytes(data)
    with pytest.raises(StoreError):
        backups.backup(str(path), kept)
    assert files(path.parent) == {"runs.db"}


def test_a_full_disk_leaves_nothing_of_a_backup(path: Path, tmp_path: Path) -> None:
    fill(
        path, 12_000
    )  # more than the cache of SQLite: the copy has a journal by then, which cannot be removed in order
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with pytest.raises(StoreFull):
            backups.backup(str(path), disk / "backup.db")
        assert files(disk) == set()
    finally:
        subprocess.run(["umount", disk], check=True)
