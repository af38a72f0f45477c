"""Builtin: how a handler of Holdfast's own is registered; names under `holdfast.` are reserved for these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.model import handlers
from holdfast.model.handlers import CodeLocation, Handler, Parameter


def register(name: str, fn: Callable[..., Any], *params: Parameter) -> None:
    """Make an async function with a ctx known as the handler `name`."""
    handler = Handler(
        name=name,
        fn=fn,
        kind="async",
        takes_ctx=True,
        params=params,
        returns=Any,
        fingerprint="builtin",
        code=CodeLocation(kind="module", module=fn.__module__, name=fn.__name__),
    )
    handlers.register(name, lambda: handler)
