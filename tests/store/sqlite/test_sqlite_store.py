"""What is SQLite's own: files and their modes, refusals, other processes, full disks, I/O errors, kills."""

from __future__ import annotations

import os
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.model.errors import (
    NewerStore,
    NotOurStore,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
)
from holdfast.model.journal_format import FORMAT
from holdfast.model.limits import LOG_BYTES
from holdfast.model.statuses import BRANCH_REQUESTS
from holdfast.store.queries import Ask
from holdfast.store.row_types import OF_PEOPLE, EngineRow
from holdfast.store.sql_files import Migration, load, migrations, migrations_in, schema
from holdfast.store.sqlite import sqlite_opening
from holdfast.store.sqlite.sqlite_connections import database_path
from holdfast.store.sqlite.sqlite_opening import APPLICATION_ID, migrate
from holdfast.store.sqlite.sqlite_reads import Readers
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.store.sqlite.sqlite_writes import SIZES, Repeated
from tests.store.conformance.store import creation, event_row, make_runs, node_row, refusals, step

ROOT = Path(__file__).parents[3]


def python(code: str, *arguments: object, stdin: int | None = None) -> subprocess.Popen[str]:
    """A child process with our code on its path."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    answer = connection.pragma("integrity_check")
    connection.close()
    return str(answer)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


# --- addresses and files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///runs.db", Path.cwd() / "runs.db"),
        ("sqlite:///sub/runs.db", Path.cwd() / "sub/runs.db"),
        ("sqlite:////var/runs.db", Path("/var/runs.db")),
        ("/var/runs.db", Path("/var/runs.db")),
        ("runs.db", Path.cwd() / "runs.db"),
        ("file:odd?name", Path.cwd() / "file:odd?name"),
        (":memory:", None),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
    ],
)
def test_addresses(url: str, expected: Path | None) -> None:
    assert database_path(url) == expected


@pytest.mark.parametrize("url", ["", "sqlite://runs.db"])
def test_an_address_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(StoreError):
        SqliteStore(url)


def test_relative_addresses_stay_where_they_were_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("sqlite:///here.db")
    monkeypatch.chdir("/")
    store.open()
    store.close()
    assert (tmp_path / "here.db").exists()


def test_two_stores_in_memory_are_two_stores() -> None:
    first, second = SqliteStore("sqlite://"), SqliteStore("sqlite://")
    first.open()
    second.open()
    make_runs(first, 1)
    assert second.runs() == []
    first.close()
    second.close()


def test_files_are_for_their_owner_alone_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(str(path))
        for _ in range(2):
            store.open()
            make_runs(store, 1)
            files = list(path.parent.iterdir())
            assert {file.name for file in files} == {"runs.db", "runs.db-wal", "runs.db-shm"}
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            store.close()
    finally:
        os.umask(before)


def test_the_settings_are_the_ones_that_keep_what_was_committed(store: SqliteStore, path: Path) -> None:
    writer = store._writer
    assert writer is not None
    assert writer.pragma("journal_mode") == "wal"
    assert writer.pragma("synchronous") == 2
    assert writer.pragma("mmap_size") == 0
    assert writer.pragma("application_id") == APPLICATION_ID


def test_the_log_is_grown_at_each_open_and_gone_after_the_last_close(path: Path) -> None:
    store = SqliteStore(str(path))
    store.open()
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size
    assert size >= LOG_BYTES
    (no,) = make_runs(store, 1)
    assert wal.stat().st_size == size, "overwritten in place"
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]
    small = path.stat().st_size
    assert small < LOG_BYTES / 4, "what made the log long is not in the database"
    store.open()
    assert wal.stat().st_size == size
    assert store.run_by_no(no) is not None
    assert store.commit([step(no)])[0].refusal is None
    store.close()
    assert integrity(path) == "ok"


def test_a_log_that_another_process_has_begun_is_not_grown(path: Path) -> None:
    store, other = SqliteStore(str(path)), SqliteStore(str(path))
    store.open()
    store.close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.wal_autocheckpoint(0)
        connection.execute("UPDATE store_meta SET next_run_no = next_run_no + 1").fetchall()
        before = Path(f"{path}-wal").stat().st_size
        other.open()
        assert Path(f"{path}-wal").stat().st_size == before
        assert len(make_runs(other, 1)) == 1
        other.close()
    assert integrity(path) == "ok"


def test_a_log_that_cannot_be_grown_keeps_nobody_from_the_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite_opening.load("sqlite")
    monkeypatch.setattr(sqlite_opening, "load", lambda dialect: {**real, "grow_log": "SELECT no_such_column"})
    with closing(SqliteStore(str(path))) as store:
        store.open()
        assert len(make_runs(store, 1)) == 1
        assert Path(f"{path}-wal").stat().st_size < LOG_BYTES


def test_a_kill_while_the_log_is_grown_leaves_the_database_as_it_was(path: Path) -> None:
    store = SqliteStore(str(path))
    store.open()
    runs = make_runs(store, 3)
    store.close()
    child = python(
        """
        import os, signal, sys
        from holdfast.store.sqlite import sqlite_opening
        from holdfast.store.sqlite.sqlite_store import SqliteStore

        has_grown = False

        def die(cursor, statement, bindings):
            global has_grown
            if statement == "ROLLBACK" and has_grown:
                os.kill(os.getpid(), signal.SIGKILL)
            has_grown = has_grown or "zeroblob" in statement
            return True

        sqlite_opening.apsw.connection_hooks.append(lambda connection: connection.set_exec_trace(die))
        SqliteStore(sys.argv[1]).open()
        """,
        path,
    )
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size >= LOG_BYTES
    store.open()
    assert [row.run_no for row in store.runs()] == sorted(runs, reverse=True)
    assert all(row.version for row in store.versions())
    assert store.commit([step(runs[0])])[0].refusal is None
    store.close()
    assert integrity(path) == "ok"


def test_readers_do_not_checkpoint(store: SqliteStore, path: Path) -> None:
    make_runs(store, 50)
    before = path.read_bytes()
    other = SqliteStore(str(path))
    other.open()
    assert len(other.runs()) == 50
    other.close()
    assert path.read_bytes() == before


def test_many_reader_threads_leave_few_connections(store: SqliteStore) -> None:
    make_runs(store, 1)
    readers = store._readers
    assert readers is not None
    lent = [readers.borrow() for _ in range(20)]
    for connection in lent:
        readers.give_back(connection)
    assert len(readers._idle) == 8


def descriptors(path: Path) -> list[str]:
    """The files of a store that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(str(path))]


