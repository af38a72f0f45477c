"""Supplies: what rules cannot know by themselves and ask the engine for.

Owns: captured parameters of a scope, what there is to compensate, and the result of a run, each as the command that
brings it. All of them are pure functions of committed values, so none is stored, and after a crash they are asked for
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.engine.values import Values
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.expressions import part_of
from holdfast.model.graph import Plan, reading
from holdfast.model.limits import INLINE_LIMIT_BYTES
from holdfast.model.references import locate
from holdfast.model.state import OpenScope, RunState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.store.api import NodeRow


def params(values: Values, state: RunState, scope: OpenScope) -> cmd.ProvideParams | cmd.FailNode:
    """What conditions inside an item or a round read of its parameters."""
    captured: dict[str, Any] = {}
    try:
        for param, (name, keys, wanted) in scope.plan.param_captures:
            chained = reading(["param", scope.plan.owner, param], keys, "")
            value = msgspec.json.decode(values.load(state, locate(state, scope, chained)))
            captured[f"{param}:{name}"] = part_of(value, wanted)
    except HoldfastError as e:
        owner = scope.owner
        assert owner is not None
        error = ev.ErrorInfo(e.code, f"its parameters: {e.message}")
        return cmd.FailNode(owner.node, owner.path, owner.attempt, error, visit=owner.visit)
    return cmd.ProvideParams(scope.path, captured)


def undo(plan: Plan, rows: Sequence[NodeRow]) -> cmd.ProvideUndo:
    """What is left to compensate, from all rows of a run, last completed first."""
    undone = {
        (row.node.removesuffix("~undo"), row.path, row.visit)
        for row in rows
        if row.node.endswith("~undo") and row.status in NODE_SETTLED
    }
    done = [row for row in rows if row.status == NodeStatus.COMPLETED and _is_undoable(plan, row)]
    done.sort(key=lambda row: -row.output_seq)
    left = [r for r in done if (r.node, r.path, r.visit) not in undone]
    return cmd.ProvideUndo(tuple((r.node, r.path, r.visit, r.output_seq) for r in left), tuple(sorted(undone)))


def _is_undoable(plan: Plan, row: NodeRow) -> bool:
    node = plan.scope_of(row.path).nodes.get(row.node)
    return node is not None and node.undo is not None


def located_result(state: RunState) -> Any:
    """The result of a run, by the events that hold it."""
    root = state.plan.root
    if root.direct_result is None:
        return locate(state, state.scopes["."], root.result)
    node, keys = root.direct_result
    ns = state.nodes.get((node, root.nodes[node].path(".")))
    return ["at", ns.output_seq, *keys] if ns is not None and ns.status is NodeStatus.COMPLETED else None


def result(data: bytes) -> cmd.FinishRun | cmd.FailRun:
    """The result ends the run, unless it is too large to be stored."""
    if len(data) > INLINE_LIMIT_BYTES:
        size = f"the result has {len(data):,} bytes, the limit is {INLINE_LIMIT_BYTES:,}"
        return cmd.FailRun(ev.ErrorInfo("value_too_large", size))
    return cmd.FinishRun(data)


def no_result(error: HoldfastError) -> cmd.FailRun:
    """The result cannot be made."""
    return cmd.FailRun(ev.ErrorInfo(error.code, f"its result: {error.message}"))
