"""Clock: time that moves only when somebody moves it."""

from __future__ import annotations

from holdfast.model.limits import SECOND

START = 1_767_225_600 * SECOND
"""The first instant of 2026: runs that are never shown to anybody need no real date."""


class VirtualClock:
    """The one clock of a world, in microseconds; every loop and every engine of it reads this one."""

    def __init__(self, start: int = START) -> None:
        self._start = start
        self._now = start

    def now(self) -> int:
        """Microseconds since 1970, UTC: what the engine calls its clock."""
        return self._now

    def elapsed(self) -> None:
        """A world has one time."""

    def lease_time(self) -> int:
        """A world has one time."""
        return self._now

    def synchronise(self) -> None:
        """Everybody reads the same clock."""

    @property
    def seconds(self) -> float:
        """Seconds since the world began: what an event loop calls its time."""
        return (self._now - self._start) / SECOND

    def instant(self, seconds: float) -> int:
        """The instant at which `seconds` is read; never before it."""
        return self._start + -int(-seconds * SECOND // 1)

    def move_to(self, instant: int) -> None:
        """Time only goes forward."""
        self._now = max(self._now, instant)
