"""World: bodies that say that they ran, break when they are told to, and wait where they are told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import holdfast as hf


class World:
    """What bodies share with their test."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.keys: list[str] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

    def enter(self, name: str) -> None:
        self.ran.append(name)
        if name in self.broken:
            raise ValueError(f"{name} is broken")

    def again(self) -> list[str]:
        """What ran since this was asked last, sorted."""
        ran, self.ran = sorted(self.ran), []
        return ran

    async def wait(self) -> None:
        self.waiting.set()
        await self.gate.wait()


here: World = World()
"""The world of the test that runs now."""


@contextlib.contextmanager
def fresh() -> Iterator[World]:
    global here
    here = World()
    yield here


def named(ctx: Any) -> str:
    """How bodies call themselves: `node`, or `node@path` inside a map or loop."""
    return str(ctx.node) if ctx.path == "." else f"{ctx.node}@{ctx.path}"


async def ended(run: hf.Run[Any]) -> Any:
    """The result of a run, or its failure as text."""
    try:
        return await run.result(timeout=30)
    except hf.RunFailed as failure:
        return f"failed: {failure.error.message}"
    except hf.RunCancelled:
        return "cancelled"


@hf.node
async def add(ctx: hf.Context, x: int, y: int = 1) -> int:
    here.keys.append(ctx.idempotency_key)
    here.enter(named(ctx))
    return x + y


@hf.node
async def gated(ctx: hf.Context, x: int) -> int:
    here.enter(named(ctx))
    await here.wait()
    return x


@hf.node
async def total(ctx: hf.Context, numbers: list[int | hf.Failed]) -> int:
    here.enter(named(ctx))
    return sum(n for n in numbers if not isinstance(n, hf.Failed))
