"""Report: what an exploration found, for a test, a terminal and a machine."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.testing.explorer.findings import Finding, Kind


class Report(msgspec.Struct, kw_only=True):
    """The verdict over a workflow: `safe`, and `explain()` in words.

    `schedules` were explored, of which `alike` came to a state that another one had come to, and were not run to their
    end.
    """

    workflow: str
    boundaries: int = 0
    """Acts that outlive the process, in the run that nothing disturbed."""
    labels: dict[str, int] = {}
    """The same, by kind."""
    schedules: int = 0
    alike: int = 0
    depth: int = 1
    seed: int = 0
    seconds: float = 0.0
    outcome: str = ""
    """How the run that nothing disturbed ended."""
    findings: list[Finding] = []
    complete: bool = True
    """Everything that was asked for was explored."""

    @property
    def safe(self) -> bool:
        """Whether nothing was found, at any boundary, with any outcome."""
        return not self.findings

    @property
    def suitable(self) -> bool:
        return all(finding.kind is not Kind.UNSUITABLE for finding in self.findings)

    @property
    def schedules_per_second(self) -> float:
        return self.schedules / self.seconds if self.seconds else 0.0

    def explain(self) -> str:
        """The verdict in words; of each kind of trouble the shortest schedule that shows it."""
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