def readers_of(store: SqliteStore, idle: int) -> Readers:
    """The readers of a store, so many of them idle."""
    readers = store._readers
    assert readers is not None
    for connection in [readers.borrow() for _ in range(idle)]:
        readers.give_back(connection)
    assert len(readers._idle) == idle
    return readers


def test_a_store_that_is_closed_leaves_no_connection_open(store: SqliteStore, path: Path) -> None:
    make_runs(store, 1)
    kept = readers_of(store, 3)  # else they would be closed by being forgotten
    assert {Path(name).name for name in descriptors(path)} == {"runs.db", "runs.db-wal", "runs.db-shm"}
    store.close()
    assert descriptors(path) == []
    assert kept._idle == []


def test_a_reader_that_is_in_use_when_its_store_is_closed_goes_on_and_is_closed_behind_it(
    store: SqliteStore, path: Path
) -> None:
    make_runs(store, 2)
    kept = readers_of(store, 3)

    def ask_around_close(ask: Ask) -> None:
        assert ask("counts", ()) == [("running", 2)]
        store.close()
        assert ask("counts", ()) == [("running", 2)]
        assert descriptors(path)

    store._at_one_moment(ask_around_close)
    assert descriptors(path) == []
    assert kept._idle == []


def test_whoever_borrows_a_reader_at_the_moment_of_closing_gets_one_that_is_open(
    store: SqliteStore, path: Path
) -> None:
    """Connections are taken from the pool without a lock: a store that is closed meanwhile must not close them."""
    make_runs(store, 2)
    readers = readers_of(store, 3)

    class ClosedMeanwhile(list[apsw.Connection]):
        """The idle ones; before the first one is taken, the store is closed."""

        def pop(self, *position: Any) -> apsw.Connection:
            if store._readers is not None:
                store.close()
            return super().pop(*position)

    readers._idle = ClosedMeanwhile(readers._idle)
    assert store.counts() == {"running": 2}
    with pytest.raises(StoreError, match="it was closed"):
        store.counts()
    assert descriptors(path) == []


def test_a_reader_that_somebody_borrows_while_the_store_is_being_closed_is_his(store: SqliteStore, path: Path) -> None:
    make_runs(store, 2)
    readers = readers_of(store, 1)
    lent: list[apsw.Connection] = []

    class BorrowedMeanwhile(list[apsw.Connection]):
        """The idle ones; the last one is taken by somebody else before it is closed."""

        def pop(self, *position: Any) -> apsw.Connection:
            if not lent:
                lent.append(super().pop())
            return super().pop(*position)

    readers._idle = BorrowedMeanwhile(readers._idle)
    store.close()
    assert lent[0].execute("SELECT count(*) FROM run_state").fetchall() == [(2,)]
    readers.give_back(lent[0])
    assert descriptors(path) == []


# --- refusals --------------------------------------------------------------------------------------------------------


def foreign(path: Path, mode: str) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE photos (name); INSERT INTO photos VALUES ('cat')")
    connection.close()


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_of_another_program_is_refused_and_untouched(path: Path, mode: str) -> None:
    foreign(path, mode)
    before = contents(path.parent)
    with pytest.raises(NotOurStore):
        SqliteStore(str(path)).open()
    assert contents(path.parent) == before


