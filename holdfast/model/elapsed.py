"""Elapsed: an instant of the time that passes in one boot of a machine.

Owns: how a timer that was set by a duration is judged. Within the boot in which it was set, elapsed time decides, so a
wall clock that is set neither delays nor hastens it. In any other boot only the wall clock says how much has passed.
Never: reads a clock.
"""

from __future__ import annotations

from typing import NamedTuple


class Elapsed(NamedTuple):
    """Comparable with other instants of the same boot only."""

    boot: str
    micros: int


def due(due_at: int, lasting: Elapsed | None, now: int, elapsed: Elapsed | None) -> int:
    """When a timer is due, by the wall clock that shows `now`. `lasting`: it was set by a duration, which is over then;
    `elapsed`: the present, or None where durations are counted by `now` as well."""
    if lasting is None or elapsed is None or lasting.boot != elapsed.boot:
        return due_at
    return now + lasting.micros - elapsed.micros
