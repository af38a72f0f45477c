"""Shrink: the shortest schedule that still shows a finding.

Owns: leaving faults away, and taking milder ones, for as long as the finding stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.testing.explorer.findings import Finding
from holdfast.testing.explorer.tape import Tape, parse
from holdfast.testing.simulation.faults import Outcome

CANDIDATES_MAX = 500
"""Schedules tried for one finding; each takes a millisecond or two."""


def shorten(finding: Finding, run: Callable[[Tape], Any]) -> None:
    """Replace a finding's schedule by a shorter one that shows the same."""
    if not finding.tape:
        return
    tape = parse(finding.tape)
    tried = 0
    improved = len(tape.faults) > 1
    while improved:
        improved = False
        for candidate in _milder(tape):
            tried += 1
            if tried > CANDIDATES_MAX:
                return
            same = _same(finding, run(candidate).findings)
            if same is not None:
                tape, improved = candidate, True
                finding.tape, finding.where = same.tape, same.where
                finding.timeline, finding.what = same.timeline, same.what
                break


def _same(finding: Finding, found: list[Finding]) -> Finding | None:
    return next((f for f in found if (f.kind, f.subject) == (finding.kind, finding.subject)), None)


def _milder(tape: Tape) -> Iterator[Tape]:
    for index in range(len(tape.faults)):
        yield tape.without(index)
    for index, (boundary, chosen) in enumerate(tape.faults):
        for milder in (Outcome.DIE_BEFORE, Outcome.DIE_AFTER):
            if milder < chosen:
                faults = (*tape.faults[:index], (boundary, int(milder)), *tape.faults[index + 1 :])
                yield Tape(faults, tape.seed)