def test_a_database_of_another_program_that_is_in_use_is_refused_and_untouched(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE photos (name)")
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    with pytest.raises(NotOurStore):
        SqliteStore(str(path)).open()
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before
    connection.close()


@pytest.mark.parametrize("text", [b"notes\n", b"SQLite format 3\0 but not really", b"x" * 5000])
def test_a_file_that_is_no_database_is_refused_and_untouched(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(NotOurStore):
        SqliteStore(str(path)).open()
    assert contents(path.parent) == {"runs.db": text}


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    store = SqliteStore(str(path))
    store.open()
    make_runs(store, 1)
    store.close()


def test_a_file_whose_first_page_a_power_loss_has_torn_becomes_a_database(path: Path) -> None:
    """SQLite's journal says that there was nothing in it before, and what is in it now need not even be a header."""
    path.write_bytes(bytes(4_096))
    sector, page = 512, 4_096
    journal = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0x42527A59, 0, sector, page)
    Path(f"{path}-journal").write_bytes(journal.ljust(sector, b"\0"))
    with pytest.raises(StoreMissing):
        SqliteStore(str(path), create=False).open()
    store = SqliteStore(str(path))
    store.open()
    make_runs(store, 1)
    store.close()
    assert integrity(path) == "ok"
    assert not Path(f"{path}-journal").exists()


@pytest.mark.parametrize("pages_before", [0, 1])
def test_a_torn_journal_beside_a_file_that_is_no_database_proves_nothing(path: Path, pages_before: int) -> None:
    path.write_bytes(b"nothing of ours" * 300)
    journal = bytes.fromhex("d9d505f920a163d7") + struct.pack(">3I", 0, 0, pages_before)
    Path(f"{path}-journal").write_bytes(journal if pages_before else journal[:19])
    before = contents(path.parent)
    with pytest.raises(NotOurStore):
        SqliteStore(str(path)).open()
    assert contents(path.parent) == before


def test_a_directory_and_a_missing_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a file"):
        SqliteStore(str(tmp_path)).open()
    with pytest.raises(StoreError, match="no directory"):
        SqliteStore(str(tmp_path / "no" / "runs.db")).open()


@pytest.mark.parametrize("in_wal", [False, True])
def test_a_newer_database_is_refused_and_byte_identical(path: Path, in_wal: bool) -> None:
    store = SqliteStore(str(path))
    store.open()
    store.close()
    newer = apsw.Connection(str(path))
    newer.execute("UPDATE store_meta SET schema_version = 99; PRAGMA user_version = 99")
    newer.execute("INSERT INTO store_migrations (number, name, checksum) VALUES (99, 'future', 'x')")
    if not in_wal:
        newer.close()
    before = {name: data for name, data in contents(path.parent).items() if not name.endswith("-shm")}
    with pytest.raises(NewerStore):
        store.open()
    assert {name: data for name, data in contents(path.parent).items() if not name.endswith("-shm")} == before
    with pytest.raises(StoreError, match="could not be opened"):
        store.runs()
    newer.close()


def test_a_database_whose_migration_differs_from_ours_is_refused(path: Path) -> None:
    store = SqliteStore(str(path))
    store.open()
    store.close()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE store_migrations SET checksum = 'other'")
    connection.close()
    with pytest.raises(StoreError, match=r"before the first release.*move the database away or name another"):
        store.open()


def test_a_database_from_before_the_first_release_is_refused_and_byte_identical(path: Path) -> None:
    """Its migrations were squashed into the first; it had eight, whose numbers are above what is known here."""
    store = SqliteStore(str(path))
    store.open()
    store.close()
    old = apsw.Connection(str(path))
    old.execute("UPDATE store_meta SET schema_version = 8; PRAGMA user_version = 8; DELETE FROM store_migrations")
    add = "INSERT INTO store_migrations (number, name, checksum) VALUES (?, 'old', 'x')"
    old.executemany(add, [(number,) for number in range(1, 9)])
    old.close()
    before = contents(path.parent)
    with pytest.raises(StoreError, match="before the first release") as refused:
        store.open()
    assert not isinstance(refused.value, NewerStore)
    assert contents(path.parent) == before


def test_a_later_migration_is_applied_to_a_database_with_the_first(path: Path, tmp_path: Path) -> None:
    """What a developer does for the first change after a release: copy schema.sql, add 0002."""
    folder = tmp_path / "sql"
    (folder / "migrations").mkdir(parents=True)
    (folder / "migrations" / "0001_initial.sql").write_text("-- A comment may change.\n" + schema("sqlite"))
    (folder / "migrations" / "0002_next.sql").write_text(NEXT)
    known = migrations_in(folder)
    assert [(one.number, one.name) for one in known] == [(1, "initial"), (2, "next")]
    assert known[0].checksum == migrations("sqlite")[0].checksum
    store = SqliteStore(str(path))
    store.open()
    (no,) = make_runs(store, 1)
    store.close()
    with closing(apsw.Connection(str(path))) as connection:
        assert migrate(connection, "test", known) == 1
        assert migrate(connection, "test", known) == 0
        assert connection.execute("SELECT run_no FROM run_state").fetchall() == [(no,)]
        assert connection.execute("SELECT schema_version FROM store_meta").fetchall() == [(2,)]
        assert connection.table_exists(None, "later")
    with pytest.raises(NewerStore):
        store.open()
    (folder / "migrations" / "0004_gap.sql").write_text(NEXT)
    with pytest.raises(AssertionError, match="without a gap"):
        migrations_in(folder)


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory that a user without privileges can reach, and being that user."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
        if os.geteuid() != os.getuid():
            os.seteuid(os.getuid())
        directory.chmod(0o755)


def drop_privileges() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_file_or_directory_that_cannot_be_written_is_read_only(as_nobody: Path) -> None:
    path = as_nobody / "runs.db"
    store = SqliteStore(str(path))
    store.open()
    store.close()
    path.chmod(0o444)
    before = path.read_bytes()
    as_nobody.chmod(0o555)
    drop_privileges()
    with pytest.raises(StoreReadOnly):
        store.open()
    with pytest.raises(StoreReadOnly):
        SqliteStore(str(as_nobody / "new.db")).open()
    assert contents(as_nobody) == {"runs.db": before}


def test_a_directory_without_room_for_the_wal_is_read_only(as_nobody: Path) -> None:
    path = as_nobody / "runs.db"
    store = SqliteStore(str(path))
    store.open()
    store.close()
    path.chmod(0o666)
    as_nobody.chmod(0o555)
    drop_privileges()
    with pytest.raises(StoreReadOnly):
        store.open()


# --- other processes -------------------------------------------------------------------------------------------------

WRITE_BESIDE = """
    import sys
    from holdfast.store.sqlite.sqlite_store import SqliteStore
    from tests.store.conformance.store import make_runs, refusals, step
    store = SqliteStore(sys.argv[1])
    store.open()
    for _ in range(10):
        numbers = make_runs(store, 10)
        for seq in range(1, 15):
            assert refusals(store, *(step(no, seq) for no in numbers)) == [None] * 10
    store.close()
"""


def test_processes_that_write_at_once_never_meet_a_lock(path: Path) -> None:
    """Four processes also race to create the file."""
    children = [python(WRITE_BESIDE, path) for _ in range(4)]
    assert [child.wait(240) for child in children] == [0] * 4
    for child in children:
        child.communicate()
    store = SqliteStore(str(path))
    store.open()
    assert len(store.runs(limit=1000)) == 400
    assert {row.last_seq for row in store.runs(limit=1000)} == {15}
    store.close()
    assert integrity(path) == "ok"


def test_readers_go_on_and_the_writer_waits_while_another_process_holds_the_lock(
    store: SqliteStore, path: Path
) -> None:
    (no,) = make_runs(store, 1)
    holder = python(
        """
        import apsw, sys
        connection = apsw.Connection(sys.argv[1])
        connection.execute("BEGIN IMMEDIATE; UPDATE run_state SET status = 'uncommitted'")
        print("held", flush=True)
        sys.stdin.read()
        connection.execute("ROLLBACK")
        """,
        path,
        stdin=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(refusals, store, step(no))
            row = store.run_by_no(no)
            assert row is not None
            assert row.status == "running"
            time.sleep(0.3)  # long enough to write, if it could
            assert not writing.done()
        finally:
            holder.communicate(timeout=60)
        assert writing.result(60) == [None]


# --- full disks and I/O errors ---------------------------------------------------------------------------------------


def test_a_full_disk_is_a_clean_rollback_and_the_store_goes_on(store: SqliteStore) -> None:
    numbers = make_runs(store, 2)
    writer = store._writer
    assert writer is not None
    writer.pragma("max_page_count", writer.pragma("page_count"))
    large = [event_row(numbers[0], 2, data=b"x" * 1_000_000)]
    with pytest.raises(StoreFull, match="nothing was written"):
        store.commit([step(numbers[1]), step(numbers[0], events=large)])
    assert {row.last_seq for row in store.runs()} == {1}
    assert len(store.events(numbers[0])) == 1
    writer.pragma("max_page_count", 1_000_000)
    assert refusals(store, step(numbers[1]), step(numbers[0], events=large)) == [None, None]


class FaultyVFS(apsw.VFS):
    """SQLite's own VFS, but for the next write to or sync of a WAL, which fails as told."""

    def __init__(self) -> None:
        self.fail_write: type[apsw.Error] | None = None
        self.fail_sync: type[apsw.Error] | None = None
        super().__init__("faulty", "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.vfs = vfs
        self.is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self.is_wal and self.vfs.fail_write:
            raise self.vfs.fail_write
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self.is_wal and self.vfs.fail_sync:
            raise self.vfs.fail_sync
        super().xSync(flags)


@pytest.fixture
def faults() -> Iterator[FaultyVFS]:
    vfs = FaultyVFS()
    yield vfs
    vfs.unregister()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # apsw reports what the VFS raised
@pytest.mark.parametrize("fault", ["fail_write", "fail_sync"])
def test_an_io_error_at_commit_closes_the_store_and_the_next_open_tells(
    path: Path, faults: FaultyVFS, fault: str
) -> None:
    store = SqliteStore(str(path), vfs="faulty")
    store.open()
    numbers = make_runs(store, 3)
    setattr(faults, fault, apsw.IOError)
    with pytest.raises(OutcomeUnknown):
        store.commit([step(no) for no in numbers])
    for use in (store.runs, store.changed, lambda: store.commit([step(numbers[0])])):
        with pytest.raises(StoreError, match="I/O error"):
            use()
    setattr(faults, fault, None)
    store.open()
    ends = {(row.last_seq, len(store.events(row.run_no))) for row in store.runs()}
    assert ends in ({(1, 1)}, {(2, 2)})
    ((last_seq, _),) = ends
    assert refusals(store, *(step(no, last_seq) for no in numbers)) == [None] * 3
    store.close()
    assert integrity(path) == "ok"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # apsw reports what the VFS raised
def test_a_disk_that_fills_up_at_commit_is_a_clean_rollback(path: Path, faults: FaultyVFS) -> None:
    store = SqliteStore(str(path), vfs="faulty")
    store.open()
    (no,) = make_runs(store, 1)
    faults.fail_write = apsw.FullError
    with pytest.raises(StoreFull):
        store.commit([step(no)])
    assert len(store.events(no)) == 1
    faults.fail_write = None
    assert refusals(store, step(no)) == [None]
    store.close()
    assert integrity(path) == "ok"


# --- kills -----------------------------------------------------------------------------------------------------------

COMMIT_UNTIL_KILLED = """
    import sys
    from holdfast.store.sqlite.sqlite_store import SqliteStore
    from tests.store.conformance.store import make_runs, node_row, refusals, step
    store = SqliteStore(sys.argv[1])
    store.open()
    numbers = make_runs(store, 30)
    print(numbers[0], 1, flush=True)
    seq = 0
    while True:
        seq += 1
        group = [step(no, seq, nodes=[node_row(no, f"n{seq}")]) for no in numbers]
        assert refusals(store, *group) == [None] * 30
        print(numbers[0], seq + 1, flush=True)
"""


def test_a_kill_while_writing_loses_nothing_that_was_acknowledged(path: Path) -> None:
    """K-17: the torn write. One file over all kills, so that recovery is recovered from too."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for _ in range(8):
        child = python(COMMIT_UNTIL_KILLED, path)
        assert child.stdout is not None
        line = child.stdout.readline()
        time.sleep(chance.uniform(0, 0.15))  # the moment of the kill is the point
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate(timeout=60)
        whole = (line + rest).rpartition("\n")[0]
        first, acknowledged = map(int, whole.splitlines()[-1].split())

        store = SqliteStore(str(path))
        store.open()
        rows = [row for row in store.runs(limit=30) if first <= row.run_no < first + 30]
        assert len(rows) == 30, seed
        assert len({row.last_seq for row in rows}) == 1, seed
        assert acknowledged <= rows[0].last_seq <= acknowledged + 1, seed
        for row in rows:
            assert [event.seq for event in store.events(row.run_no)] == list(range(1, row.last_seq + 1)), seed
            assert len(store.nodes(row.run_no)) == row.last_seq - 1, seed
        store.close()
        assert integrity(path) == "ok", seed


OPEN_AND_DIE = """
    import os, signal, sys
    import apsw
    from holdfast.store.sql_files import Migration
    from holdfast.store.sqlite import sqlite_opening as module
    from holdfast.store.sqlite.sqlite_store import SqliteStore

    second = sys.argv[3]
    if second:
        known = module.migrations("sqlite")
        known = (*known, Migration(len(known) + 1, "next", second, "sum"))
        module.migrations = lambda dialect: known
    left = int(sys.argv[2])

    def trace(cursor, sql, bindings):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    apsw.connection_hooks.append(lambda connection: connection.set_exec_trace(trace))
    store = SqliteStore(sys.argv[1])
    store.open()
    store.runs()
    print("done", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

NEXT = "ALTER TABLE engines ADD COLUMN zone TEXT; CREATE TABLE later (x TEXT) STRICT;"


def kill_at_each_statement(path: Path, second: str) -> Iterator[None]:
    for statement in range(1, 300):
        child = python(OPEN_AND_DIE, path, statement, second)
        said, _ = child.communicate(timeout=60)
        yield
        if said == "done\n":
            return
    raise AssertionError("the migration never ended")


@pytest.mark.slow
def test_a_kill_at_any_statement_of_the_first_open_leaves_nothing_or_a_whole_database(tmp_path: Path) -> None:
    for index, _ in enumerate(kill_at_each_statement(path := tmp_path / "runs.db", "")):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        assert not tables or tables >= {"store_meta", "store_migrations", "run_state", "engines"}, index
        assert connection.pragma("integrity_check") == "ok"
        connection.close()
        if not tables:
            store = SqliteStore(str(path))
            store.open()
            make_runs(store, 1)
            store.close()
        for file in list(tmp_path.iterdir()):
            file.unlink()


@pytest.mark.slow
def test_a_kill_at_any_statement_of_a_migration_leaves_the_old_schema_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(str(path))
    store.open()
    make_runs(store, 3)
    store.close()
    old = path.read_bytes()
    seen, now = set(), len(migrations("sqlite"))
    known = (*migrations("sqlite"), Migration(now + 1, "next", NEXT, "sum"))
    for _ in kill_at_each_statement(path, NEXT):
        connection = apsw.Connection(str(path))
        ((version,),) = connection.execute("SELECT schema_version FROM store_meta").fetchall()
        columns = {row[1] for row in connection.execute("PRAGMA table_info(engines)")}
        is_new = connection.table_exists(None, "later")
        assert (version, "zone" in columns, is_new) in {(now, False, False), (now + 1, True, True)}
        assert connection.execute("SELECT count(*) FROM run_state").fetchall() == [(3,)]
        assert connection.pragma("integrity_check") == "ok"
        assert migrate(connection, "test", known) == now + 1 - version, "the next open completes it"
        connection.close()
        seen.add(version)
        for file in list(tmp_path.iterdir()):
            file.unlink()
        path.write_bytes(old)
    assert seen == {now, now + 1}


# --- schema and statements -------------------------------------------------------------------------------------------


def described(connection: apsw.Connection) -> list[tuple[str, str, str]]:
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
    return [(str(kind), str(name), _without_layout(str(sql))) for kind, name, sql in found]


def _without_layout(sql: str) -> str:
    return re.sub(r" (?=[,)])", "", re.sub(r"\s+", " ", sql))


def test_the_migrations_lead_to_the_schema() -> None:
    migrated, direct = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    assert migrate(migrated, "test") == len(migrations("sqlite"))
    assert migrate(migrated, "test") == 0
    direct.execute(schema("sqlite"))
    assert described(migrated) == described(direct)


def test_a_migration_of_another_process_between_two_looks_is_not_taken_for_damage(path: Path) -> None:
    known = (*migrations("sqlite"), Migration(2, "next", NEXT, "sum"))
    ours, theirs = apsw.Connection(str(path)), apsw.Connection(str(path))
    ours.pragma("journal_mode", "wal")
    migrate(ours, "test", known[:-1])
    moments: list[int] = []

    def meanwhile(cursor: apsw.Cursor, statement: str, bindings: object) -> bool:
        if "store_meta" in statement and not moments:
            moments.append(migrate(theirs, "test", known))
        return True

    ours.exec_trace = meanwhile
    assert migrate(ours, "test", known) == 0
    assert moments == [1]
    for connection in (ours, theirs):
        connection.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was() -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection, "test")
    before = described(connection)
    broken = Migration(2, "broken", "CREATE TABLE fine (x); CREATE TABLE run_state (x);", "sum")
    with pytest.raises(apsw.SQLError):
        migrate(connection, "test", (*migrations("sqlite"), broken))
    assert described(connection) == before
    assert not connection.in_transaction


def test_rows_are_cut_into_few_statements_without_a_gap_and_those_of_one_step_are_one() -> None:
    repeated = Repeated("test", "INSERT INTO t VALUES /*row*/ (?) /*row*/;")
    assert [end for _, end, _ in repeated.batches(3)] == [3]
    texts = set()
    for count in range(300):
        batches = repeated.batches(count)
        assert [start for start, _, _ in batches] == [0, *(end for _, end, _ in batches)][: len(batches)]
        assert sum(end - start for start, end, _ in batches) == count
        assert all(sql.count("?") == end - start for start, end, sql in batches)
        texts |= {sql for _, _, sql in batches}
    assert len(texts) == len(SIZES)


def plan_of(connection: apsw.Connection, name: str) -> list[str]:
    """How SQLite answers a statement of ours, with one row where rows are repeated."""
    sql = load("sqlite")[name]
    if "/*row*/" in sql:
        sql = next(text for _, _, text in Repeated(name, sql).batches(1))
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    bindings = (None,) * (max(numbered) if numbered else sql.count("?"))
    return [str(row[3]) for row in connection.execute("EXPLAIN QUERY PLAN " + sql, bindings)]


def test_every_statement_can_be_prepared_and_none_walks_through_finished_runs() -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection, "test")
    may_be_walked = (
        "run_state_live", "run_state_ready", "run_state_finished", "run_inbox_messages_new", "run_timers_due",
        "workflow_versions_retired",
    )  # fmt: skip
    for name in load("sqlite"):
        if name in ("runs", "all_versions", "version_numbers", "free_all_runs"):
            continue  # walks backwards from the newest, and stops at its limit; asks for, or changes, all there are
        plan = plan_of(connection, name)
        walks = [one for one in plan if re.match(r"SCAN (run_\w+|workflow_\w+|[rtmw])\b|.*\(rowid<", one)]
        assert all(one.endswith(may_be_walked) for one in walks), (name, plan)


@pytest.mark.parametrize(
    ("statement", "step", "columns"),
    [
        ("asked", "SEARCH w USING INDEX run_waits_asked", "((since,wait_id)>(?,?))"),
        ("due_timers", "SEARCH t USING INDEX run_timers_due", "((due_at,run_no,timer)>(?,?,?) AND due_at<?)"),
        ("due_timers", "run_timers_lasting", "(boot=? AND (elapsed,run_no,timer)>(?,?,?) AND elapsed<?)"),
        ("asked_in_basket", "SEARCH w USING INDEX run_waits_basket", "(basket=? AND (since,wait_id)>(?,?))"),
        ("asked_of_assignee", "SEARCH w USING INDEX run_waits_assignee", "(assignee=? AND (since,wait_id)>(?,?))"),
        ("waits_by_id", "SEARCH w USING INDEX run_waits_of_people", "(wait_id>? AND wait_id<?)"),
        ("baskets", "SEARCH run_waits USING COVERING INDEX run_waits_basket", "(basket>?)"),
        ("waits_for_ended", "SEARCH w USING INDEX run_waits_for_children", "(run_no>? AND run_no<?)"),
        ("page_of_waits_for_children", "USING COVERING INDEX run_waits_for_children", "(run_no>?)"),
        ("held_messages", "USING INDEX run_inbox_messages_held", "(run_no=?)"),
        ("open_nodes", "SEARCH n USING INDEX run_node_state_open", "(run_no=?)"),
        ("runs_unowned", "USING INDEX run_state_live", "(engine=? AND status=? AND rowid<?)"),
        ("loads", "USING COVERING INDEX run_state_live", "(engine>?)"),
        ("unowned_versions", "USING INDEX run_state_ready", "((workflow,version)>(?,?))"),
        ("claimable", "USING INDEX run_state_ready", "(workflow=? AND version=? AND queue>?)"),
        ("claimable", "USING INDEX run_state_ready", "(workflow=? AND version=? AND queue=?)"),
        ("claimable_of_roots", "USING INDEX run_state_ready_of_root", "(root_no=?)"),
    ],
)
def test_what_is_asked_often_is_found_and_sorted_by_an_index_among_any_number_of_rows(
    statement: str, step: str, columns: str
) -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection, "test")
    plan = plan_of(connection, statement)
    assert any(one.endswith(f"{step} {columns}") for one in plan), plan
    if statement not in (
        "held_messages",
        "open_nodes",
        "unowned_versions",
        "claimable",
        "claimable_of_roots",
        "due_timers",
    ):  # these sort the few that they give
        assert not any("TEMP B-TREE" in one for one in plan), plan


def test_looking_for_versions_reads_no_more_with_more_runs_of_each() -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection, "test")
    add = """
        WITH RECURSIVE run (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM run WHERE n < ?2)
        INSERT INTO run_state SELECT n, 'run_' || n, 'w' || (n % 3), n % 2, 'created', 1, 1, x'', 1,
            NULL, NULL, '', NULL, n, 0, 0, NULL, 1, 1, NULL, 'default', NULL, 1 FROM run
    """
    steps = []
    for first, last in ((1, 60), (61, 6_000)):
        connection.execute(add, (first, last))
        with stepped(connection) as counted:
            found = connection.execute(load("sqlite")["unowned_versions"], (FORMAT,)).fetchall()
        assert len(found) == 6
        steps.append(counted[0])
    assert steps[1] < 2 * steps[0], steps


