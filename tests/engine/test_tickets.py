"""hf.goto and hf.ticket on the real engine: every kind of body, what runs and waits beside it, and what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import attempts, check_file, types, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def log() -> list[str]:
    _log.clear()
    return _log


_log: list[str] = []


@hf.node
async def begin(topic: str) -> str:
    _log.append(f"begin {topic}")
    return topic


@hf.node
async def end(x: Any) -> Any:
    _log.append(f"end {x}")
    return x


def rows(nodes: list[dict[str, Any]], node: str, path: str = ".") -> list[tuple[int, str, Any]]:
    return [(n["visit"], n["status"], n["output"]) for n in nodes if (n["node"], n["path"]) == (node, path)]


# --- every kind of body ----------------------------------------------------------------------------------------------


@hf.node
async def on_the_loop(ctx: hf.Context, x: str) -> str:
    if ctx.visit < 3:
        return hf.goto("begin", output=f"visit {ctx.visit}")
    return f"{x} at visit {ctx.visit}"


@hf.node
def in_a_thread(ctx: hf.SyncContext, x: str) -> str:
    if ctx.visit < 3:
        hf.goto("begin", output=f"visit {ctx.visit}")
    return f"{x} at visit {ctx.visit}"


@hf.node(inline=True)
def inline(ctx: hf.Context, x: str) -> str:
    if ctx.visit < 3:
        hf.goto("begin", output=f"visit {ctx.visit}")
    return f"{x} at visit {ctx.visit}"


@hf.node
async def in_a_step(ctx: hf.Context, x: str) -> str:
    async def look(visit: int) -> None:
        if visit < 3:
            hf.goto("begin", output=f"visit {visit}")

    await ctx.step(look, ctx.visit)
    return f"{x} at visit {ctx.visit}"


@hf.node
async def in_a_task(ctx: hf.Context, x: str) -> str:
    async def look() -> None:
        if ctx.visit < 3:
            hf.goto("begin", output=f"visit {ctx.visit}")

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        group.create_task(asyncio.sleep(30 if ctx.visit < 3 else 0))
    return f"{x} at visit {ctx.visit}"


@pytest.mark.parametrize("body", [on_the_loop, in_a_thread, inline, in_a_step, in_a_task])
async def test_any_body_may_go_back_and_each_visit_is_kept(db: Path, log: list[str], body: Any) -> None:
    @hf.workflow(name=f"goes_back_{body.fn.__name__}")
    def journey(topic: str) -> Any:
        return end(body.named("turn")(begin(topic)))

    async with hf.open(url(db)) as engine:
        run = await engine.start(journey, topic="x")
        assert await run.result(timeout=30) == "x at visit 3"
        nodes = await run.nodes()
    assert log == ["begin x"] * 3 + ["end x at visit 3"]
    assert rows(nodes, "turn") == [
        (1, "completed", "visit 1"),
        (2, "completed", "visit 2"),
        (3, "completed", "x at visit 3"),
    ]
    check_file(db)


@hf.node(process=True)
def in_a_process(case: str) -> str:
    if case == "bad":
        return hf.ticket("reject", output="it was bad")
    return case


@hf.node
def send_rejection(why: str) -> str:
    return f"rejected: {why}"


@hf.workflow(tickets={"reject": "send_rejection"})
def ticket_from_a_process(case: str) -> Any:
    checked = in_a_process(case)
    done = end(checked)
    with hf.when(hf.skipped(done)):
        letter = send_rejection(checked)
    return {"done": done, "letter": letter}


async def test_a_body_in_a_process_may_raise_a_ticket(db: Path, log: list[str]) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(ticket_from_a_process, case="bad")
        assert await run.result(timeout=30) == {"done": None, "letter": "rejected: it was bad"}
        run = await engine.start(ticket_from_a_process, case="good")
        assert await run.result(timeout=30) == {"done": "good", "letter": None}
    check_file(db)


async def test_a_ticket_in_durable_code_fails_it_and_says_why(db: Path) -> None:
    @hf.workflow
    async def nowhere_to_go(ctx: hf.Context) -> None:
        hf.goto("nowhere_to_go")

    async with hf.open(url(db)) as engine:
        run = await engine.start(nowhere_to_go)
        with pytest.raises(hf.RunFailed, match="durable code has no nodes to go to"):
            await run.result(timeout=30)
    check_file(db)


async def test_a_ticket_that_nobody_declared_fails_its_node_without_retries(db: Path) -> None:
    @hf.node(retry=hf.Retry(attempts=5, backoff=0))
    async def raises() -> None:
        hf.ticket("unheard_of")

    @hf.workflow
    def undeclared_ticket() -> Any:
        return raises()

    async with hf.open(url(db)) as engine:
        run = await engine.start(undeclared_ticket)
        with pytest.raises(hf.RunFailed, match="the workflow has no ticket 'unheard_of'") as caught:
            await run.result(timeout=30)
        assert caught.value.error.code == "bad_target"
        assert attempts(await run.events(), "raises") == [1]
    check_file(db)


async def test_an_output_that_cannot_be_stored_fails_the_node(db: Path) -> None:
    @hf.node
    async def raises() -> None:
        hf.goto("end", output=object())

    @hf.workflow
    def unstorable_output() -> Any:
        return end(raises())

    async with hf.open(url(db)) as engine:
        run = await engine.start(unstorable_output)
        with pytest.raises(hf.RunFailed, match="object"):
            await run.result(timeout=30)


# --- what is beside it -----------------------------------------------------------------------------------------------


async def test_a_sibling_that_runs_finishes_and_one_that_waits_is_cancelled(db: Path, log: list[str]) -> None:
    release, sleeping = asyncio.Event(), asyncio.Event()

    @hf.node
    async def works(x: str) -> str:
        await release.wait()
        log.append("works")
        return "worked"

    @hf.node
    async def sleeps(ctx: hf.Context, x: str) -> str:
        log.append(f"sleeps at visit {ctx.visit}")
        if ctx.visit > 1:
            return "slept"
        sleeping.set()
        try:
            await ctx.sleep("1h")
        finally:
            log.append(f"woken, leaving={ctx.leaving}")
        return "too late"

    @hf.node
    async def turns(ctx: hf.Context, x: str) -> str:
        if ctx.visit == 1:
            await sleeping.wait()
            return hf.goto("begin")
        return "turned"

    @hf.workflow
    def with_siblings(topic: str) -> Any:
        x = begin(topic)
        return end([works(x), sleeps(x), turns(x)])

    async with hf.open(url(db)) as engine:
        run = await engine.start(with_siblings, topic="t")

        async def superseded() -> bool:
            return any(e.type == "WaitClosed" for e in await run.events())

        await until_async(superseded)
        assert "TargetEntered" not in types(await run.events()), "a body is still at work"
        release.set()
        assert await run.result(timeout=30) == ["worked", "slept", "turned"]
        closed = [e.data["outcome"] for e in await run.events() if e.type == "WaitClosed"]
        assert closed == ["superseded"]
        assert rows(await run.nodes(), "sleeps") == [(1, "cancelled", None), (2, "completed", "slept")]
        await until(lambda: "woken, leaving=False" in log)
    assert log.count("works") == 2
    check_file(db)


async def test_a_late_word_of_a_body_that_the_run_went_on_without_is_not_heard(db: Path, log: list[str]) -> None:
    """It waits, and a task of it goes on by itself at the very moment in which the run goes on elsewhere."""
    sleeping = asyncio.Event()
    go = asyncio.Event()

    async def remembered(what: str) -> str:
        log.append(what)
        return what

    @hf.node
    async def two_tasks(ctx: hf.Context, x: str) -> str:
        if ctx.visit > 1:
            return await ctx.step(remembered, "second visit")

        async def busy() -> None:
            await go.wait()
            await ctx.step(remembered, "first visit")

        task = asyncio.create_task(busy())
        sleeping.set()
        await ctx.sleep("1h")
        await task
        return "never"

    @hf.node
    async def turns(ctx: hf.Context, x: str) -> str:
        if ctx.visit == 1:
            await sleeping.wait()
            go.set()
            return hf.goto("begin")
        return "turned"

    @hf.workflow
    def late_words(topic: str) -> Any:
        x = begin(topic)
        return [two_tasks(x), turns(x)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(late_words, topic="t")
        assert await run.result(timeout=30) == ["second visit", "turned"]
    check_file(db)


async def test_the_place_of_a_cancelled_body_is_free_for_the_next_visit(db: Path, log: list[str]) -> None:
    sleeping = asyncio.Event()

    @hf.node(concurrency=1)
    async def alone(ctx: hf.Context, x: str) -> int:
        if ctx.visit == 1:
            sleeping.set()
            await ctx.sleep("1h")
        return ctx.visit

    @hf.node
    async def turns(ctx: hf.Context, x: str) -> int:
        if ctx.visit <= 3:
            await sleeping.wait()
            return hf.goto("begin")
        return ctx.visit

    @hf.workflow
    def one_place(topic: str) -> Any:
        x = begin(topic)
        return [alone(x), turns(x)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(one_place, topic="t")
        assert await run.result(timeout=30) == [4, 4]
        assert engine.slots.used() == {}
    check_file(db)


async def test_the_next_visit_takes_the_place_over_when_it_starts_in_the_same_turn(db: Path) -> None:
    sleeping = asyncio.Event()
    used: list[dict[str, int]] = []

    @hf.node(concurrency=1)
    async def alone(ctx: hf.Context) -> int:
        used.append(engine.slots.used())
        if ctx.visit == 1:
            sleeping.set()
            await ctx.sleep("1h")
        return ctx.visit

    @hf.node
    async def turns() -> None:
        await sleeping.wait()
        hf.goto("alone")

    @hf.workflow
    def same_turn() -> Any:
        turns()
        return alone()

    async with hf.open(url(db)) as engine:
        run = await engine.start(same_turn)
        assert await run.result(timeout=30) == 2
        assert [sum(places.values()) for places in used] == [1, 1]
        assert engine.slots.used() == {}
    check_file(db)


async def test_a_child_of_a_cancelled_node_is_cancelled_and_the_next_visit_has_a_child_of_its_own(
    db: Path, log: list[str]
) -> None:
    waiting = asyncio.Event()

    @hf.workflow
    async def long_child(ctx: hf.Context, visit: int) -> int:
        if visit == 1:
            waiting.set()
            await ctx.sleep("1h")
        return visit

    @hf.node
    async def has_child(ctx: hf.Context, x: str) -> int:
        found: int = await ctx.child(long_child, visit=ctx.visit)
        return found

    @hf.node
    async def turns(ctx: hf.Context, x: str) -> int:
        if ctx.visit == 1:
            await waiting.wait()
            return hf.goto("begin")
        return ctx.visit

    @hf.workflow
    def parent_that_turns(topic: str) -> Any:
        x = begin(topic)
        return [has_child(x), turns(x)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent_that_turns, topic="t")
        assert await run.result(timeout=30) == [2, 2]
        children = [e.data["child"] for e in await run.events() if e.type == "ChildStarted"]
        assert len(set(children)) == 2
        first = engine.get(children[0])

        async def ended() -> bool:
            return await first.status() == "cancelled"

        await until_async(ended)
    check_file(db)


# --- what each visit has for itself --------------------------------------------------------------------------------


async def test_every_visit_has_its_own_key_and_its_own_memory(db: Path, log: list[str]) -> None:
    async def count() -> int:
        log.append("counted")
        return len(log)

    @hf.node
    async def counts(ctx: hf.Context, x: str) -> tuple[int, str]:
        n = await ctx.step(count)
        log.append(ctx.idempotency_key)
        if ctx.visit < 3:
            hf.goto("counts")
        return n, ctx.idempotency_key

    @hf.workflow
    def three_counts(topic: str) -> Any:
        return counts(begin(topic))

    async with hf.open(url(db)) as engine:
        run = await engine.start(three_counts, topic="t")
        await run.result(timeout=30)
    assert log.count("counted") == 3
    assert len({word for word in log if word not in ("counted", "begin t")}) == 3
    check_file(db)


async def test_a_consumer_of_a_map_gets_the_items_of_the_latest_visit(db: Path) -> None:
    """From memory and, read again, from the rows."""

    @hf.node
    async def lists(ctx: hf.Context) -> list[int]:
        return [1, 2, 3] if ctx.visit == 1 else [10, 20]

    @hf.node
    async def times(ctx: hf.Context, n: int) -> dict[str, int]:
        return {"n": n, "visit": ctx.visit}

    def item(n: int) -> Any:
        return times(n)

    @hf.node
    async def takes(ctx: hf.Context, items: list[dict[str, int]], one: dict[str, int], by: list[int]) -> list[int]:
        if ctx.visit == 1:
            hf.goto("lists")
        assert {i["visit"] for i in items} == {2}
        return [i["n"] for i in items] + [one["n"]] + by

    @hf.node
    async def plain(n: int) -> int:
        return n + 1

    @hf.workflow
    def revisited_map() -> Any:
        numbers = lists()
        items = hf.map(item, numbers)
        return takes(items, items[1], hf.map(plain, numbers))

    async with hf.open(url(db)) as engine:
        run = await engine.start(revisited_map)
        assert await run.result(timeout=30) == [10, 20, 20, 11, 21]
    check_file(db)


async def test_a_map_inside_a_map_has_the_items_of_the_latest_visit(db: Path) -> None:
    @hf.node
    async def table(ctx: hf.Context) -> list[list[int]]:
        return [[1, 2], [3]] if ctx.visit == 1 else [[10], [20, 30]]

    @hf.node
    async def cell(n: int) -> int:
        return n

    def line(numbers: list[int]) -> Any:
        return hf.map(cell, numbers)

    @hf.node
    async def takes(ctx: hf.Context, lines: list[list[int]]) -> list[list[int]]:
        if ctx.visit == 1:
            assert lines == [[1, 2], [3]]
            hf.goto("table")
        return lines

    @hf.workflow
    def revisited_table() -> Any:
        return takes(hf.map(line, table()))

    async with hf.open(url(db)) as engine:
        run = await engine.start(revisited_table)
        assert await run.result(timeout=30) == [[10], [20, 30]]
    check_file(db)


async def test_compensation_undoes_every_visit_last_first(db: Path, log: list[str]) -> None:
    @hf.node
    async def undo(output: str) -> None:
        log.append(f"undo {output}")

    @hf.node(compensate=undo)
    async def act(ctx: hf.Context) -> str:
        return f"visit {ctx.visit}"

    @hf.node
    async def turns_then_fails(ctx: hf.Context, x: str) -> None:
        if ctx.visit < 3:
            hf.goto("act")
        raise ValueError("enough")

    @hf.workflow(on_failure="compensate")
    def undone_journey() -> Any:
        return turns_then_fails(act())

    async with hf.open(url(db)) as engine:
        run = await engine.start(undone_journey)
        with pytest.raises(hf.RunFailed, match="enough"):
            await run.result(timeout=30)
        assert rows(await run.nodes(), "act~undo") == [(v, "completed", None) for v in (3, 2, 1)]
    assert log == ["undo visit 3", "undo visit 2", "undo visit 1"]
    check_file(db)


async def test_a_pending_ticket_survives_an_orderly_stop(db: Path, log: list[str]) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @hf.node
    async def works(x: str) -> str:
        began.set()
        await release.wait()
        return "worked"

    @hf.node
    async def turns(ctx: hf.Context, x: str) -> str:
        if ctx.visit == 1:
            await began.wait()
            return hf.goto("begin")
        return "turned"

    @hf.workflow
    def stopped_meanwhile(topic: str) -> Any:
        x = begin(topic)
        return [works(x), turns(x)]

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(stopped_meanwhile, topic="t", run_id="r")

        async def raised() -> bool:
            return "TicketRaised" in types(await run.events())

        await until_async(raised)
    check_file(db)
    release.set()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        assert await run.result(timeout=30) == ["worked", "turned"]
        assert attempts(await run.events(), "works") == [1, 1], "left in order, then entered anew"
    check_file(db)


async def test_a_journey_in_circles_ends_at_max_visits(db: Path) -> None:
    @hf.node(inline=True)
    def circles(x: str) -> None:
        hf.goto("circles")

    @hf.workflow(max_visits=20)
    def runaway(topic: str) -> Any:
        return circles(begin(topic))

    async with hf.open(url(db)) as engine:
        run = await engine.start(runaway, topic="t")
        with pytest.raises(hf.RunFailed, match="20 visits") as caught:
            await run.result(timeout=30)
        assert caught.value.error.code == "too_many_visits"
    check_file(db)
