"""The contents of a SQLite file.

Owns: reading and writing its tables as the catalog describes them, under the names that all databases share.
Invariants: while it is frozen, one transaction that holds the write lock is open.
On crash: SQLite rolls back what was not committed; a copy that was begun is marked as unfinished.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from holdfast.model.errors import StoreError
from holdfast.store.contents import NOT_COPIED, OWN, Meta, Row, Table
from holdfast.store.row_types import EngineRow, Standing
from holdfast.store.sql_files import UNFINISHED, load
from holdfast.store.sqlite.sqlite_connections import open_bare, translated

_SQL = load("sqlite")


class _Spelling(NamedTuple):
    """How a column is read and written that SQLite stores in another way."""

    kept_in: str
    read: str
    written: str


_ORDER: Final = {"no": _Spelling("rowid", "rowid", "?")}
"""The order in which rows were written is the number that SQLite gives each of them."""

_SPELLED: Final[dict[str, dict[str, _Spelling]]] = {
    "run_node_state": _ORDER,
    "run_waits": _ORDER,
    "run_branches": {
        "origin_no": _Spelling(
            "data", "json_extract(data, '$.origin_no')", "CAST(json_object('origin_no', ?) AS BLOB)"
        ),
    },
}


class SqliteContents:
    """Everything in a Holdfast file."""

    def __init__(self, path: Path) -> None:
        self.shown = f"sqlite:///{path}"
        self._where = str(path)
        with self._translating():
            self._connection = open_bare(path)

    def close(self) -> None:
        self._connection.close(True)

    def freeze(self) -> None:
        with self._translating():
            self._connection.execute("BEGIN IMMEDIATE")

    def now(self) -> int:
        return time.time_ns() // 1000

    def meta(self) -> Meta:
        ((store_id, next_run_no, version, epoch, closed),) = self._ask(_SQL["store_itself"])
        return Meta(store_id, next_run_no, version == UNFINISHED, epoch, closed)

    def engines(self) -> list[EngineRow]:
        return [EngineRow._make(row) for row in self._ask(_SQL["engines"])]

    def tables(self) -> dict[str, Table]:
        return {name: self._table(name, found) for name, found in self._all_tables().items() if name not in NOT_COPIED}

    def _all_tables(self) -> dict[str, list[tuple[str, int]]]:
        columns: dict[str, list[tuple[str, int]]] = {}
        for name, column, place in self._ask(_SQL["columns_of_tables"]):
            columns.setdefault(name, []).append((column, place))
        return columns

    def _table(self, name: str, columns: list[tuple[str, int]]) -> Table:
        spelled = _SPELLED.get(name, {})
        kept = {spelling.kept_in for spelling in spelled.values()}
        names = {column for column, _ in columns if column not in kept}
        key = tuple(column for place, column in sorted((place, column) for column, place in columns if place))
        if not key:
            found = self._ask(_SQL["unique_columns"], (name,))
            key = tuple(column for number, column in found if number == found[0][0])
        return Table(tuple(sorted(names | spelled.keys())), key)

    def count(self, name: str) -> int:
        return int(self._ask(f'SELECT count(*) FROM "{name}"')[0][0])  # noqa: S608 - a name from the catalog

    def read(self, name: str, table: Table) -> Iterator[Row]:
        spelled = _SPELLED.get(name, {})
        columns = ", ".join(spelled[column].read if column in spelled else f'"{column}"' for column in table.columns)
        sql = f'SELECT {columns} FROM "{name}" ORDER BY {_listed(table.key)}'  # noqa: S608 - names from the catalog
        with self._translating():
            yield from self._connection.execute(sql)

    def begin(self) -> None:
        with self._transaction():
            self._connection.pragma("user_version", UNFINISHED)
            self._connection.execute(_SQL["set_unfinished"], (UNFINISHED,))
            for name in self._all_tables().keys() - OWN:
                self._connection.execute(f'DELETE FROM "{name}"')  # noqa: S608 - a name from the catalog

    def write(self, name: str, table: Table, rows: Sequence[Row]) -> None:
        spelled = _SPELLED.get(name, {})
        columns = [spelled[column].kept_in if column in spelled else column for column in table.columns]
        values = [spelled[column].written if column in spelled else "?" for column in table.columns]
        sql = f'INSERT INTO "{name}" ({_listed(columns)}) VALUES ({", ".join(values)})'  # noqa: S608 - from the catalog
        with self._transaction():
            self._connection.executemany(sql, rows)

    def complete(self, meta: Meta) -> None:
        values = (meta.next_run_no, meta.store_id, meta.epoch, meta.closed)
        with self._transaction():
            ((version,),) = self._connection.execute(_SQL["set_complete"], values).fetchall()
            self._connection.pragma("user_version", version)

    def mark(self, standing: Standing, *, token_step: int = 0) -> None:
        with self._transaction():
            if token_step:
                self._connection.execute(_SQL["forget_engines"])
                self._connection.execute(_SQL["forget_slots"])
                self._connection.execute(_SQL["free_all_runs"], (token_step,))
            self._connection.execute(_SQL["set_standing"], standing)

    def _ask(self, sql: str, bindings: tuple[str, ...] = ()) -> list[Row]:
        with self._translating():
            return self._connection.execute(sql, bindings).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translating():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError, StoreError) as error:
            raise translated(error, self._where) from error


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
