"""Bare: a context for calling a node's function by itself, in a REPL or a unit test. Nothing is remembered.

from holdfast.testing import context
receipt = await charge.fn(context(run_id="test"), order)
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from typing import Any

from holdfast.model.activation import BodyContext
from holdfast.worker.racing import Won
from holdfast.worker.steps import StepRunner


class BareContext(BodyContext):
    """What a body may ask, answered without an engine: steps run, sleeps return at once, nothing is stored."""

    def __init__(self, run_id: str, vars: dict[str, Any], checkpointed: Any) -> None:
        self.run_id = run_id
        self.node, self.path, self.attempt, self.visit = "test", ".", 1, 1
        self.idempotency_key = f"key_{run_id}"
        self.cancelled = self.leaving = False
        self.vars = vars
        self.checkpointed = checkpointed
        self.log = logging.LoggerAdapter(logging.getLogger("holdfast.node"), {"run_id": run_id})
        self.slept: list[Any] = []
        """What the body asked to sleep for."""

    def keyed(self, key: str) -> BareContext:
        return self

    async def step(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        runner = StepRunner.of(fn)
        result = runner.fn(*((self, *args) if runner.takes_ctx else args), **kwargs)
        return await result if asyncio.iscoroutine(result) else result

    async def map(self, fn: Callable[..., Any], items: Iterable[Any], *, limit: int = 0, **kwargs: Any) -> list[Any]:
        return [await self.step(fn, item, **kwargs) for item in items]

    async def sleep(self, duration: Any) -> None:
        self.slept.append(duration)

    async def race(self, *calls: Coroutine[Any, Any, Any]) -> Won[Any]:
        """The first of the calls wins, the others are not made: time does not pass here."""
        first, *others = calls
        for other in others:
            other.close()
        return Won(0, await first)

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    async def random(self) -> float:
        return random.random()

    async def checkpoint(self, value: Any) -> None:
        self.checkpointed = value

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        pass

    def heartbeat(self) -> None:
        pass


def context(run_id: str = "test", *, vars: dict[str, Any] | None = None, checkpointed: Any = None) -> Any:
    """A context for calling the function of a node or of durable code directly."""
    return BareContext(run_id, vars if vars is not None else {}, checkpointed)
