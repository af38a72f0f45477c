"""Rehearsing: replay a body as far as its calls are recorded, without acting.

Owns: which of its calls are answered by a record, at which ones that ends, and which records no call has used.
Never: runs a step, commits anything, or goes beyond the first call that is new or still open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from holdfast.engine.ports import Attempt
from holdfast.model.errors import Suspended
from holdfast.model.limits import REHEARSAL_SECONDS
from holdfast.model.secret_names import put_in
from holdfast.worker.activation import Activation
from holdfast.worker.binding import Binder
from holdfast.worker.body_life import LeaveReason
from holdfast.worker.context import Context
from holdfast.worker.recorded_calls import Call, Recorded
from holdfast.worker.replay import Replay
from holdfast.worker.secret_values import MASK
from holdfast.worker.sync_context import SyncContext


class _Rehearsed(Activation):
    """A body that is replayed, and unwound at the first call that is not recorded."""

    def __init__(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(attempt, lambda activation, left: None, loop)
        self.reused: list[str] = []
        self.new: list[str] = []

    def recall(self, call: Call) -> Recorded | None:
        self.check()
        self.joined()
        recorded = self.replay.recall(call)
        if call.kind == "race":  # the records of its calls say which has won
            return recorded
        if recorded is None or not recorded.is_over:
            self.new.append(_shown(call))
            self.leave(LeaveReason.EVICT)
            raise Suspended
        self.reused.append(_shown(call))
        return recorded

    async def commit(self, command: Any, if_given_up: Any = None) -> Any:
        self.leave(LeaveReason.EVICT)
        raise Suspended


async def rehearse(attempt: Attempt, rows: Sequence[tuple[str, bytes]]) -> tuple[list[str], list[str], list[str]]:
    """The calls of a body that are recorded, those at which replay ended, and the records that were not used."""
    loop = asyncio.get_running_loop()
    activation = _Rehearsed(attempt, loop)
    activation.replay = Replay.read(rows)
    activation.replay.accept_change()
    handler, port = attempt.handler, attempt.port
    data = {name: await port.load_slowly(located) for name, located in attempt.args.items()}
    places = attempt.definition.secrets
    data = put_in(data, places, dict.fromkeys(places.values(), MASK))
    args, kwargs = Binder(handler).bind(data, lambda ready: ready)

    async def body() -> None:
        if handler.kind == "async":
            activation.begin_scope()
            await handler.fn(Context(activation), *args, **kwargs)
        else:
            await asyncio.to_thread(handler.fn, SyncContext(activation), *args, **kwargs)

    activation.task = task = loop.create_task(_quietly(body()))
    _, pending = await asyncio.wait([task], timeout=REHEARSAL_SECONDS)
    activation.leave(LeaveReason.EVICT)
    for left in (*pending, *activation.tasks):
        left.cancel()
    return activation.reused, activation.new, [_shown(recorded) for recorded in activation.replay.unread()]


async def _quietly(body: Coroutine[Any, Any, None]) -> None:
    """Run the body to wherever replay ends; how it ends does not matter."""
    with contextlib.suppress(BaseException):
        await body


def _shown(call: Call | Recorded) -> str:
    return f"{call.kind} {call.name}" + (f" (key {call.key})" if call.key else "")
