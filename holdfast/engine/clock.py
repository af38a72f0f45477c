"""Clock: the only place where the engine learns what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time comes in from outside, so that tests can move it."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000
