"""The doctor's verbs on SQLite.

Owns: reading everything about a run at one moment, questions about many runs at once, and the repairs of rows.
Never: judges what it finds (engine/doctor), deletes an event.
Invariants: what one verb gives back was true at one moment, also while an engine writes. A repair is one transaction,
and changes nothing when the run has moved meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import apsw

from holdfast.store.api import (
    BranchRow,
    Check,
    EventRow,
    Evidence,
    MessageRow,
    NodeRow,
    Rebuilt,
    Suspect,
    TimerRow,
    VersionRow,
    WaitRow,
)
from holdfast.store.sqlite_group import write_rows
from holdfast.store.sqlite_reads import SqliteReads, as_json, run_row
from holdfast.store.statements import load

_SQL = load("sqlite")
_DATED = frozenset({"wait_for_ended_child", "left_alone", "overdue"})
"""Checks that ask how long ago something was."""
_T = TypeVar("_T")

Ask = Callable[[str, tuple[Any, ...]], list[Any]]
"""All rows that the statement of a name gives."""


class SqliteDoctor(SqliteReads):
    """What only the doctor asks."""

    @abstractmethod
    def _transaction(self, work: Callable[[apsw.Cursor], _T]) -> _T:
        """Does `work` in one transaction."""

    @abstractmethod
    def _moment(self) -> AbstractContextManager[Ask]:
        """Statements that all see the same moment."""

    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        with self._moment() as ask:
            rows = ask("run_by_no", (run_no,))
            run = run_row(rows[0]) if rows else None
            events = [EventRow._make(row) for row in ask("events", (run_no, after, -1 if limit is None else limit))]
            branches = [BranchRow._make(row) for row in ask("branches", (run_no,))]
            if limit is not None and len(events) == limit:
                return Evidence(run, events, branches, False)
            return Evidence(
                run,
                events,
                branches,
                True,
                [NodeRow._make(row) for row in ask("nodes", (run_no,))],
                [WaitRow._make(row) for row in ask("waits_of_run", (run_no,))],
                [TimerRow._make(row) for row in ask("timers_of_run", (run_no,))],
                [MessageRow._make(row) for row in ask("messages_of_run", (run_no,))],
            )

    def run_page(self, after_no: int, limit: int) -> tuple[int, int]:
        count, last_no = self._rows("run_page", (after_no, limit))[0]
        return count, last_no if count else after_no

    def run_numbers(self, first_no: int, last_no: int) -> list[int]:
        return [run_no for (run_no,) in self._rows("run_numbers", (first_no, last_no))]

    def suspects(self, check: Check, first_no: int, last_no: int, before: int = 0) -> list[Suspect]:
        bindings = (first_no, last_no, before) if check in _DATED else (first_no, last_no)
        return [Suspect._make(row) for row in self._rows(f"suspect_{check}", bindings)]

    def versions(self) -> list[VersionRow]:
        return [VersionRow._make(row) for row in self._rows("all_versions")]

    def rebuild(self, rebuilt: Rebuilt) -> bool:
        return self._transaction(lambda cursor: _rebuild(cursor, rebuilt))

    def remove_orphans(self, check: Check, run_no: int) -> int:
        sql = _SQL[f"remove_{check}"]
        return self._transaction(lambda cursor: cursor.execute(sql, (run_no,)).connection.changes())

    def close_inbox(self, run_no: int) -> int:
        def close(cursor: apsw.Cursor) -> int:
            ((_, is_finished),) = cursor.execute(_SQL["are_runs_finished"], (as_json([run_no]),)).fetchall() or [(0, 0)]
            return cursor.execute(_SQL["close_inbox"], (run_no,)).connection.changes() if is_finished else 0

        return self._transaction(close)


def _rebuild(cursor: apsw.Cursor, rebuilt: Rebuilt) -> bool:
    *columns, nodes, waits, timers = rebuilt
    cursor.execute(_SQL["rebuild_run"], tuple(columns))
    if cursor.connection.changes() != 1:
        return False
    for table in ("nodes", "waits", "timers"):
        cursor.execute(_SQL[f"drop_{table}_of_run"], (rebuilt.run_no,))
    write_rows(cursor, nodes, waits, timers)
    return True
