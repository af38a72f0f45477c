"""Tape: which boundary of a schedule has which outcome; and the shortest tape that still shows a finding.

Owns: the written form, `seed/boundary.outcome-boundary.outcome`, for instance `0/7.2-12.5`. Boundaries that are not
named are ok. Together with the code and the input it reproduces the schedule. `shorten` leaves out faults, and replaces
them by milder ones, for as long as the finding stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.model.errors import UsageError
from holdfast.testing.explorer.report import Finding
from holdfast.testing.simulation.faults import Outcome


class Tape(msgspec.Struct, frozen=True):
    """A schedule, as far as it was chosen."""

    faults: tuple[tuple[int, int], ...] = ()
    """(number of the boundary, number of the outcome), in order."""
    seed: int = 0
    """Which of several ready processes runs first; 0: in turn."""

    def __str__(self) -> str:
        return f"{self.seed}/{'-'.join(f'{boundary}.{outcome}' for boundary, outcome in self.faults)}"

    @property
    def severity(self) -> tuple[int, ...]:
        """Fewer faults before more, milder ones before harder ones."""
        return (len(self.faults), *sorted(outcome for _, outcome in self.faults))

    def and_then(self, boundary: int, outcome: int) -> Tape:
        return Tape((*self.faults, (boundary, int(outcome))), self.seed)

    def without(self, index: int) -> Tape:
        return Tape(self.faults[:index] + self.faults[index + 1 :], self.seed)


def parse(text: str) -> Tape:
    """Parse the written form of a tape. Raises UsageError."""
    try:
        seed, _, rest = text.rpartition("/")
        pairs = [part.split(".") for part in rest.split("-") if part]
        faults = tuple((int(boundary), int(Outcome(int(outcome)))) for boundary, outcome in pairs)
        return Tape(tuple(sorted(faults)), int(seed or 0))
    except ValueError:
        raise UsageError(f"{text!r} is not a tape; one looks like 0/7.2 or 0/7.2-12.5") from None


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
