"""Bare context: a context for calling a node's function by itself, in a REPL or a unit test. Nothing is recorded.

from holdfast.testing import context
receipt = await charge.fn(context(run_id="test"), order)
ok = await approve.fn(context(answers={"Ship it?": True}), order)
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.model import answers as answers_model
from holdfast.model.current import BodyContext, Current, here
from holdfast.model.errors import InvalidInput, UsageError
from holdfast.model.texts import NOTHING
from holdfast.model.values import decoder, encode
from holdfast.worker.plain_context import NodeLog
from holdfast.worker.racing import Won
from holdfast.worker.steps import StepRunner

Signals = Sequence[tuple[str, Any]]


class BareContext(BodyContext):
    """What a body may ask, answered without an engine: steps run, sleeps return at once, people and signals are given
    beforehand, nothing is stored."""

    def __init__(
        self, run_id: str, vars: dict[str, Any], checkpointed: Any, answers: Mapping[str, Any], signals: Signals
    ) -> None:
        self.run_id = run_id
        self.node, self.path, self.attempt, self.visit = "test", ".", 1, 1
        self.idempotency_key = f"key_{run_id}"
        self.cancelled = self.leaving = False
        self.vars = vars
        self.checkpointed = checkpointed
        self.log = NodeLog(logging.getLogger("holdfast.node"), {"run_id": run_id})
        self._answers = answers
        self._signals = list(signals)
        self.slept: list[Any] = []
        """What the body asked to sleep for."""
        self.signalled: list[tuple[str, str, Any]] = []
        """(run, name, payload) of the signals that the body sent."""

    def keyed(self, key: str) -> BareContext:
        return self

    def patched(self, name: str) -> bool:
        """A body that runs for the first time goes the new way."""
        return True

    async def step(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        runner = StepRunner.of(fn)
        token = here.set(self.current)
        try:
            result = runner.fn(*((self, *args) if runner.takes_ctx else args), **kwargs)
            return await result if asyncio.iscoroutine(result) else result
        finally:
            here.reset(token)

    def current(self) -> Current:
        """What `hf.current()` is in the steps of this body."""
        return Current(
            self.run_id, self.node, self.path, self.visit, self.attempt, lambda: self.idempotency_key, beat=lambda: None
        )

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

    async def ask(self, question: str, *, schema: Any = None, default: Any = NOTHING, **options: Any) -> Any:
        if question not in self._answers and default is NOTHING:
            raise UsageError(f"the question {question!r} has no answer: context(answers={{{question!r}: ...}})")
        return _as(schema, self._answers.get(question, default), f"the answer to {question!r}")

    async def receive(self, name: str, *, schema: Any = None, default: Any = NOTHING, **options: Any) -> Any:
        for index, (given, payload) in enumerate(self._signals):
            if given == name:
                del self._signals[index]
                return _as(schema, payload, f"the signal {name!r}")
        if default is NOTHING:
            raise UsageError(f"the signal {name!r} was not given: context(signals=[({name!r}, ...)])")
        return _as(schema, default, f"the signal {name!r}")

    async def signal(self, run: str, name: str, payload: Any = None, *, id: str | None = None) -> None:
        self.signalled.append((run, name, payload))

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

    def emit(self, topic: str, value: Any) -> None:
        pass

    def heartbeat(self) -> None:
        pass


def _as(schema: Any, value: Any, what: str) -> Any:
    """A value as a body gets it: checked, and of the type that it asked for."""
    annotation = Any if schema is None or isinstance(schema, dict) else schema
    data = encode(value, what=what)
    wrong = answers_model.problems(None if schema is None else answers_model.schema_of(schema), data)
    if wrong:
        raise InvalidInput(f"{what}: {'; '.join(wrong)}")
    return decoder(annotation)(data)


def context(
    run_id: str = "test",
    *,
    vars: dict[str, Any] | None = None,
    checkpointed: Any = None,
    answers: Mapping[str, Any] | None = None,
    signals: Signals = (),
) -> Any:
    """A context for calling the function of a node or of durable code directly. `answers` are what people say, by
    question; `signals` what comes, as (name, payload)."""
    return BareContext(run_id, vars if vars is not None else {}, checkpointed, answers or {}, signals)
