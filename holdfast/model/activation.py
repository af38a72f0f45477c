"""Activation: whether a node's body is running here, and the mark of what bodies are given.

Owns: the context variable that the worker sets around a body, the marker class by which `ctx` is found in a signature,
and the bare context for calling a node's function in a REPL or a unit test.
Never: knows what a context can do (see worker/context.py).
"""

from __future__ import annotations

import importlib
from contextvars import ContextVar
from typing import Any

from holdfast.model.errors import UsageError

current_body: ContextVar[str | None] = ContextVar("holdfast_current_body", default=None)
"""The name of the handler whose body runs in this task or thread; the worker sets it around every body."""


class BodyContext:
    """What a body gets as its first parameter. The worker's `Context` is the only one that does anything."""


def bare_context(name: str) -> Any:
    """A context for calling the function `name` directly, outside tracing and outside any body."""
    try:
        # By name, when it is needed: nothing below `testing` may depend on it.
        factory = importlib.import_module("holdfast.testing").context
    except (ImportError, AttributeError):
        raise UsageError(f"{name} takes a ctx: call {name}.fn(ctx, ...) with a context of your own") from None
    return factory()
