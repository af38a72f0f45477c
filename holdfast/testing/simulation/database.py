"""Database: what a world needs of a store beside its verbs.

Owns: the questions that no engine asks (whether everybody is done, what engines see of each other), the same on every
database.
Never: knows a database; how to begin again with what was in it before, and how rows are read as they lie there, is the
driver's (memory.py, server.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from holdfast.store.queries import Queries

RARE = ("run_waits", "run_timers", "run_inbox_messages", "run_branches")
TABLES = ("run_state", "run_node_state", "run_events", *RARE, "engines", "engine_slots", "workflow_versions")
"""Everything that an exploration writes to, beside the numbers of runs."""
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
_NUMBERS = "SELECT next_run_no, (SELECT count(*) FROM workflow_versions) FROM store_meta"
Image = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
Contents = Mapping[str, list[Any]]
"""Everything that is in a database, as its driver keeps it."""


class WorldDatabase(Queries):
    """A real driver, with a few looks that no engine needs."""

    url: str
    child_of_wait: str
    """SQL for the run that the row `w` of `run_waits` waits for."""

    @property
    @abstractmethod
    def is_shared(self) -> bool: ...

    @abstractmethod
    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """All rows that any statement reads."""

    @abstractmethod
    def contents(self) -> Contents:
        """Everything there is, for `fill`."""

    @abstractmethod
    def fill(self, contents: Contents) -> None:
        """Replace everything by what was kept."""

    @abstractmethod
    def image(self, run_no: int, after: int) -> Image:
        """The row of a run, its events after `after`, and all its other rows, as they lie there. (The row has one
        column more: whether there are waits, timers, messages or branches of anybody.)"""

    @abstractmethod
    def close(self) -> None: ...

    def write(self, verb: str, *args: Any) -> Any:
        """A verb of the store that writes."""
        return getattr(self, verb)(*args)

    def clear(self) -> None:
        """Begin again; the connection and its statements stay, which is what makes it quick."""
        self.fill({})

    def is_finished(self) -> bool:
        """Whether every run has ended."""
        return not self.ask(_UNFINISHED)

    def is_at_rest(self) -> bool:
        """Whether every run has ended, or waits for something and for nobody."""
        return not self.ask(_TO_DO.format(child=self.child_of_wait))

    def surroundings(self, now: int) -> tuple[Any, ...]:
        """What engines see beside the runs: each other's leases, as of `now`, and places in pools, and which numbers
        are given out."""
        leases = [(engine, expires_at - now) for engine, expires_at in self.ask(_LEASES)]
        return (*leases, *self.ask(_SLOTS), *self.ask(_NUMBERS))
