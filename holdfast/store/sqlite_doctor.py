"""The doctor's verbs on SQLite.

Owns: the repairs of rows. The questions are in checks.py.
Never: judges what it finds (engine/doctor), deletes an event.
Invariants: a repair is one transaction, and changes nothing when the run has moved meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import apsw

from holdfast.store.api import Check, Rebuilt
from holdfast.store.checks import Checks
from holdfast.store.sqlite_group import write_rows
from holdfast.store.sqlite_reads import SqliteReads, as_json
from holdfast.store.statements import load

_SQL = load("sqlite")
_T = TypeVar("_T")


class SqliteDoctor(SqliteReads, Checks):
    """What only the doctor asks and repairs."""

    @abstractmethod
    def _transaction(self, work: Callable[[apsw.Cursor], _T]) -> _T:
        """Does `work` in one transaction."""

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
