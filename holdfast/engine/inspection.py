"""Inspection: what the engine asks of the package that reads runs.

Owns: the protocol between them. The engine and `inspect` are siblings; the composition (`opening.py`) hands the engine
an inspector of its store, made with its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.model.views import EventView, Wait
from holdfast.store.clocks import Clock
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import JournalAudit
from holdfast.store.row_types import RunRow


class RunInspector(Protocol):
    """Views of the runs of one store. Every method only reads, and may be called from any thread that may read."""

    def status(self, row: RunRow) -> str:
        """The status of a run as callers see it."""
        ...

    def run(self, row: RunRow, branch: int | None = None) -> dict[str, Any]:
        """A run with its input, result and nodes: as it is, or as one of its branches came to be."""
        ...

    def runs(self, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
        """Runs without inputs, results and nodes."""
        ...

    def nodes(self, row: RunRow) -> list[dict[str, Any]]:
        """Every instance of a run."""
        ...

    def events(self, run_no: int, after: int = 0) -> list[EventView]:
        """The journal of a run, from the event after `after` on."""
        ...

    def branch_events(self, row: RunRow, branch: int, after: int = 0) -> list[EventView]:
        """The events of a branch's line of history."""
        ...

    def waits(self, row: RunRow) -> list[Wait]:
        """What a run waits for."""
        ...

    def external_waits(self, row: RunRow) -> list[Wait] | None:
        """The waits of a run that only a request from outside can end; None when it can move by itself."""
        ...

    def why(self, row: RunRow) -> str:
        """Where a run stands, as one paragraph."""
        ...

    def paths(self, row: RunRow) -> dict[str, Any]:
        """A run as execution paths."""
        ...

    def branches(self, row: RunRow) -> list[dict[str, Any]]:
        """The branches of a run, in the order in which they were opened."""
        ...

    def diff(self, row: RunRow, one: int, other: int) -> dict[str, Any]:
        """What differs between two branches of a run."""
        ...

    def asked(self, basket: str | None, assignee: str | None, limit: int) -> list[Wait]:
        """Open questions and pended nodes of all runs, oldest first."""
        ...

    def baskets(self) -> list[dict[str, Any]]:
        """The baskets that are not empty."""
        ...

    def audit(self, row: RunRow) -> JournalAudit:
        """The rows that a run must have by its journal, and whether it has them."""
        ...


MakeInspector = Callable[[Store, Clock], RunInspector]
