"""Restoring a backup: whole or not at all, and quiet until it is activated."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.cli.commands.database_verbs import is_dead
from holdfast.model.errors import NotOurStore, StoreDamaged, StoreError, StoreInactive, StoreMissing, UsageError
from holdfast.store import backups
from holdfast.store.row_types import EngineRow, Standing
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.store.urls import store_at
from tests.servers import NOBODY, PostgresServer
from tests.store.backup_kit import activate, files, fill, look, restore, store_id
from tests.store.conformance.engines import engine_row
from tests.store.conformance.store import make_runs, step
from tests.store.postgres_kit import sql

ROOT = Path(__file__).parents[2]


def test_a_restored_store_is_quiet_until_it_is_activated_and_has_an_epoch_of_its_own(path: Path, kept: Path) -> None:
    fill(path, 3)
    backups.backup(str(path), kept)
    fill(path, 4)
    identity = store_id(path)
    done = restore(path, kept)
    assert look(path) == (3, Standing(done.epoch, "restored"))
    assert store_id(path) == identity
    assert done.replaced is not None
    assert look(done.replaced) == (7, Standing(1, ""))
    again = restore(path, kept)
    assert again.epoch > done.epoch > 1
    with pytest.raises(StoreInactive, match="holdfast db activate"):
        asyncio.run(open_engine(path))
    assert activate(path) == (again.epoch, "")
    assert activate(path) is None
    asyncio.run(open_engine(path))


async def open_engine(path: Path) -> None:
    async with hf.open(f"sqlite:///{path}"):
        pass


def test_engines_do_not_work_on_a_backup_itself(path: Path, kept: Path) -> None:
    fill(path, 1)
    backups.backup(str(path), kept)
    with pytest.raises(StoreInactive, match="is a backup"):
        asyncio.run(open_engine(kept))
    standing = activate(kept)
    assert standing is not None
    assert standing.epoch > 1, "it is a store of its own now, however it came to its place"
    asyncio.run(open_engine(kept))


def test_no_engine_of_before_or_after_the_backup_has_a_token_that_is_valid_in_what_was_restored(
    path: Path, kept: Path
) -> None:
    fill(path, 1)
    store = SqliteStore(str(path))
    store.open()
    store.register_engine(engine_row("eng"))
    (no,) = store.run_numbers(1, 10)
    (row,) = store.runs()
    store.close()
    backups.backup(str(path), kept)
    restore(path, kept)
    store.open()
    (freed,) = store.runs()
    assert freed.engine is None
    assert freed.token > row.token + 100_000
    assert store.engines() == []
    assert [landed.refusal for landed in store.commit([step(no, row.last_seq)])] == ["fenced"]
    store.close()


def test_a_database_is_not_replaced_under_an_engine_or_a_reader(path: Path, kept: Path) -> None:
    fill(path, 2)
    backups.backup(str(path), kept)
    store = SqliteStore(str(path))
    store.open()
    with pytest.raises(UsageError, match="open; stop it"):
        restore(path, kept)
    store.register_engine(engine_row("eng_1", expires_at=store.now() + 60_000_000))
    with pytest.raises(UsageError, match="eng_1"):
        backups.restore(str(path), kept, is_dead=lambda side, engine, now: False)
    with pytest.raises(UsageError, match="eng_1"):
        backups.activate(str(path), is_dead=lambda side, engine, now: False, restored=True)
    assert store.counts() == {"running": 2}
    store.close()
    assert files(path.parent) == {"runs.db", "backup.db"}


def test_a_damaged_database_is_replaced_and_kept_with_its_log(path: Path, kept: Path) -> None:
    fill(path, 2)
    backups.backup(str(path), kept)
    path.write_bytes(path.read_bytes()[:100] + bytes(5_000))
    Path(f"{path}-wal").write_bytes(b"a log" * 100)
    Path(f"{path}-shm").write_bytes(b"index")
    done = restore(path, kept)
    assert look(path)[0] == 2
    assert done.replaced is not None
    assert Path(f"{done.replaced}-wal").read_bytes() == b"a log" * 100
    assert not Path(f"{path}-wal").exists()


def test_a_restored_database_is_open_to_the_users_of_the_one_that_it_replaces(path: Path, kept: Path) -> None:
    fill(path, 1)
    backups.backup(str(path), kept)
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    before = path.stat()
    restore(path, kept)
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


def test_a_file_of_another_program_is_not_replaced(path: Path, kept: Path) -> None:
    fill(path, 1)
    backups.backup(str(path), kept)
    path.write_text("somebody's notes")
    with pytest.raises(UsageError, match="Move it away"):
        restore(path, kept)
    assert path.read_text() == "somebody's notes"


def test_a_backup_that_is_damaged_or_not_ours_replaces_nothing(path: Path, kept: Path) -> None:
    fill(path, 5)
    backups.backup(str(path), kept)
    fill(path, 1)
    data = bytearray(kept.read_bytes())
    data[4096 * 20 : 4096 * 21] = bytes(range(256)) * 16
    kept.write_bytes(data)
    with pytest.raises((StoreDamaged, StoreError)):
        restore(path, kept)
    kept.write_text("not a database")
    with pytest.raises(NotOurStore, match=re.escape(str(kept))):
        restore(path, kept)
    kept.write_bytes(b"")  # a download that failed
    with pytest.raises(NotOurStore, match="is empty"):
        restore(path, kept)
    with closing(apsw.Connection(str(kept))) as foreign:
        foreign.execute("CREATE TABLE notes (text)")
    with pytest.raises(NotOurStore, match=re.escape(str(kept))):
        restore(path, kept)
    with pytest.raises(StoreMissing):
        restore(path, kept.with_name("nothing.db"))
    assert look(path) == (6, Standing(1, ""))
    assert files(path.parent) == {"runs.db", "backup.db"}


def test_a_restore_works_where_there_is_no_database_and_a_log_was_left(path: Path, kept: Path) -> None:
    fill(path, 2)
    backups.backup(str(path), kept)
    path.unlink()
    Path(f"{path}-wal").write_bytes(b"a log" * 100)
    assert restore(path, kept).replaced is None
    assert not Path(f"{path}-wal").exists()
    (log,) = path.parent.glob("runs.db.replaced-*-wal")
    assert log.read_bytes() == b"a log" * 100
    assert look(path)[0] == 2


def test_the_epoch_of_a_restored_store_is_above_that_of_the_one_it_replaces(path: Path, kept: Path) -> None:
    """Also where the clock was wrong when that one was made."""
    fill(path, 1)
    backups.backup(str(path), kept)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE store_meta SET epoch = ?", (2**60,))
    assert restore(path, kept).epoch > 2**60


def test_a_backup_put_back_by_hand_over_a_killed_database_is_not_given_its_log(path: Path, kept: Path) -> None:
    fill(path, 5)
    backups.backup(str(path), kept)
    code = """
        import os, signal, sys
        from holdfast.store.sqlite.sqlite_store import SqliteStore
        from tests.store.conformance.store import make_runs
        store = SqliteStore(sys.argv[1])
        store.open()
        make_runs(store, 50)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert Path(f"{path}-wal").stat().st_size
    shutil.copyfile(kept, path)
    assert look(path)[0] == 5


