"""Results: what is looked at once a workflow function has returned.

Owns: the check that a result does not hang on one branch of a route by accident, the order between phases, and the
annotation of a result that the author gave none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.authoring import code
from holdfast.authoring.refs import Ref, type_of
from holdfast.authoring.tracing import Trace
from holdfast.model.definition import NodeDef
from holdfast.model.errors import TraceError
from holdfast.model.expressions import CHOICES, Expr, operands


def check(trace: Trace, result: Expr, fn: Callable[..., Any]) -> None:
    """Refuse a result that lies in one branch only of a route that has several, unless hf.first or hf.some chose it.

    That is what a name bound once in each branch looks like: the last branch would win, and the others give null.
    """
    populated: dict[str, set[str]] = {}
    for branches in trace.branches.values():
        for route, branch in branches:
            populated.setdefault(route, set()).add(branch)
    returned: dict[str, dict[str, str]] = {}
    for node_id in _read_directly(result):
        for route, branch in trace.branches.get(node_id, ()):
            returned.setdefault(route, {})[branch] = node_id
    for route, branches_of_route in returned.items():
        if len(branches_of_route) == 1 and len(populated[route]) > 1:
            ((branch, node_id),) = branches_of_route.items()
            raise TraceError(
                f"{code.describe(fn)}: {fn.__qualname__} returns {node_id!r}, which runs only in the branch {branch!r} "
                f"of a route; give each branch a name of its own and return hf.first(a, b, ...), or "
                f"hf.first({node_id}, None) if the others give nothing"
            )


def order_phases(trace: Trace) -> tuple[NodeDef, ...]:
    """The workflow's nodes, those of `hf.phase("b", after="a")` ordered after all of a."""
    nodes = trace.top.nodes
    for phase in trace.phases.values():
        if phase.after is None:
            continue
        before = tuple(n.id for n in nodes if n.phase == phase.after)
        nodes = [
            msgspec.structs.replace(n, after=tuple(dict.fromkeys(n.after + before)) if n.after else before)
            if n.phase == phase.name
            else n
            for n in nodes
        ]
    return tuple(nodes)


def annotation(returned: Any) -> Any:
    """What the result is decoded by when the function says nothing: the type of the reference it returned, or null."""
    if not isinstance(returned, Ref):
        return Any
    kind = type_of(returned)
    try:
        return Any if kind is Any else kind | None
    except TypeError:
        return Any


def _read_directly(expr: Expr) -> list[str]:
    found: list[str] = []
    stack = [expr]
    while stack:
        e = stack.pop()
        if not isinstance(e, list) or e[0] in CHOICES or e[0] in {"skipped", "failed"}:
            continue
        if e[0] == "node":
            found.append(e[1])
        stack.extend(operands(e))
    return found
