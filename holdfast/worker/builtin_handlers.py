"""Built-in handlers: the bodies of `hf.ask`, `hf.receive`, `hf.sleep` and of workflows that are called inside a graph.

Owns: their registration, which importing this module does; names under `holdfast.` are reserved for these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.model import handlers
from holdfast.model.handlers import CodeLocation, Handler, Parameter
from holdfast.model.texts import NOTHING, Escalate
from holdfast.worker.context import Context

NAMES: list[str] = []
"""The handlers that this module has registered."""


def _register(name: str, fn: Callable[..., Any], *params: Parameter) -> None:
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
    NAMES.append(name)


async def ask(
    ctx: Context,
    question: str,
    options: dict[str, Any],
    about: Any = None,
    assignee: str | None = None,
    basket: str | None = None,
    deadline: float | str | None = None,
    default: Any = NOTHING,
) -> Any:
    escalate = [Escalate(step.pop("after"), **step) for step in options.get("escalate", ())]
    return await ctx.ask(
        question,
        schema=options.get("schema"),
        about=about,
        assignee=assignee,
        basket=basket,
        deadline=deadline,
        default=default,
        remind=options.get("remind"),
        escalate=escalate,
    )


_register(
    "holdfast.ask",
    ask,
    Parameter("question", str, True),
    Parameter("options", dict[str, Any], True),
    Parameter("about", Any, False),
    Parameter("assignee", str | None, False),
    Parameter("basket", str | None, False),
    Parameter("deadline", float | str | None, False),
    Parameter("default", Any, False),
)


async def receive(
    ctx: Context, name: str, schema: Any = None, deadline: float | str | None = None, default: Any = NOTHING
) -> Any:
    return await ctx.receive(name, schema=schema, deadline=deadline, default=default)


_register(
    "holdfast.receive",
    receive,
    Parameter("name", str, True),
    Parameter("schema", Any, False),
    Parameter("deadline", float | str | None, False),
    Parameter("default", Any, False),
)


async def sleep(ctx: Context, seconds: float | str) -> None:
    await ctx.sleep(seconds)


_register("holdfast.sleep", sleep, Parameter("seconds", float | str, True))


async def child(
    ctx: Context, workflow: str, inputs: dict[str, Any], run_id: str | None = None, detached: bool = False
) -> Any:
    return await ctx.child(workflow, run_id=run_id, detached=detached, **inputs)


_register(
    "holdfast.child",
    child,
    Parameter("workflow", str, True),
    Parameter("inputs", dict[str, Any], True),
    Parameter("run_id", str | None, False),
    Parameter("detached", bool, False),
)
