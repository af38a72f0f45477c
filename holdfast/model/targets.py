"""Targets: where a ticket or `hf.goto` may lead.

Owns: whether a run can go on at a node: one of the workflow itself, outside every map, loop and parallel route. The
same answer when a definition is checked and when a body names a node.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.definition import Definition, NodeDef
from holdfast.model.problems import choices


def target_problem(definition: Definition, target: str) -> tuple[str, str] | None:
    """What is wrong with a target and what to do about it; None: it is one."""
    if definition.kind == "code":
        return "durable code has no nodes to go to", "use the control flow of the function itself"
    for node in definition.nodes:
        if node.id == target:
            if not node.lane:
                return None
            return f"{target!r} lies in a branch of a parallel route", "go to a node before or behind the route"
    around = _owner_of(target, definition.nodes)
    if around is not None:
        return f"{target!r} lies inside the body of {around!r}", f"go to {around!r}, or to a node outside it"
    there = [n.id for n in definition.nodes if not n.lane]
    return f"there is no node {target!r}", choices(target, there, "nodes")


def _owner_of(target: str, nodes: Sequence[NodeDef]) -> str | None:
    """The map or loop whose body has a node of this name."""
    stack = [n for n in nodes if n.body is not None]
    while stack:
        owner = stack.pop()
        for inner in owner.body.nodes if owner.body else ():
            if inner.id == target:
                return owner.id
            if inner.body is not None:
                stack.append(inner)
    return None
