"""Timeline: a schedule as a person reads it.

Owns: the words for each boundary, and which of them are worth a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model.limits import SECOND
from holdfast.store.row_types import Commit, EngineRow, MessageRow
from holdfast.testing.simulation.boundaries import Boundary
from holdfast.testing.simulation.faults import Outcome

LINES_MAX = 20
_QUIET = {"NodeScheduled", "PhaseStarted", "PhaseCompleted"}


def tell(boundaries: Sequence[Boundary]) -> list[str]:
    """What happened, from shortly before the first fault on."""
    if not boundaries:
        return []
    faults = [b.number for b in boundaries if b.outcome is not Outcome.OK]
    first = max(0, (faults[0] if faults else 0) - 3)
    shown = boundaries[first : first + LINES_MAX]
    began = boundaries[0].instant
    lines = [f"... {first} boundaries before, all ok"] if first else []
    lines += [_line(b, began) for b in shown]
    left = len(boundaries) - first - len(shown)
    return [*lines, f"... and {left} more"] if left else lines


def describe(boundary: Boundary) -> str:
    """A boundary in a few words."""
    return f"boundary {boundary.number}, {boundary.label}{_about(boundary.label, boundary.about)}"


def _line(boundary: Boundary, began: int) -> str:
    at = (boundary.instant - began) / SECOND
    fault = "" if boundary.outcome is Outcome.OK else f"   <-- {boundary.outcome}"
    about = _about(boundary.label, boundary.about)
    return f"{boundary.number:>4} {at:>7.1f} s  {boundary.process}  {boundary.label}{about}{fault}"


def _about(label: str, about: Any) -> str:
    match about:
        case int():
            return f" (attempt {about})"
        case [MessageRow(), *_]:
            return " " + ", ".join(f"{message.kind} to run {message.run_no}" for message in about)
        case EngineRow():
            return f" {about.engine}"
        case (str() as engine, int()):
            return f" {engine}"
        case str():
            return f" {about}"
        case [Commit(), *_]:
            return ": " + "; ".join(_events(commit) for commit in about)
        case [int(), *_] if label == "claim":
            return f" of run {', '.join(str(n) for n in about)}"
        case [(int(), int()), *_] if label == "release":
            return f" of run {', '.join(str(n) for n, _ in about)}"
        case (int() as run_no, hold) if label == "set_hold":
            return f" on run {run_no}: {hold}"
    return ""


def _events(commit: Commit) -> str:
    told = []
    for event in commit.events:
        kind, node, path = event[3], event[4], event[5]
        if kind not in _QUIET:
            told.append(kind if node is None else f"{kind}({node if path == '.' else f'{node}@{path}'})")
    children = [f"and creates run {child.run_no}" for child in commit.children]
    return " ".join([", ".join(told) or "no events", *children])
