"""Durable code: remembered calls, sleep, checkpoints and variables, in async and in sync bodies.

A body is made to run again either by an orderly stop of its engine (`left`) or by eviction from memory
(`idle_seconds=0`); the deaths by SIGKILL are in tests/crash.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import attempts, check_file, hold_time, node_of, types, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Calls(list[Any]):
    def note(self, x: Any) -> Any:
        self.append(x)
        return x


async def _is(run: hf.Run, status: str) -> bool:
    return await run.status() == status


# --- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_remembered_calls_are_not_made_again_when_the_body_runs_again(db: Path, kind: str) -> None:
    calls, answers = Calls(), Calls()
    stop, began = threading.Event(), threading.Event()

    def step(x: int) -> int:
        calls.append(x)
        return x * 10

    def double(x: int) -> int:
        calls.append(("double", x))
        return x * 2

    @hf.node
    async def asynchronous(ctx: hf.Context) -> Any:
        found = [
            await ctx.step(step, 1),
            await ctx.step(step, 1),
            await ctx.map(double, [3, 4]),
            await ctx.now(),
            await ctx.uuid(),
            await ctx.random(),
            await ctx.keyed("mine").step(step, 5),
        ]
        answers.append(found)
        if not stop.is_set():
            began.set()
            await asyncio.Event().wait()
        return str(await ctx.step(step, 9))

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> Any:
        found = [
            ctx.step(step, 1),
            ctx.step(step, 1),
            ctx.map(double, [3, 4]),
            ctx.now(),
            ctx.uuid(),
            ctx.random(),
            ctx.keyed("mine").step(step, 5),
        ]
        answers.append(found)
        if not stop.is_set():
            began.set()
            stop.wait()
            ctx.now()  # raises Suspended: the body was left
        return str(ctx.step(step, 9))

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"remembers_{kind}")
    def remembers():
        return node.named("body")()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(remembers, run_id="r")
        await asyncio.to_thread(began.wait)
    stop.set()
    assert sorted(map(str, calls)) == sorted(map(str, [1, 1, ("double", 3), ("double", 4), 5]))
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "90"
        assert node_of(await engine.get("r").nodes(), "body")["attempt"] == 1
    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert calls[-1] == 9
    assert len(calls) == 6
    assert isinstance(answers[0][3], datetime)
    assert isinstance(answers[0][4], uuid.UUID)
    assert 0 <= answers[0][5] < 1
    check_file(db)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_keyed_call_is_found_by_its_key_when_a_call_before_it_is_new(db: Path, kind: str) -> None:
    """The code changes between two lives of the body: what has a key keeps its memory and its idempotency key."""
    second, began = threading.Event(), threading.Event()
    calls = Calls()

    @hf.node
    async def asynchronous(ctx: hf.Context) -> Any:
        if second.is_set():
            await ctx.keyed("new").step(calls.note, "new")
        kept = await ctx.keyed("charge").step(calls.note, "charge")
        if not second.is_set():
            began.set()
            await asyncio.Event().wait()
        return kept

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> Any:
        if second.is_set():
            ctx.keyed("new").step(calls.note, "new")
        kept = ctx.keyed("charge").step(calls.note, "charge")
        if not second.is_set():
            began.set()
            second.wait()
            ctx.now()
        return kept

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"keyed_{kind}")
    def keyed():
        return node.named("body")()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(keyed, run_id="r")
        await asyncio.to_thread(began.wait)
    second.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "charge"
    assert calls == ["charge", "new"]
    check_file(db)


async def test_another_call_at_a_remembered_position_is_a_mismatch_that_shows_both(db: Path) -> None:
    second, began = asyncio.Event(), asyncio.Event()

    def pay(amount: int) -> int:
        return amount

    def ship(amount: int) -> int:
        return amount

    @hf.workflow
    async def changed(ctx: hf.Context) -> int:
        await ctx.step(ship if second.is_set() else pay, 3)
        began.set()
        if not second.is_set():
            await asyncio.Event().wait()
        return 1

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(changed, run_id="r")
        await began.wait()
    second.set()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        hold = await until(lambda: getattr(engine.store.run("r"), "hold", None), "the run is put on hold")
        assert re.match(r"code_changed: changed: .*ship.*pay", hold)
        assert await run.status() == "suspended"
    check_file(db)


async def test_a_step_that_is_a_node_keeps_its_retries_and_its_key(db: Path) -> None:
    keys = Calls()

    @hf.node(retry=hf.Retry(attempts=3, backoff=0.001))
    async def flaky(ctx: hf.Context, x: int) -> int:
        keys.append(ctx.idempotency_key)
        if len(keys) < 3:
            raise OSError("weather")
        return x

    @hf.workflow
    async def retries(ctx: hf.Context) -> int:
        return await ctx.step(flaky, 5)

    async with hf.open(url(db)) as engine:
        run = await engine.start(retries)
        assert await run.result() == 5
        kinds = types(await run.events())
        assert (kinds.count("StepFailed"), kinds.count("StepCompleted")) == (2, 1)
    assert len(keys) == 3
    assert len(set(keys)) == 1
    check_file(db)


async def test_a_step_that_is_a_node_is_told_which_try_it_is_also_by_another_engine(db: Path) -> None:
    tries, asked = Calls(), Calls()
    second, began = asyncio.Event(), asyncio.Event()

    async def asks(ctx: hf.Context) -> None:
        asked.append(ctx.keyed("k").attempt)

    @hf.node(retry=hf.Retry(attempts=3, backoff=0))
    async def pay(ctx: hf.Context, how: str) -> str:
        tries.append((how, ctx.attempt, ctx.idempotency_key))
        if how == "item":
            await ctx.step(asks)
        if ctx.attempt == 2 and not second.is_set():
            began.set()
            await asyncio.Event().wait()
        if ctx.attempt < 3:
            raise OSError("weather")
        return f"{how} at try {ctx.attempt}"

    @hf.workflow
    async def paying(ctx: hf.Context) -> list[str]:
        first = await ctx.step(pay, "step")
        assert ctx.attempt == 1
        return [first, *await ctx.map(pay, ["item"])]

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(paying, run_id="r")
        await until(began.is_set, "the second try began")
    second.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == ["step at try 3", "item at try 3"]
    assert [(how, attempt) for how, attempt, _ in tries] == [("step", n) for n in (1, 2, 2, 3)] + [
        ("item", n) for n in (1, 2, 3)
    ]
    assert len({key for _, _, key in tries}) == 2
    assert asked == [1]  # a plain function has no tries of its own: that of whoever calls it
    check_file(db)


@pytest.mark.parametrize("persistence", ["aggressive", "lazy"])
@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("at", ["body", "task", "item", "checkpoint"])
async def test_what_a_step_did_in_steps_of_its_own_is_not_done_again_when_it_is_tried_again(
    db: Path, at: str, is_left: bool, persistence: str
) -> None:
    """In the same life of the body as in the next one; what failed in it is tried again."""
    done, keys = Calls(), Calls()
    second, began = asyncio.Event(), asyncio.Event()

    async def inner(ctx: hf.Context, what: str) -> str:
        done.append(what)
        keys.append(ctx.idempotency_key)
        return what

    async def weather(tries: int) -> int:
        done.append(f"weather {tries}")
        if tries < 3:
            raise OSError("weather")
        return tries

    @hf.node(retry=hf.Retry(attempts=5, backoff=0))
    async def outer(ctx: hf.Context, _: int) -> list[Any]:
        found = [await ctx.step(inner, "a"), await ctx.step(inner, "a"), *await ctx.map(inner, ["b", "c"])]
        found += await asyncio.gather(ctx.step(inner, "d"), ctx.step(inner, "e"))
        await ctx.sleep(0.01)
        if ctx.attempt == 2 and is_left and not second.is_set():
            began.set()
            await asyncio.Event().wait()
        return [*found, await ctx.step(weather, ctx.attempt)]

    @hf.workflow(name=f"nesting_{at}_{is_left}_{persistence}", persistence=persistence)
    async def nesting(ctx: hf.Context) -> list[Any]:
        if at == "item":
            return (await ctx.map(outer, [1]))[0]
        if at == "task":
            return await asyncio.create_task(ctx.step(outer, 1))
        if at == "checkpoint" and not ctx.checkpointed:
            await ctx.checkpoint(1)
        return await ctx.step(outer, 1)

    if is_left:
        async with hf.open(url(db), grace_seconds=0) as engine:
            await engine.start(nesting, run_id="r")
            await until(began.is_set, "the second try began")
    second.set()
    async with hf.open(url(db)) as engine:
        run = engine.get("r") if is_left else await engine.start(nesting)
        assert await run.result(timeout=30) == ["a", "a", "b", "c", "d", "e", 3]
    assert sorted(done) == ["a", "a", "b", "c", "d", "e", "weather 1", "weather 2", "weather 3"]
    assert len(set(keys)) == 6
    check_file(db)


async def test_a_step_out_of_tries_raises_its_own_exception_also_when_it_is_remembered(db: Path) -> None:
    caught = Calls()
    second, began = asyncio.Event(), asyncio.Event()
    tries = Calls()

    def bad() -> None:
        tries.append(1)
        raise LookupError("nothing there")

    @hf.workflow
    async def handles(ctx: hf.Context) -> str:
        try:
            await ctx.step(bad)
        except LookupError as e:
            caught.append(str(e))
        began.set()
        if not second.is_set():
            await asyncio.Event().wait()
        return "handled"

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(handles, run_id="r")
        await began.wait()
    second.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "handled"
    assert caught == ["nothing there", "nothing there"]
    assert len(tries) == 1
    check_file(db)


async def test_a_step_has_the_timeout_of_its_node(db: Path) -> None:
    @hf.node(timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    @hf.workflow
    async def impatient(ctx: hf.Context) -> None:
        await ctx.step(slow)

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed) as caught:
            await (await engine.start(impatient)).result()
        assert caught.value.error.code == "timeout"


async def test_idempotency_keys_differ_between_runs_nodes_steps_and_equal_calls(db: Path) -> None:
    keys = Calls()

    @hf.node
    async def effect(ctx: hf.Context, x: int) -> None:
        keys.append(ctx.idempotency_key)

    @hf.workflow
    async def code(ctx: hf.Context) -> None:
        keys.append(ctx.idempotency_key)
        await ctx.step(effect, 1)
        await ctx.step(effect, 1)
        await ctx.map(effect, [1, 2])

    @hf.workflow
    def graph():
        return hf.map(effect, [1, 1])

    async with hf.open(url(db)) as engine:
        for workflow in (code, code, graph):
            await (await engine.start(workflow)).result()
    assert len(keys) == 5 + 5 + 2
    assert len(set(keys)) == len(keys)


async def test_gathered_calls_take_their_places_when_they_are_made(db: Path) -> None:
    """Two lanes whose order of arrival turns around between the first life and the second."""
    second, began = asyncio.Event(), asyncio.Event()
    calls = Calls()
    gates = {name: asyncio.Event() for name in "ab"}

    async def lane(name: str) -> str:
        await gates[name].wait()
        calls.append(name)
        return name

    @hf.workflow
    async def lanes(ctx: hf.Context) -> list[str]:
        a, b = ctx.step(lane, "a"), ctx.step(lane, "b")
        found = await (asyncio.gather(b, a) if second.is_set() else asyncio.gather(a, b))
        began.set()
        if not second.is_set():
            await asyncio.Event().wait()
        return found

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(lanes, run_id="r")
        gates["b"].set()
        await until(lambda: calls == ["b"])
        gates["a"].set()
        await began.wait()
    second.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == ["b", "a"]
    assert calls == ["b", "a"]
    check_file(db)


async def test_a_map_in_code_keeps_the_order_and_the_limit(db: Path) -> None:
    inside, most = 0, 0

    async def item(i: int, add: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return i + add

    @hf.workflow
    async def mapped(ctx: hf.Context) -> list[int]:
        return await ctx.map(item, range(30), limit=4, add=100)

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(mapped)).result() == [i + 100 for i in range(30)]
    assert most == 4
    check_file(db)


async def test_a_failing_item_of_a_map_in_code_raises_its_own_exception(db: Path) -> None:
    async def item(i: int) -> int:
        if i == 2:
            raise KeyError("two")
        return i

    @hf.workflow
    async def mapped(ctx: hf.Context) -> str:
        try:
            await ctx.map(item, range(5))
        except KeyError as e:
            return f"caught {e}"
        return "no"

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(mapped)).result() == "caught 'two'"
    check_file(db)


async def test_an_inline_body_that_wants_to_wait_is_told_what_to_remove(db: Path) -> None:
    @hf.node(inline=True)
    def quick(ctx: hf.Context) -> Any:
        return ctx.now()

    @hf.workflow
    def hasty():
        return quick()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="remove inline=True"):
            await (await engine.start(hasty)).result()


# --- sleep ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idle", [0, 5])
async def test_a_sleeping_body_wakes_in_memory_and_out_of_it(db: Path, idle: float) -> None:
    lives = Calls()

    @hf.workflow
    async def naps(ctx: hf.Context) -> str:
        lives.append(ctx.attempt)
        before = await ctx.now()
        await ctx.sleep(0.05)
        await ctx.sleep(timedelta(milliseconds=50))
        await ctx.sleep(datetime.now(UTC) - timedelta(seconds=1))
        assert await ctx.now() - before >= timedelta(seconds=0.1)
        return "rested"

    async with hf.open(url(db), idle_seconds=idle) as engine:
        run = await engine.start(naps)
        assert await run.result() == "rested"
        kinds = types(await run.events())
        assert kinds.count("TimerFired") == 3
        assert kinds.count("NodeStarted") == 1
    assert set(lives) == {1}
    assert len(lives) == 1 if idle else len(lives) > 1
    check_file(db)


async def test_a_sleep_in_a_graph_holds_back_what_comes_after_it(db: Path) -> None:
    @hf.node(inline=True)
    def end() -> str:
        return "end"

    @hf.workflow
    def pauses():
        nap = hf.sleep(0.05)
        return end.after(nap)()

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(pauses)
        assert await run.result() == "end"
        kinds = types(await run.events())
        assert kinds.index("TimerFired") < [e.type + str(e.node) for e in await run.events()].index("NodeStartedend")
    check_file(db)


async def test_a_suspended_run_costs_a_row_and_no_memory(db: Path) -> None:
    left: list[bool] = []

    @hf.workflow
    async def sleeps(ctx: hf.Context) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            left.append(ctx.leaving)

    async with hf.open(url(db), idle_seconds=0) as engine:
        runs = [await engine.start(sleeps) for _ in range(20)]
        await until(lambda: not engine.actors, "all are evicted")
        assert [await run.status() for run in runs] == ["suspended"] * 20
        (wait,) = await runs[0].waits()
        assert (wait.kind, wait.node) == ("timer", "sleeps")
        assert wait.until is not None
    await until(lambda: len(left) == 20)
    assert left == [True] * 20
    check_file(db)


async def test_a_body_that_is_left_can_record_nothing_any_more(db: Path) -> None:
    raised = Calls()

    @hf.workflow
    async def clings(ctx: hf.Context) -> str:
        try:
            await ctx.sleep(0.2)
        except hf.Suspended:
            for call in (ctx.now, lambda: ctx.step(raised.note, 1), lambda: ctx.sleep(1)):
                try:
                    await call()
                except hf.Suspended as e:
                    raised.append(type(e).__name__)
            return "a lie"
        return "the truth"

    async with hf.open(url(db), idle_seconds=0) as engine:
        clock = hold_time(engine)
        run = await engine.start(clings)
        await until(lambda: not engine.actors, "it is evicted")
        clock.go_on()
        assert await run.result() == "the truth"
    assert raised == ["Suspended"] * 3
    check_file(db)


async def test_a_sync_body_that_sleeps_gives_its_thread_back_and_runs_again(db: Path) -> None:
    lives, steps = Calls(), Calls()

    @hf.node
    def naps(ctx: hf.SyncContext, name: str) -> str:
        lives.append((name, ctx.attempt))
        ctx.step(steps.note, name)
        ctx.sleep(0.15)
        ctx.step(steps.note, name + "!")
        return name

    @hf.workflow
    def many():
        return [naps.named("a")("a"), naps.named("b")("b"), naps.named("c")("c")]

    async with hf.open(url(db), threads=1) as engine:
        run = await engine.start(many)
        assert await run.result() == ["a", "b", "c"]
        for name in "abc":
            assert attempts(await run.events(), name) == [1]
    assert sorted(lives) == sorted([(n, 1) for n in "abc"] * 2)
    assert sorted(steps) == sorted(["a", "b", "c", "a!", "b!", "c!"])
    check_file(db)


async def test_a_sync_body_waits_for_a_child_without_a_thread(db: Path) -> None:
    @hf.workflow
    async def kid(ctx: hf.Context) -> int:
        await ctx.sleep(0.05)
        return 4

    @hf.node
    def asks(ctx: hf.SyncContext) -> int:
        return ctx.child(kid) + 1

    @hf.workflow
    def parent():
        return asks()

    async with hf.open(url(db), threads=1, idle_seconds=0) as engine:
        assert await (await engine.start(parent)).result() == 5
    check_file(db)


async def test_a_sleep_outlives_the_engine(db: Path) -> None:
    lives = Calls()

    @hf.workflow
    async def naps(ctx: hf.Context) -> str:
        lives.append(ctx.attempt)
        await ctx.sleep(0.3)
        return "rested"

    async with hf.open(url(db)) as engine:
        hold_time(engine)
        run = await engine.start(naps, run_id="r")
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "rested"
    assert lives == [1, 1]
    check_file(db)


async def test_a_wait_that_the_body_gives_up_is_closed(db: Path) -> None:
    @hf.workflow
    async def impatient(ctx: hf.Context) -> str:
        task = asyncio.ensure_future(ctx.sleep("1h"))
        while not (await asyncio.wait([task], timeout=0.02))[1]:
            pass
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "gave up"

    async with hf.open(url(db)) as engine:
        run = await engine.start(impatient)
        assert await run.result() == "gave up"
        assert await run.waits() == []
    check_file(db)


# --- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_checkpoint_closes_the_memory_before_it(db: Path, kind: str) -> None:
    second, began = threading.Event(), threading.Event()
    calls, read = Calls(), Calls()

    def step(x: int) -> int:
        calls.append(x)
        return x

    @hf.node
    async def asynchronous(ctx: hf.Context) -> int:
        total = ctx.checkpointed or 0
        read.append(total)
        while total < 6:
            total += await ctx.step(step, 1)
            await ctx.checkpoint(total)
            if total == 3 and not second.is_set():
                began.set()
                await asyncio.Event().wait()
        return total

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> int:
        total = ctx.checkpointed or 0
        read.append(total)
        while total < 6:
            total += ctx.step(step, 1)
            ctx.checkpoint(total)
            if total == 3 and not second.is_set():
                began.set()
                second.wait()
        return total

    node = asynchronous if kind == "async" else synchronous

    @hf.workflow(name=f"checkpoints_{kind}")
    def loops():
        return node.named("body")()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(loops, run_id="r")
        await asyncio.to_thread(began.wait)
    second.set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == 6
    assert read == [0, 3]
    assert len(calls) == 6
    check_file(db)


async def test_a_body_that_forgets_its_checkpoint_fails_with_the_hint(db: Path) -> None:
    second, began = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def forgetful(ctx: hf.Context) -> int:
        await ctx.now()
        await ctx.checkpoint(1)
        began.set()
        if not second.is_set():
            await asyncio.Event().wait()
        return 1

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(forgetful, run_id="r")
        await began.wait()
    second.set()
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match=r"ctx\.checkpointed was not read"):
            await engine.get("r").result()


# --- variables -----------------------------------------------------------------------------------------------------


async def test_variables_are_typed_seen_by_later_bodies_and_read_by_conditions(db: Path) -> None:
    @hf.node
    async def sets(ctx: hf.Context) -> int:
        assert "limit" not in ctx.vars
        ctx.vars["limit"] = 5
        ctx.vars["until"] = datetime(2026, 1, 1, tzinfo=UTC)
        assert ctx.vars["limit"] == 5
        return 1

    @hf.node
    def reads(ctx: hf.SyncContext, after: int) -> list[Any]:
        return [ctx.vars["limit"], ctx.vars["until"].year, sorted(ctx.vars)]

    @hf.node(inline=True)
    def extra() -> str:
        return "extra"

    @hf.workflow(variables={"limit": int, "until": datetime, "unset": str})
    def typed():
        found = reads(sets())
        with hf.when(hf.var("limit") > 3):
            more = extra.after(found)()
        with hf.when(hf.var("limit") > 30):
            none = extra.named("none").after(found)()
        return {"found": found, "more": hf.first(more, None), "none": hf.first(none, None)}

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(typed)).result() == {
            "found": [5, 2026, ["limit", "until"]],
            "more": "extra",
            "none": None,
        }
    check_file(db)


@pytest.mark.parametrize(("name", "value", "message"), [("limit", "many", "limit"), ("colour", 1, "not declared")])
async def test_a_variable_of_another_type_or_name_fails_its_body(db: Path, name: str, value: Any, message: str) -> None:
    @hf.node
    async def sets(ctx: hf.Context) -> None:
        ctx.vars[name] = value

    @hf.workflow(variables={"limit": int})
    def typed():
        return sets()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match=message):
            await (await engine.start(typed)).result()


async def test_what_a_failed_attempt_set_is_not_kept(db: Path) -> None:
    @hf.node(retry=hf.Retry(attempts=2, backoff=0))
    async def sets(ctx: hf.Context) -> list[str]:
        seen = sorted(ctx.vars)
        if ctx.attempt == 1:
            ctx.vars["limit"] = 1
            raise ValueError("after setting it")
        return seen

    @hf.workflow(variables={"limit": int})
    def typed():
        return sets()

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(typed)).result() == []


@pytest.mark.parametrize("key", ["\ud800", "", 7])
async def test_a_key_that_cannot_be_stored_fails_its_body_and_stops_nothing_else(db: Path, key: Any) -> None:
    @hf.workflow
    async def odd(ctx: hf.Context) -> int:
        return await ctx.keyed(key).step(abs, -1)

    @hf.workflow
    async def fine(ctx: hf.Context) -> int:
        return await ctx.step(abs, -1)

    async with hf.open(url(db)) as engine:
        bad, good = await engine.start(odd), await engine.start(fine)
        assert await good.result(timeout=30) == 1
        with pytest.raises(hf.RunFailed, match="key"):
            await bad.result(timeout=30)
    check_file(db)


async def test_as_many_sync_steps_run_at_once_as_the_engine_has_threads(tmp_path: Path) -> None:
    together = threading.Barrier(40)

    def meet(n: int) -> int:
        together.wait(20)
        return n

    @hf.workflow
    async def meeting(ctx: hf.Context) -> list[int]:
        return await ctx.map(meet, list(range(40)), limit=40)

    async with hf.open(url(tmp_path / "runs.db"), threads=40) as engine:
        assert await (await engine.start(meeting)).result(timeout=30) == list(range(40))


def test_a_sync_step_that_does_not_end_keeps_no_program_from_leaving(tmp_path: Path) -> None:
    began, end = threading.Event(), threading.Event()

    def stuck() -> None:
        began.set()
        end.wait(60)

    @hf.workflow
    async def waiting(ctx: hf.Context) -> None:
        await ctx.step(stuck)

    async def main() -> None:
        async with hf.open(url(tmp_path / "runs.db"), grace_seconds=0.1) as engine:
            await engine.start(waiting)
            await until(began.is_set)

    program = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    program.start()
    program.join(20)
    try:
        assert not program.is_alive()
    finally:
        end.set()


class Declined(Exception):
    """Its constructor wants more than a text, as those of many libraries do."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


