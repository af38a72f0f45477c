"""Lock files: what they tell about an engine's process, and that a row of a database leads to no other file."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import holdfast as hf
from holdfast.engine.ownership.lease import Lease
from holdfast.model.errors import StoreError, StoreReadOnly
from holdfast.store import liveness
from holdfast.store.clocks import SystemClock, boot_id
from holdfast.store.liveness import LockFile, Locks, life_of
from holdfast.store.row_types import EngineRow
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.engine.kit import url

SECOND = 1_000_000
NOBODY = 65_534


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    path.touch()
    return path


def row_of(lock: LockFile | None, engine: str = "eng_a") -> EngineRow:
    assert lock is not None
    name, inode, boot = lock.mark
    return EngineRow(engine, "host", 1, name, 0, 0, b"{}", boot, inode, 2**60)


def files(db: Path) -> set[str]:
    return {path.name for path in db.with_name(db.name + "-engines").glob("*")}


# --- what a lock tells ---------------------------------------------------------------------------------------------


def test_a_lock_is_held_until_it_is_dropped_and_its_folder_goes_with_the_last_one(db: Path) -> None:
    locks = Locks(db, "store")
    lock, other = locks.take("eng_a"), locks.take("eng_b")
    row = row_of(lock)
    assert (locks.sight(row), locks.sight(row_of(other, "eng_b"))) == ("held", "held")
    lock.drop()
    assert locks.sight(row) == "free"
    other.drop()
    assert not db.with_name("runs.db-engines").exists()


def test_a_lock_is_dropped_although_its_file_system_has_become_read_only(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Locks(db, "store").take("eng_a")
    assert lock is not None

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    lock.drop()
    assert Locks(db, "store").sight(row_of(lock)) == "free"


def test_the_lock_of_a_process_that_was_killed_is_free_although_a_child_that_it_forked_lives(db: Path) -> None:
    program = (
        "import os, signal, sys, time; from pathlib import Path; from holdfast.store.liveness import Locks\n"
        "lock = Locks(Path(sys.argv[1]), 'store').take('eng_a')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "print(lock.mark.inode, os.getpid(), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(db)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    inode, child = map(int, parent.stdout.readline().split())
    try:
        parent.wait()
        row = EngineRow("eng_a", "host", 1, "eng_a.lock", 0, 0, b"{}", boot_id(), inode)
        assert Locks(db, "store").sight(row) == "free"
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_lock_is_found_wherever_the_volume_is_mounted(db: Path, tmp_path: Path) -> None:
    """Another container may have the same folder under another path."""
    (here := tmp_path / "here").mkdir()
    (here / "runs.db").touch()
    lock = Locks(here / "runs.db", "store").take("eng_a")
    here.rename(tmp_path / "there")
    there = Locks(tmp_path / "there" / "runs.db", "store")
    assert there.sight(row_of(lock)) == "held"


async def test_engines_that_use_a_database_by_its_name_and_by_a_link_see_each_other_live(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    link, real = tmp_path / "linked" / "link.db", tmp_path / "runs.db"
    real.touch()
    link.symlink_to(real)
    async with hf.open(url(link)) as one, hf.open(url(real)) as other:
        assert one.lease.dead_engines(one.clock.now()) == other.lease.dead_engines(other.clock.now()) == []
        assert len(files(real)) == 2
    assert [path.name for path in link.parent.iterdir()] == ["link.db"]


def test_only_a_lock_of_this_boot_tells_anything(db: Path) -> None:
    locks = Locks(db, "store")
    row = row_of(locks.take("eng_a"))._replace(boot="another", expires_at=5)
    assert locks.sight(row) == "unknown"
    assert (life_of(row, 4, locks), life_of(row, 6, locks)) == ("alive", "dead")


def test_a_file_that_is_not_the_one_the_engine_made_tells_nothing_and_stays(db: Path, tmp_path: Path) -> None:
    locks = Locks(db, "store")
    lock = locks.take("eng_a")
    row = row_of(lock)
    folder = db.with_name("runs.db-engines")
    shutil.copytree(folder, tmp_path / "copy.db-engines")
    copied = Locks(tmp_path / "copy.db", "store")
    for other in (copied, Locks(db, "another store")):
        assert other.sight(row) == "unknown"
        other.remove(row)
    assert locks.sight(row._replace(engine="eng_b")) == "unknown"
    assert files(db) == files(tmp_path / "copy.db") == {"eng_a.lock"}


# --- what is removed -----------------------------------------------------------------------------------------------


def test_only_a_file_that_no_process_holds_is_removed(db: Path) -> None:
    locks = Locks(db, "store")
    lock = locks.take("eng_a")
    assert lock is not None
    row = row_of(lock)
    locks.remove(row)
    assert files(db) == {"eng_a.lock"}
    lock.forget()
    locks.remove(row)
    assert files(db) == set()


async def test_a_row_never_names_a_file_to_delete(tmp_path: Path) -> None:
    db, precious = tmp_path / "runs.db", tmp_path / "precious.txt"
    precious.write_text("keep me")
    (tmp_path / "runs.db-engines").mkdir()
    inside = tmp_path / "runs.db-engines" / "mine.txt"
    inside.write_text("keep me too")
    with closing(SqliteStore(url(db))) as store:
        store.open()
        for path in (precious, inside, tmp_path / "runs.db-engines" / ".." / "precious.txt"):
            row = EngineRow(f"eng_{path}", "host", 1, str(path), 0, 0, b"{}", boot_id(), path.stat().st_ino)
            store.register_engine(row)
    async with hf.open(url(db)) as engine:
        assert [row.engine for row in engine.store.engines()] == [engine.lease.engine]
    assert precious.read_text() == "keep me"
    assert inside.read_text() == "keep me too"


async def test_opening_a_copy_of_a_database_leaves_the_engines_of_the_original_alone(tmp_path: Path) -> None:
    db, copy = tmp_path / "runs.db", tmp_path / "copy.db"
    async with hf.open(url(db), lease_seconds=3600) as engine:
        with closing(apsw.Connection(str(db))) as source:
            source.execute("VACUUM INTO ?", (str(copy),))
        locked = files(db)
        async with hf.open(url(copy)) as drill:
            assert [row.engine for row in drill.store.engines()] == [drill.lease.engine]
        assert files(db) == locked
        (row,) = engine.store.engines()
        assert life_of(row, engine.clock.now(), Locks.of(engine.store)) == "alive"


# --- making one ----------------------------------------------------------------------------------------------------


def test_an_engine_that_opens_while_another_one_removes_the_folder_tries_again(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = db.with_name("runs.db-engines"), []
    real_open = os.open

    def open_late(path: Path, *args: int, **options: int) -> int:
        opened.append(path)
        if len(opened) in (1, 3):  # before the folder is opened, and before the file in it is made
            folder.rmdir()
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "open", open_late)
    lock = Locks(db, "store").take("eng_a")
    assert lock is not None
    assert files(db) == {"eng_a.lock"}
    assert len(opened) == 5


def test_a_folder_of_another_user_is_an_error_that_says_what_to_do(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = db.with_name("runs.db-engines")
    folder.mkdir()

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreReadOnly, match=rf"belongs to user {os.geteuid()}.*rm -r {folder}"):
        Locks(db, "store").take("eng_a")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for another user")
def test_what_root_makes_belongs_to_the_owner_of_the_database(db: Path) -> None:
    os.chown(db, NOBODY, NOBODY)
    lock = Locks(db, "store").take("eng_a")
    folder = db.with_name("runs.db-engines")
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (folder, *folder.iterdir())}
    assert lock is not None
    assert owners == {(NOBODY, NOBODY)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for another user")
def test_root_gives_away_only_a_folder_that_it_has_made(db: Path) -> None:
    folder = db.with_name("runs.db-engines")
    folder.mkdir(mode=0o700)
    os.chown(db, NOBODY, NOBODY)
    assert Locks(db, "store").take("eng_a") is not None
    assert folder.stat().st_uid == 0


def test_a_folder_that_is_a_symbolic_link_is_refused_and_nothing_is_made_or_given_away_behind_it(db: Path) -> None:
    elsewhere = db.with_name("elsewhere")
    elsewhere.mkdir()
    before = elsewhere.stat()
    db.with_name("runs.db-engines").symlink_to(elsewhere)
    if os.geteuid() == 0:
        os.chown(db, NOBODY, NOBODY)
    with pytest.raises(StoreError, match="is a symbolic link or a file"):
        Locks(db, "store").take("eng_a")
    assert elsewhere.stat() == before


# --- who is dead ---------------------------------------------------------------------------------------------------


class Hands(SystemClock):
    """A wall clock and a monotonic time that only the test moves."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000 * SECOND
        self.awake = 5_000 * SECOND

    def now(self) -> int:
        return self.wall

    def lease_time(self) -> int:
        return self.awake

    def synchronise(self) -> None:
        """There is nothing to ask."""


