"""Everything that a store keeps, as dicts, and the questions about it that several verbs ask.

Owns: the tables, and which rows a table takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from holdfast.model.journal_format import is_newer
from holdfast.store.row_types import (
    BranchRow,
    EngineRow,
    EventRow,
    MessageRow,
    NodeRow,
    RunRow,
    TimerRow,
    WaitRow,
)
from holdfast.store.version_contract import AliasMove, VersionRow

LIVE: Final = ("created", "running", "suspended", "recovering")
ENDED: Final = ("completed", "failed", "cancelled")
AT_WORK: Final = ("created", "running", "recovering")

_T = TypeVar("_T")


@dataclass
class Tables:
    """Everything a store keeps. A dict remembers the order in which its keys came, and an update does not change it."""

    store_id: str = "oracle"
    next_run_no: int = 1
    next_message_no: int = 1
    runs: dict[int, RunRow] = field(default_factory=dict)
    nodes: dict[tuple[int, str, str, int], NodeRow] = field(default_factory=dict)
    events: dict[tuple[int, int], EventRow] = field(default_factory=dict)
    branches: dict[tuple[int, int], BranchRow] = field(default_factory=dict)
    waits: dict[tuple[int, str], WaitRow] = field(default_factory=dict)
    timers: dict[tuple[int, str], TimerRow] = field(default_factory=dict)
    messages: dict[str, MessageRow] = field(default_factory=dict)
    versions: dict[tuple[str, int], VersionRow] = field(default_factory=dict)
    alias_moves: dict[tuple[str, str, int], AliasMove] = field(default_factory=dict)
    engines: dict[str, EngineRow] = field(default_factory=dict)
    slots: dict[tuple[str, str], int] = field(default_factory=dict)
    """(pool, engine): how many places it holds."""

    def copy(self) -> Tables:
        twin = copy(self)
        for name, table in vars(self).items():
            if isinstance(table, dict):
                setattr(twin, name, table.copy())
        return twin

    def has_mail(self, run_no: int) -> bool:
        return any(m.run_no == run_no and m.status == "new" for m in self.messages.values())

    def wants_owner(self, run: RunRow) -> bool:
        """Whether it is free, and there is something to be done now."""
        return is_free(run) and (run.status in AT_WORK or self.has_mail(run.run_no))

    def with_id(self, run_id: str) -> RunRow | None:
        return next((run for run in self.runs.values() if run.run_id == run_id), None)

    def origin(self, run_no: int) -> BranchRow | None:
        """The branch that says which other run's journal is the beginning of this one's."""
        return next((b for b in self.branches.values() if b.run_no == run_no and b.origin_no is not None), None)

    def own_events(self, run_no: int) -> list[EventRow]:
        return sorted((e for e in self.events.values() if e.run_no == run_no), key=lambda event: event.seq)

    def journal(self, run_no: int) -> list[EventRow]:
        """With what the run shares."""
        origin, own = self.origin(run_no), self.own_events(run_no)
        if origin is None or origin.origin_no is None:
            return own
        return [event for event in self.journal(origin.origin_no) if event.seq <= origin.cutoff_seq] + own


class Impossible(Exception):
    """Rows that no table takes: a key twice, nothing where there must be something, a number that is too big."""


def is_free(run: RunRow) -> bool:
    return run.engine is None and run.hold is None and not is_newer(run.format)


def child_of(data: bytes) -> str:
    """The id of the run that a wait, or a report, is about."""
    child: str = msgspec.json.decode(data)["child"]
    return child


def of_runs(rows: Iterable[Any], run_nos: Sequence[int]) -> list[Any]:
    return by_run(row for row in rows if row.run_no in run_nos)


def by_run(rows: Iterable[Any]) -> list[Any]:
    """By run, and those of one run in the order in which they came."""
    return sorted(rows, key=lambda row: row.run_no)


def by_due(timers: Iterable[TimerRow]) -> list[TimerRow]:
    return sorted(timers, key=lambda timer: (timer.due_at, timer.run_no, timer.timer))


def drop(table: dict[Any, Any], run_no: int) -> int:
    keys = [key for key, row in table.items() if row.run_no == run_no]
    for key in keys:
        del table[key]
    return len(keys)


def add(table: dict[Any, Any], key: Any, row: Any) -> None:
    if key in table:
        raise Impossible(f"{key} is there already")
    table[key] = checked(row)


def checked(row: _T) -> _T:
    """The row, if a table takes it."""
    kind: Any = type(row)
    for name, may_be_none in _columns(kind):
        value = getattr(row, name)
        if (value is None and not may_be_none) or (isinstance(value, int) and abs(value) >= 2**63):
            raise Impossible(f"{name} = {value} in a {type(row).__name__}")
    return row


@cache
def _columns(kind: Any) -> list[tuple[str, bool]]:
    return [(name, type(None) in get_args(hint)) for name, hint in get_type_hints(kind).items()]
