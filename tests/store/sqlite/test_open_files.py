"""The file under an open store: noticing that it is gone, and keeping other SQLite libraries from its log."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.model.errors import OutcomeUnknown, StoreError, StoreGone, UsageError
from holdfast.store import backups
from holdfast.store.sqlite import open_files
from holdfast.store.sqlite.open_files import of_stat
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.store.conformance.store import make_runs, step


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    shutil.copyfile(path, path.with_name("other.db"))
    path.with_name("other.db").rename(path)


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def replace_log(path: Path) -> None:
    replace(Path(f"{path}-wal"))


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("act", [delete, move, replace, delete_log, replace_log, move_directory])
def test_no_commit_is_acknowledged_once_the_file_or_its_log_is_another(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    path = tmp_path / "data" / "runs.db"
    path.parent.mkdir()
    store = SqliteStore(str(path))
    store.open()
    (no,) = make_runs(store, 1)
    act(path)
    with pytest.raises(OutcomeUnknown) as told:
        store.commit([step(no, 1)])
    assert isinstance(told.value, StoreGone)
    assert str(path) in told.value.message
    for verb in (store.counts, lambda: store.renew_engine("e", 1), store.changed, lambda: store.commit([step(no, 1)])):
        with pytest.raises(StoreGone):
            verb()
    store.close()


def test_a_disk_that_cannot_be_read_any_more_is_named(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(handle: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(StoreGone, match=re.escape(f"{path} cannot be read any more (Input/output error)")):
        make_runs(store, 1)


def test_a_store_whose_file_was_put_back_can_be_opened_again_and_has_everything(store: SqliteStore, path: Path) -> None:
    make_runs(store, 3)
    path.rename(path.with_name("moved.db"))
    with pytest.raises(StoreGone, match="deleted or moved"):
        store.reserve_run_numbers(1)
    path.with_name("moved.db").rename(path)
    store.open()
    assert store.counts() == {"running": 3}


def test_a_database_that_is_open_under_another_name_is_refused(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    make_runs(store, 1)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "linked.db").hardlink_to(path)
    open_it = f"""
from holdfast.store.sqlite import sqlite_opening
from holdfast.store.sqlite.sqlite_store import SqliteStore
sqlite_opening.NAME_SECONDS = 0.1
SqliteStore({str(other / "linked.db")!r}).open()
"""
    told = subprocess.run([sys.executable, "-c", open_it], capture_output=True, text=True, check=False)
    assert "is open in another process under another name" in told.stderr
    assert [found.name for found in other.iterdir()] == ["linked.db"]
    store.close()
    subprocess.run([sys.executable, "-c", open_it], check=True)


def backup_of_ours(path: Path, target: Path) -> None:
    backups.backup(str(path), target)


def backup_of_sqlite(path: Path, target: Path) -> None:
    source, made = apsw.Connection(str(path)), apsw.Connection(str(target))
    with closing(source), closing(made), made.backup("main", source, "main") as copying:
        copying.step()


@pytest.mark.parametrize("back_up", [backup_of_ours, backup_of_sqlite])
def test_no_commit_is_acknowledged_once_a_backup_was_copied_over_the_file(
    path: Path, back_up: Callable[[Path, Path], None]
) -> None:
    for _ in range(2):
        store = SqliteStore(str(path))
        store.open()
        make_runs(store, 3)
        store.close()
    back_up(path, path.with_name("backup.db"))
    store.open()
    (no,) = make_runs(store, 1)
    shutil.copyfile(path.with_name("backup.db"), path)
    with pytest.raises(StoreGone, match="has been overwritten with another database"):
        store.commit([step(no, 1)])
    store.close()
    with closing(SqliteStore(str(path))) as restored:
        restored.open()
        assert restored.counts() == {"running": 6}
        assert restored.health(thorough=True).damage == []


def test_a_log_that_sqlite_truncates_or_begins_anew_is_the_same_log(store: SqliteStore, path: Path) -> None:
    (no,) = make_runs(store, 1)
    with closing(apsw.Connection(str(path))) as other:
        for seq in range(1, 4):
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            assert [landed.refusal for landed in store.commit([step(no, seq)])] == [None]


def test_a_store_behind_a_symbolic_link_is_watched_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "runs.db"
    real = tmp_path / "real" / "data.db"
    with closing(apsw.Connection(str(real))) as made:
        made.pragma("user_version")
    real.touch()
    link.symlink_to(real)
    store = SqliteStore(str(link))
    store.open()
    (no,) = make_runs(store, 1)
    assert [landed.refusal for landed in store.commit([step(no, 1)])] == [None]
    link.unlink()
    link.symlink_to(tmp_path / "real" / "data.db-wal")
    with pytest.raises(StoreGone):
        store.commit([step(no, 2)])


def test_the_directory_that_the_process_works_in_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("runs.db")
    store.open()
    monkeypatch.chdir("/")
    assert make_runs(store, 1)
    store.close()


def test_a_database_that_another_process_has_open_is_opened_by_a_symbolic_link(tmp_path: Path) -> None:
    """Its log is beside the file, not beside the link."""
    real, link = tmp_path / "data" / "real.db", tmp_path / "runs.db"
    real.parent.mkdir()
    link.symlink_to(real)
    program = (
        "import sys; from holdfast.store.sqlite.sqlite_store import SqliteStore; SqliteStore(sys.argv[1]).open(); "
    )
    program += "print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(real)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        store = SqliteStore(str(link))
        store.open()
        assert make_runs(store, 1)
        store.close()
        other.communicate()


# --- other libraries and other processes ---------------------------------------------------------------------------


def spellings(path: Path) -> list[object]:
    link = path.with_name("link.db")
    link.symlink_to(path)
    hard = path.with_name("hard.db")
    os.link(path, hard)
    return [str(path), path, bytes(path), os.path.relpath(path), link, hard, f"{path.parent}/./{path.name}"]


def test_sqlite3_of_the_standard_library_may_not_open_a_store_that_is_open_here(store: SqliteStore, path: Path) -> None:
    for spelling in spellings(path):
        with pytest.raises(UsageError, match="holdfast db backup"):
            sqlite3.connect(spelling)  # type: ignore[arg-type]  # all that sqlite3 takes
    for uri in (f"file:{path}", f"file:{path}?mode=ro", f"file://{path}", f"file://localhost{path}?immutable=1"):
        with pytest.raises(UsageError, match="open in this process"):
            sqlite3.connect(uri, uri=True)
    assert make_runs(store, 1)


def test_sqlite3_may_open_everything_else(store: SqliteStore, path: Path) -> None:
    for other in (":memory:", "", path.with_name("other.db"), "file::memory:?cache=shared"):
        sqlite3.connect(other, uri=str(other).startswith("file:")).close()
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM run_state").fetchone() == (0,)
    store.open()


def test_two_stores_of_one_process_keep_the_file_until_the_last_is_closed(store: SqliteStore, path: Path) -> None:
    second = SqliteStore(str(path))
    second.open()
    read_files(path)
    second.close()
    with pytest.raises(UsageError):
        sqlite3.connect(path)
    look_from_another_process(path)
    assert make_runs(store, 1), "its log is still there"


def look_from_another_process(path: Path) -> None:
    """Open the file elsewhere, read and close: the last user of a database removes its log."""
    code = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('SELECT * FROM run_state').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def read_files(path: Path) -> None:
    """What a program does that copies its data directory: closing a file drops the process's POSIX locks on it."""
    for suffix in ("", "-wal", "-shm"):
        assert Path(f"{path}{suffix}").read_bytes()


