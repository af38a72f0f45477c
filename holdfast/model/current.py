"""Current: whether a body runs here, and what its code may know about itself where it has no ctx.

Owns: the context variables that the worker sets around a body or step, `Current` and `hf.current()`; the marker class
by which `ctx` is found in a signature; and the bare context with which a node's function is called outside any body.
A thread that the worker starts has the context of its body or step; a `process=True` body gets it through its pipe.
Never: knows how a key is derived or what a context can do (worker).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from holdfast.model.errors import UsageError

current_body: ContextVar[str | None] = ContextVar("holdfast_current_body", default=None)
"""The name of the handler whose body runs in this task or thread; the worker sets it around every body."""


class BodyContext:
    """What a body gets as its first parameter. The worker's `Context` is the only one that does anything."""


class Current(BodyContext):
    """A body or step that runs. As the annotation of a function's first parameter it makes the function receive one:
    `def charge(me: hf.Current, order: Order)`."""

    __slots__ = ("_beat", "_derive_key", "_is_cancelled", "attempt", "node", "path", "run_id", "visit")

    def __init__(
        self,
        run_id: str,
        node: str,
        path: str,
        visit: int,
        attempt: int,
        derive_key: Callable[[], str],
        is_cancelled: Callable[[], bool] = lambda: False,
        beat: Callable[[], object] | None = None,
    ) -> None:
        self.run_id = run_id
        self.node = node
        self.path = path
        self.visit = visit
        """Which pass through this node this is, from 1."""
        self.attempt = attempt
        """Which start of this node this is, from 1; in a step of a node, which try of that step."""
        self._derive_key = derive_key
        self._is_cancelled = is_cancelled
        self._beat = beat

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this node (or step), and for no other: `ctx.idempotency_key`."""
        return self._derive_key()

    @property
    def cancelled(self) -> bool:
        """Whether the body or step was asked to stop. A long sync function checks it now and then. Always False in
        a `process=True` body, which is killed instead."""
        return self._is_cancelled()

    def heartbeat(self) -> None:
        """Say that the body or step is alive: `ctx.heartbeat()`. Raises UsageError in a `process=True` body."""
        if self._beat is None:
            raise UsageError(f"{self.node} runs in a process of its own, from which no heartbeat reaches the engine")
        self._beat()

    def __repr__(self) -> str:
        return f"<current {self.node} of run {self.run_id}, attempt {self.attempt}>"


here: ContextVar[Callable[[], Current] | None] = ContextVar("holdfast_current", default=None)
"""Makes the `Current` of the body or step that runs in this task or thread; the worker sets it."""


def current() -> Current:
    """The body or step that calls this: its run, attempt and idempotency key, also in a sync step and in a
    `process=True` body, which have no ctx. Raises UsageError anywhere else."""
    make = here.get()
    if make is None:
        raise UsageError(
            "hf.current() was called outside a body or step. A thread that a body starts itself does not know whose it "
            "is: read hf.current().idempotency_key before, and pass it on"
        )
    return make()


def receiving(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its first parameter, `hf.Current`, filled in."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(current(), *args, **kwargs)

    return call


_bare_contexts: list[Callable[[], BodyContext]] = []


def set_bare_context(make: Callable[[], BodyContext]) -> None:
    """Say how a context is made for a node's function that is called directly; the public API does so when loaded."""
    _bare_contexts[:] = [make]


def bare_context(name: str) -> Any:
    """A context for calling the function `name` directly, outside tracing and outside any body."""
    if not _bare_contexts:
        raise UsageError(f"{name} takes a ctx: call {name}.fn(ctx, ...) with a context of your own")
    return _bare_contexts[0]()
