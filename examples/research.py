"""Durable code: an async function whose awaited steps are remembered.

    python examples/research.py
    holdfast run examples/research.py:research --input '{"topic": "kelp"}' --run-id kelp
    holdfast respond WAIT --input '{"accept": true}'
    holdfast resume kelp
    holdfast crashtest examples/research.py:research --answer 'Good enough?={"accept": true}'

Shows `ctx.step`, `ctx.map`, retries inside steps, a question to a person in an ordinary `while` loop, `ctx.sleep` and a
child workflow. When the process dies, the function runs again from its first line; every step that had completed and
every question that was answered returns at once what it returned before, and the function comes back to where it was.
So what it decides must follow from what these calls returned: the clock and chance come from `ctx.now()`,
`ctx.random()` and `ctx.uuid()`, which are remembered too.
"""

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field

import holdfast as hf

TRIES: Counter[str] = Counter()
"""How often each page was asked for, by this process: what makes the service below flaky."""


@dataclass
class Plan:
    topic: str
    urls: list[str]


@dataclass
class Review:
    accept: bool
    more_urls: list[str] = field(default_factory=list)


@dataclass
class Report:
    text: str
    shelf_mark: str


@hf.node(idempotent=True)
async def make_plan(topic: str) -> Plan:
    return Plan(topic, [f"https://example.org/{topic}/{n}" for n in range(1, 5)])


@hf.node(idempotent=True, retry=hf.Retry(attempts=4, backoff=0.02, jitter=0, on=(ConnectionError,)), timeout="10s")
async def fetch(url: str) -> str:
    """Stands for an HTTP request. Page 3 needs three tries; each failed one is an event of the journal."""
    TRIES[url] += 1
    if url.endswith("/3") and TRIES[url] < 3:
        raise ConnectionError(f"{url} does not answer")
    return f"page {url.rpartition('/')[2]}"


@hf.node(idempotent=True)
async def write(topic: str, pages: list[str]) -> str:
    return f"All about {topic}, from {', '.join(pages)}"


@hf.node(idempotent=True)
async def shelve(text: str) -> str:
    return f"shelf {len(text) % 10}"


@hf.workflow
def publish(text: str) -> str:
    """A graph, started by the durable code as a run of its own."""
    return shelve(text)


@hf.workflow
async def research(ctx: hf.Context, topic: str = "holdfasts") -> Report:
    """Find out about a topic until a reviewer is content, then publish it."""
    plan = await ctx.step(make_plan, topic)
    pages = await ctx.map(fetch, plan.urls, limit=10)
    while True:
        draft = await ctx.step(write, plan.topic, pages)
        review = await ctx.ask("Good enough?", about=draft, schema=Review)
        if review.accept:
            break
        pages += await ctx.map(fetch, review.more_urls)
    await ctx.sleep("100ms")  # or "1h", a timedelta, a datetime: the run costs a row while it sleeps
    shelf_mark = await ctx.child(publish, text=draft, run_id=f"publish-{ctx.run_id}")
    return Report(draft, shelf_mark)


async def review_all(run: hf.Run[Report]) -> None:
    """Stands for a reviewer, who wants six pages; usually a person who was sent a link, or `holdfast respond`."""
    async for event in run.follow():
        if event.type == "RunSuspended":
            for question in [wait for wait in await run.waits() if wait.kind == "input"]:
                enough = question.about.count("page") >= 6
                more = [] if enough else ["https://example.org/more/5", "https://example.org/more/6"]
                await run.respond(question.wait_id, Review(enough, more), actor="ada")


async def main(url: str) -> None:
    async with hf.open(url) as engine:
        run = await engine.start(research, topic="holdfasts")
        await review_all(run)
        report = await run.result()
    print(report.text)
    print(report.shelf_mark)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/research.db"))
