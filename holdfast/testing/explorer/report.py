"""Report: the findings of an exploration, for a test, a terminal and a machine.

Owns: the kinds of findings, their texts, the timeline of a schedule and the verdict. A finding names its subject, so
that the same problem of a hundred schedules is reported once, with the shortest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from holdfast.model.limits import SECOND
from holdfast.store.row_types import Commit, EngineRow, MessageRow
from holdfast.testing.simulation.boundaries import Boundary
from holdfast.testing.simulation.faults import Outcome


class Kind(Enum):
    """What is wrong."""

    INVARIANT = "the engine broke a promise"
    OUTCOME = "the run ended otherwise than without the fault"
    REPEATED = "something was done twice, and nothing tells the receiver"
    NEW_KEY = "the same thing was done again under another key"
    DIFFERS = "two executions gave different results"
    OUTLIVES = "a step was at work after its body had ended, or beside itself"
    UNSUITABLE = "the workflow cannot be explored"


class Finding(msgspec.Struct, kw_only=True):
    """One kind of problem with one subject."""

    kind: Kind
    subject: str
    """What it is about: a node, a callable, an invariant. One subject is reported once."""
    what: str
    advice: str = ""
    tape: str = ""
    where: str = ""
    """The boundary, in words."""
    timeline: list[str] = []
    schedules: int = 1
    """In how many schedules it was found."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.name.lower(),
            "subject": self.subject,
            "what": self.what,
            "advice": self.advice,
            "where": self.where,
            "tape": self.tape,
            "schedules": self.schedules,
            "timeline": self.timeline,
        }


class Report(msgspec.Struct, kw_only=True):
    """The verdict over a workflow: `safe`, and `explain()` in words.

    `schedules` were explored, of which `alike` reached a state that another one had reached, and were not run to their
    end.
    """

    workflow: str
    boundaries: int = 0
    """Acts that outlive the process, in the run without a fault."""
    labels: dict[str, int] = {}
    """The same, by kind."""
    schedules: int = 0
    alike: int = 0
    depth: int = 1
    seed: int = 0
    seconds: float = 0.0
    outcome: str = ""
    """How the run without a fault ended."""
    findings: list[Finding] = []
    complete: bool = True
    """True if everything that was asked for was explored."""

    @property
    def safe(self) -> bool:
        """True if nothing was found, at any boundary, with any outcome."""
        return not self.findings

    @property
    def suitable(self) -> bool:
        return all(finding.kind is not Kind.UNSUITABLE for finding in self.findings)

    @property
    def schedules_per_second(self) -> float:
        return self.schedules / self.seconds if self.seconds else 0.0

    def explain(self) -> str:
        """The verdict in words; for each kind of problem the shortest schedule that shows it."""
        lines = [self._headline(), self._numbers()]
        for number, finding in enumerate(self.findings, start=1):
            lines += ["", *_explained(number, finding)]
        return "\n".join(lines)

    def _headline(self) -> str:
        if self.safe:
            return f"{self.workflow} survives every crash that was tried."
        if not self.suitable:
            return f"{self.workflow} cannot be explored as it is."
        count = len(self.findings)
        return f"{self.workflow} is not safe: {count} finding{'s' if count != 1 else ''}."

    def _numbers(self) -> str:
        kinds = ", ".join(f"{n} {label}" for label, n in sorted(self.labels.items(), key=lambda item: -item[1]))
        alike = f" ({self.alike} of them alike)" if self.alike else ""
        stopped = "" if self.complete else "; stopped early"
        return (
            f"{self.schedules} schedules{alike} over {self.boundaries} boundaries ({kinds}) in {self.seconds:.2f} s, "
            f"depth {self.depth}{stopped}. Undisturbed, the run {self.outcome}."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "workflow": self.workflow,
            "safe": self.safe,
            "suitable": self.suitable,
            "outcome": self.outcome,
            "boundaries": self.boundaries,
            "labels": self.labels,
            "schedules": self.schedules,
            "alike": self.alike,
            "depth": self.depth,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "schedules_per_s": round(self.schedules_per_second),
            "complete": self.complete,
            "findings": [finding.as_json() for finding in self.findings],
        }


def _explained(number: int, finding: Finding) -> list[str]:
    lines = [f"{number}. {finding.what}"]
    if finding.where:
        lines.append(f"   where: {finding.where}")
    if finding.advice:
        lines.append(f"   advice: {finding.advice}")
    if finding.schedules > 1:
        lines.append(f"   met in {finding.schedules} schedules")
    if finding.tape:
        lines.append(f"   again: tape {finding.tape}")
    return [*lines, *(f"   {line}" for line in finding.timeline)]


LINES_MAX = 20
_QUIET = {"NodeScheduled", "PhaseStarted", "PhaseCompleted"}


def timeline_of(boundaries: Sequence[Boundary]) -> list[str]:
    """The boundaries from shortly before the first fault on, a line each."""
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


def describe_boundary(boundary: Boundary) -> str:
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
