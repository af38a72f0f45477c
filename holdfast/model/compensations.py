"""Compensations: what undoes the work of a node, and how its instance is named.

Owns: the name of an undo (`charge~undo`), what an engine provides so that one can run, and which arguments a
compensation gets: the output of what it undoes as its first argument, inputs of it by the names of its parameters.
Never: decides when something is undone (rules/undoing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.model.events import StepUndo
from holdfast.model.handlers import Parameter

UNDO: Final = "~undo"
Instance = tuple[str, str, int]
"""(node, path, visit)"""


def is_undo(node: str) -> bool:
    """Whether a node of an instance is the compensation of another one."""
    return node.endswith(UNDO)


def undone_by(node: str) -> str:
    """The node that a compensation undoes."""
    return node.removesuffix(UNDO)


def undoes_step(path: str) -> bool:
    """Whether the instance at a path undoes a step of a body: no name contains what marks its place."""
    return "~" in path


def step_path(path: str, node: str, place: str) -> str:
    """Where the compensation of a step lies: below the body that made it."""
    return f"{path}{node}.~{place}."


def body_of(path: str) -> tuple[str, str]:
    """(node, path) of the body whose step is undone at a path."""
    around, node, _ = path.rstrip(".").rsplit(".", 2)
    return node, f"{around}."


class Undoable(msgspec.Struct, frozen=True, gc=False):
    """An instance that is left to compensate; provided by the engine."""

    node: str
    path: str
    visit: int
    output_seq: int
    """The event that holds its output; 0: its outcome is unknown, and the compensation gets None."""
    args: dict[str, Any] = {}
    """Inputs that its compensation takes, located, by parameter."""
    step: StepUndo | None = None
    """What undoes it, where it is a step; its path is that of its compensation."""

    @property
    def instance(self) -> Instance:
        return self.node, self.path, self.visit


def first_parameter(params: Sequence[Parameter]) -> Parameter | None:
    """The parameter of a compensation that gets the output."""
    return next((p for p in params if not p.variadic and not p.keyword_only), None)


def inputs_taken(undo: Sequence[Parameter], undone: Sequence[Parameter]) -> tuple[str, ...]:
    """The parameters of a compensation that get inputs of the node it undoes: those named like parameters of it."""
    first = first_parameter(undo)
    known = {p.name for p in undone if not p.variadic}
    return tuple(p.name for p in undo if p is not first and not p.variadic and p.name in known)


def compensation_problem(undo: Sequence[Parameter], undone: Sequence[Parameter]) -> tuple[str, str] | None:
    """Why a compensation could not be called, and what to do about it; None: it can."""
    if first_parameter(undo) is None:
        return (
            "it has no parameter for the output that it is to undo",
            "give it a first parameter that takes the output",
        )
    taken = inputs_taken(undo, undone)
    missing = [p.name for p in undo if p.required and p is not first_parameter(undo) and p.name not in taken]
    if not missing:
        return None
    there = ", ".join(p.name for p in undone if not p.variadic) or "none"
    return (
        f"nothing gives it a value for {', '.join(missing)}: its first parameter gets the output, further ones get the "
        "inputs of their names",
        f"name them like parameters of the node ({there}), or give them defaults",
    )
