"""Replay reader: the events that bodies replay when they run again, read for many bodies at once.

Owns: which events recorded calls are in, and one read for all bodies that run again in one turn of the loop. Without
it, each of 1,000 runs that wake together would query the store.
Never: matches a call with its record (worker/memory.py).
On crash: nothing to undo; it only reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.engine.event_loop import Batch
from holdfast.engine.runtime import Runtime
from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal, StoreDamaged, StoreError
from holdfast.model.lineage import is_in
from holdfast.model.state import RunState
from holdfast.store.records.journal import check_link, readable
from holdfast.store.row_types import LinkedRow

log = logging.getLogger("holdfast.engine")
MEMORY_EVENTS = (
    "StepCompleted",
    "StepFailed",
    "StepStarted",
    "WaitOpened",
    "WaitClosed",
    "NodeCheckpointed",
    "NodeFailed",
    "CodeChanged",
)
"""The events that hold recorded calls."""
OTHER_EVENTS = tuple(name for name in ev.TYPES if name not in MEMORY_EVENTS)
"""All others. An event of an unknown type is read as well: to skip it could lose a recorded call."""
AGAIN_SECONDS = 1.0
"""How soon a read is retried while the database cannot be read."""
READ_AT_ONCE = 250
"""Bodies whose events are read together; other work has a turn of the loop in between."""

Journals = dict[int, list[LinkedRow]]
"""Events by run number."""
Remembered = list[tuple[str, bytes]]
"""Type and data of events, in their order."""


class _Asked(NamedTuple):
    state: RunState
    node: str
    path: str
    since: int
    args: Iterable[Any]


class ReplayReader:
    """Reads the journals of this engine's runs for their bodies."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._values = runtime.values
        self._batch: Batch[_Asked, Remembered] = Batch(
            self._answer, runtime.spawn, at_once=False, limit=lambda: READ_AT_ONCE
        )

    async def recall(self, state: RunState, node: str, path: str, since: int, args: Iterable[Any]) -> Remembered:
        """The events of an instance, from seq `since` on, that hold recorded calls. The values that `args` are made of
        are in the cache afterwards."""
        return await self._batch.put(_Asked(state, node, path, since, args))

    async def _answer(self, asked: list[_Asked]) -> list[Remembered | Exception]:
        first: dict[int, int] = {}
        for state, _, _, since, _ in asked:
            first[state.run_no] = min(since, first.get(state.run_no, since))
        values = [(one.state.run_no, located) for one in asked for located in one.args]
        try:
            found = await self._read_until_it_works(first, values)
        except StoreDamaged:
            if len(asked) == 1:
                raise
            return [await self._answer_alone(one) for one in asked]  # other runs of the group may be readable
        return [_remembered(one, found[one.state.run_no]) for one in asked]

    async def _answer_alone(self, one: _Asked) -> Remembered | Exception:
        try:
            return (await self._answer([one]))[0]
        except StoreDamaged as e:
            return e

    async def _read_until_it_works(self, first: dict[int, int], values: list[tuple[int, Any]]) -> Journals:
        """Read, and retry while the database cannot be read: no body fails for that."""
        while True:
            try:
                return await self._runtime.read(self._read, first, values)
            except StoreDamaged:
                raise
            except StoreError as e:
                if self._runtime.stopping or self._runtime.fatal is not None:
                    raise
                log.error("cannot read the journal to replay bodies; retrying every %g s: %s", AGAIN_SECONDS, e)
                await asyncio.sleep(AGAIN_SECONDS)

    def _read(self, first: dict[int, int], values: list[tuple[int, Any]]) -> Journals:
        self._values.prefetch(values)
        return self._store.events_of([(run_no, since - 1) for run_no, since in first.items()], OTHER_EVENTS)


def _remembered(one: _Asked, events: list[LinkedRow]) -> Remembered | CorruptJournal:
    """Select from a run's events those of one body, in its lineage; or return CorruptJournal when one of
    them is damaged, NewerFormat when any event of the run is of an unknown type."""
    try:
        return _of_body(one, events)
    except CorruptJournal as e:
        return e


def _of_body(one: _Asked, events: list[LinkedRow]) -> Remembered:
    state, node, path, since, _ = one
    ancestors, branch = state.fold.ancestors, state.branch
    found: Remembered = []
    for row in events:
        if row.type not in ev.TYPES:
            readable(state.run_id, row.seq, row.type, row.data)
        if row.node == node and row.path == path and row.seq >= since and is_in(ancestors, branch, row.branch, row.seq):
            check_link(row)
            found.append((row.type, row.data))
    return found
