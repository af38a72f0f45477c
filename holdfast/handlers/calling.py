"""Calling: the body of `python`, which calls a function by its name.

Owns: which functions may be called: handlers that are registered here (`@hf.node(name="charge")`), and functions of
modules that the operator allows (`module:function`).
Rule: the call is a step of the body: its result is recorded, a sync function runs in a thread.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Annotated, Any

from msgspec import Meta

from holdfast.authoring import functions
from holdfast.handlers.registering import builtin, permissions_of
from holdfast.model import handlers
from holdfast.model.errors import UsageError
from holdfast.model.handlers import Handler
from holdfast.model.values import encode
from holdfast.worker.binding import Binder
from holdfast.worker.context import Context


@builtin("holdfast.python")
async def python(
    ctx: Context,
    function: Annotated[str, Meta(min_length=1, description="The name of a registered handler, or `module:function`.")],
    arguments: Annotated[dict[str, Any], Meta(description="By the names of its parameters.")] = {},  # noqa: B006
) -> Any:
    """Call a Python function; the output is what it returns."""
    handler = handlers.find(function) if ":" not in function else _function(ctx, function)
    if handler is None:
        known = ", ".join(name for name in handlers.names() if not name.startswith("holdfast.")) or "none"
        raise UsageError(
            f"python: there is no handler {function!r} here (registered: {known}); a function of a module is written "
            "module:function"
        )
    if handler.kind == "process" or handler.name.startswith("holdfast."):
        raise UsageError(f"python: {function!r} cannot be called; make it a node of its own: handler: {function}")
    data = {name: encode(value, what=f"argument {name}") for name, value in arguments.items()}
    args, kwargs = Binder(handler).bind(data, lambda ready: ready)
    return await ctx.step(handler.fn, *args, **kwargs)


def _function(ctx: Context, place: str) -> Handler:
    """A function of a module that the operator allows, as a handler."""
    module, _, name = place.partition(":")
    allowed = permissions_of(ctx).python_allow
    if not any(module == known or module.startswith(f"{known}.") for known in allowed):
        raise UsageError(
            f"python: the operator does not allow functions of {module!r} here; HOLDFAST_PYTHON_ALLOW names "
            f"{', '.join(allowed) or 'none'}"
        )
    if name.startswith("_") or not name.isidentifier():
        raise UsageError(f"python: {name!r} is not the name of a public function")
    found = getattr(importlib.import_module(module), name, None)
    if not inspect.isfunction(found) or found.__module__ != module:
        raise UsageError(f"python: {module} defines no function {name}")
    signature = functions.signature_of(found, {})
    return Handler(
        name=f"{module}.{name}",
        fn=found,
        kind="async" if inspect.iscoroutinefunction(found) else "sync",
        takes_ctx=signature.takes_ctx,
        params=signature.params,
        returns=signature.returns,
        fingerprint="",
        code=functions.location(found),
    )
