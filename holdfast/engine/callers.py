"""Callers: what every coroutine that programs await does before anything else.

Owns: the check that it runs on the engine's event loop, and one turn of that loop.
Never: decides which thread reads or writes (readers.py, writers.py).
Invariant: a call from another loop raises UsageError and changes nothing, so that the caller may repeat it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.model.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


class OnLoop(Protocol):
    """An object whose coroutines belong to one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


S = TypeVar("S", bound=OnLoop)


def on_its_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Decorate a public coroutine of `Engine` or `Run`: check the loop, then yield to it once.

    The yield is needed because a read of a file returns without suspending: a caller that polls (`while await
    run.status() != "completed": pass`) would otherwise keep the loop from driving the run, and `asyncio.wait_for`
    would never fire.
    """

    @functools.wraps(method)
    async def on_loop(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_loop(self, method.__name__)
        await asyncio.sleep(0)
        return await method(self, *args, **kwargs)

    return on_loop


def check_loop(owner: OnLoop, method: str) -> None:
    """Raise UsageError unless the caller runs on the owner's event loop."""
    if asyncio.get_running_loop() is not owner.loop:
        name = type(owner).__name__.lower()
        raise UsageError(
            f"{name}.{method} was awaited on another event loop than its engine's; nothing was done. From another "
            f"thread: asyncio.run_coroutine_threadsafe({name}.{method}(...), {name}.loop).result()"
        )
