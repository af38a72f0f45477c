"""Registering: makes a function a built-in handler.

Owns: the decorator `builtin`, and which handlers it has registered.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.authoring import functions
from holdfast.model import handlers
from holdfast.model.handlers import CodeLocation, Handler

F = TypeVar("F", bound=Callable[..., Any])

NAMES: list[str] = []
"""The built-in handlers, in the order of their registration."""


def builtin(name: str) -> Callable[[F], F]:
    """Register a function as the handler `name`: an async one runs on the event loop and takes a ctx; any other one is
    quick, and runs there as well."""

    def register(fn: F) -> F:
        @functools.cache
        def resolve() -> Handler:
            signature = functions.signature_of(fn, {})
            return Handler(
                name=name,
                fn=fn,
                kind="async" if inspect.iscoroutinefunction(fn) else "inline",
                takes_ctx=signature.takes_ctx,
                params=signature.params,
                returns=Any,
                fingerprint="builtin",
                code=CodeLocation(kind="module", module=fn.__module__, name=fn.__name__),
            )

        handlers.register(name, resolve)
        NAMES.append(name)
        return fn

    return register