async def test_a_failed_step_is_caught_by_its_class_also_when_it_is_remembered(db: Path) -> None:
    def pay() -> None:
        raise Declined(402, "no money")

    @hf.workflow
    async def buying(ctx: hf.Context) -> str:
        try:
            await ctx.step(pay)
        except Declined as declined:
            await ctx.sleep(0.05)  # it is left here, and runs again from its start
            return str(declined)
        return "paid"

    async with hf.open(url(db), idle_seconds=0) as engine:
        clock = hold_time(engine)
        run = await engine.start(buying)
        await until(lambda: not engine.actors, "it is let go of while it sleeps")
        clock.go_on()
        assert await run.result(timeout=30) == "402: no money"


class Tripled:
    def __call__(self, n: int) -> int:
        return 3 * n


def _sum(a: int, b: int) -> int:
    return a + b


async def test_whatever_can_be_called_can_be_a_step(db: Path) -> None:
    @hf.workflow
    async def calling(ctx: hf.Context) -> list[Any]:
        return [
            await ctx.step(time.time) > 0,
            await ctx.step(len, "abc"),
            await ctx.step(Tripled(), 2),
            await ctx.step(functools.partial(_sum, 4), 5),
            await ctx.step(functools.partial(_sum, b=1), 5),
            await ctx.map(functools.partial(_sum, 1), [1, 2]),
        ]

    async with hf.open(url(db)) as engine:
        run = await engine.start(calling)
        assert await run.result(timeout=30) == [True, 3, 6, 9, 6, [2, 3]]
        names = [event.data["name"] for event in await run.events() if event.type == "StepCompleted"]
    assert [name.rpartition(".")[2] for name in names] == ["time", "len", "Tripled", "_sum", "_sum", "_sum", "_sum"]


