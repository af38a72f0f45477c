"""A workflow called inside a graph: a node that starts a child run and has its result."""

from __future__ import annotations

from typing import Any

from holdfast.model.handlers import Parameter
from holdfast.worker.context import Context
from holdfast.worker.handlers.builtin import register


async def child(
    ctx: Context, workflow: str, inputs: dict[str, Any], run_id: str | None = None, detached: bool = False
) -> Any:
    return await ctx.child(workflow, run_id=run_id, detached=detached, **inputs)


register(
    "holdfast.child",
    child,
    Parameter("workflow", str, True),
    Parameter("inputs", dict[str, Any], True),
    Parameter("run_id", str | None, False),
    Parameter("detached", bool, False),
)
