"""An operator's pause on real engines: nothing new starts, what runs ends or is left, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness
from tests.engine.kit import (
    attempts,
    check_file,
    check_harness,
    closed_waits,
    node_of,
    types,
    until,
    until_async,
    url,
    waiting,
    without_code_of,
)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


CALLS: Counter[str] = Counter()


class Gate:
    """Bodies come to it and wait until it is opened; events of one test, made inside its event loop."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()


GATES: list[Gate] = []


@pytest.fixture(autouse=True)
def _world() -> None:
    CALLS.clear()
    GATES.clear()


def gate() -> Gate:
    GATES.append(Gate())
    return GATES[-1]


def note(what: str) -> str:
    CALLS[what] += 1
    return what


@hf.node
async def pau_slow(name: str) -> str:
    """A body that knows nothing of ctx: it can only finish."""
    CALLS[name] += 1
    if GATES:
        await GATES[-1].pass_through()
    return name


@hf.workflow
def pau_chain() -> str:
    first = pau_slow.named("first")("first")
    return pau_slow.named("second").after(first)("second")


async def is_paused(run: hf.Run[Any]) -> bool:
    return await run.status() == "suspended" and any(w.kind == "pause" for w in await run.waits())


@pytest.mark.smoke
async def test_a_body_at_work_finishes_its_node_and_the_next_one_waits_for_resume(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        here = gate()
        run = await engine.start(pau_chain)
        await here.reached.wait()
        await run.pause("audit", actor="ada")
        here.opened.set()
        await until_async(lambda: is_paused(run))
        (wait,) = await run.waits()
        assert wait.question == "paused by ada: audit"
        assert CALLS == {"first": 1}
        assert node_of(await run.nodes(), "first")["status"] == "completed"
        assert "paused" in await run.why()
        assert await run.resume(actor="bob") == [wait.wait_id]
        assert await run.result() == "second"
        assert closed_waits(await run.events()) == [("resumed", "bob")]
        assert CALLS == {"first": 1, "second": 1}
    check_file(db)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_body_is_left_at_its_next_call_on_ctx_and_goes_on_with_the_same_attempt(db: Path, kind: str) -> None:
    reached, go_on = threading.Event(), threading.Event()

    @hf.node
    async def asynchronous(ctx: hf.Context) -> list[str]:
        found = [await ctx.step(note, "one")]
        reached.set()
        await asyncio.to_thread(go_on.wait)
        return [*found, await ctx.step(note, "two"), await ctx.step(note, "three")]

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> list[str]:
        found = [ctx.step(note, "one")]
        reached.set()
        go_on.wait()
        return [*found, ctx.step(note, "two"), ctx.step(note, "three")]

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"pau_left_{kind}")
    def left() -> list[str]:
        return node.named("body")()

    async with hf.open(url(db)) as engine:
        run = await engine.start(left)
        await asyncio.to_thread(reached.wait)
        await run.pause()
        go_on.set()
        await until_async(lambda: is_paused(run))
        assert CALLS == {"one": 1}
        await run.resume()
        assert await run.result() == ["one", "two", "three"]
        assert attempts(await run.events(), "body") == [1]
        assert set(CALLS.values()) == {1}
    check_file(db)