async def test_what_a_partial_holds_tells_it_from_another_one(db: Path) -> None:
    """In another order in the body's second life, as the items of a set may be."""
    lives: list[int] = []

    @hf.workflow
    async def unordered(ctx: hf.Context) -> dict[str, int]:
        lives.append(len(lives))
        numbers = [1, 2] if len(lives) == 1 else [2, 1]
        found = {str(n): await ctx.step(functools.partial(_sum, n, 10)) for n in numbers}
        await ctx.sleep(0.05)
        return found

    async with hf.open(url(db), idle_seconds=0) as engine:
        clock = hold_time(engine)
        run = await engine.start(unordered)
        await until(lambda: not engine.actors, "it is let go of while it sleeps")
        clock.go_on()
        assert await run.result(timeout=30) == {"1": 11, "2": 12}
    assert len(lives) == 2


async def test_a_workflow_is_no_step_and_the_error_names_the_call(db: Path) -> None:
    @hf.workflow
    async def inner(ctx: hf.Context) -> int:
        return 1

    @hf.workflow
    async def outer(ctx: hf.Context) -> int:
        return await ctx.step(inner)  # type: ignore[no-any-return, call-overload]

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match=r"inner is a workflow .* ctx\.child\(inner"):
            await (await engine.start(outer)).result(timeout=30)


