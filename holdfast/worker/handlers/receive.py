"""`hf.receive` in a graph: a node that waits for a signal and has its payload as its output."""

from __future__ import annotations

from typing import Any

from holdfast.model.handlers import Parameter
from holdfast.model.texts import NOTHING
from holdfast.worker.context import Context
from holdfast.worker.handlers.builtin import register


async def receive(
    ctx: Context, name: str, schema: Any = None, deadline: float | str | None = None, default: Any = NOTHING
) -> Any:
    return await ctx.receive(name, schema=schema, deadline=deadline, default=default)


register(
    "holdfast.receive",
    receive,
    Parameter("name", str, True),
    Parameter("schema", Any, False),
    Parameter("deadline", float | str | None, False),
    Parameter("default", Any, False),
)
