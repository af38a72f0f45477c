"""Memories: what bodies that run again need, read for many of them at once.

Owns: which events remembered calls are in, and one read for all bodies that begin again in one turn of the loop: of
1,000 runs that wake together each would ask the store by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.engine.values import Values
from holdfast.model.lineage import is_in
from holdfast.model.state import RunState
from holdfast.store.api import Store

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
READ_AT_ONCE = 250
"""Bodies whose memories are read together; in between everybody else has a turn of the loop."""

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

    def __init__(self, store: Store, values: Values) -> None:
        self._store = store
        self._values = values
        self._asked: list[_Asked] = []

    def recall(
        self, state: RunState, node: str, path: str, since: int, args: Iterable[Any]
    ) -> asyncio.Future[Remembered]:
        """The events of an instance, from seq `since` on, that calls can be remembered from. What these arguments are
        made of is at hand afterwards."""
        loop = asyncio.get_running_loop()
        if not self._asked:  # everybody else who asks in this turn is heard as well
            loop.call_soon(self._read, loop)
        answer: asyncio.Future[Remembered] = loop.create_future()
        self._asked.append(_Asked(state, node, path, since, args, answer))
        return answer

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        asked, self._asked = self._asked[:READ_AT_ONCE], self._asked[READ_AT_ONCE:]
        if self._asked:
            loop.call_soon(self._read, loop)
        try:
            answers = self._remembered(asked)
        except Exception as e:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(e)
            return
        for one, answer in zip(asked, answers, strict=True):
            if not one.answer.done():
                one.answer.set_result(answer)

    def _remembered(self, asked: list[_Asked]) -> list[Remembered]:
        first: dict[int, int] = {}
        for state, _, _, since, _, _ in asked:
            first[state.run_no] = min(since, first.get(state.run_no, since))
        self._values.bring((one.state.run_no, located) for one in asked for located in one.args)
        found = self._store.events_of([(run_no, since - 1) for run_no, since in first.items()], MEMORY_EVENTS)
        answers: list[Remembered] = []
        for state, node, path, since, _, _ in asked:
            ancestors, branch = state.fold.ancestors, state.branch
            answers.append(
                [
                    (row.type, row.data)
                    for row in found[state.run_no]
                    if row.node == node
                    and row.path == path
                    and row.seq >= since
                    and is_in(ancestors, branch, row.branch, row.seq)
                ]
            )
        return answers
