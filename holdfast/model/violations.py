"""Violations: what the doctor found, as a sentence that a person understands.

Owns: the shape of a finding and of a report, the codes, and the words in which repairs are proposed.
Never: looks for anything (audit.py, survey.py) or repairs anything (repairs.py).

A code is the number of an invariant; docs/reliability.md lists them with the checks that look after them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class Repair(Enum):
    """What can be done about a violation."""

    REBUILD = "rebuild"
    """The journal is sound and rows are not: fold it and write them again."""
    HOLD = "hold"
    """The journal itself is damaged: nothing may be appended to it."""
    REMOVE = "remove"
    """Rows that belong to nobody."""
    FREE = "free"
    """A lease whose engine is gone."""
    CLOSE = "close"
    """Messages that nobody will ever read."""
    DELIVER = "deliver"
    """What would wake the run has happened, and it was not told."""
    RECOVER = "recover"
    """Rows and journal agree on a state that has no future: cut it back to the last stable event."""
    RESUME = "resume"
    """Everything is in order, but nobody drives the run."""
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
    """A violation with its repair in words: `repair`, else what is always said about such means."""
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
    """What a check came to."""

    checked: int = 0
    """Runs that were looked at."""
    events: int = 0
    """Events that were folded; 0 without `deep`."""
    violations: list[Violation] = []
    warnings: list[Violation] = []
    """What may be in order: an engine that lives and is slow to renew its lease."""
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
    match means:
        case Repair.REBUILD:
            return f"write the rows again from the journal: holdfast doctor {run} --rebuild"
        case Repair.HOLD:
            return (
                f"put the run on hold, so that nothing is appended: holdfast doctor {run} --repair; "
                "then restore it from a backup"
            )
        case Repair.REMOVE:
            return "remove the rows: holdfast doctor --repair"
        case Repair.FREE:
            return "free the runs of the engine: holdfast doctor --repair"
        case Repair.CLOSE:
            return f"refuse the message, as the run has ended: holdfast doctor {run} --repair"
        case Repair.DELIVER:
            return f"tell the run what happened: holdfast doctor {run} --repair"
        case Repair.RECOVER:
            return f"go on from the last stable event: holdfast doctor {run} --repair, or holdfast resume {run}"
        case Repair.RESUME:
            return f"go on with the run: holdfast resume {run}"
        case Repair.BY_HAND:
            return "restore the run from a backup"
