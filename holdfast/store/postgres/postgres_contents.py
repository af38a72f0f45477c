"""The contents of a PostgreSQL schema.

Owns: reading and writing its tables as the catalog describes them.
Invariants: while it is frozen, one transaction that keeps writers out is open. Everything goes over one connection, and
a lost one ends the copy, which is marked as unfinished.
On crash: the server rolls back what was not committed.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import asyncpg

from holdfast.model.errors import HoldfastError, StoreError
from holdfast.store.contents import NOT_COPIED, OWN, Meta, Row, Table
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import LOST, connected, translated
from holdfast.store.postgres.postgres_schema import Statements
from holdfast.store.row_types import EngineRow, Standing
from holdfast.store.sql_files import UNFINISHED

FETCHED: Final = 100
"""Rows that the server sends at once: of the largest values, a megabyte each, they still fit into memory."""

WHOLE_TABLE_SECONDS: Final = 3600.0
"""How long a statement may take that reads a whole table."""

LOCK_SECONDS: Final = 10
"""How long to wait for transactions of other programs that use the tables: ours take milliseconds."""

_T = TypeVar("_T")


class PostgresContents:
    """Everything in a Holdfast schema."""

    def __init__(self, url: str) -> None:
        where = address(url)
        self.shown = where.shown
        self._schema = where.schema
        self._sql = Statements(where.schema)
        with self._translating():
            self._connection = connected(where)
        self._raw = self._connection.raw

    def close(self) -> None:
        self._connection.close()

    def freeze(self) -> None:
        self._wait(self._raw.transaction(isolation="repeatable_read").start())
        names = ", ".join(self._named(name) for name in self._all_tables())
        self._locking(f"LOCK TABLE {names} IN SHARE MODE")

    def now(self) -> int:
        ((moment,),) = self._ask(self._sql["now"])
        return int(moment)

    def meta(self) -> Meta:
        ((store_id, next_run_no, version, epoch, closed),) = self._ask(self._sql["store_itself"])
        return Meta(store_id, next_run_no, version == UNFINISHED, epoch, closed)

    def engines(self) -> list[EngineRow]:
        return [EngineRow._make(row) for row in self._ask(self._sql["engines"])]

    def tables(self) -> dict[str, Table]:
        keys: dict[str, list[str]] = {}
        for name, column in self._ask(self._sql["columns_of_keys"], self._schema):
            keys.setdefault(name, []).append(column)
        return {
            name: Table(tuple(sorted(columns)), tuple(keys[name]))
            for name, columns in self._all_tables().items()
            if name not in NOT_COPIED
        }

    def _all_tables(self) -> dict[str, list[str]]:
        columns: dict[str, list[str]] = {}
        for name, column, _ in self._ask(self._sql["columns_of_tables"], self._schema):
            columns.setdefault(name, []).append(column)
        return columns

    def count(self, name: str) -> int:
        sql = f"SELECT count(*) FROM {self._named(name)}"  # noqa: S608 - a name from the catalog
        ((count,),) = self._ask(sql, timeout=WHOLE_TABLE_SECONDS)
        return int(count)

    def read(self, name: str, table: Table) -> Iterator[Row]:
        columns, key = _listed(table.columns), _listed(table.key)
        sql = f"SELECT {columns} FROM {self._named(name)} ORDER BY {key}"  # noqa: S608 - names from the catalog
        with self._in_transaction():
            cursor = self._wait(_cursor(self._raw, sql))
            while rows := self._wait(cursor.fetch(FETCHED)):
                yield from map(tuple, rows)

    def begin(self) -> None:
        names = ", ".join(self._named(name) for name in self._all_tables().keys() - OWN)
        with self._in_transaction():
            self._ask(self._sql["set_unfinished"], UNFINISHED)
            self._locking(f"TRUNCATE {names} RESTART IDENTITY")

    def write(self, name: str, table: Table, rows: Sequence[Row]) -> None:
        copying = self._raw.copy_records_to_table(name, schema_name=self._schema, columns=table.columns, records=rows)
        self._wait(copying)

    def complete(self, meta: Meta) -> None:
        with self._in_transaction():
            for name, column, is_given_out in self._ask(self._sql["columns_of_tables"], self._schema):
                if is_given_out:
                    self._give_out_behind(name, column)
            self._ask(self._sql["set_complete"], meta.next_run_no, meta.store_id, meta.epoch, meta.closed)

    def mark(self, standing: Standing, *, token_step: int = 0) -> None:
        with self._in_transaction():
            if token_step:
                self._ask(self._sql["forget_engines"])
                self._ask(self._sql["forget_slots"])
                self._ask(self._sql["free_all_runs"], token_step, timeout=WHOLE_TABLE_SECONDS)
            self._ask(self._sql["set_standing"], *standing)

    def _give_out_behind(self, name: str, column: str) -> None:
        sql = f'SELECT max("{column}") FROM {self._named(name)}'  # noqa: S608 - names from the catalog
        ((last,),) = self._ask(sql, timeout=WHOLE_TABLE_SECONDS)
        if last is not None:
            self._ask("SELECT setval(pg_get_serial_sequence($1, $2), $3)", self._named(name), column, last)

    def _locking(self, statement: str) -> None:
        """Execute a statement that needs the tables for itself, in a transaction."""
        self._wait(self._raw.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        self._wait(self._raw.execute(statement))

    def _named(self, name: str) -> str:
        return f'"{self._schema}"."{name}"'

    def _ask(self, sql: str, *bindings: Any, timeout: float | None = None) -> list[Row]:
        return list(map(tuple, self._wait(self._raw.fetch(sql, *bindings, timeout=timeout))))

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        with self._translating():
            return self._connection.wait(work)

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        """Open a transaction, unless one is open already."""
        if self._raw.is_in_transaction():
            yield
            return
        transaction = self._raw.transaction(isolation="read_committed")
        self._wait(transaction.start())
        try:
            yield
        except BaseException:
            if not self._raw.is_closed():
                self._wait(transaction.rollback())
            raise
        self._wait(transaction.commit())

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except asyncpg.LockNotAvailableError as error:
            raise StoreError(
                f"{self.shown}: another program has used its tables for {LOCK_SECONDS} s, in a transaction that does "
                "not end (pg_stat_activity shows it). End it, then try again."
            ) from error
        except (*LOST, asyncpg.PostgresError, asyncpg.InterfaceError, HoldfastError) as error:
            raise translated(error, self.shown) from error


async def _cursor(raw: Any, sql: str) -> Any:
    return await raw.cursor(sql)


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
