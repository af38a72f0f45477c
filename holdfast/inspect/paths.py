"""Paths: a run seen as execution paths.

Owns: the view of a run that path-based engines have (one row per path: its status, the unit it is at, how that unit
answered, the basket it waits in), and what resuming makes of paths that were cut off.
Never: is read by anything that decides; it is derived from rows, for people and for those who migrate.

A unit that ended with `hf.pend` lies in its basket and has answered `ok_pend` (the next unit runs on resume),
`ok_pend_eor` (the same one) or `error_pend` (the same one, after an error). A plain resume takes the deepest such path.

A path that was running when its engine died is *sanitised* when the run is resumed: the unit that never answered runs
again (`ok_pend_eor`), behind one that answered the next unit runs (`ok_pend`), and until then the path lies in the
basket `workflow_temp_hold`. That is what taking a run over does anyway; here it is only spelt in their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.rules.resuming import pend_order
from holdfast.store.contract import Store
from holdfast.store.records.state_rows import about_of
from holdfast.store.row_types import NodeRow, RunRow, WaitRow

TEMP_HOLD = "workflow_temp_hold"
_AT_WORK = frozenset({NodeStatus.SCHEDULED, NodeStatus.RUNNING})
_RESPONSES = {"next": "ok_pend", "same": "ok_pend_eor", "error": "error_pend"}


class ExecutionPath(msgspec.Struct, frozen=True):
    """One path of a run."""

    name: str
    status: str
    """`started`, or `completed`: also when it lies in a basket."""
    step: str
    response: str | None
    """`ok_proceed`, `ok_pend`, `ok_pend_eor` (the same unit again on resume), `error_pend`, or None: no answer yet."""
    basket: str | None = None


class Paths(msgspec.Struct, frozen=True):
    """All paths of a run, and the one that a resume begins with: the deepest that lies in a basket."""

    complete: bool
    pend_path: str | None
    paths: list[ExecutionPath]

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


def execution_paths(store: Store, row: RunRow) -> Paths:
    """A run as paths; those that were cut off are shown as resuming will find them."""
    waits = store.open_waits([row.run_no])
    by_unit = {(w.node, w.path): w for w in waits}
    by_path: dict[str, list[NodeRow]] = {}
    for node in store.nodes(row.run_no):
        by_path.setdefault(node.path, []).append(node)
    complete = row.status in RUN_TERMINAL
    found = [_path(name, nodes, by_unit, complete) for name, nodes in sorted(by_path.items())]
    if (
        row.engine is None and not complete and row.status != RunStatus.SUSPENDED
    ):  # its owner died or released it at work
        found = [sanitised(path) for path in found]
    return Paths(complete, _pend_path(waits, found), found)


def _pend_path(waits: Sequence[WaitRow], paths: Sequence[ExecutionPath]) -> str | None:
    pended = [w for w in waits if w.kind == "basket"]
    if pended:
        return min(pended, key=lambda w: pend_order(w.path or ".", w.since)).path
    in_baskets = [path.name for path in paths if path.basket is not None]
    return max(in_baskets, key=lambda name: name.count("."), default=None)


def _path(
    name: str, nodes: Sequence[NodeRow], waits: dict[tuple[str | None, str | None], WaitRow], complete: bool
) -> ExecutionPath:
    """A path is where its latest unit is: one that is not settled, else the one that settled last."""
    open_ones = [n for n in nodes if n.status in _AT_WORK or n.status == NodeStatus.SUSPENDED]
    unit = open_ones[-1] if open_ones else max(nodes, key=lambda n: (n.finished_at or 0, n.output_seq))
    match unit.status:
        case NodeStatus.SCHEDULED | NodeStatus.RUNNING:
            return ExecutionPath(name, "started", unit.node, None)
        case NodeStatus.SUSPENDED:
            return _waiting(name, unit.node, waits.get((unit.node, unit.path)))
        case NodeStatus.FAILED:
            return ExecutionPath(name, "completed", unit.node, "error_pend")
    return ExecutionPath(name, "completed" if complete or name != "." else "started", unit.node, "ok_proceed")


def _waiting(name: str, unit: str, wait: WaitRow | None) -> ExecutionPath:
    """A path whose unit waits. One that resuming does not end (a sleep, a question) has not answered yet."""
    if wait is None or wait.kind == "hold":  # it was stopped, or must not be repeated unasked
        return ExecutionPath(name, "completed", unit, "ok_pend_eor", TEMP_HOLD)
    if wait.kind != "basket":
        return ExecutionPath(name, "started", unit, None, wait.basket)
    mode = about_of(wait).get("mode", "")
    return ExecutionPath(name, "completed", unit, _RESPONSES.get(mode, "ok_pend_eor"), wait.basket)


def sanitised(path: ExecutionPath) -> ExecutionPath:
    """What resuming makes of a path that was cut off; a path that was not stays as it is."""
    if path.status != "started":
        return path
    response = {None: "ok_pend_eor", "ok_proceed": "ok_pend"}.get(path.response, path.response)
    return ExecutionPath(path.name, "completed", path.step, response, path.basket or TEMP_HOLD)
