"""`hf.sleep` in a graph: a node that waits, durably."""

from __future__ import annotations

from holdfast.model.handlers import Parameter
from holdfast.worker.context import Context
from holdfast.worker.handlers.builtin import register


async def sleep(ctx: Context, seconds: float | str) -> None:
    await ctx.sleep(seconds)


register("holdfast.sleep", sleep, Parameter("seconds", float | str, True))
