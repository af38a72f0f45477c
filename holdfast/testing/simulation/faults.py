"""Faults: the possible outcomes of one act that outlives its process.

Owns: the outcomes and their numbers (a tape is a list of them, so the numbers never change), and the two ways in which
control leaves a process in the middle of something.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Outcome(IntEnum):
    """What happens at a boundary: a write to the store, or a call of something outside."""

    OK = 0
    DIE_BEFORE = 1
    DIE_AFTER = 2
    ERROR_NOT_APPLIED = 3
    ERROR_APPLIED = 4
    HANG_BEFORE_UNTIL_FREED = 5
    HANG_BEFORE_UNTIL_CLAIMED = 6
    HANG_BEFORE_UNTIL_TAKEN_OVER = 7
    HANG_BEFORE_UNTIL_FINISHED = 8
    HANG_AFTER_UNTIL_FREED = 9
    HANG_AFTER_UNTIL_CLAIMED = 10
    HANG_AFTER_UNTIL_TAKEN_OVER = 11
    HANG_AFTER_UNTIL_FINISHED = 12

    @property
    def dies(self) -> bool:
        return self in (Outcome.DIE_BEFORE, Outcome.DIE_AFTER)

    @property
    def fails(self) -> bool:
        return self in (Outcome.ERROR_NOT_APPLIED, Outcome.ERROR_APPLIED)

    @property
    def hangs(self) -> bool:
        return self >= Outcome.HANG_BEFORE_UNTIL_FREED

    @property
    def applied(self) -> bool:
        """True if the act itself happens at its time."""
        return self in (Outcome.OK, Outcome.DIE_AFTER, Outcome.ERROR_APPLIED) or self >= Outcome.HANG_AFTER_UNTIL_FREED

    @property
    def before(self) -> Outcome | None:
        """The same fault a moment later: before the next act."""
        if self is Outcome.DIE_AFTER:
            return Outcome.DIE_BEFORE
        if self >= Outcome.HANG_AFTER_UNTIL_FREED:
            return Outcome(self - (Outcome.HANG_AFTER_UNTIL_FREED - Outcome.HANG_BEFORE_UNTIL_FREED))
        return None

    @property
    def after(self) -> Outcome | None:
        """The same fault a moment earlier: after the act before."""
        if self is Outcome.DIE_BEFORE:
            return Outcome.DIE_AFTER
        if self.hangs and not self.applied:
            return Outcome(self + (Outcome.HANG_AFTER_UNTIL_FREED - Outcome.HANG_BEFORE_UNTIL_FREED))
        return None

    @property
    def until(self) -> Until:
        """When a hanging process comes back."""
        return _UNTIL[(self - Outcome.HANG_BEFORE_UNTIL_FREED) % len(_UNTIL)]

    def __str__(self) -> str:
        return _WORDS[self]


class Until(Enum):
    """How far the other processes have come when a process that hung comes back."""

    FREED = "its runs were taken from it"
    CLAIMED = "another engine has claimed a run"
    TAKEN_OVER = "another engine has gone on with a run"
    FINISHED = "the others have nothing left to do"


_UNTIL = tuple(Until)
_WORDS = {
    Outcome.OK: "ok",
    Outcome.DIE_BEFORE: "the process dies just before it",
    Outcome.DIE_AFTER: "it happens, and the process dies before it knows",
    Outcome.ERROR_NOT_APPLIED: "it fails, and nothing has happened",
    Outcome.ERROR_APPLIED: "it happens, and an error is reported",
} | {
    outcome: f"{'it happens, then ' if outcome.applied else ''}the process hangs "
    f"{'' if outcome.applied else 'before it '}until {outcome.until.value}"
    for outcome in Outcome
    if outcome.hangs
}


class PowerCut(BaseException):
    """The process has just died. Not an Exception, so that no code handles it. Whatever still runs has no effect."""


class Postponed(BaseException):
    """The process hangs in the middle of this callback, which is repeated from its start when it comes back."""