async def test_a_node_with_options_that_only_graphs_know_can_be_a_step(db: Path) -> None:
    """Calling a node in a body names `ctx.step` as what to do instead, whatever options the node has."""

    @hf.node
    async def refund(receipt: int) -> None: ...

    @hf.node(compensate=refund, concurrency=2, heartbeat="10s")
    async def charge(amount: int) -> int:
        return amount

    @hf.workflow
    async def shop(ctx: hf.Context) -> int:
        return await ctx.step(charge, 1)

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(shop)).result(timeout=30) == 1


async def test_a_result_that_is_not_what_was_annotated_names_its_function(db: Path) -> None:
    def count() -> int:
        return "three"  # type: ignore[return-value]

    @hf.workflow
    async def counting(ctx: hf.Context) -> int:
        return await ctx.step(count)

    @hf.workflow
    async def lying(ctx: hf.Context) -> int:
        return "three"  # type: ignore[return-value]

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match=r"the result of .*count is not what it is annotated with: expected int"):
            await (await engine.start(counting)).result(timeout=30)
        with pytest.raises(hf.InvalidInput, match=r"the result of run liar .* workflow lying .*: expected int"):
            await (await engine.start(lying, run_id="liar")).result(timeout=30)
        with pytest.raises(hf.UsageError, match=r"'cancled' is not a status of a run; there are .*cancelled"):
            await engine.list(status="cancled")


async def test_equal_run_ids_in_two_databases_have_different_idempotency_keys(tmp_path: Path) -> None:
    keys: list[str] = []

    async def charge(ctx: hf.Context) -> None:
        keys.append(ctx.idempotency_key)

    @hf.workflow
    async def pay(ctx: hf.Context) -> None:
        keys.append(ctx.idempotency_key)
        await ctx.step(charge)

    for name in ("staging", "production"):
        async with hf.open(url(tmp_path / f"{name}.db")) as engine:
            await (await engine.start(pay, run_id="order-42")).result()
    assert len(set(keys)) == 4
