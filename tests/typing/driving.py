"""What a type checker sees in a program that drives runs: a run knows the type of its result."""

from datetime import datetime
from typing import Any, assert_type

import holdfast as hf


@hf.node
async def add(a: int, b: int) -> int:
    return a + b


@hf.workflow
def graph(a: int, b: int = 1) -> int:
    return add(a, b)


@hf.workflow
async def code(ctx: hf.Context, a: int) -> list[str]:
    return [str(await ctx.step(add, a, 1))]


def one_liners() -> None:
    assert_type(hf.run(graph, a=1), int)
    assert_type(hf.run(code, a=1, run_id="x", priority=5, timeout="1m", db="sqlite:///x.db"), list[str])


async def program() -> None:
    async with hf.open("sqlite:///x.db", recover=False, lease_seconds=5, threads=4) as engine:
        assert_type(engine, hf.Engine)
        run = assert_type(await engine.start(graph, a=1, run_id="one", persistence="lazy"), hf.Run[int])
        assert_type(await run.result(timeout=60), int)
        other = await engine.start(code, a=1)
        assert_type(await other.result(), list[str])
        assert_type(await run.status(), str)
        assert_type(await run.nodes(), list[dict[str, Any]])
        for event in await run.events(after=0):
            assert_type(event.seq, int)
            assert_type(event.type, str)
            assert_type(event.node, str | None)
            assert_type(event.data, dict[str, Any])
        async for event in run.follow():
            assert_type(event.path, str | None)
        await run.cancel("why", actor="me")
        for wait in await run.waits():
            assert_type(wait.wait_id, str)
            assert_type(wait.kind, str)
            assert_type(wait.until, datetime | None)
            assert_type(wait.question, str | None)
            await run.respond(wait.wait_id, {"approved": True}, actor="ada")
            await run.reassign(wait.wait_id, assignee="bob", basket="night", actor="ada")
        await run.signal("hurry", {"by": "tomorrow"}, id="hurry-1")
        await run.pause("audit", actor="ada")
        assert_type(await run.resume(wait="w", path=".", vars={"n": 1}, actor="ada"), list[str])
        for asked in await engine.asked(basket="finance", assignee="ann", limit=5):
            assert_type(asked.run_id, str)
        assert_type(await engine.baskets(), list[dict[str, Any]])
        assert_type(engine.get("one"), hf.Run[Any])
        assert_type(await engine.list(status="failed", workflow="graph", limit=5), list[dict[str, Any]])
        assert_type(await engine.resume("one", wait="w", path=".", vars={"n": 1}), hf.Run[Any])


def failures(error: Exception) -> str:
    match error:
        case hf.RunSuspended():
            assert_type(error.command, str)
            return " ".join(wait.kind for wait in error.waits)
        case hf.RunFailed() | hf.RunCancelled():
            return error.run_id
        case hf.HoldfastError():
            return error.code
    raise hf.Fail("no", retryable=False)


def wrong() -> None:
    hf.run(add, a=1, b=2)  # type: ignore[arg-type]
    number: str = hf.run(graph, a=1)  # type: ignore[assignment]
    assert number
