"""Sync context: `ctx` of bodies in threads.

Owns: the calls of context.py, made on the event loop while the thread of the body waits.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

from holdfast.model.errors import (
    UsageError,
)
from holdfast.model.limits import MAP_LIMIT_DEFAULT
from holdfast.model.texts import NOTHING
from holdfast.worker.activation import Activation
from holdfast.worker.asking import Asking, Deadline
from holdfast.worker.context import Context, Duration
from holdfast.worker.plain_context import PlainContext

R = TypeVar("R")
T = TypeVar("T")


class SyncContext(PlainContext):
    """The first parameter of a sync body. The same calls as `Context`, but they block the body's thread; where the
    answer may take long (ctx.ask, ctx.receive, ctx.sleep, ctx.child), the body is left, its thread is given back, and
    it runs again from its start when the answer is there."""

    def __init__(self, activation: Activation) -> None:
        super().__init__(activation)
        self._async = Context(activation)

    def step(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._block(functools.partial(self._async.step, fn, *args, **kwargs))

    def map(
        self, fn: Callable[..., Any], items: Iterable[Any], *, limit: int = MAP_LIMIT_DEFAULT, **kwargs: Any
    ) -> list[Any]:
        return self._block(functools.partial(self._async.map, fn, items, limit=limit, **kwargs))

    def sleep(self, duration: Duration | datetime) -> None:
        self._block(functools.partial(self._async.sleep, duration))

    @overload
    def ask(self, question: str, *, schema: type[T], about: Any = None, **options: Unpack[Asking]) -> T: ...
    @overload
    def ask(self, question: str, *, schema: Any = None, about: Any = None, **options: Unpack[Asking]) -> Any: ...
    def ask(self, question: str, *, schema: Any = None, about: Any = None, **options: Unpack[Asking]) -> Any:
        return self._block(functools.partial(self._async.ask, question, schema=schema, about=about, **options))

    @overload
    def receive(self, name: str, *, schema: type[T], deadline: Deadline | None = None, default: Any = NOTHING) -> T: ...
    @overload
    def receive(
        self, name: str, *, schema: Any = None, deadline: Deadline | None = None, default: Any = NOTHING
    ) -> Any: ...
    def receive(
        self, name: str, *, schema: Any = None, deadline: Deadline | None = None, default: Any = NOTHING
    ) -> Any:
        return self._block(
            functools.partial(self._async.receive, name, schema=schema, deadline=deadline, default=default)
        )

    def signal(self, run: str, name: str, payload: Any = None, *, id: str | None = None) -> None:
        self._block(functools.partial(self._async.signal, run, name, payload, id=id))

    def child(self, workflow: Any, /, *, run_id: str | None = None, detached: bool = False, **inputs: Any) -> Any:
        return self._block(functools.partial(self._async.child, workflow, run_id=run_id, detached=detached, **inputs))

    def now(self) -> datetime:
        return self._block(self._async.now)

    def uuid(self) -> uuid.UUID:
        return self._block(self._async.uuid)

    def random(self) -> float:
        return self._block(self._async.random)

    def checkpoint(self, value: Any) -> None:
        self._block(functools.partial(self._async.checkpoint, value))

    def patched(self, name: str) -> bool:
        async def on_loop() -> bool:
            return self._async.patched(name)

        return self._block(on_loop)

    def keyed(self, key: str) -> SyncContext:
        copy = type(self)(self._activation)
        copy._async = self._async.keyed(key)
        return copy

    if not TYPE_CHECKING:  # a type checker knows by itself what there is

        def __getattr__(self, name: str) -> NoReturn:
            if name == "race":
                raise UsageError("ctx.race makes several calls at once, which a sync body cannot: make it `async def`")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _block(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make the call on the loop and wait for it in this thread."""
        return self._activation.run_for_thread(call)
