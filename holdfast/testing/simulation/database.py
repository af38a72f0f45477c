"""Database: what a world needs of a store beside its operations.

Owns: the questions that no engine asks (whether every run is done, what engines see of each other), the same on every
database; the SQLite database in memory; and what an engine of a later version leaves behind.
Never: knows PostgreSQL (server.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import apsw

from holdfast.model import journal_format
from holdfast.model.journal_format import FORMAT
from holdfast.store.queries import Queries
from holdfast.store.row_types import Commit, EventRow, RunChange, RunRow
from holdfast.store.sql_files import load
from holdfast.store.sqlite.sqlite_store import SqliteStore

RARE = ("run_waits", "run_timers", "run_inbox_messages", "run_branches")
OF_ENGINES_AND_VERSIONS = ("engines", "engine_slots", "workflow_versions", "alias_moves")
TABLES = ("run_state", "run_node_state", "run_events", *RARE, *OF_ENGINES_AND_VERSIONS)
"""Everything that an exploration writes to, except the counter of runs."""
_UNFINISHED = "SELECT 1 FROM run_state WHERE status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1"
_TO_DO = """
SELECT 1 FROM run_state AS r
WHERE r.status NOT IN ('completed', 'failed', 'cancelled') AND r.hold IS NULL AND (
    r.status <> 'suspended' OR r.engine IS NOT NULL
    OR EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.status = 'new')
    OR EXISTS (
        SELECT 1 FROM run_waits AS w JOIN run_state AS c ON c.run_id = {child}
        WHERE w.run_no = r.run_no AND w.status = 'open' AND c.status IN ('completed', 'failed', 'cancelled')))
LIMIT 1"""
_LEASES = "SELECT engine, expires_at FROM engines ORDER BY engine"
_SLOTS = "SELECT pool, engine, held FROM engine_slots ORDER BY pool, engine"
_NUMBERS = """
SELECT next_run_no, (SELECT count(*) FROM workflow_versions), (SELECT count(retired_at) FROM workflow_versions),
    (SELECT count(*) FROM alias_moves) FROM store_meta"""
Image = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
Contents = Mapping[str, list[Any]]
"""All rows of a database, in the driver's form."""


class WorldDatabase(Queries):
    """A real driver, with a few queries that no engine needs."""

    url: str
    child_of_wait: str
    """SQL for the run that the row `w` of `run_waits` waits for."""

    @property
    @abstractmethod
    def is_shared(self) -> bool: ...

    @abstractmethod
    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of any statement that reads."""

    @abstractmethod
    def contents(self) -> Contents:
        """All rows, for `fill`."""

    @abstractmethod
    def fill(self, contents: Contents) -> None:
        """Replace all rows by these."""

    @abstractmethod
    def image(self, run_no: int, after: int) -> Image:
        """The row of a run, its events after `after`, and all its other rows, as they are stored. (The row has one
        column more: whether any run has waits, timers, messages or branches.)"""

    @abstractmethod
    def close(self) -> None: ...

    def write(self, verb: str, *args: Any) -> Any:
        """Call an operation of the store that writes."""
        return getattr(self, verb)(*args)

    def clear(self) -> None:
        """Delete everything; the connection and its prepared statements stay, which makes it quick."""
        self.fill({})

    def is_finished(self) -> bool:
        """Whether every run has ended."""
        return not self.ask(_UNFINISHED)

    def is_at_rest(self) -> bool:
        """True if every run has ended, or waits for something that no engine does."""
        return not self.ask(_TO_DO.format(child=self.child_of_wait))

    def surroundings(self, now: int) -> tuple[Any, ...]:
        """What engines see beside the runs: each other's leases, as of `now`, slots of pools, and the counters of
        numbers."""
        leases = [(engine, expires_at - now) for engine, expires_at in self.ask(_LEASES)]
        return (*leases, *self.ask(_SLOTS), *self.ask(_NUMBERS))


_EMPTY = "; ".join(
    (*(f"DELETE FROM {table}" for table in TABLES), "UPDATE store_meta SET next_run_no = 1")  # noqa: S608 - names of ours
)
_SQL = load("sqlite")
_IS_RARE = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in RARE)  # noqa: S608 - names of ours
_RUN = _SQL["run_by_no"].replace("FROM run_state", f", {_IS_RARE} FROM run_state")
_NODES = "SELECT * FROM run_node_state WHERE run_no = ?"
_RARE_ROWS = tuple(f"SELECT * FROM {table} WHERE run_no = ?" for table in RARE)  # noqa: S608 - names of ours


class MemoryStore(SqliteStore, WorldDatabase):
    """The real driver on a database in memory. Contents are rows, by the statement that inserts them."""

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
        """Write something that no engine would."""
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


UNKNOWN_TYPE = "WrittenByANewerHoldfast"
_ENGINE = "newer"
_ALIVE = ("created", "running", "suspended", "recovering")


def write_as_newer_version(shared: WorldDatabase, dead: str, now: int, *, marked: bool) -> dict[int, RunRow]:
    """Take over the unfinished runs of a dead engine as an engine of a later version would: append an event of a type
    that this version does not know, and release the runs. With `marked` their format is raised, as the rule of
    model/journal_format.py demands; without, that was forgotten. Returns their rows, by number."""
    owned = [row.run_no for row in shared.runs(status=_ALIVE, limit=1_000) if row.engine == dead]
    if not owned:
        return {}
    shared.write("remove_engine", dead)
    for row in shared.write("claim", _ENGINE, owned):
        shared.write("commit", [_commit(row, now, FORMAT + 1 if marked else row.format)])
    found = (shared.run_by_no(run_no) for run_no in owned)
    return {row.run_no: row for row in found if row is not None}


def _commit(row: RunRow, now: int, run_format: int) -> Commit:
    seq, data = row.last_seq + 1, b"{}"
    place = (seq, row.branch, UNKNOWN_TYPE, None, None, 1, now, row.token)
    hashed = journal_format.link(row.head_hash, row.run_id, *place, data)
    event = EventRow(row.run_no, *place, hashed, data)
    times = (row.recoveries, row.started_at, row.finished_at)
    change = RunChange(seq, hashed, row.status, row.branch, None, *times, None, run_format)
    return Commit(row.run_no, row.token, row.last_seq, change=change, events=[event], expected_hash=row.head_hash)