@pytest.mark.parametrize(
    ("act", "point"),
    [
        *(("backup", point) for point in ("os.fsync", "Path.replace", "backups._sync_directory")),
        *(("restore", point) for point in ("backups._finish", "os.link", "backups._keep_log")),
        *(("restore", point) for point in ("Path.replace", "backups._sync_directory")),
    ],
)
def test_a_crash_leaves_the_old_file_or_the_new_one(path: Path, kept: Path, act: str, point: str) -> None:
    """Killed right before this call about the file that is being made."""
    fill(path, 2)
    backups.backup(str(path), kept)
    fill(path, 3)
    code = """
        import os, signal, sys
        from pathlib import Path
        from holdfast.store import backups
        url, kept, act, point = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
        place, name = {"os": os, "Path": Path, "backups": backups}[point.partition(".")[0]], point.partition(".")[2]
        real = getattr(place, name)
        def dying(*args, **kwargs):
            if name == "fsync":
                file = os.readlink(f"/proc/self/fd/{args[0]}")
                is_it = ".making-" in file and "-wal" not in file
            else:
                is_it = name != "link" or ".replaced-" in str(args[1])
            if is_it:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        setattr(place, name, dying)
        if act == "backup":
            backups.backup(url, kept, replaces="backup")
        else:
            backups.restore(url, kept, is_dead=lambda side, engine, now: True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path), str(kept), act, point]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    is_over = point == "backups._sync_directory"
    if act == "backup":
        assert look(path) == (5, Standing(1, ""))
        assert look(kept)[0] == (5 if is_over else 2)
    else:
        runs, standing = look(path)
        assert (runs, standing.closed) == ((2, "restored") if is_over else (5, ""))
        assert look(kept) == (2, Standing(1, "backup"))
        restore(path, kept)
        assert look(path)[0] == 2


# --- a server --------------------------------------------------------------------------------------------------------


def test_the_backups_of_a_server_are_its_own_and_what_it_restored_is_activated(
    postgres: PostgresServer, kept: Path
) -> None:
    url = postgres.url()
    store = store_at(url)
    store.open()
    make_runs(store, 2)
    store.register_engine(engine_row("eng", expires_at=0))
    before = store.runs()[0]
    for act in (lambda: backups.backup(url, kept), lambda: backups.restore(url, kept, is_dead=is_dead)):
        with pytest.raises(UsageError, match="pg_dump"):
            act()
    assert activate(url) is None
    standing = backups.activate(url, is_dead=_all_dead, restored=True)
    assert standing is not None
    assert store.standing() == standing
    assert standing.epoch > 1
    after = store.runs()[0]
    assert (after.engine, after.token) == (None, before.token + backups.RESTORED_TOKENS)
    assert store.engines() == []
    sql(url, "UPDATE holdfast.store_meta SET closed = 'restored'")
    with pytest.raises(StoreInactive):
        asyncio.run(_open(url))
    assert backups.activate(url, is_dead=_all_dead) == standing
    asyncio.run(_open(url))
    store.close()


def _all_dead(side: Any, engine: EngineRow, now: int) -> bool:
    return True


async def _open(url: str) -> None:
    async with hf.open(url):
        pass


def test_a_database_in_memory_has_no_backup(kept: Path) -> None:
    with pytest.raises(UsageError, match="in memory"):
        backups.backup("sqlite://", kept)


def test_a_copy_of_an_old_version_is_brought_up_to_date(path: Path, kept: Path) -> None:
    """A backup that was made by SQLite, of a store of an older Holdfast, is restored as well."""
    from holdfast.store.sql_files import migrations
    from holdfast.store.sqlite.sqlite_opening import migrate

    with closing(apsw.Connection(str(kept))) as old:
        migrate(old, "old", migrations("sqlite")[:5])
    restore(path, kept)
    assert look(path)[1].closed == "restored"
