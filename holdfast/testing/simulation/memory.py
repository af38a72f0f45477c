"""Memory: the database of a world, in memory.

Owns: beginning again with an empty SQLite database, or with what was in it before, at little cost, and reading all rows
of a run as they lie there.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.store.sql_files import load
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.testing.simulation.database import RARE, TABLES, Contents, Image, WorldDatabase

_EMPTY = "; ".join(
    (*(f"DELETE FROM {table}" for table in TABLES), "UPDATE store_meta SET next_run_no = 1")  # noqa: S608 - names of ours
)
_SQL = load("sqlite")
_IS_RARE = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in RARE)  # noqa: S608 - names of ours
_RUN = _SQL["run_by_no"].replace("FROM run_state", f", {_IS_RARE} FROM run_state")
_NODES = "SELECT * FROM run_node_state WHERE run_no = ?"
_RARE_ROWS = tuple(f"SELECT * FROM {table} WHERE run_no = ?" for table in RARE)  # noqa: S608 - names of ours


class MemoryStore(SqliteStore, WorldDatabase):
    """The real driver on a database in memory. Contents are rows, by the statement that brings them back."""

    child_of_wait = "json_extract(w.data, '$.child')"

    def __init__(self) -> None:
        super().__init__("sqlite://")
        self.open()
        assert self._writer is not None
        self._asking: apsw.Cursor = self._writer.cursor()
        self._copying = {"SELECT next_run_no FROM store_meta": "UPDATE store_meta SET next_run_no = ?"}
        for table in TABLES:
            columns = len(self._asking.execute(f"PRAGMA table_info({table})").fetchall())
            self._copying[f"SELECT * FROM {table}"] = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608 - names of ours

    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        return self._asking.execute(sql, bindings).fetchall()

    def alter(self, sql: str, bindings: tuple[Any, ...] = ()) -> None:
        """Write what no engine would."""
        self._asking.execute(sql, bindings)

    def contents(self) -> Contents:
        execute = self._asking.execute
        found = {insert: execute(select).fetchall() for select, insert in self._copying.items()}
        return {insert: rows for insert, rows in found.items() if rows}

    def fill(self, contents: Contents) -> None:
        self._asking.execute(f"BEGIN; {_EMPTY}")
        for insert, rows in contents.items():
            self._asking.executemany(insert, rows)
        self._asking.execute("COMMIT")

    def image(self, run_no: int, after: int) -> Image:
        execute, one = self._asking.execute, (run_no,)
        run = execute(_RUN, one).fetchall()
        events = execute(_SQL["events"], (run_no, after, -1)).fetchall()
        rows = execute(_NODES, one).fetchall()
        if run and run[0][-1]:
            for sql in _RARE_ROWS:
                rows += execute(sql, one).fetchall()
        return tuple(run), tuple(events), tuple(rows)