def test_reading_open_rows_takes_no_longer_with_more_items_and_visits_behind(store: SqliteStore) -> None:
    (no,) = make_runs(store, 1)
    own = [node_row(no, name, ".") for name in ("first", "map", "zeal")]
    assert refusals(store, step(no, nodes=own)) == [None]
    writer = store._writer
    assert writer is not None
    steps = []
    for seq, count in ((2, 10), (3, 3_000)):
        items = [node_row(no, "map", f".map.{i}.", is_open=0) for i in range(count)]
        visits = [node_row(no, "first", ".", is_open=0)._replace(visit=2 + i) for i in range(count)]
        assert refusals(store, step(no, seq, nodes=items + visits)) == [None]
        with stepped(writer) as counted:
            found = writer.execute(load("sqlite")["open_nodes"], (f"[{no}]",)).fetchall()
        assert found == own
        steps.append(counted[0])
    assert steps[1] < 2 * steps[0], steps


def test_the_first_instances_of_a_workflows_own_nodes_are_in_the_key_alone(store: SqliteStore) -> None:
    (no,) = make_runs(store, 1)
    inside = [node_row(no, "b", ".a.0."), node_row(no, "a", ".")._replace(visit=2)]
    nodes = [node_row(no, "a", "."), *inside, node_row(no, "b", ".a.1.", is_open=0)]
    assert refusals(store, step(no, nodes=nodes)) == [None]
    writer = store._writer
    assert writer is not None
    entries = """
        SELECT node, path, visit FROM run_node_state INDEXED BY run_node_state_open
        WHERE is_open = 1 AND (path <> '.' OR visit > 1) ORDER BY rowid
    """
    assert writer.execute(entries).fetchall() == [(row.node, row.path, row.visit) for row in inside]
    assert store.open_nodes([no]) == nodes[:3]


