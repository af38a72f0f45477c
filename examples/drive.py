"""Driving runs from a program: open an engine, start, follow, cancel, list.

    python examples/drive.py
    holdfast run examples/drive.py:greet

Shows the async API. `engine.start` returns once the run is committed; the same `run_id` with the same input is the same
run, so a program that is started twice does its work once. `follow` gives the committed events as they come, also from
another process. Leaving the block stops in order: nothing is lost, and the next `hf.open` continues what was left.
"""

import asyncio
import tempfile

import holdfast as hf


@hf.node(idempotent=True)
async def compose(name: str) -> str:
    return f"Hello, {name}"


@hf.node(idempotent=True)
async def sign(greeting: str) -> str:
    return f"{greeting}! -- H."


@hf.workflow
def greet(name: str = "Ada") -> str:
    return sign(compose(name))


@hf.workflow
async def wait_for_spring(ctx: hf.Context) -> None:
    """Asleep for most of the year; nothing but a row while it is."""
    await ctx.sleep("90d")


async def main(url: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(greet, name="Ada", run_id="greeting-1")
        async for event in run.follow():
            print(event.seq, event.type, event.node or "")
        print(await run.result(timeout=60))

        again = await engine.start(greet, name="Ada", run_id="greeting-1")  # the same run, not a second one
        print(again.run_id, await again.status())
        try:
            await engine.start(greet, name="Bob", run_id="greeting-1")
        except hf.RunExists as refusal:
            print(refusal.code)

        sleeper = await engine.start(wait_for_spring, run_id="sleeper")
        await sleeper.cancel("spring is early this year")
        try:
            await sleeper.result()
        except hf.RunCancelled as cancelled:
            print(cancelled)

        for listed in await engine.list():
            print(listed["run_id"], listed["workflow"], listed["status"])
        for node in await engine.get("greeting-1").nodes():
            print(node["node"], node["status"], node["output"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/drive.db"))
