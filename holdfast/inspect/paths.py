"""Paths: a run seen as execution paths, and as the process document of path-based engines.

Owns: the view of a run that path-based engines have (one row per path: its status, the unit it is at, how that unit
answered, the basket it waits in), what resuming makes of paths that were cut off, and the document `process_info`.
Never: is read by anything that decides; it is derived from rows, for people and for those who migrate.

A unit that ended with `hf.pend` is in its basket and has answered `ok_pend` (the next unit runs on resume),
`ok_pend_eor` (the same one) or `error_pend` (the same one, after an error). A plain resume takes the deepest such path.

A path that was running when its engine died is *sanitised* when the run is resumed: the unit that never answered runs
again (`ok_pend_eor`), behind one that answered the next unit runs (`ok_pend`), a singular route is evaluated again
(`ok_pend_eor`), and until then the path is in the basket that it was in before, or in `workflow_temp_hold`. That is
what taking a run over does anyway; here it is only spelt in their words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.definition import Definition
from holdfast.model.fold import Fold
from holdfast.model.naming import ROOT
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.rules.resuming import pend_order
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans
from holdfast.store.records.run_records import fold_of, variables_of
from holdfast.store.records.state_rows import about_of
from holdfast.store.row_types import NodeRow, RunRow, WaitRow

TEMP_HOLD = "workflow_temp_hold"
_OPEN = frozenset({NodeStatus.SCHEDULED, NodeStatus.RUNNING, NodeStatus.SUSPENDED})
_RESPONSES = {"next": "ok_pend", "same": "ok_pend_eor", "error": "error_pend"}


class ExecutionPath(msgspec.Struct, frozen=True):
    """One path of a run."""

    name: str
    status: str
    """`started`, or `completed`: also when it is in a basket."""
    step: str
    response: str | None
    """`ok_proceed`, `ok_pend`, `ok_pend_eor` (the same unit again on resume), `error_pend`, or None: no answer yet."""
    basket: str | None = None
    previous_basket: str | None = None
    ticket: str | None = None
    """The ticket that is redeemed when the path is resumed."""
    error: dict[str, Any] | None = None
    """Why it is in a basket, after an error."""
    unit: str = "step"
    """What the step is: a `step`, a `route`, a `parallel` unit."""
    component: str = ""
    """The handler of the step."""


class Paths(msgspec.Struct, frozen=True):
    """All paths of a run, and the one that a resume begins with: the deepest that is in a basket."""

    complete: bool
    pend_path: str | None
    paths: list[ExecutionPath]
    ticket: str | None = None
    """A ticket that was raised and whose target is not entered yet."""

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


def execution_paths(store: Store, row: RunRow) -> Paths:
    """A run as paths; those that were cut off are shown as resuming will find them."""
    fold = fold_of(row)
    definition = Plans(store).of_run(row).definition
    waits = store.open_waits([row.run_no])
    by_path: dict[str, list[NodeRow]] = {}
    for node in store.nodes(row.run_no):
        by_path.setdefault(node.path, []).append(node)
    complete = row.status in RUN_TERMINAL
    view = _View(definition, fold, {(w.node, w.path): w for w in waits}, complete)
    found = [view.path(name, nodes) for name, nodes in sorted(by_path.items())]
    is_cut_off = row.engine is None and not complete and row.status != RunStatus.SUSPENDED
    if is_cut_off:  # its owner died or released it at work; what waits for an answer was not cut off
        waiting = {(w.node, w.path) for w in waits}
        found = [path if (path.step, path.name) in waiting else sanitised(path) for path in found]
    ticket = fold.ticket.name or fold.ticket.target if fold.ticket is not None else None
    return Paths(complete, _pend_path(waits, found), found, ticket)


def pending_joins(row: RunRow, definition: Definition) -> dict[str, list[str]]:
    """The joins of a journey that wait, each with the paths that have not arrived."""
    found: dict[str, list[str]] = {}
    units = {unit.id: unit for unit in definition.nodes}
    for prefix, names in fold_of(row).open_paths.items():
        route = prefix.rstrip(".").rpartition(".")[2]
        if names and route in units:
            found.setdefault(units[route].join, []).extend(f"{prefix}{name}." for name in names)
    return found


def _pend_path(waits: Sequence[WaitRow], paths: Sequence[ExecutionPath]) -> str | None:
    pended = [w for w in waits if w.kind == "basket"]
    if pended:
        return min(pended, key=lambda w: pend_order(w.path or ROOT, w.since)).path
    held = [path.name for path in paths if path.status == "completed" and path.basket is not None]
    return max(held, key=lambda name: name.count("."), default=None)


class _View:
    """What the paths of one run are read from."""

    def __init__(
        self, definition: Definition, fold: Fold, waits: Mapping[tuple[str | None, str | None], WaitRow], complete: bool
    ) -> None:
        self.units = {node.id: node for node in definition.nodes}
        self.fold, self.waits, self.complete = fold, waits, complete

    def path(self, name: str, nodes: Sequence[NodeRow]) -> ExecutionPath:
        """A path is where its latest unit is: one that is not settled, else the one that settled last."""
        open_ones = [n for n in nodes if n.status in _OPEN]
        settled = sorted((n for n in nodes if n.status not in _OPEN), key=lambda n: (n.finished_at or 0, n.output_seq))
        unit = open_ones[-1] if open_ones else settled[-1]
        has_begun = unit.status != NodeStatus.SCHEDULED or unit.started_at is not None
        if not has_begun and settled and self._kind(settled[-1]) == "route":
            return self._at(settled[-1], "started", "ok_proceed")  # evaluated again, should the engine die here
        match unit.status:
            case NodeStatus.SCHEDULED | NodeStatus.RUNNING:
                return self._at(unit, "started", None)
            case NodeStatus.SUSPENDED:
                return self._waiting(unit, self.waits.get((unit.node, unit.path)))
            case NodeStatus.FAILED:
                return self._at(unit, "completed", "error_pend")
        has_ended = self.complete or (name not in self.fold.tokens if self.fold.tokens else name != ROOT)
        return self._at(unit, "completed" if has_ended else "started", "ok_proceed")

    def _waiting(self, unit: NodeRow, wait: WaitRow | None) -> ExecutionPath:
        """A path whose unit waits. One that resuming does not end (a sleep, a question) has not answered yet."""
        if wait is None or wait.kind == "hold":  # it was stopped, or must not be repeated unasked
            return self._at(unit, "completed", "ok_pend_eor", basket=TEMP_HOLD)
        if wait.kind != "basket":
            return self._at(unit, "started", None, basket=wait.basket)
        about = about_of(wait)
        return self._at(
            unit,
            "completed",
            _RESPONSES.get(about.get("mode", ""), "ok_pend_eor"),
            basket=wait.basket,
            ticket=about.get("ticket") or about.get("target"),
            error=about.get("error"),
        )

    def _at(self, unit: NodeRow, status: str, response: str | None, **more: Any) -> ExecutionPath:
        definition = self.units.get(unit.node)
        return ExecutionPath(
            unit.path,
            status,
            unit.node,
            response,
            previous_basket=self.fold.left_baskets.get(unit.path),
            unit=self._kind(unit),
            component=definition.uses if definition is not None else "",
            **more,
        )

    def _kind(self, unit: NodeRow) -> str:
        definition = self.units.get(unit.node)
        return (definition.unit if definition is not None else "") or "step"


def sanitised(path: ExecutionPath) -> ExecutionPath:
    """What resuming makes of a path that was cut off; a path that was not stays as it is."""
    if path.status != "started":
        return path
    again = path.response is None or (path.response == "ok_proceed" and path.unit == "route")
    response = "ok_pend_eor" if again else "ok_pend" if path.response == "ok_proceed" else path.response
    basket = path.basket or path.previous_basket or TEMP_HOLD
    return msgspec.structs.replace(path, status="completed", response=response, basket=basket)


# --- the process document ------------------------------------------------------------------------------------------


def process_info(store: Store, row: RunRow) -> dict[str, Any]:
    """A run as the one document that path-based engines keep of a case."""
    found = execution_paths(store, row)
    declared = Plans(store).of_run(row).definition.variables
    nodes = [n for n in store.nodes(row.run_no) if n.started_at is not None]
    last = max(nodes, key=lambda n: (n.finished_at or n.started_at or 0, n.output_seq), default=None)
    components = {path.step: path.component for path in found.paths}
    saved = store.events(row.run_no, row.last_seq - 1)
    return {
        "case_id": row.run_id,
        "journey": row.workflow,
        "last_executed_step": last.node if last is not None else "",
        "last_executed_comp_name": components.get(last.node, "") if last is not None else "",
        "pend_exec_path": found.pend_path or "",
        "ts": (saved[-1].at if saved else row.created_at) // 1_000,
        "is_complete": found.complete,
        "ticket": found.ticket or "",
        "process_variables": [
            {"name": name, "type": _type(declared.get(name)), "value": value}
            for name, value in variables_of(store, row).items()
        ],
        "exec_paths": [_path_document(path) for path in found.paths],
    }


def _path_document(path: ExecutionPath) -> dict[str, Any]:
    error = path.error or {}
    return {
        "name": path.name,
        "status": path.status,
        "step": path.step,
        "comp_name": path.component,
        "unit_response_type": path.response,
        "pend_workbasket": path.basket or "",
        "prev_pend_workbasket": path.previous_basket or "",
        "ticket": path.ticket or "",
        "pend_error": {"code": error.get("code", ""), "message": error.get("message", "")},
    }


def _type(schema: Any) -> str:
    """The name of a variable's type."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) else "object"
