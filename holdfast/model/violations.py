"""Violations: what the doctor found, as a sentence for a person.

Owns: the shape of a finding and of a report, the codes, and the text of the proposed repairs.
Never: searches for anything (audit.py, survey.py) or repairs anything (repairs.py).

A code is the number of an invariant; docs/reliability.md lists them with their checks.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from holdfast.model.views import command_line


class Repair(Enum):
    """What can be done about a violation."""

    REBUILD = "rebuild"
    """The journal is sound and rows are not: fold it and write them again."""
    HOLD = "hold"
    """The journal itself is damaged: nothing may be appended to it."""
    REMOVE = "remove"
    """Rows that belong to no run."""
    FREE = "free"
    """A lease whose engine is gone."""
    CLOSE = "close"
    """Messages that no engine will ever read."""
    DELIVER = "deliver"
    """The event that the run waits for has happened, and the run was not notified."""
    RECOVER = "recover"
    """Rows and journal agree on a state from which the run cannot continue: cut it back to the last stable event."""
    RESUME = "resume"
    """Everything is consistent, but no engine drives the run."""
    BY_HAND = "by hand"
    """A person has to decide."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that should be true and is not."""

    code: str
    run_id: str | None = None
    node: str | None = None
    path: str | None = None
    seq: int | None = None
    what: str
    repair: str
    means: Repair = Repair.BY_HAND
    """What `--repair` does about it."""
    run_no: int | None = None
    detail: Any = None
    """What the repair needs to know: which rows, whose lease, which child."""

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "run_id": self.run_id,
            "node": self.node,
            "path": self.path,
            "seq": self.seq,
            "what": self.what,
            "repair": self.repair,
        }


def violation(
    code: str,
    what: str,
    *,
    run_id: str | None = None,
    run_no: int | None = None,
    node: str | None = None,
    path: str | None = None,
    seq: int | None = None,
    means: Repair = Repair.BY_HAND,
    repair: str = "",
    detail: Any = None,
) -> Violation:
    """A violation with its repair as text: `repair`, else the usual text for these means."""
    return Violation(
        code=code,
        run_id=run_id,
        run_no=run_no,
        node=node,
        path=path,
        seq=seq,
        what=what,
        means=means,
        repair=repair or words_for(means, run_id),
        detail=detail,
    )


class Report(msgspec.Struct):
    """The result of a check."""

    checked: int = 0
    """Runs that were checked."""
    events: int = 0
    """Events that were folded; 0 without `deep`."""
    violations: list[Violation] = []
    warnings: list[Violation] = []
    """What may be harmless: a live engine that is slow to renew its lease."""
    repaired: list[str] = []
    """What `--repair` did, and what it did not do and why."""

    def as_json(self) -> dict[str, Any]:
        return {
            "checked": self.checked,
            "events": self.events,
            "violations": [v.as_json() for v in self.violations],
            "warnings": [v.as_json() for v in self.warnings],
            "repaired": self.repaired,
        }


def words_for(means: Repair, run_id: str | None) -> str:
    """The repair as a proposal."""
    run = run_id or "RUN"
    repaired = command_line("doctor", run, "--repair")
    match means:
        case Repair.REBUILD:
            return f"write the rows again from the journal: {command_line('doctor', run, '--rebuild')}"
        case Repair.HOLD:
            return f"put the run on hold, so that nothing is appended: {repaired}; then restore it from a backup"
        case Repair.REMOVE:
            return f"remove the rows: {command_line('doctor', '--repair')}"
        case Repair.FREE:
            return f"free the runs of the engine: {command_line('doctor', '--repair')}"
        case Repair.CLOSE:
            return f"refuse the message, as the run has ended: {repaired}"
        case Repair.DELIVER:
            return f"notify the run: {repaired}"
        case Repair.RECOVER:
            return f"continue from the last stable event: {repaired}, or {command_line('resume', run)}"
        case Repair.RESUME:
            return f"resume the run: {command_line('resume', run)}"
        case Repair.BY_HAND:
            return "restore the run from a backup"
