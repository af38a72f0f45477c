"""A log beside a database that it was not written for: set aside, and never in an ordinary crash."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.store import backups
from holdfast.store.sqlite import foreign_wal
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.store.conformance.store import make_runs

ROOT = Path(__file__).parents[2]

WRITER = """
    import os, random, signal, sys, threading
    from holdfast.store.sqlite import sqlite_connections
    from holdfast.store.sqlite.sqlite_store import SqliteStore
    from tests.store.conformance.store import make_runs, step

    path, seed, count, checkpoint_pages, stores = sys.argv[1], *map(int, sys.argv[2:])
    sqlite_connections.CHECKPOINT_PAGES = checkpoint_pages
    chance = random.Random(seed)
    opened = [SqliteStore(path) for _ in range(stores)]
    for store in opened:
        store.open()
    if not count:
        threading.Timer(chance.uniform(0.0, 0.15), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while count != 1:
        make_runs(chance.choice(opened), chance.randint(1, 40))
        if chance.random() < 0.1:
            opened[0]._writer.execute("VACUUM")
        count = max(1, count - 1) if count else 0
    os.kill(os.getpid(), signal.SIGKILL)
"""


def write_and_die(
    path: Path, *, seed: int = 1, count: int = 20, checkpoint_pages: int = 4_000, stores: int = 1
) -> None:
    """A process that commits and is killed: after so many commits, or (0) at a random moment."""
    arguments = map(str, (path, seed, count, checkpoint_pages, stores))
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WRITER), *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == -signal.SIGKILL


def runs_of(path: Path) -> int:
    """What a store finds in it, once the file was found sound."""
    store = SqliteStore(str(path))
    store.open()
    try:
        assert store.health(thorough=True).damage == []
        return sum(store.counts().values())
    finally:
        store.close()


def by_sqlite(path: Path, backup: Path) -> None:
    source, target = apsw.Connection(str(path)), apsw.Connection(str(backup))
    with closing(source), closing(target), target.backup("main", source, "main") as copying:
        copying.step()


def by_vacuum(path: Path, backup: Path) -> None:
    with closing(apsw.Connection(str(path))) as source:
        source.execute("VACUUM INTO ?", (str(backup),))


def by_holdfast(path: Path, backup: Path) -> None:
    backups.backup(str(path), backup)


def aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}-wal.foreign-*"))


@pytest.mark.parametrize("make_backup", [by_sqlite, by_vacuum, by_holdfast])
@pytest.mark.parametrize("checkpoint_pages", [4_000, 20])
def test_a_backup_copied_over_a_killed_database_is_not_given_its_log(
    tmp_path: Path,
    make_backup: Callable[[Path, Path], None],
    checkpoint_pages: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, backup = tmp_path / "runs.db", tmp_path / "backup.db"
    write_runs(path, 50)
    make_backup(path, backup)
    for times in (1, 2):  # the same backup is put back again and again
        write_and_die(path, checkpoint_pages=checkpoint_pages)
        before, log = aside(path), Path(f"{path}-wal").read_bytes()
        shutil.copyfile(backup, path)
        with caplog.at_level(logging.WARNING, "holdfast.store"):
            caplog.clear()
            assert runs_of(path) == 50
        assert len(aside(path)) == times
        (found,) = set(aside(path)) - set(before)
        assert found.read_bytes() == log
        assert str(found) in caplog.text


@pytest.mark.parametrize("make_backup", [by_sqlite, by_holdfast])
def test_the_log_of_one_backup_is_not_given_to_another_one(
    tmp_path: Path, make_backup: Callable[[Path, Path], None]
) -> None:
    path, first, second = tmp_path / "runs.db", tmp_path / "first.db", tmp_path / "second.db"
    for backup in (first, second):
        write_runs(path, 20)
        make_backup(path, backup)
    shutil.copyfile(first, path)
    write_and_die(path, count=5)
    shutil.copyfile(second, path)
    assert runs_of(path) == 40
    assert len(aside(path)) == 1


def test_a_log_is_found_beside_the_file_that_a_link_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    real, link, backup = tmp_path / "data" / "real.db", tmp_path / "runs.db", tmp_path / "backup.db"
    write_runs(real, 50)
    by_sqlite(real, backup)
    write_and_die(real)
    shutil.copyfile(backup, real)
    link.symlink_to(real)
    assert runs_of(link) == 50
    assert len(aside(real)) == 1


def write_runs(path: Path, runs: int) -> None:
    store = SqliteStore(str(path))
    store.open()
    make_runs(store, runs)
    store.close()


def test_a_log_that_belongs_to_a_killed_process_is_never_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    chance, proofs = random.Random(3), 0
    for seed in range(10):
        before = runs_of(path) if seed % 3 else 0
        write_and_die(path, seed=seed, count=0, checkpoint_pages=chance.choice([5, 40, 4_000]), stores=seed % 2 + 1)
        if Path(f"{path}-wal").exists():
            proofs += foreign_wal.counters(Path(f"{path}-wal")) is not None
        assert runs_of(path) >= before
        assert aside(path) == []
    assert proofs, "at least some of these logs could have been mistaken"


def test_a_log_is_left_alone_while_another_process_has_the_database_open(tmp_path: Path) -> None:
    path, backup = tmp_path / "runs.db", tmp_path / "backup.db"
    runs_of(path)
    by_sqlite(path, backup)
    write_and_die(path)
    shutil.copyfile(backup, path)
    holding = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('SELECT 1 FROM sqlite_schema').fetchall(); "
    )
    holding += "print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holding, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        store = SqliteStore(str(path))
        store.open()
        store.close()
        assert aside(path) == []
        other.communicate()


def test_a_log_that_is_torn_proves_nothing(tmp_path: Path) -> None:
    path, backup, log = tmp_path / "runs.db", tmp_path / "backup.db", tmp_path / "runs.db-wal"
    runs_of(path)
    by_sqlite(path, backup)
    write_and_die(path)
    assert foreign_wal.counters(log) is not None
    data = bytearray(log.read_bytes())
    at = next(at for at in range(32, len(data), 24 + 4096) if data[at : at + 4] == bytes((0, 0, 0, 1)))
    data[at + 24 + 100] ^= 1
    log.write_bytes(data)
    assert foreign_wal.counters(log) is None
    log.write_bytes(data[:40])
    assert foreign_wal.counters(log) is None
    log.write_bytes(bytes(100_000))
    assert foreign_wal.counters(log) is None
