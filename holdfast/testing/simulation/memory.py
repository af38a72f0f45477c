"""Memory: the database of a world, in memory, with a few looks at it that no engine needs.

Owns: beginning again with an empty database at no cost, and reading all rows of a run as they lie there.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.store.sqlite import SqliteStore
from holdfast.store.statements import load

_RARE = ("run_waits", "run_timers", "run_inbox_messages", "run_branches")
_TABLES = ("run_state", "run_node_state", "run_events", *_RARE, "engines", "workflow_versions")
_CLEAR = (
    *(f"DELETE FROM {table}" for table in _TABLES),  # noqa: S608 - names of ours
    "UPDATE store_meta SET next_run_no = 1",
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
_NODES = "SELECT * FROM run_node_state WHERE run_no = ?"
_RARE_ROWS = tuple(f"SELECT * FROM {table} WHERE run_no = ?" for table in _RARE)  # noqa: S608 - names of ours
_IS_RARE = "SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in _RARE)  # noqa: S608 - names of ours
_OWNERS = "SELECT run_no, token, engine FROM run_state WHERE engine IS NOT NULL"
_HISTORY = {"hash", "head_hash", "at", "created_at", "started_at", "finished_at", "since"}
"""Columns that only say when something happened, or follow from that: nobody decides by them."""
_INSTANT = 10**15
"""Integers above this are instants in microseconds."""

Image = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


class MemoryStore(SqliteStore):
    """The real driver on a database in memory."""

    def __init__(self) -> None:
        super().__init__("sqlite://")
        self.open()
        assert self._writer is not None
        self._asking: apsw.Cursor = self._writer.cursor()
        self._content = [self._everything(table) for table in _TABLES]

    def _everything(self, table: str) -> str:
        columns = [name for _, name, *_ in self.ask(f"PRAGMA table_info({table})") if name not in _HISTORY]
        return f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - names of ours

    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of any statement."""
        return self._asking.execute(sql, bindings).fetchall()

    def clear(self) -> None:
        """Begin again; the connection and its statements stay, which is what makes it quick."""
        self.ask("BEGIN")
        for statement in _CLEAR:
            self.ask(statement)
        self.ask("COMMIT")

    def image(self, run_no: int, after: int) -> Image:
        """The row of a run, its events after `after`, and all its other rows, as they lie there."""
        ask, one = self.ask, (run_no,)
        run, events = ask(_SQL["run_by_no"], one), ask(_SQL["events"], (run_no, after, -1))
        rows = ask(_NODES, one)
        if ask(_IS_RARE)[0][0]:
            for sql in _RARE_ROWS:
                rows += ask(sql, one)
        return tuple(run), tuple(events), tuple(rows)

    def owners(self) -> list[tuple[int, int, str]]:
        """Which engine holds which run with which token."""
        return self.ask(_OWNERS)

    def is_finished(self) -> bool:
        """Whether every run has ended."""
        return not self.ask(_UNFINISHED)

    def is_at_rest(self) -> bool:
        """Whether every run has ended, or waits for something and for nobody."""
        return not self.ask(_TO_DO)

    def content(self, now: int) -> tuple[Any, ...]:
        """Every row of every table, with instants counted from `now`."""
        return tuple(
            tuple(value - now if type(value) is int and value > _INSTANT else value for value in row)
            for sql in self._content
            for row in self.ask(sql)
        )
