"""Isolation: which runs are suspected of killing their engines.

Owns: from how many recoveries in a row on a run is a suspect, whether its bodies may share a process with bodies of
other suspects, and when one more death puts it on hold.
Never: runs a body (worker/isolated.py), counts recoveries (model/evolve.py).
Invariants: the bodies of a suspect run in spawned processes, so the death of an engine says nothing about the run. Only
a body whose process dies while the engine lives is counted, and a hold is always decided by the death of a process that
ran nothing else.
On crash: `recoveries` in the run's row says who the suspects are; nothing else is needed.
"""

from __future__ import annotations

from holdfast.model.limits import SUSPECT_RECOVERIES


def is_suspect(recoveries: int, max_recoveries: int) -> bool:
    """Whether the bodies of a run execute in spawned processes. With a limit below the usual threshold, from the last
    recovery on that the limit allows."""
    return recoveries >= min(SUSPECT_RECOVERIES, max_recoveries)


def needs_own_process(recoveries: int, max_recoveries: int) -> bool:
    """Whether a suspect's body needs a process that has run nothing else: the process of one of its bodies died before,
    or one more death puts the run on hold."""
    return recoveries > SUSPECT_RECOVERIES or is_guilty(recoveries, max_recoveries)


def is_guilty(recoveries: int, max_recoveries: int) -> bool:
    """Whether a suspect whose body's process has just died is put on hold."""
    return recoveries >= max_recoveries