class Two:
    """Two engines of one file with a lease of 2 s each."""

    def __init__(self, db: Path, clock: Hands) -> None:
        self.clock = clock
        self.store = SqliteStore(url(db))
        self.store.open()
        self.first, self.second = (Lease(self.store, 2.0, clock) for _ in range(2))
        for lease in (self.first, self.second):
            lease.take_lock()
            lease.register(b"{}")

    def pass_by(self, seconds: float, *renewing: Lease) -> None:
        for _ in range(int(seconds * 2)):
            self.clock.wall += SECOND // 2
            self.clock.awake += SECOND // 2
            for lease in renewing:
                lease.renew_once()

    def buries(self) -> bool:
        """Whether the second engine takes the first one for dead."""
        return [row.engine for row in self.second.dead_engines(self.clock.now())] == [self.first.engine]


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    clock = Hands()
    monkeypatch.setattr(liveness, "awake_micros", clock.lease_time)
    return Two(tmp_path / "runs.db", clock)


@pytest.mark.parametrize("jump", [3_600 * SECOND, -3_600 * SECOND])
def test_a_wall_clock_that_is_set_kills_no_engine_of_this_machine(two: Two, jump: int) -> None:
    two.clock.wall += jump
    assert not two.buries()
    assert not two.second.has_run_out


def test_a_held_lock_is_alive_for_as_long_as_it_renews_its_lease(two: Two) -> None:
    two.pass_by(6, two.first, two.second)
    assert not two.buries()
    two.pass_by(1.5, two.second)
    assert not two.buries()
    two.pass_by(1, two.second)
    assert two.buries()


def test_an_engine_that_did_not_run_itself_gives_the_others_the_time_of_a_lease(two: Two) -> None:
    two.pass_by(3)
    assert not two.buries(), "its own lease has run out"
    two.second.renew_once()
    assert not two.buries(), "the other one may have stood still with it"
    two.pass_by(1.5, two.second)
    assert not two.buries()
    two.pass_by(1, two.second)
    assert two.buries(), "now it was silent for a whole lease in which this engine ran"


def test_a_free_lock_is_dead_at_once_also_for_an_engine_that_did_not_run_itself(two: Two) -> None:
    two.first.drop_lock()
    assert two.buries()
    two.pass_by(3)
    assert two.buries()
