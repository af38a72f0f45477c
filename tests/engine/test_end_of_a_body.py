"""The end of a body: what it started is stopped, awaited and recorded before its end is decided."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import check_file, types, until, url, waiting

QUICK = hf.Retry(attempts=3, backoff=0)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Step:
    """A step that waits to be let through, and knows how many of it are under way."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.acted: list[str] = []
        self.inside = self.most = 0

    async def charge(self, ctx: hf.Context) -> str:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.begun.set()
        try:
            await self.go.wait()
            self.acted.append(ctx.idempotency_key)
        finally:
            self.inside -= 1
        return "charged"

    async def stubborn(self, ctx: hf.Context) -> str:
        """The same, and it finishes although it is cancelled."""
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await self.go.wait()
        self.acted.append(ctx.idempotency_key)
        return "charged"


class Blocking:
    """The same as a sync function."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.acted: list[str] = []

    def charge(self) -> str:
        self.begun.set()
        assert self.go.wait(30)
        self.acted.append("charged")
        return "charged"


async def test_a_step_under_way_when_its_body_fails_never_runs_beside_its_next_try(db: Path) -> None:
    step = Step()

    @hf.node(retry=QUICK)
    async def fails_beside_a_step(ctx: hf.Context) -> str:
        async def check() -> None:
            await step.begun.wait()
            step.begun.clear()
            if ctx.attempt < 3:
                raise ConnectionError("no")
            step.go.set()

        return (await asyncio.gather(ctx.step(step.charge), check()))[0]

    @hf.workflow
    def three_tries() -> str:
        return fails_beside_a_step()

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(three_tries)).result() == "charged"
    assert (len(step.acted), step.most, step.inside) == (1, 1, 0)
    check_file(db)


@pytest.mark.parametrize("ends", ["returns", "raises", "pends", "goes back"])
async def test_a_step_does_not_act_after_the_end_of_its_body_however_that_ends(db: Path, ends: str) -> None:
    step = Step()

    @hf.node
    async def begin() -> str:
        return "begun"

    @hf.node
    async def leaves_a_step(ctx: hf.Context, x: str) -> str:
        if ctx.visit == 2:
            return x
        task = asyncio.create_task(ctx.step(step.charge))
        await step.begun.wait()
        match ends:
            case "raises":
                raise ValueError("not in stock")
            case "pends":
                hf.pend("later")
            case "goes back":
                hf.goto("begin")
        return x if not task.done() else "charged"

    @hf.workflow
    def left_behind() -> str:
        return leaves_a_step(begin())

    async with hf.open(url(db)) as engine:
        run = await engine.start(left_behind)
        if ends == "pends":
            await until_type(run, "NodeSuspended")
        elif ends == "raises":
            with pytest.raises(hf.RunFailed, match="not in stock"):
                await run.result()
        else:
            assert await run.result() == "begun"
        assert step.inside == 0
        step.go.set()
        assert "StepCompleted" not in types(await run.events())
    assert step.acted == []
    check_file(db)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_completes_after_the_body_is_recorded_before_its_end(db: Path, fails: bool) -> None:
    step = Step()

    @hf.node(retry=QUICK)
    async def outlived(ctx: hf.Context) -> str:
        if ctx.attempt == 2:
            return await ctx.step(step.stubborn)
        task = asyncio.create_task(ctx.step(step.stubborn))
        await step.begun.wait()
        asyncio.get_running_loop().call_soon(step.go.set)
        if fails:
            raise ConnectionError(str(task.done()))
        return "gone"

    @hf.workflow
    def recorded() -> str:
        return outlived()

    async with hf.open(url(db)) as engine:
        run = await engine.start(recorded)
        assert await run.result() == ("charged" if fails else "gone")
        names = types(await run.events())
    assert names.index("StepCompleted") < names.index("NodeFailed" if fails else "NodeCompleted")
    if not fails:
        assert len(step.acted) == 1
    check_file(db)


async def test_a_sync_step_that_ends_in_the_grace_time_is_recorded_and_not_called_again(db: Path) -> None:
    step = Blocking()

    @hf.node(retry=QUICK)
    async def left_its_thread(ctx: hf.Context) -> str:
        async def check() -> None:
            await asyncio.to_thread(step.begun.wait)
            if ctx.attempt == 1:
                asyncio.get_running_loop().call_soon(step.go.set)
                raise ConnectionError("no")

        return (await asyncio.gather(ctx.step(step.charge), check()))[0]

    @hf.workflow
    def sync_left_behind() -> str:
        return left_its_thread()

    async with hf.open(url(db)) as engine:
        run = await engine.start(sync_left_behind)
        assert await run.result() == "charged"
        names = types(await run.events())
    assert step.acted == ["charged"]
    assert names.index("StepCompleted") < names.index("NodeFailed")
    check_file(db)


async def test_a_sync_step_that_its_task_group_cancelled_is_recorded_as_well(db: Path) -> None:
    step = Blocking()

    @hf.node(retry=QUICK)
    async def aborted(ctx: hf.Context) -> str:
        async with asyncio.TaskGroup() as group:
            charged = group.create_task(ctx.step(step.charge))
            if ctx.attempt == 1:
                await asyncio.to_thread(step.begun.wait)
                asyncio.get_running_loop().call_soon(step.go.set)
                raise ConnectionError("no")
        return charged.result()

    @hf.workflow
    def group_left_behind() -> str:
        return aborted()

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(group_left_behind)).result() == "charged"
    assert step.acted == ["charged"]
    check_file(db)


async def test_a_sync_step_that_does_not_end_is_given_up_and_the_journal_says_so(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = Blocking()

    @hf.workflow
    async def goes_without(ctx: hf.Context) -> str:
        task = asyncio.create_task(ctx.step(step.charge))
        await asyncio.to_thread(step.begun.wait)
        return "gone" if not task.done() else "charged"

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(goes_without)
        with caplog.at_level(logging.WARNING):
            assert await run.result() == "gone"
        (failed,) = [e for e in await run.events() if e.type == "StepFailed"]
        assert failed.data["error"]["code"] == "outcome_unknown"
        assert "was still running 0.05 s after the body of goes_without had ended" in failed.data["error"]["message"]
        assert run.run_id in caplog.text
        step.go.set()
    check_file(db)


async def test_a_call_that_was_made_and_never_began_does_not_begin_after_the_end(db: Path) -> None:
    acted: list[str] = []
    left: list[asyncio.Task[str]] = []

    async def act() -> str:
        acted.append("acted")
        return "done"

    @hf.workflow
    async def hands_over(ctx: hf.Context) -> str:
        left.append(asyncio.create_task(ctx.step(act)))
        return "at once"

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(hands_over)).result() == "at once"
        await asyncio.wait(left)
    assert left[0].cancelled()
    assert acted == []


async def test_a_task_that_made_no_call_on_ctx_is_not_touched_and_ctx_raises_in_it_afterwards(db: Path) -> None:
    go = asyncio.Event()
    readers: list[asyncio.Task[None]] = []

    async def act() -> None: ...

    @hf.workflow
    async def has_a_library(ctx: hf.Context) -> str:
        async def reader() -> None:
            await go.wait()
            await ctx.step(act)

        readers.append(asyncio.create_task(reader()))
        beside = asyncio.create_task(ctx.sleep(3_600))
        await asyncio.sleep(0)
        return "done" if not beside.done() else ""

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(has_a_library)).result() == "done"
        (reader,) = readers
        assert not reader.done()
        go.set()
        with pytest.raises((hf.Suspended, asyncio.CancelledError)):
            await reader
    check_file(db)


async def test_the_thread_of_a_race_that_was_lost_does_not_outlive_the_body(db: Path) -> None:
    step = Blocking()

    @hf.workflow
    async def races(ctx: hf.Context) -> int:
        winner, _ = await ctx.race(ctx.step(step.charge), ctx.step(asyncio.to_thread, step.begun.wait))
        asyncio.get_running_loop().call_later(0.05, step.go.set)
        return winner

    async with hf.open(url(db)) as engine:
        run = await engine.start(races)
        assert await run.result() == 1
        assert step.acted == ["charged"]
        assert [e.data["name"] for e in await run.events() if e.type == "StepCompleted"][-1] == "race"
    check_file(db)


async def test_a_sync_step_that_ends_while_its_run_is_cancelled_is_recorded(db: Path) -> None:
    step = Blocking()

    @hf.workflow
    async def cancelled_in_a_thread(ctx: hf.Context) -> str:
        return await ctx.step(step.charge)

    async with hf.open(url(db)) as engine:
        run = await engine.start(cancelled_in_a_thread)
        await until(step.begun.is_set)
        cancelling = asyncio.create_task(run.cancel())
        await until_type(run, "RunCancelRequested")
        step.go.set()
        await cancelling
        with pytest.raises(hf.RunCancelled):
            await run.result()
        names = types(await run.events())
    assert names.index("StepCompleted") < names.index("RunCancelled")
    check_file(db)


async def until_type(run: hf.Run[Any], name: str) -> None:
    async for event in run.follow():
        if event.type == name:
            return


async def test_a_sync_step_that_times_out_is_tried_again_when_its_thread_has_ended(db: Path) -> None:
    inside = most = 0
    lock = threading.Lock()

    @hf.node(timeout=0.05, retry=QUICK)
    def slow() -> str:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.15)
        with lock:
            inside -= 1
        return "late"

    @hf.workflow
    async def tries_slow(ctx: hf.Context) -> str:
        return await ctx.step(slow)

    async with hf.open(url(db)) as engine:
        run = await engine.start(tries_slow)
        with pytest.raises(hf.RunFailed, match=r"ran longer than its timeout of 0\.05 s$"):
            await run.result()
        assert types(await run.events()).count("StepFailed") == 3
    assert (most, inside) == (1, 0)
    check_file(db)


async def test_a_sync_step_that_ignores_its_timeout_is_given_up_before_it_is_tried_again(db: Path) -> None:
    release = threading.Event()
    tries: list[int] = []

    @hf.node(timeout=0.05, retry=QUICK)
    def deaf() -> int:
        tries.append(1)
        if len(tries) == 1:
            release.wait(30)
        return len(tries)

    @hf.workflow
    async def tries_deaf(ctx: hf.Context) -> int:
        return await ctx.step(deaf)

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(tries_deaf)
        assert await run.result() == 2
        (failed,) = [e for e in await run.events() if e.type == "StepFailed"]
        assert "did not stop, and its thread was given up" in failed.data["error"]["message"]
        release.set()
    check_file(db)


async def test_a_sync_body_that_times_out_ends_after_the_thread_of_its_step(db: Path) -> None:
    step = Blocking()

    @hf.node(timeout=0.1)
    def blocked_in_a_step(ctx: hf.SyncContext) -> str:
        return str(ctx.step(step.charge))

    @hf.workflow
    def sync_around_sync() -> str:
        return blocked_in_a_step()

    async with hf.open(url(db)) as engine:
        run = await engine.start(sync_around_sync)
        await until(step.begun.is_set)
        asyncio.get_running_loop().call_later(0.3, step.go.set)
        with pytest.raises(hf.RunFailed, match="longer than its timeout"):
            await run.result()
        names = types(await run.events())
    assert step.acted == ["charged"]
    assert names.index("StepCompleted") < names.index("NodeFailed")
    check_file(db)


async def test_a_body_is_not_evicted_while_the_thread_of_a_cancelled_step_is_at_work(db: Path) -> None:
    step = Blocking()

    @hf.workflow
    async def asks_beside_a_thread(ctx: hf.Context) -> str:
        await ctx.race(ctx.step(step.charge), ctx.step(asyncio.to_thread, step.begun.wait))
        return await ctx.ask("go on?", schema=str)

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(asks_beside_a_thread)
        await until_type(run, "WaitOpened")
        (actor,) = engine.actors.values()
        await asyncio.sleep(0)
        assert not engine.executor.is_idle(actor.run_no)
        step.go.set()
        (wait,) = await waiting(run, "input")
        await run.respond(wait.wait_id, "yes")
        assert await run.result() == "yes"
    check_file(db)


async def test_tasks_of_a_body_are_cancelled_with_it_when_the_engine_stops(db: Path) -> None:
    left: list[asyncio.Task[None]] = []
    began = asyncio.Event()

    async def nothing() -> None: ...

    @hf.workflow
    async def has_a_helper(ctx: hf.Context) -> str:
        async def helper() -> None:
            await ctx.step(nothing)
            began.set()
            await asyncio.Event().wait()

        left.append(asyncio.create_task(helper()))
        return await ctx.ask("go on?", schema=str)

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        await engine.start(has_a_helper, run_id="r")
        await began.wait()
    assert [task.cancelled() for task in left] == [True]
    check_file(db)


async def test_a_step_that_outlives_its_body_is_compensated_as_one_of_unknown_outcome(db: Path) -> None:
    step = Blocking()
    undone: list[object] = []

    @hf.node
    async def release(booking: str | None) -> None:
        undone.append(booking)

    @hf.node(compensate=release)
    def book() -> str:
        return step.charge()

    @hf.workflow(on_failure="compensate")
    async def books_and_fails(ctx: hf.Context) -> None:
        beside = asyncio.create_task(ctx.step(book))
        await asyncio.to_thread(step.begun.wait)
        raise ValueError(f"not in stock: {beside.done()}")

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(books_and_fails)
        with pytest.raises(hf.RunFailed, match="not in stock"):
            await run.result()
        assert undone == [None]
        step.go.set()
    check_file(db)
