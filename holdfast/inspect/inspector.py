"""Inspector: one store, as its runs are read.

Owns: one method for each view that the engine, the command line and the HTTP service share.
Never: changes anything; looks into the memory of an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.inspect import run_views, version_views, wait_views
from holdfast.inspect.doctor.check import audited
from holdfast.inspect.paths import execution_paths, process_info
from holdfast.inspect.why import why
from holdfast.model.views import EventView, Wait
from holdfast.store.clocks import Clock
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import JournalAudit
from holdfast.store.records.journal import History, Plans
from holdfast.store.records.run_records import variables_of
from holdfast.store.row_types import RunRow


class Inspector:
    """Views of the runs of one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._plans = Plans(store)

    def status(self, row: RunRow) -> str:
        """The status of a run as callers see it."""
        return wait_views.shown_status(self._store, row)

    def run(self, row: RunRow, branch: int | None = None) -> dict[str, Any]:
        """A run with its input, result and nodes: as it is, or as one of its branches came to be."""
        if branch is None:
            return run_views.run_json(self._store, row)
        return run_views.branch_json(self._store, self._history(row), branch)

    def runs(self, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
        """Runs without inputs, results and nodes."""
        return run_views.runs_json(self._store, rows)

    def nodes(self, row: RunRow) -> list[dict[str, Any]]:
        """Every instance of a run."""
        return run_views.nodes_json(self._store, row)

    def phases(self, row: RunRow) -> list[dict[str, Any]]:
        """The phases of a run, each with its nodes."""
        return run_views.phases_json(self._store, row)

    def events(self, run_no: int, after: int = 0) -> list[EventView]:
        """The journal of a run, from the event after `after` on."""
        return run_views.event_views(self._store, run_no, after)

    def branch_events(self, row: RunRow, branch: int, after: int = 0) -> list[EventView]:
        """The events of a branch's lineage."""
        return run_views.branch_event_views(self._store, self._history(row), branch, after)

    def waits(self, row: RunRow) -> list[Wait]:
        """What a run waits for."""
        return wait_views.waits_of(self._store, row)

    def external_waits(self, row: RunRow) -> list[Wait] | None:
        """The waits of a run that only a request from outside can end; None when it can move by itself."""
        return wait_views.only_outside_moves(self._store, row, self._clock.now())

    def why(self, row: RunRow) -> str:
        """Where a run stands, as one paragraph."""
        return why(self._store, row, self._clock.now()).why

    def paths(self, row: RunRow) -> dict[str, Any]:
        """A run as execution paths."""
        return execution_paths(self._store, row).as_json()

    def process_info(self, row: RunRow) -> dict[str, Any]:
        """A run as the process document of path-based engines."""
        return process_info(self._store, row)

    def variables(self, row: RunRow) -> dict[str, Any]:
        """The variables of a run that are set."""
        return variables_of(self._store, row)

    def branches(self, row: RunRow) -> list[dict[str, Any]]:
        """The branches of a run, in the order in which they were opened."""
        return run_views.branches_json(self._store, self._history(row))

    def diff(self, row: RunRow, one: int, other: int) -> dict[str, Any]:
        """What differs between two branches of a run."""
        return run_views.diff_json(self._store, self._history(row), one, other)

    def asked(self, basket: str | None, assignee: str | None, limit: int) -> list[Wait]:
        """Open questions and pended nodes of all runs, oldest first."""
        return wait_views.views(self._store.asked(basket=basket, assignee=assignee, limit=limit))

    def baskets(self) -> list[dict[str, Any]]:
        """The baskets that are not empty."""
        return wait_views.baskets_json(self._store)

    def workflows(self) -> list[dict[str, Any]]:
        """Every workflow of the store, with its versions and aliases."""
        return version_views.workflows_json(self._store)

    def versions(self, workflow: str) -> list[dict[str, Any]]:
        """The versions of a workflow."""
        return version_views.versions_json(self._store, workflow)

    def diff_versions(self, workflow: str, one: int, other: int) -> dict[str, Any]:
        """What differs between two versions of a workflow."""
        return version_views.diff_json(self._store, workflow, one, other)

    def aliases(self, workflow: str | None = None) -> list[dict[str, Any]]:
        """Where aliases point."""
        return version_views.aliases_json(self._store, workflow)

    def alias_history(self, workflow: str, alias: str) -> list[dict[str, Any]]:
        """Every move of an alias."""
        return version_views.history_json(self._store, workflow, alias)

    def audit(self, row: RunRow) -> JournalAudit:
        """The rows that a run must have by its journal, and whether it has them."""
        return audited(self._store, self._plans, row)

    def _history(self, row: RunRow) -> History:
        return History(self._store, self._plans, row)
