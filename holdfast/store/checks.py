"""The doctor's questions, the same on every database.

Owns: reading everything about a run at one moment, and questions about many runs at once.
Never: judges what it finds (inspect/doctor), or writes.
Invariants: what one verb gives back was true at one moment, also while an engine writes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.model.journal_format import FORMAT
from holdfast.store.queries import NUMBER_MAX, Reads, run_row
from holdfast.store.row_types import (
    BranchRow,
    Check,
    EventRow,
    Evidence,
    MessageRow,
    NodeRow,
    Suspect,
    TimerRow,
    VersionRow,
    WaitRow,
)

_DATED = frozenset({"wait_for_ended_child", "left_alone", "overdue"})
"""Checks that ask how long ago something was."""

_T = TypeVar("_T")

Ask = Callable[[str, tuple[Any, ...]], list[Any]]
"""All rows that the statement of a name gives."""


class Checks(Reads):
    """What only the doctor asks."""

    @abstractmethod
    def _at_one_moment(self, work: Callable[[Ask], _T]) -> _T:
        """Does `work`, which may be done twice; all of its statements see the same moment."""

    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        return self._at_one_moment(lambda ask: _evidence(ask, run_no, after, limit))

    def run_page(self, after_no: int, limit: int) -> tuple[int, int]:
        count, last_no = self._rows("run_page", (after_no, limit))[0]
        return count, last_no if count else after_no

    def run_numbers(self, first_no: int, last_no: int) -> list[int]:
        return [run_no for (run_no,) in self._rows("run_numbers", (first_no, last_no))]

    def suspects(self, check: Check, first_no: int, last_no: int, before: int = 0) -> list[Suspect]:
        bindings: tuple[int, ...] = (first_no, last_no)
        if check in _DATED:
            bindings = (*bindings, before)
        elif check == "format":
            bindings = (*bindings, FORMAT)
        found = [Suspect._make(row) for row in self._rows(f"suspect_{check}", bindings)]
        return sorted(found, key=lambda one: (one.run_no, one.node or "", one.path or "", one.found))

    def versions(self) -> list[VersionRow]:
        return [VersionRow._make(row) for row in self._rows("all_versions")]


def _evidence(ask: Ask, run_no: int, after: int, limit: int | None) -> Evidence:
    rows = ask("run_by_no", (run_no,))
    run = run_row(rows[0]) if rows else None
    events = [EventRow._make(row) for row in ask("events", (run_no, after, NUMBER_MAX if limit is None else limit))]
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
