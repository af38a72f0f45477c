"""A long chain: every step is on the disk before the next one begins.

    python examples/long_chain.py
    holdfast run examples/long_chain.py:chain

Shows that a graph is built by ordinary Python (here a `for`), that `inline=True` saves quick functions the way through
a thread, and what a durable step costs: one commit each, for the end of one node and the start of the next together.
The second workflow writes the same chain as durable code.
"""

import time

import holdfast as hf

LENGTH = 100


@hf.node(inline=True, idempotent=True)
def link(number: int) -> int:
    return number + 1


@hf.workflow
def chain(number: int = 0) -> int:
    """Add 1, a hundred times."""
    for _ in range(LENGTH):
        number = link(number)
    return number


@hf.workflow
async def walk(ctx: hf.Context, number: int = 0) -> int:
    """The same as durable code."""
    for _ in range(LENGTH):
        number = await ctx.step(link, number)
    return number


if __name__ == "__main__":
    for workflow in (chain, walk):
        began = time.perf_counter()
        print(workflow.name, hf.run(workflow, number=0))
        print(f"  {(time.perf_counter() - began) / LENGTH * 1000:.2f} ms per durable step, start and stop included")
