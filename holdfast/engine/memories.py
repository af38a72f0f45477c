"""Memories: what bodies that run again need, read for many of them at once.

Owns: which events remembered calls are in, and one read for all bodies that begin again in one turn of the loop: of
1,000 runs that wake together each would ask the store by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.model.errors import StoreError
from holdfast.model.lineage import is_in
from holdfast.model.state import RunState
from holdfast.store.api import EventRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
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
AGAIN_SECONDS = 1.0
READ_AT_ONCE = 250
"""Bodies whose memories are read together; in between everybody else has a turn of the loop."""

Journals = dict[int, list[EventRow]]
"""Events by run number."""
Remembered = list[tuple[str, bytes]]
"""Type and data of events, in their order."""


class _Asked(NamedTuple):
    state: RunState
    node: str
    path: str
    since: int
    args: Iterable[Any]
    answer: asyncio.Future[Remembered]


class Memories:
    """The journals of all runs of an engine, as bodies read them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: list[_Asked] = []

    def recall(
        self, state: RunState, node: str, path: str, since: int, args: Iterable[Any]
    ) -> asyncio.Future[Remembered]:
        """The events of an instance, from seq `since` on, that calls can be remembered from. What these arguments are
        made of is at hand afterwards."""
        if not self._asked:  # everybody else who asks in this turn is heard as well
            self._engine.spawn(self._answer_all())
        answer: asyncio.Future[Remembered] = self._engine.loop.create_future()
        self._asked.append(_Asked(state, node, path, since, args, answer))
        return answer

    async def _answer_all(self) -> None:
        while self._asked:
            asked, self._asked = self._asked[:READ_AT_ONCE], self._asked[READ_AT_ONCE:]
            await self._answer(asked)
            await asyncio.sleep(0)

    async def _answer(self, asked: list[_Asked]) -> None:
        first: dict[int, int] = {}
        for state, _, _, since, _, _ in asked:
            first[state.run_no] = min(since, first.get(state.run_no, since))
        values = [(one.state.run_no, located) for one in asked for located in one.args]
        try:
            found = await self._read_insistently(first, values)
        except Exception as e:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(e)
            return
        for one in asked:
            if not one.answer.done():
                one.answer.set_result(_remembered(one, found[one.state.run_no]))

    async def _read_insistently(self, first: dict[int, int], values: list[tuple[int, Any]]) -> Journals:
        """A database that cannot be read is no fault of a body."""
        while True:
            try:
                return await self._engine.read(self._read, first, values)
            except StoreError as e:
                if self._engine.stopping or self._engine.fatal is not None:
                    raise
                log.error("bodies wait for what they remember, trying again every %g s: %s", AGAIN_SECONDS, e)
                await asyncio.sleep(AGAIN_SECONDS)

    def _read(self, first: dict[int, int], values: list[tuple[int, Any]]) -> Journals:
        self._engine.values.bring(values)
        return self._engine.store.events_of([(run_no, since - 1) for run_no, since in first.items()], MEMORY_EVENTS)


def _remembered(one: _Asked, events: list[EventRow]) -> Remembered:
    """Of a run's events those that are about one body, in its line of history."""
    state, node, path, since, _, _ = one
    ancestors, branch = state.fold.ancestors, state.branch
    return [
        (row.type, row.data)
        for row in events
        if row.node == node and row.path == path and row.seq >= since and is_in(ancestors, branch, row.branch, row.seq)
    ]
