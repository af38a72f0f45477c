"""Memories: what bodies that run again need, read for many of them at once.

Owns: which events remembered calls are in, and one read for all bodies that begin again in one turn of the loop: of
1,000 runs that wake together each would ask the store by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.engine.batching import Batch
from holdfast.engine.values import Values
from holdfast.store.api import EventRow, Store

MEMORY_EVENTS = (
    "StepCompleted",
    "StepFailed",
    "StepStarted",
    "WaitOpened",
    "WaitClosed",
    "NodeCheckpointed",
    "NodeFailed",
)
"""What remembered calls are read from."""


class _Asked(NamedTuple):
    run_no: int
    since: int
    args: Iterable[Any]


class Memories:
    """The journals of all runs of an engine, as bodies read them."""

    def __init__(self, store: Store, values: Values, spawn: Callable[..., asyncio.Task[Any]]) -> None:
        self._store = store
        self._values = values
        self._reading: Batch[_Asked, list[EventRow]] = Batch(self._read, spawn)

    async def recall(self, run_no: int, since: int, args: Iterable[Any]) -> list[EventRow]:
        """The events of a run, from seq `since` on, that calls can be remembered from. What these arguments are made of
        is at hand afterwards."""
        return [row for row in await self._reading.put(_Asked(run_no, since, args)) if row.seq >= since]

    async def _read(self, asked: list[_Asked]) -> list[list[EventRow]]:
        await asyncio.sleep(0)  # the first one asks alone; everybody else of this turn comes next, together
        first: dict[int, int] = {}
        for run_no, since, _ in asked:
            first[run_no] = min(since, first.get(run_no, since))
        self._values.bring((run_no, located) for run_no, _, args in asked for located in args)
        found = self._store.events_of([(run_no, since - 1) for run_no, since in first.items()], MEMORY_EVENTS)
        return [found[run_no] for run_no, _, _ in asked]
