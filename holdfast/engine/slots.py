"""Slots: how many bodies may run at once, and who comes next.

Owns: the places per handler (its `concurrency`), for sync bodies (threads) and for processes, per engine.
Never: starts a body; it says yes, or remembers who asked and calls back.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from holdfast.model.handlers import Handler

Place = tuple[str, ...]
"""The pools in which a body holds one place each; empty when nothing limits it."""


class Slots:
    """Counting places. A body needs one in each pool that limits it."""

    def __init__(self, threads: int, processes: int) -> None:
        self._limits: dict[str, int] = {"threads": threads, "processes": processes}
        self._used: dict[str, int] = {}
        self._waiting: list[tuple[int, int, tuple[str, ...], Callable[[], bool]]] = []
        self._order = itertools.count()

    def place_for(self, handler: Handler, concurrency: int | None) -> Place:
        """The pools that a body of this handler needs a place in."""
        pools: list[str] = []
        if handler.kind == "sync":
            pools.append("threads")
        elif handler.kind == "process":
            pools.append("processes")
        if concurrency is not None:
            pools.append(f"handler:{handler.name}")
            self._limits[pools[-1]] = concurrency
        return tuple(pools)

    def take(self, place: Place) -> bool:
        """A place in every pool, or none at all."""
        if any(self._used.get(pool, 0) >= self._limits[pool] for pool in place):
            return False
        for pool in place:
            self._used[pool] = self._used.get(pool, 0) + 1
        return True

    def wait(self, place: Place, priority: int, wake: Callable[[], bool]) -> None:
        """Call `wake` when there is a place, which it takes or not; higher priority first, then in order of asking."""
        heapq.heappush(self._waiting, (-priority, next(self._order), place, wake))

    def free(self, place: Place) -> None:
        """Give the places back and wake whoever fits now."""
        for pool in place:
            self._used[pool] -= 1
        kept: list[Any] = []
        taken = 0
        while self._waiting:
            entry = heapq.heappop(self._waiting)
            if any(self._used.get(p, 0) >= self._limits[p] for p in entry[2]):
                kept.append(entry)
            else:
                taken += entry[3]()  # who does not want its place any more leaves it to the next
            if taken >= len(place) and len(kept) > 16:
                break  # one body left: at most one per pool can follow, and the rest of the line need not be looked at
        for entry in kept:
            heapq.heappush(self._waiting, entry)

    def used(self) -> dict[str, int]:
        return {pool: n for pool, n in self._used.items() if n}
