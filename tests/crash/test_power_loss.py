"""Power loss below the file system: of what was written after the last sync of a file, any sectors may be missing.

A VFS records every write, truncation, sync and deletion while an engine works. At moments between two of them the disk
is put together as a power loss may leave it: what was synced is there; of every later write each sector of 512 bytes is
there or not, in any version that it had since the sync; of what changed in the directory since its last sync the end
may be missing. Each disk is opened again and must hold exactly the state of the last acknowledged transaction, or of
the one that was under way.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import holdfast as hf
from holdfast import opening
from holdfast.store.sqlite import sqlite_connections, sqlite_opening
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.engine.kit import check_journal

SECTOR = 512
LOSSES = 60
"""How many power losses there are at random moments."""
FIRST = 15
"""In how many operations the first page of a new database is written, and more than that."""


# --- the disk -------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """What SQLite asked of a file. `make`: it is there, with data that is synced; its name in the directory is not,
    until there is a `sync directory`."""

    kind: str
    file: str
    at: int = 0
    data: bytes = b""


class Disk(apsw.VFS):
    """The system's files, and a record of what was done to them."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.done: list[Operation] = []
        self.states: list[tuple[int, str]] = []
        """The content of the database after each transaction that was acknowledged, and how much was done by then."""
        super().__init__("recording", "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name if isinstance(name, str) or name is None else name.filename()
        file = _File(self, path, name, flags)
        if path is not None and path not in self._known:
            self._known.add(path)
            self.done.append(Operation("make", path, data=Path(path).read_bytes()))
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._known.discard(filename)
        self.done.append(Operation("delete", filename))

    def acknowledge(self, connection: apsw.Connection) -> None:
        """A transaction has returned: from now on no power loss may undo it."""
        self.states.append((len(self.done), content_of(connection)))

    def allows(self, state: str, moment: int) -> bool:
        """Whether the database may be in this state after a power loss at this moment."""
        before = sum(at <= moment for at, _ in self.states)
        return not before or state in {each for _, each in self.states[before - 1 : before + 1]}


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, path: str | None, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = path
        self._syncs_directory = bool(flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL))
        super().__init__("unix", name, flags)

    def _note(self, kind: str, at: int = 0, data: bytes = b"") -> None:
        if self._path is not None:
            self._disk.done.append(Operation(kind, self._path, at, data))

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._note("write", offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._note("truncate", newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._note("sync")
        if self._syncs_directory:  # SQLite does so with the first sync of a log
            self._syncs_directory = False
            self._note("sync directory")


class Platter:
    """What a disk holds if the power is lost now."""

    def __init__(self) -> None:
        self._names: dict[str, Inode | None] = {}
        self._changes: list[tuple[str, Inode | None]] = []
        """Names whose change the directory was not synced after, and what each led to before."""

    def do(self, operation: Operation) -> None:
        if operation.kind in ("make", "delete"):
            self._changes.append((operation.file, self._names.get(operation.file)))
            self._names[operation.file] = Inode(operation.data) if operation.kind == "make" else None
        elif operation.kind == "sync directory":
            self._changes.clear()
        else:
            inode = self._names[operation.file]
            assert inode is not None
            inode.do(operation)

    def after_power_loss(self, chance: random.Random) -> dict[str, bytes]:
        names = dict(self._names)
        undone = chance.randint(0, len(self._changes))
        for name, before in self._changes[::-1][:undone]:
            names[name] = before
        return {name: inode.after_power_loss(chance) for name, inode in names.items() if inode is not None}


class Inode:
    """The data of one file on the disk, and what was asked for since its last sync."""

    def __init__(self, data: bytes) -> None:
        self._durable = bytearray(data)
        self._pending: list[Operation] = []

    def do(self, operation: Operation) -> None:
        if operation.kind == "sync":
            for each in self._pending:
                _apply(self._durable, each)
            self._pending.clear()
        else:
            self._pending.append(operation)

    def after_power_loss(self, chance: random.Random) -> bytes:
        data = bytearray(self._durable)
        kept = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        sectors: dict[int, list[Operation]] = defaultdict(list)
        for operation in self._pending:
            if operation.kind == "truncate":
                if chance.random() < kept:
                    _apply(data, operation)
                continue
            for piece in _sectors(operation):
                sectors[piece.at // SECTOR].append(piece)
        for versions in sectors.values():
            if chance.random() < kept:
                for piece in versions[: chance.randint(1, len(versions))]:
                    _apply(data, piece)
        return bytes(data)


def _apply(data: bytearray, operation: Operation) -> None:
    if operation.kind == "truncate":
        del data[operation.at :]
        return
    if len(data) < operation.at:
        data.extend(bytes(operation.at - len(data)))
    data[operation.at : operation.at + len(operation.data)] = operation.data


def _sectors(write: Operation) -> Iterator[Operation]:
    at, end = write.at, write.at + len(write.data)
    while at < end:
        next_at = min(end, at - at % SECTOR + SECTOR)
        yield write._replace(at=at, data=write.data[at - write.at : next_at - write.at])
        at = next_at


def content_of(connection: apsw.Connection) -> str:
    """A hash of every row of every table."""
    digest = hashlib.sha256()
    for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall():
        rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()  # noqa: S608 - a name from the schema
        digest.update(repr((table, sorted(rows, key=repr))).encode())
    return digest.hexdigest()


# --- the work -------------------------------------------------------------------------------------------------------


async def add(ctx: hf.Context, n: int) -> str:
    return f"{n}-" * 40


@hf.workflow
async def counting(ctx: hf.Context, n: int) -> int:
    found = [await ctx.step(add, i) for i in range(n)]
    await ctx.sleep(0.001)
    return len(found) + await ctx.receive("more", schema=int)


@hf.node
async def double(n: int) -> int:
    return 2 * n


@hf.workflow
def doubling():
    return hf.map(double, [1, 2, 3, 4])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that records; checkpoints come often, and logs are small."""
    made = Disk()
    monkeypatch.setattr(sqlite_connections, "CHECKPOINT_PAGES", 60)
    monkeypatch.setattr(sqlite_opening, "LOG_BYTES", 256 * 1024)
    commit = SqliteStore._commit

    def acknowledged(self: SqliteStore, cursor: apsw.Cursor) -> None:
        commit(self, cursor)
        made.acknowledge(cursor.connection)

    def recorded(url: str, **options: Any) -> SqliteStore:
        return SqliteStore(url, vfs="recording", **options)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_commit", acknowledged)
        patched.setattr(opening, "store_at", recorded)
        yield made
    made.unregister()


async def work(path: Path, rounds: int) -> None:
    """Some runs of each kind, in a few lives of an engine."""
    for life in range(rounds):
        async with hf.open(f"sqlite:///{path}") as engine:
            runs = [await engine.start(counting, n=3 + i, run_id=f"count-{life}-{i}") for i in range(4)]
            await (await engine.start(doubling)).result()
            for i, run in enumerate(runs):
                await run.signal("more", i, id="one")
                assert await run.result() == 3 + 2 * i


def opened_after(files: dict[str, bytes], folder: Path) -> str:
    """Open what a power loss has left, check all of it, and say what it holds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / Path(name).name).write_bytes(data)
    store = SqliteStore(str(folder / "runs.db"))
    store.open()
    try:
        assert store.health(thorough=True).damage == []
        for row in store.runs(limit=1_000):
            check_journal(store, row)
        assert store._writer is not None
        return content_of(store._writer)
    finally:
        store.close()


async def test_f28_what_was_acknowledged_is_there_after_a_power_loss_at_any_moment(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    await work(tmp_path / "disk" / "runs.db", rounds=2)
    chance = random.Random(28)
    moments = sorted([*range(FIRST), *range(FIRST), *chance.sample(range(len(disk.done) + 1), LOSSES)])
    platter = Platter()
    done = 0
    for moment in moments:
        for operation in disk.done[done:moment]:
            platter.do(operation)
        done = moment
        found = opened_after(platter.after_power_loss(chance), tmp_path / "after")
        assert disk.allows(found, moment), f"power loss after {moment} of {len(disk.done)} operations"