def test_the_log_stays_when_this_process_reads_the_files_and_another_closes_the_database(
    store: SqliteStore, path: Path
) -> None:
    (no,) = make_runs(store, 1)
    for seq in range(1, 4):
        read_files(path)
        look_from_another_process(path)
        assert [landed.refusal for landed in store.commit([step(no, seq)])] == [None]


def can_lock(file: str, start: int, length: int) -> bool:
    """Whether another process can lock this range of a file for itself, as SQLite does before it removes a log."""
    code = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, int(sys.argv[3]), int(sys.argv[2]))
    except OSError:
        sys.exit(1)
"""
    command = [sys.executable, "-c", code, file, str(start), str(length)]
    return subprocess.run(command, check=False).returncode == 0


USER = ("", open_files.SHARED_FIRST, open_files.SHARED_SIZE)
INDEX = ("-shm", open_files.INDEX_IN_USE, 1)


@pytest.mark.parametrize(("suffix", "start", "length"), [USER, INDEX], ids=["database", "index"])
def test_no_process_can_take_itself_for_the_last_user_when_this_one_has_read_the_files(
    store: SqliteStore, path: Path, suffix: str, start: int, length: int
) -> None:
    make_runs(store, 1)
    read_files(path)
    assert not can_lock(f"{path}{suffix}", start, length)


def test_a_file_that_was_replaced_by_one_that_is_open_here_drops_no_lock_of_that_one(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a system has no locks of open files, those of the process go when any handle of the file is closed."""
    monkeypatch.setattr(open_files, "_SET_LOCK", None)
    store.close()
    store.open()
    make_runs(store, 1)
    other = path.with_name("other.db")
    other.touch()
    real_open = open_files._open

    def open_late(named: Path) -> int:
        other.unlink()
        other.hardlink_to(path)
        return real_open(named)

    monkeypatch.setattr(open_files, "_open", open_late)
    file = open_files.OpenFile(other)
    assert file.identity == of_stat(path.stat())
    assert not can_lock(str(path), *USER[1:])
    file.close()
    assert not can_lock(str(path), *USER[1:])


def test_a_child_of_a_killed_process_does_not_keep_the_file(path: Path) -> None:
    program = """
import os, signal, sys, time
from holdfast.store.sqlite.sqlite_store import SqliteStore
SqliteStore(sys.argv[1]).open()
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
print(os.getpid(), flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.wait()
        assert can_lock(str(path), *USER[1:])
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_the_last_store_that_is_closed_removes_the_log(store: SqliteStore, path: Path) -> None:
    make_runs(store, 1)
    read_files(path)
    store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["runs.db"]


def test_a_forked_process_does_not_keep_the_file(store: SqliteStore, path: Path) -> None:
    make_runs(store, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent has closed the store
        os._exit(0)
    os.close(reader)
    try:
        store.close()
        assert not Path(f"{path}-wal").exists()
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_store_that_was_not_opened_leaves_nothing_behind(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError):
        SqliteStore(str(path)).open()
    with pytest.raises(sqlite3.DatabaseError), closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT 1 FROM run_state")
