"""Workflows of the benchmark: bodies that do nothing, so that what is measured is the engine.

Owns: the workflows, and the marks that bodies leave for the process that measures.
Invariants: module level and importable by name, so that a child process and a recovery find the same code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime

import holdfast as hf
from holdfast.cli.workloads import step

PAD = "x" * 1024

marks: list[float] = []
"""When each body began or ended (restart, waiting), or the CPU used so far (W7)."""

side_log = -1
"""File descriptor to which W5's bodies write that they ran."""
kill_at = 0
"""W5: the body that kills its own process; 0 for none."""
bodies_run = 0
stay_from: int | None = None
"""Restart: bodies from this one on do not end; None: all of them do."""
is_busy = True
"""Waiting: whether a run goes on doing steps."""
ITEMS_LEFT = 50
"""Restart: items of the long run that are under way when it is interrupted."""
EVENTS_OF_AN_ITEM = 3


@hf.node
async def wide_step(text: str) -> str:
    return text


@hf.node
async def logged_step(x: int) -> int:
    """Says that it ran where a crash cannot take it back, then may kill the process."""
    global bodies_run
    os.write(side_log, b"%d\n" % x)
    bodies_run += 1
    if bodies_run == kill_at:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return x + 1


@hf.node
async def counted_step(x: int) -> int:
    """Knows how many of its kind ran in this process."""
    global bodies_run
    bodies_run += 1
    return x + 1


@hf.node
async def staying(x: int) -> int:
    """Marks when it began, and may stay until the process is killed."""
    marks.append(time.monotonic())
    if stay_from is not None and len(marks) > stay_from:
        await asyncio.Event().wait()
    return x


@hf.node(inline=True)
def double(x: int) -> int:
    return 2 * x


@hf.node
async def add(numbers: list[int]) -> int:
    return sum(numbers)


@hf.workflow(name="bench-chain5")
def chain5(x: int = 0) -> int:
    for _ in range(5):
        x = step(x)
    return x


@hf.workflow(name="bench-wide10")
def wide10(text: str) -> str:
    for _ in range(10):
        text = wide_step(text)
    return text


@hf.workflow(name="bench-logged10")
def logged10(x: int) -> int:
    for _ in range(10):
        x = logged_step(x)
    return x


@hf.workflow(name="bench-counted10")
def counted10(x: int) -> int:
    for _ in range(10):
        x = counted_step(x)
    return x


@hf.workflow(name="bench-long_code")
async def long_code(ctx: hf.Context, steps: int) -> int:
    """`ctx.step` after `ctx.step`; marks the CPU that the process has used."""
    x = 0
    marks.append(time.process_time())
    for _ in range(steps):
        x = await ctx.step(step, x)
        marks.append(time.process_time())
    return x


@hf.workflow(name="bench-doubled")
def doubled(items: list[int]) -> int:
    return add(hf.map(double, items))


@hf.workflow(name="bench-interrupted")
def interrupted(x: int) -> int:
    return staying(x)


@hf.workflow(name="bench-waiting")
async def waiting(ctx: hf.Context) -> None:
    await ctx.sleep("30d")


@hf.workflow(name="bench-signalled")
async def signalled(ctx: hf.Context) -> int:
    """W6: a step when a signal has come."""
    x: int = await ctx.receive("go")
    return await ctx.step(step, x)


@hf.workflow(name="bench-asked")
async def asked(ctx: hf.Context) -> bool:
    return await ctx.ask("May this go on?", schema=bool, about={"amount": 5}, basket="bench", deadline="30d")


@hf.workflow(name="bench-asleep")
async def asleep(ctx: hf.Context, until: str) -> None:
    await ctx.sleep(datetime.fromisoformat(until))


@hf.workflow(name="bench-busy")
async def busy(ctx: hf.Context) -> None:
    """Step after step while it is wanted; marks when each one has ended."""
    x = 0
    while is_busy:
        x = await ctx.step(step, x)
        marks.append(time.time())


@hf.workflow(name="bench-long_past", persistence="lazy")
def long_past(items: list[int]) -> int:
    return add(hf.map(staying, items))


def fan(width: int) -> hf.Workflow[[int], int]:
    """A workflow of `width` parallel nodes and a join."""
    return FANS[width]


def _fan(width: int) -> Callable[[int], int]:
    def parallel(x: int) -> int:
        return add([step(x) for _ in range(width)])

    return parallel


FANS: dict[int, hf.Workflow[[int], int]] = {
    width: hf.workflow(name=f"bench-fan{width}")(_fan(width)) for width in (20, 1000)
}