async def test_a_paused_run_costs_a_row_and_another_engine_resumes_it(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine, hf.open(url(db), recover=False) as other:
        here = gate()
        run = await engine.start(pau_chain)
        await here.reached.wait()
        await other.get(run.run_id).pause(actor="ada")
        here.opened.set()
        await until(lambda: not engine.actors, "it is evicted")
        assert await is_paused(run)
        await other.get(run.run_id).resume()
        assert await run.result() == "second"
    check_file(db)


async def test_a_pause_and_its_end_need_neither_an_engine_that_runs_nor_the_code(db: Path) -> None:
    @hf.workflow
    async def pau_receives(ctx: hf.Context) -> int:
        return await ctx.receive("n", schema=int)

    async with hf.open(url(db)) as engine:
        run = await engine.start(pau_receives, run_id="r")
        await waiting(run, "signal")
    with without_code_of("pau_receives"):
        async with hf.open(url(db)) as engine:
            await engine.get("r").pause()
            await engine.get("r").signal("n", 5)
    async with hf.open(url(db)) as engine:
        assert await is_paused(engine.get("r")), "an engine that has the code leaves a paused run alone"
        await engine.get("r").resume()
        assert await engine.get("r").result() == 5
    check_file(db)


async def test_an_answer_during_a_pause_is_taken_and_its_body_goes_on_when_the_pause_ends() -> None:
    @hf.workflow
    async def pau_asks(ctx: hf.Context) -> str:
        said = await ctx.ask("Well?", schema=str)
        return await ctx.step(note, said)

    async with harness() as h:
        run = await h.start(pau_asks)
        (wait,) = await run.waits()
        await run.pause()
        await run.respond(wait.wait_id, "yes", actor="ada")
        with pytest.raises(hf.Refused, match="answered by ada"):
            await run.respond(wait.wait_id, "no", actor="bob")
        assert (CALLS, [w.kind for w in await run.waits()]) == ({}, ["pause"])
        await h.crash()
        assert CALLS == {}
        await run.resume()
        assert await run.result() == "yes"
        assert CALLS == {"yes": 1}
        check_harness(h)


async def test_timers_go_off_during_a_pause_and_nothing_comes_of_them_before_its_end() -> None:
    @hf.node(retry=hf.Retry(attempts=2, backoff=60, jitter=0))
    async def fails_once(ctx: hf.Context) -> str:
        note("try")
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return "tried again"

    @hf.node
    async def sleeps(ctx: hf.Context) -> str:
        await ctx.sleep("2h")
        return note("awake")

    @hf.workflow
    def pau_timers() -> list[str]:
        return [fails_once(), sleeps()]

    async with harness() as h:
        run = await h.start(pau_timers)
        await run.pause()
        await h.advance(hours=3)
        await h.crash()
        assert CALLS == {"try": 1}
        assert [w.kind for w in await run.waits()] == ["pause"], "the sleep is over"
        await run.resume()
        assert await run.result() == ["tried again", "awake"]
        check_harness(h)


async def test_a_sleep_that_is_not_over_when_the_pause_ends_is_slept_to_its_end() -> None:
    @hf.workflow
    async def pau_sleeps(ctx: hf.Context) -> str:
        await ctx.sleep("2h")
        return "awake"

    async with harness() as h:
        run = await h.start(pau_sleeps)
        await run.pause()
        await h.advance(hours=1)
        await run.resume()
        assert [w.kind for w in await run.waits()] == ["timer"]
        await h.advance(minutes=59)
        assert await run.status() == "suspended"
        await h.advance(minutes=1)
        assert await run.result() == "awake"
        check_harness(h)


async def test_a_pause_that_comes_before_anything_has_begun(db: Path) -> None:
    go_on = asyncio.Event()

    @hf.workflow(concurrency=1)
    async def pau_one_at_a_time(ctx: hf.Context, name: str) -> str:
        note(name)
        await go_on.wait()
        return name

    async with hf.open(url(db)) as engine:
        first = await engine.start(pau_one_at_a_time, name="first")
        second = await engine.start(pau_one_at_a_time, name="second")
        await until(lambda: CALLS["first"])
        assert CALLS["second"] == 0, "it waits for its turn"
        await second.pause()
        go_on.set()
        await first.result()
        assert await is_paused(second)
        assert CALLS["second"] == 0
        await second.resume()
        assert await second.result() == "second"
    check_file(db)


async def test_no_further_item_of_a_map_begins_during_a_pause_and_all_run_in_the_end(db: Path) -> None:
    @hf.workflow
    def pau_map(names: list[str]) -> list[str]:
        return hf.map(pau_slow, names, limit=2)

    names = ["a", "b", "c", "d", "e"]
    async with hf.open(url(db)) as engine:
        here = gate()
        run = await engine.start(pau_map, names=names)
        await here.reached.wait()
        await run.pause()
        here.opened.set()
        await until_async(lambda: is_paused(run))
        assert set(CALLS) == {"a", "b"}
        await run.resume()
        assert await run.result() == names
        assert sorted(CALLS.items()) == [(name, 1) for name in names]
    check_file(db)


async def test_no_further_round_of_a_loop_begins_and_a_loop_that_is_done_stays_done(db: Path) -> None:
    @hf.node
    async def grows(n: int) -> int:
        note(f"round {n}")
        await GATES[-1].pass_through()
        return n + 1

    @hf.workflow
    def pau_loop() -> int:
        return hf.loop(grows, start=0, until=lambda n: n >= 2)

    async with hf.open(url(db)) as engine:
        here = gate()
        await engine.start(pau_loop, run_id="r")
        await here.reached.wait()
        await engine.get("r").pause()
        here.opened.set()
        await until_async(lambda: is_paused(engine.get("r")))
    async with hf.open(url(db)) as engine:
        assert CALLS == {"round 0": 1}
        here = gate()
        await engine.get("r").resume()
        await here.reached.wait()
        await engine.get("r").pause()
        here.opened.set()
        assert await engine.get("r").result() == 2, "its last round was over, and nothing is left to hold back"
    assert CALLS == {"round 0": 1, "round 1": 1}
    check_file(db)


async def test_a_node_that_pends_during_a_pause_is_resumed_after_it(db: Path) -> None:
    @hf.node
    async def pends() -> str:
        await GATES[-1].pass_through()
        return hf.pend("desk", output="pended")

    @hf.workflow
    def pau_pends() -> str:
        return pends()

    async with hf.open(url(db)) as engine:
        here = gate()
        run = await engine.start(pau_pends)
        await here.reached.wait()
        await run.pause()
        here.opened.set()
        waits = {w.kind: w.wait_id for w in await waiting(run, "basket", "pause")}
        assert await run.resume() == [waits["pause"]]
        assert [w.kind for w in await run.waits()] == ["basket"]
        assert await run.resume() == [waits["basket"]]
        assert await run.result() == "pended"
    check_file(db)


async def test_a_paused_run_can_be_cancelled(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        here = gate()
        run = await engine.start(pau_chain)
        await here.reached.wait()
        await run.pause()
        await run.cancel("enough")
        with pytest.raises(hf.RunCancelled):
            await run.result()
        with pytest.raises(hf.Refused):
            await run.pause()
        with pytest.raises(hf.Refused):
            await run.resume()
    check_file(db)


async def test_a_second_pause_is_a_no_op_and_so_is_a_resume_of_what_is_not_paused() -> None:
    @hf.workflow
    async def pau_twice(ctx: hf.Context) -> None:
        await ctx.receive("go")

    async with harness() as h:
        run = await h.start(pau_twice)
        await run.pause("one")
        await run.pause("two")
        assert [w.kind for w in await run.waits() if w.kind == "pause"] == ["pause"]
        await run.resume()
        assert await run.resume() == []
        await run.signal("go")
        assert await run.result() is None


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_pause_and_resume_in_quick_succession_lose_nothing_and_do_nothing_twice(db: Path, kind: str) -> None:
    """Long steps, waits and plain work, while an operator cannot make up his mind."""

    async def slow_step(n: int) -> int:
        CALLS[f"step {n}"] += 1
        await asyncio.sleep(0.002)
        return n

    @hf.node
    async def asynchronous(ctx: hf.Context) -> int:
        total = 0
        for n in range(15):
            total += await ctx.step(slow_step, n)
            if n % 5 == 0:
                await ctx.sleep(0.005)
        return total

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> int:
        total = 0
        for n in range(15):
            total += ctx.step(slow_step, n)
            if n % 5 == 0:
                ctx.sleep(0.005)
        return total

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"pau_undecided_{kind}")
    def undecided() -> list[int]:
        return [node.named("one")(), node.named("two").after(node.named("before")())()]

    async with hf.open(url(db)) as engine, hf.open(url(db), recover=False) as other:
        run = await engine.start(undecided)
        for number in range(40):
            operator = (engine if number % 3 else other).get(run.run_id)
            try:
                await operator.pause()
                if number % 4 == 0:
                    await asyncio.sleep(0.01)
                await operator.resume()
            except hf.Refused:
                break  # it has ended meanwhile
        assert await run.result() == [105, 105]
        events = await run.events()
        assert {n for name in ("one", "before", "two") for n in attempts(events, name)} == {1}, "no pause is an attempt"
        assert set(CALLS.values()) == {3}, "each step of the three bodies ran once"
        assert types(events).count("RunCompleted") == 1
    check_file(db)


async def test_a_body_that_must_not_be_repeated_unasked_finishes_its_node(db: Path) -> None:
    @hf.node(on_crash="ask")
    async def transfers(ctx: hf.Context) -> str:
        note("body")
        await ctx.step(note, "before")
        await GATES[-1].pass_through()
        return await ctx.step(note, "after")

    @hf.workflow
    def pau_transfers() -> str:
        return pau_slow.after(transfers())("last")

    async with hf.open(url(db)) as engine:
        here = gate()
        run = await engine.start(pau_transfers)
        await here.reached.wait()
        await run.pause()
        here.opened.set()
        await until_async(lambda: is_paused(run))
        assert node_of(await run.nodes(), "transfers")["status"] == "completed"
        assert CALLS == {"body": 1, "before": 1, "after": 1}
        await run.resume()
        assert await run.result() == "last"
    check_file(db)


async def test_a_pause_survives_a_crash_and_what_was_cut_off_runs_again_after_it() -> None:
    @hf.node
    async def hangs(ctx: hf.Context) -> str:
        note(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "done"

    @hf.workflow
    def pau_hangs() -> str:
        return hangs()

    async with harness() as h:
        run = await h.start(pau_hangs)
        await run.pause()
        await h.crash()
        assert CALLS == {"attempt 1": 1}
        assert [w.kind for w in await run.waits()] == ["pause"]
        await run.resume()
        assert await run.result() == "done"
        check_harness(h)


async def test_a_parent_hears_of_its_child_after_its_pause() -> None:
    @hf.workflow
    async def pau_child(ctx: hf.Context) -> str:
        return await ctx.receive("go", schema=str)

    @hf.workflow
    async def pau_parent(ctx: hf.Context) -> str:
        return note(await ctx.child(pau_child, run_id="kid"))

    async with harness() as h:
        run = await h.start(pau_parent)
        await run.pause()
        await h.get("kid").signal("go", "grown up")
        assert await h.get("kid").result() == "grown up"
        assert CALLS == {}
        await h.crash()
        await run.resume()
        assert await run.result() == "grown up"
        check_harness(h)
