"""Memory: the database of a world, in memory, with a few looks at it that no engine needs.

Owns: beginning again with an empty database, or with what was in it before, at little cost, and reading all rows of a
run as they lie there.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.store.sqlite import SqliteStore
from holdfast.store.statements import load

_RARE = ("run_waits", "run_timers", "run_inbox_messages", "run_branches")
_TABLES = ("run_state", "run_node_state", "run_events", *_RARE, "engines", "engine_slots", "workflow_versions")
_EMPTY = "; ".join(
    (*(f"DELETE FROM {table}" for table in _TABLES), "UPDATE store_meta SET next_run_no = 1")  # noqa: S608 - names of ours
)
_UNFINISHED = "SELECT 1 FROM run_state WHERE status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1"
_TO_DO = """
SELECT 1 FROM run_state AS r
WHERE r.status NOT IN ('completed', 'failed', 'cancelled') AND r.hold IS NULL AND (
    r.status <> 'suspended' OR r.engine IS NOT NULL
    OR EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.status = 'new')
    OR EXISTS (
        SELECT 1 FROM run_waits AS w JOIN run_state AS c ON c.run_id = json_extract(w.data, '$.child')
        WHERE w.run_no = r.run_no AND w.status = 'open' AND c.status IN ('completed', 'failed', 'cancelled')))
LIMIT 1"""
_SQL = load("sqlite")
_IS_RARE = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in _RARE)  # noqa: S608 - names of ours
_RUN = _SQL["run_by_no"].replace("FROM run_state", f", {_IS_RARE} FROM run_state")
_NODES = "SELECT * FROM run_node_state WHERE run_no = ?"
_RARE_ROWS = tuple(f"SELECT * FROM {table} WHERE run_no = ?" for table in _RARE)  # noqa: S608 - names of ours
_LEASES = "SELECT engine, expires_at FROM engines ORDER BY engine"
_SLOTS = "SELECT pool, engine, held FROM engine_slots ORDER BY pool, engine"
_NUMBERS = "SELECT next_run_no, (SELECT count(*) FROM workflow_versions) FROM store_meta"
Image = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
Contents = dict[str, list[Any]]
"""Rows, by the statement that brings them back."""


class MemoryStore(SqliteStore):
    """The real driver on a database in memory."""

    def __init__(self) -> None:
        super().__init__("sqlite://")
        self.open()
        assert self._writer is not None
        self._asking: apsw.Cursor = self._writer.cursor()
        self._copying = {"SELECT next_run_no FROM store_meta": "UPDATE store_meta SET next_run_no = ?"}
        for table in _TABLES:
            columns = len(self._asking.execute(f"PRAGMA table_info({table})").fetchall())
            self._copying[f"SELECT * FROM {table}"] = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608 - names of ours

    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """All rows that any statement reads."""
        return self._asking.execute(sql, bindings).fetchall()

    def alter(self, sql: str, bindings: tuple[Any, ...] = ()) -> None:
        """Write what no engine would."""
        self._asking.execute(sql, bindings)

    def write(self, verb: str, *args: Any) -> Any:
        """A verb of the store that writes."""
        return getattr(self, verb)(*args)

    def clear(self) -> None:
        """Begin again; the connection and its statements stay, which is what makes it quick."""
        self.fill({})

    def contents(self) -> Contents:
        """Everything there is, for `fill`."""
        execute = self._asking.execute
        found = {insert: execute(select).fetchall() for select, insert in self._copying.items()}
        return {insert: rows for insert, rows in found.items() if rows}

    def fill(self, contents: Contents) -> None:
        """Replace everything by what was kept."""
        self._asking.execute(f"BEGIN; {_EMPTY}")
        for insert, rows in contents.items():
            self._asking.executemany(insert, rows)
        self._asking.execute("COMMIT")

    def image(self, run_no: int, after: int) -> Image:
        """The row of a run, its events after `after`, and all its other rows, as they lie there. (The row has one
        column more: whether there are waits, timers, messages or branches of anybody.)"""
        execute, one = self._asking.execute, (run_no,)
        run = execute(_RUN, one).fetchall()
        events = execute(_SQL["events"], (run_no, after, -1)).fetchall()
        rows = execute(_NODES, one).fetchall()
        if run and run[0][-1]:
            for sql in _RARE_ROWS:
                rows += execute(sql, one).fetchall()
        return tuple(run), tuple(events), tuple(rows)

    def is_finished(self) -> bool:
        """Whether every run has ended."""
        return not self.ask(_UNFINISHED)

    def is_at_rest(self) -> bool:
        """Whether every run has ended, or waits for something and for nobody."""
        return not self.ask(_TO_DO)

    def surroundings(self, now: int) -> tuple[Any, ...]:
        """What engines see beside the runs: each other's leases, as of `now`, and places in pools, and which numbers
        are given out."""
        leases = [(engine, expires_at - now) for engine, expires_at in self.ask(_LEASES)]
        return (*leases, *self.ask(_SLOTS), *self.ask(_NUMBERS))
