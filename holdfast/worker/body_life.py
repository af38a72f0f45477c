"""Body life: the states of one execution of a body in this process, and the transitions between them.

Owns: `BodyLife`, its table, and why a body is unwound (`LeaveReason`). activation.py moves along the table.
On crash: nothing of it is stored; the next owner of the run reads the status of the node.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class BodyLife(StrEnum):
    """Where the execution of a body stands."""

    STARTING = "starting"
    """Its arguments and its recorded calls are read."""
    RUNNING = "running"
    """It is at work."""
    WAITING = "waiting"
    """Every task of it waits in a call on ctx: its node is suspended, its time limits do not count."""
    LEAVING = "leaving"
    """It is unwound without an end (`LeaveReason` says why): calls on ctx raise Suspended."""
    CANCELLING = "cancelling"
    """It was asked to stop, by its run or by a time limit: calls on ctx raise CancelledError."""
    ENDING = "ending"
    """It has returned or raised; the steps and tasks that it has started are stopped before that is reported."""
    REPORTED = "reported"
    """Its run knows how it ended, or that it was evicted. Nothing that it still does is recorded."""

    __hash__ = str.__hash__  # Enum's own is a Python function


class LeaveReason(StrEnum):
    """Why a body is unwound without an end."""

    EVICT = "evict"
    """It leaves memory: it only waits, its code does not match its recorded calls, or its run is driven elsewhere."""
    STOP = "stop"
    """The engine stops in an orderly way. A body that ends within the grace time is recorded."""
    PAUSE = "pause"
    """The run is paused; as STOP, for this run alone."""


_L = BodyLife
BODY_TRANSITIONS: Final[dict[BodyLife, frozenset[BodyLife]]] = {
    _L.STARTING: frozenset({_L.RUNNING, _L.LEAVING, _L.CANCELLING, _L.REPORTED}),
    _L.RUNNING: frozenset({_L.WAITING, _L.LEAVING, _L.CANCELLING, _L.ENDING, _L.REPORTED}),
    _L.WAITING: frozenset({_L.RUNNING, _L.LEAVING, _L.CANCELLING, _L.ENDING, _L.REPORTED}),
    _L.LEAVING: frozenset({_L.CANCELLING, _L.REPORTED}),
    _L.CANCELLING: frozenset({_L.ENDING, _L.REPORTED}),
    _L.ENDING: frozenset({_L.REPORTED}),
    _L.REPORTED: frozenset(),
}
"""Every state may go to REPORTED: the grace time is over, or the run continues without this body."""

ALIVE: Final = frozenset({_L.STARTING, _L.RUNNING, _L.WAITING})
"""The body has neither ended nor been asked to."""
OVER: Final = frozenset({_L.ENDING, _L.REPORTED})
"""The body has ended, or the engine does not wait for it."""