@contextmanager
def stepped(connection: apsw.Connection) -> Iterator[list[int]]:
    """How many steps the statements of a block take, in tens of instructions of SQLite."""
    counted = [0]

    def count() -> bool:
        counted[0] += 1
        return False

    connection.set_progress_handler(count, 10)
    yield counted
    connection.set_progress_handler(None)


@pytest.mark.parametrize("kind", ["input", "basket", "pause", "hold", "signal", "timer", "child"])
def test_only_waits_for_people_are_in_the_indexes_for_people(kind: str) -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection, "test")
    whose = ("tax", "ann") if kind in OF_PEOPLE else (None, None)
    wait = (1, "w_1", kind, "a", ".", 1, 1, "open", 5, None, b"", *whose, None, None)
    connection.execute("INSERT INTO run_waits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", wait)
    for index in ("run_waits_of_people", "run_waits_asked", "run_waits_basket", "run_waits_assignee"):
        ((sql,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,))
        condition = str(sql).partition("WHERE")[2]
        entries = f"SELECT count(*) FROM run_waits INDEXED BY {index} WHERE {condition}"  # noqa: S608 - words of ours
        assert connection.execute(entries).fetchall() == [(int(kind in OF_PEOPLE),)], index


def test_the_open_rows_of_an_earlier_version_are_found_in_their_order_and_the_run_goes_on(path: Path) -> None:
    before = migrations("sqlite")[:6]
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("journal_mode", "wal")
        migrate(connection, "test", before)
        rows = [
            node_row(1, "late", "."),
            node_row(1, "map", "."),
            node_row(1, "each", ".map.0.", is_open=0),
            node_row(1, "each", ".map.1."),
            node_row(1, "early", "."),
            node_row(1, "early", ".")._replace(visit=2),
        ]
        add = "INSERT INTO run_node_state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        connection.executemany(add, rows)
    with closing(SqliteStore(str(path))) as store:
        store.open()
        assert store.health(thorough=True).schema == len(migrations("sqlite"))
        assert store.nodes(1) == rows
        assert store.open_nodes([1]) == [row for row in rows if row.is_open]
        assert refusals(store, creation(1)) == [None]
        more = [rows[1]._replace(status="completed"), rows[3]._replace(is_open=0), node_row(1, "after", ".")]
        assert refusals(store, step(1, nodes=more)) == [None]
        assert [row.node for row in store.open_nodes([1])] == ["late", "map", "early", "early", "after"]


