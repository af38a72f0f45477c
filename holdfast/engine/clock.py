"""Clock: the only place where the engine learns what time it is.

Owns: this machine's clock, and the one that all engines of a shared store go by.
Never: decides what is due or who is dead; it only says when now is.
Invariants: of a shared store no engine is ahead of the store's clock, whatever its own machine's clock shows: what is
to happen at an instant never happens early, and nobody is declared dead before his time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from holdfast.store.api import Store

DRIFT: Final = 0.0005
"""How much faster than the store's clock this machine's may run: the most by which time daemons speed a clock up. We
count that much less, and so are behind rather than ahead between two looks at the store's clock."""

SET_BACK_MICROSECONDS: Final = 1_000_000
"""When the store's clock shows so much less than we did, somebody has set it back; less than that is the network."""


class Clock(Protocol):
    """Time comes in from outside, so that tests can move it."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def synchronise(self) -> None:
        """Ask whoever knows the time, if that is somebody else. Done before each renewal of the lease."""
        ...


class SystemClock:
    """This machine's clock, for a store that nobody on another machine uses."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def synchronise(self) -> None:
        """There is nobody to ask."""


class _Setting(NamedTuple):
    told: int
    """What the store's clock showed."""
    at: int
    """When, in nanoseconds of the time that nobody can set."""
    floor: int
    """What we showed then, if that was a little more: we stand still until it is reached."""


class SharedClock:
    """The store's clock, as it is known here: as of the last look at it, and what has passed since then by the time
    that nobody can set. The first who wants to know the time lets it look."""

    def __init__(self, store: Store, passing: Callable[[], int] = time.monotonic_ns) -> None:
        self._store = store
        self._passing = passing
        self._setting: _Setting | None = None

    def now(self) -> int:
        if self._setting is None:
            self.synchronise()
        assert self._setting is not None
        return _read(self._setting, self._passing())

    def synchronise(self) -> None:
        """Look at the store's clock. What it tells is taken for the time when its answer is here: we are behind by the
        way that it took, and never ahead. Where that would make us go back a little, we stand still instead. Raises
        StoreError when the store cannot be reached; then time goes on as it did."""
        told = self._store.now()
        at = self._passing()
        before = told if self._setting is None else _read(self._setting, at)
        self._setting = _Setting(told, at, before if before - told < SET_BACK_MICROSECONDS else told)


def _read(setting: _Setting, at: int) -> int:
    passed = (at - setting.at) / 1000 * (1 - DRIFT)
    return max(setting.floor, setting.told + int(passed))


def clock_of(store: Store) -> Clock:
    """The clock by which the engines of a store go."""
    return SharedClock(store) if store.is_shared else SystemClock()
