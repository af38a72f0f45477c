"""Registering: makes a function a built-in handler.

Owns: the decorator `builtin`, which handlers it has registered, and what their bodies know of rights and secrets.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.authoring import functions
from holdfast.model import handlers
from holdfast.model.handlers import CodeLocation, Handler
from holdfast.model.limits import SECRET_LENGTH_MIN
from holdfast.worker.context import Context
from holdfast.worker.permissions import Permissions

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

NAMES: list[str] = []
"""The built-in handlers, in the order of their registration."""


def permissions_of(ctx: Context) -> Permissions:
    """What the operator lets this body reach."""
    return ctx._activation.permissions


def secrets_of(ctx: Context) -> frozenset[str]:
    """The names of the secrets in this body's arguments."""
    return frozenset(ctx._activation.attempt.definition.secrets.values())


def hide(ctx: Context, made_of_secret: str) -> None:
    """Hide a text that was made of a secret of this body, such as an encoded header."""
    if (hidden := ctx._activation.hidden) is not None and len(made_of_secret) >= SECRET_LENGTH_MIN:
        hidden.add(", ".join(sorted(secrets_of(ctx))), made_of_secret)


def without_secrets(ctx: Context, value: T) -> T:
    """Plain JSON that came from outside, without the values of this body's secrets: a server may echo them."""
    hidden = ctx._activation.hidden
    return value if hidden is None else hidden.value(value)


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