def test_a_lease_is_seen_in_the_view(store: SqliteStore) -> None:
    store.register_engine(EngineRow("one", "host", 1, "lock", 1, 77, b"{}"))
    make_runs(store, 1)
    make_runs(store, 1, engine=None)
    writer = store._writer
    assert writer is not None
    leases = writer.execute("SELECT run_id, engine, token, expires_at FROM run_leases").fetchall()
    assert leases == [("run_1", "one", 1, 77)]


@pytest.mark.parametrize("statement", ["close_inbox", "suspect_message_of_end"])
def test_the_statements_know_every_kind_of_message_that_an_ended_run_takes(statement: str) -> None:
    listed = load("sqlite")[statement].rpartition("kind NOT IN (")[2].partition(")")[0]
    assert {kind.strip().strip("'") for kind in listed.split(",")} == BRANCH_REQUESTS


def test_the_statements_know_every_kind_of_wait_that_is_for_people() -> None:
    said = " ".join(load("sqlite").values()) + schema("sqlite")
    lists = re.findall(r"(?:\w\.)?kind = '\w+'(?: OR (?:\w\.)?kind = '\w+')+", said)
    assert len(lists) >= 4
    assert {tuple(re.findall(r"'(\w+)'", one)) for one in lists} == {OF_PEOPLE}


def test_no_index_makes_sqlite_build_a_table_for_every_row_that_is_written(store: SqliteStore) -> None:
    writer = store._writer
    assert writer is not None
    one_wait = load("sqlite")["put_waits"].replace("/*row*/", "")
    for sql, values in ((load("sqlite")["move_run"], 14), (one_wait, 15)):
        done = [row[1] for row in writer.execute(f"EXPLAIN {sql}", (None,) * values)]
        assert "OpenEphemeral" not in done, sql
