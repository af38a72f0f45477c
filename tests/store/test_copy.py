"""Copying a database into another one: nothing is lost or added, and half a copy is never taken for a whole."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import holdfast as hf
from holdfast.inspect.doctor.check import check
from holdfast.model.errors import StoreError, StoreMissing, UnfinishedCopy, UsageError
from holdfast.model.rollouts import Target
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store import copying
from holdfast.store.contents import NOT_COPIED, Contents, Meta, Row
from holdfast.store.copying import Copied
from holdfast.store.liveness import Locks, life_of
from holdfast.store.postgres import postgres_contents
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_schema import in_schema
from holdfast.store.row_types import EngineRow
from holdfast.store.sql_files import migrations
from holdfast.store.sqlite.sqlite_contents import SqliteContents
from holdfast.store.urls import contents_at, database_file, is_postgres, store_at
from holdfast.store.version_contract import AliasMove
from tests.doctor.ward import admit
from tests.engine.kit import until_async
from tests.servers import PostgresServer
from tests.store.conformance.store import make_runs
from tests.store.postgres_kit import asking, columns, sql

Place = Callable[[str], str]
"""The address of a database of a kind that is not there yet."""

KINDS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]


@hf.node
def copy_count(n: int) -> int:
    return n + 1


@hf.node
async def copy_listen(ctx: hf.Context, n: int) -> int:
    ctx.vars["seen"] = n
    return int(await ctx.receive("more"))


@hf.workflow(variables={"seen": int})
def copy_waiting(n: int):
    return copy_listen(copy_count(n))


@hf.workflow
def copy_asking(n: int):
    return hf.ask("How many?", schema=int, assignee="ada", basket="counts")


async def fill(path: Path) -> None:
    """A run of every kind, and what waits for people: questions, signals that came early, a run forked from another."""
    await admit(path)
    async with hf.open(f"sqlite:///{path}") as engine:
        waiting = await engine.start(copy_waiting, run_id="waiting", n=1)
        await waiting.signal("later", "kept", id="early")
        await engine.start(copy_asking, run_id="asking", n=1)
        await (await engine.get("forked").fork("second", as_run="sibling")).result()
        engine.store.move_alias(AliasMove("copy_asking", "stable", 1, Target(1).encode(), 5, "ann", ""), [1])
        await until_async(lambda: _waits(engine, waiting))


async def _waits(engine: hf.Engine, waiting: hf.Run[Any]) -> bool:
    return len(await engine.asked()) == 1 and await waiting.status() == "suspended"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copied") / "runs.db"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def place(postgres: PostgresServer, tmp_path: Path) -> Place:
    numbers = iter(range(100))
    return lambda kind: postgres.url() if kind == "postgres" else f"sqlite:///{tmp_path}/{next(numbers)}.db"


def copy(source: str, target: str, **options: Any) -> list[Copied]:
    return copying.copy(source, target, is_dead=is_dead, **options)


def is_dead(side: Contents, row: EngineRow, now: int) -> bool:
    return life_of(row, now, Locks(database_file(side.shown), side.meta().store_id)) == "dead"


def source_of(kind: str, filled: Path, place: Place) -> str:
    if kind == "sqlite":
        return f"sqlite:///{filled}"
    url = place("postgres")
    copy(f"sqlite:///{filled}", url)
    return url


def rows_of(url: str) -> dict[str, list[Row]]:
    with closing(contents_at(url)) as contents:
        return {name: list(contents.read(name, table)) for name, table in contents.tables().items()}


def change(url: str, statement: str) -> None:
    """SQL of somebody else, who does not wait for long. (Not by sqlite3: the locks of two SQLite libraries in one
    process do not see each other.)"""
    if is_postgres(url):
        sql(url, "SET lock_timeout = '50ms'", statement)
    else:
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(statement.replace("holdfast.", ""))


def make(url: str) -> str:
    """Make an empty store, or see that this one can be opened."""
    store = store_at(url)
    store.open()
    store.close()
    return url


def violations(url: str) -> list[Any]:
    store = store_at(url, create=False)
    store.open()
    try:
        return check(store, deep=True).violations
    finally:
        store.close()


# --- what is copied ------------------------------------------------------------------------------------------------


def test_the_schemas_of_all_databases_have_the_same_tables_columns_and_keys(place: Place) -> None:
    found = []
    for kind in ("sqlite", "postgres"):
        with closing(contents_at(make(place(kind)))) as contents:
            found.append(contents.tables())
    assert found[0] == found[1]
    assert all(table.key for table in found[0].values())


def test_every_table_of_the_schema_is_copied_but_those_that_are_a_databases_own(place: Place) -> None:
    url = make(place("postgres"))
    with closing(contents_at(url)) as contents:
        copied = contents.tables().keys()
    there = columns(url)
    assert copied | NOT_COPIED == {table for table, _ in there} - {"run_leases"}
    of_its_own = {column for table, column in there if table == "store_meta"}
    known = {"single", "schema_version", "store_id", "next_run_no", "epoch", "closed"}
    assert of_its_own == known, "what of it goes into a copy?"


@pytest.mark.parametrize(("source_kind", "target_kind"), KINDS)
def test_a_copy_holds_what_was_copied_with_its_numbers_and_nobody_owns_its_runs(
    source_kind: str, target_kind: str, filled: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "BATCH_ROWS", 7)
    source, target = source_of(source_kind, filled, place), place(target_kind)
    copied = copy(source, target)
    before, after = rows_of(source), rows_of(target)
    assert {one.table: one.rows for one in copied} == {name: len(rows) for name, rows in after.items()}
    assert all(before[name] for name in before), "every table is tried with rows"
    with closing(contents_at(target)) as contents:
        of_runs = contents.tables()["run_state"].columns
    token, engine = of_runs.index("token"), of_runs.index("engine")
    runs, freed = before.pop("run_state"), after.pop("run_state")
    assert before == after
    assert [row[token] + 1 for row in runs] == [row[token] for row in freed]
    assert {row[engine] for row in freed} == {None}
    assert [(*row[:token], *row[token + 1 :]) for row in runs] == [(*row[:token], *row[token + 1 :]) for row in freed]
    assert violations(target) == []
    was, now = meta_of(source), meta_of(target)
    assert (now.store_id, now.next_run_no, now.closed) == (was.store_id, was.next_run_no, was.closed)
    assert now.epoch > was.epoch


def meta_of(url: str) -> Meta:
    with closing(contents_at(url)) as contents:
        return contents.meta()


@pytest.mark.parametrize("target_kind", ["sqlite", "postgres"])
def test_a_copy_with_a_new_identity_is_another_store_whose_unfinished_runs_are_on_hold(
    target_kind: str, filled: Path, place: Place
) -> None:
    source, target = f"sqlite:///{filled}", place(target_kind)
    copy(source, target, new_identity=True)
    assert meta_of(target).store_id != meta_of(source).store_id
    assert meta_of(target).epoch == 1
    store = store_at(target, create=False)
    store.open()
    try:
        runs = store.runs(limit=1_000)
        assert {run.hold is not None for run in runs} == {True, False}
        for run in runs:
            assert (run.hold or "").startswith("other_identity: ") == (run.status not in RUN_TERMINAL)
    finally:
        store.close()
    assert violations(target) == []


def test_bytes_that_came_over_a_server_are_the_same_as_before(filled: Path, place: Place) -> None:
    there, back = place("postgres"), place("sqlite")
    copy(f"sqlite:///{filled}", there)
    copy(there, back)

    def dump(path: str) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection:
            return [
                connection.execute(f"SELECT * FROM {table} ORDER BY {key}").fetchall()  # noqa: S608 - names from here
                for table, key in (
                    ("run_events", "run_no, seq"),
                    ("(SELECT rowid, * FROM run_node_state)", "1"),
                    ("(SELECT rowid, * FROM run_waits)", "1"),
                    ("run_inbox_messages", "no"),
                    ("run_branches", "run_no, branch"),
                    ("run_timers", "run_no, timer"),
                    ("workflow_versions", "workflow, version"),
                    ("(SELECT next_run_no FROM store_meta)", "1"),
                )
            ]

    assert dump(str(filled)) == dump(back.removeprefix("sqlite:///"))


def test_a_column_that_nobody_thought_of_is_copied(place: Place) -> None:
    source, target = make(place("sqlite")), make(place("postgres"))
    for url in (source, target):
        change(url, "ALTER TABLE holdfast.run_timers ADD COLUMN mood TEXT")
    change(source, "INSERT INTO holdfast.run_timers VALUES (1, 't', 2, 1, 'set', '', 0, 'merry')")
    copy(source, target)
    assert sql(target, "SELECT mood FROM holdfast.run_timers") == [("merry",)]


@pytest.mark.parametrize("altered", [0, 1])
def test_a_column_that_only_one_side_has_is_refused_before_anything_is_copied(altered: int, place: Place) -> None:
    sides = (make(place("sqlite")), make(place("postgres")))
    change(sides[altered], "ALTER TABLE holdfast.run_timers ADD COLUMN mood TEXT")
    with pytest.raises(StoreError, match="do not have the same tables"):
        copy(*sides)
    make(sides[1])


def test_numbers_are_given_out_behind_those_that_were_copied(filled: Path, place: Place) -> None:
    target = place("postgres")
    copy(f"sqlite:///{filled}", target)
    numbered = ("run_node_state", "run_waits", "run_inbox_messages")
    counted = "SELECT max(no), max(run_no), count(*) FROM holdfast."
    before = {name: sql(target, counted + name)[0] for name in numbered}
    asyncio.run(_go_on(target))
    for name, (last, last_run, rows) in before.items():
        added = sql(target, f"SELECT no, run_no FROM holdfast.{name} WHERE no > {last} ORDER BY no")  # noqa: S608 - ours
        assert added
        assert len(added) == sql(target, counted + name)[0][2] - rows
        assert name == "run_inbox_messages" or added[-1][1] > last_run
    assert violations(target) == []


async def _go_on(url: str) -> None:
    """Let copied runs go on to their ends, and start another one."""
    async with hf.open(url) as engine:
        await engine.get("waiting").signal("more", 5)
        assert await engine.get("waiting").result() == 5
        (asked,) = await engine.asked()
        await engine.get("asking").respond(asked.wait_id, 3)
        assert await engine.get("asking").result() == 3
        new = await engine.start(copy_asking, run_id="new", n=1)
        await until_async(lambda: _waits(engine, new))


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_target_that_is_not_empty_is_refused_and_left_alone(kind: str, filled: Path, place: Place) -> None:
    target = place(kind)
    copy(f"sqlite:///{filled}", target)
    before = rows_of(target)
    for again in (False, True):
        with pytest.raises(UsageError, match="is not empty"):
            copy(f"sqlite:///{filled}", target, again=again)
    assert rows_of(target) == before


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_source_that_is_not_there_is_refused_and_nothing_is_made(kind: str, place: Place) -> None:
    source, target = place(kind), place(kind)
    with pytest.raises(StoreMissing):
        copy(source, target)
    for url in (source, target):
        with pytest.raises(StoreMissing):
            store_at(url, create=False).open()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_is_not_copied_into_itself(kind: str, place: Place) -> None:
    url = make(place(kind))
    with pytest.raises(UsageError, match="same database"):
        copy(url, url)
    make(url)


def test_a_database_in_memory_is_not_copied(place: Place) -> None:
    with pytest.raises(UsageError, match="in memory"):
        copy("sqlite://", place("sqlite"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_side_with_a_live_engine_is_refused_by_name(kind: str, side: str, place: Place) -> None:
    urls = {"source": make(place(kind)), "target": place(kind)}
    async with hf.open(urls[side]) as engine:
        with pytest.raises(UsageError, match=f"engine {engine.lease.engine} "):
            copy(urls["source"], urls["target"])
    copy(urls["source"], urls["target"])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_engine_that_is_dead_is_in_nobodys_way_and_does_not_come_along(kind: str, place: Place) -> None:
    source, target = place("sqlite"), place(kind)
    store = store_at(source)
    store.open()
    store.register_engine(EngineRow("eng_dead", "elsewhere", 1, "", 1, 2, b"{}"))
    make_runs(store, 1, engine="eng_dead")
    (free,) = make_runs(store, 1, engine="eng_older")
    store.release("one", [(free, 1)])
    store.close()
    copy(source, target)
    with closing(contents_at(target)) as contents:
        assert contents.engines() == []
    store = store_at(target)
    store.open()
    rows = [(row.engine, row.last_engine) for row in store.runs()]
    store.close()
    assert rows == [(None, "eng_older"), (None, "eng_dead")], "who takes them over there knows from whom"


# --- what happens meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nobody_writes_to_the_source_while_it_is_copied(kind: str, filled: Path, place: Place, tmp_path: Path) -> None:
    source = place(kind)
    copy(f"sqlite:///{filled}", source)
    refused: list[str] = []

    def progress(what: str, table: str, done: int, total: int) -> None:
        if (what, table) == ("copying", "run_state") and not done:
            with pytest.raises((apsw.BusyError, asyncpg.LockNotAvailableError)) as locked:
                change(source, "UPDATE holdfast.run_state SET priority = 9")
            refused.append(str(locked.value))

    copy(source, place("sqlite"), progress=progress)
    assert len(refused) == 1
    change(source, "UPDATE holdfast.run_state SET priority = 9")


@pytest.mark.parametrize("side", [0, 1])
def test_a_transaction_that_does_not_end_is_told(side: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_contents, "LOCK_SECONDS", 1)
    sides = [make(place("postgres")), make(place("postgres"))]

    async def hold(connection: asyncpg.Connection[Any]) -> None:
        async with connection.transaction():
            await connection.execute(in_schema("UPDATE holdfast.run_state SET token = 1", address(sides[side]).schema))
            await asyncio.to_thread(_refused, sides)

    asking(sides[side], hold)
    copy(*sides)


def _refused(sides: list[str]) -> None:
    with pytest.raises(StoreError, match="in a transaction that does not end"):
        copy(*sides)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE holdfast.run_events SET at = at + 1 WHERE seq = 1",
        "DELETE FROM holdfast.run_events WHERE seq = 1",
        "UPDATE holdfast.run_waits SET since = 1",
    ],
)
def test_a_copy_that_is_not_equal_is_not_taken_for_whole(kind: str, statement: str, filled: Path, place: Place) -> None:
    target = place(kind)

    def progress(what: str, table: str, done: int, total: int) -> None:
        if (what, table) == ("copying", "workflow_versions") and not done:
            change(target, statement)

    with pytest.raises(StoreError, match="is not what was copied into it"):
        copy(f"sqlite:///{filled}", target, progress=progress)
    with pytest.raises(UnfinishedCopy):
        store_at(target).open()


@pytest.mark.parametrize(("source_kind", "target_kind"), KINDS)
@pytest.mark.parametrize(
    ("what", "table"), [("copying", "run_branches"), ("copying", "run_events"), ("verifying", "workflow_versions")]
)
def test_a_copy_that_was_killed_is_refused_by_everybody_and_is_made_again(
    what: str, table: str, source_kind: str, target_kind: str, filled: Path, place: Place
) -> None:
    source, target = source_of(source_kind, filled, place), place(target_kind)
    script = Path(__file__).with_name("copying_process.py")
    killed = subprocess.run([sys.executable, str(script), source, target, what, table], check=False)
    assert killed.returncode == -9
    with pytest.raises(UnfinishedCopy, match=r"holdfast db copy FROM .* --again"):
        store_at(target).open()
    with pytest.raises(UnfinishedCopy):
        asyncio.run(_open(target))
    with pytest.raises(UnfinishedCopy):
        copy(source, target)
    with pytest.raises(UnfinishedCopy):
        copy(target, place("sqlite"))
    again = copy(source, target, again=True)
    assert again == copy(source, place("sqlite"))
    assert violations(target) == []


async def _open(url: str) -> None:
    async with hf.open(url):
        pass


def test_a_copy_begun_anew_where_nothing_was_begun_is_a_copy(filled: Path, place: Place) -> None:
    target = place("postgres")
    copy(f"sqlite:///{filled}", target, again=True)
    assert violations(target) == []


def test_a_refused_file_is_left_as_it_is(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.db"
    make(str(path))
    with closing(SqliteContents(path)) as contents:
        contents.begin()
    before = path.read_bytes()
    with pytest.raises(UnfinishedCopy):
        store_at(str(path)).open()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["half.db"]


def test_a_whole_copy_has_the_schema_version_of_its_migrations(filled: Path, place: Place) -> None:
    for kind, dialect in (("sqlite", "sqlite"), ("postgres", "postgres")):
        target = place(kind)
        copy(f"sqlite:///{filled}", target)
        store = store_at(target, create=False)
        store.open()
        health = store.health(thorough=True)
        assert (health.schema, health.schema_wanted) == (len(migrations(dialect)),) * 2
        store.close()


def test_batches_are_bound_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BATCH_ROWS", 3)
    monkeypatch.setattr(copying, "BATCH_BYTES", 100)
    rows = [(1, b""), (2, b""), (3, b""), (4, b"x" * 99), (5, b""), (6, b"x" * 1000), (7, b"")]
    digest = copying._Digest()
    batches = list(copying._batches(iter(rows), digest))
    assert [[row[0] for row in batch] for batch in batches] == [[1, 2, 3], [4], [5, 6], [7]]
    assert digest.rows == len(rows)
