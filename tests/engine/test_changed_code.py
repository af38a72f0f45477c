"""A body whose code has changed (SEMANTICS 8): its run is put on hold, never failed, until somebody decides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine import changes
from holdfast.engine.engine import Engine
from tests.engine.kit import check_file, types, until, until_async, url
from tests.servers import PostgresServer


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Shop:
    """A durable body that is deployed in several versions: the attribute `body` is what runs."""

    def __init__(self) -> None:
        self.body: Any = None
        self.done: list[str] = []
        self.caught: list[str] = []

        @hf.workflow(name="deployed")
        async def deployed(ctx: hf.Context) -> Any:
            return await self.body(ctx)

        self.workflow = deployed

    async def act(self, what: str) -> str:
        self.done.append(what)
        return what

    async def until_evicted(self, engine: Engine, run: Any) -> None:
        async def waits() -> bool:
            return await run.status() == "suspended"

        await until_async(waits)
        await until(lambda: not engine.actors, "the run is evicted")


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def _start_and_change(engine: Engine, shop: Shop, old: Any, new: Any) -> Any:
    """Start a run with the old code, let it wait for `go` until it is evicted, deploy the new code, and signal."""
    shop.body = old
    run = await engine.start(shop.workflow, run_id="r")
    await shop.until_evicted(engine, run)
    shop.body = new
    await run.signal("go")
    return run


async def _held(engine: Engine) -> str:
    def hold() -> str | None:
        row = engine.store.run("r")
        return None if row is None or row.engine is not None else row.hold

    held: str = await until(hold, "the run is put on hold")
    return held


def _old(shop: Shop) -> Any:
    async def body(ctx: hf.Context) -> Any:
        found = [await ctx.step(shop.act, "reserve"), await ctx.step(shop.act, "charge")]
        await ctx.receive("go")
        return [*found, await ctx.step(shop.act, "ship")]

    return body


def _renamed(shop: Shop) -> Any:
    async def body(ctx: hf.Context) -> Any:
        found = [await ctx.step(shop.act, "reserve")]
        try:
            found.append(await ctx.step(shop.act, "charge the card"))
        except Exception as error:  # noqa: BLE001 - what a careless body does
            shop.caught.append(repr(error))
        await ctx.receive("go")
        return [*found, await ctx.step(shop.act, "ship")]

    return body


async def test_a_changed_body_holds_its_run_and_a_rollback_ends_the_hold(db: Path, shop: Shop) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), _renamed(shop))
        hold = await _held(engine)
        assert hold.startswith("code_changed: deployed: at position 1 of the body the code now calls step")
        assert shop.caught == [], "it is no Exception"
        assert await run.status() == "suspended"
        assert "deploy the old code again" in await run.why()
        assert not {"NodeFailed", "RunFailed"} & set(types(await run.events()))
        await engine.resume("r")  # with the new code still there it holds again
        await _held(engine)
        shop.body = _old(shop)
        await engine.resume("r")
        assert await run.result(timeout=30) == ["reserve", "charge", "ship"]
        assert {e.data["attempt"] for e in await run.events() if e.type == "NodeStarted"} == {1}
    assert shop.done == ["reserve", "charge", "ship"]
    check_file(db)


async def test_no_compensation_and_no_retry_follow_from_a_deploy(db: Path, shop: Shop) -> None:
    undone: list[str] = []

    @hf.node
    async def undo(receipt: str) -> None:
        undone.append(receipt)

    @hf.node(compensate=undo)
    async def pay() -> str:
        return "paid"

    @hf.node(retry=hf.Retry(attempts=5))
    async def deliver(ctx: hf.Context, receipt: str) -> Any:
        return await shop.body(ctx)

    @hf.workflow(on_failure="compensate")
    def saga() -> Any:
        return deliver(pay())

    shop.body = _old(shop)
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(saga, run_id="r")
        await shop.until_evicted(engine, run)
        shop.body = _renamed(shop)
        await run.signal("go")
        await _held(engine)
        shop.body = _old(shop)
        await engine.resume("r")
        assert await run.result(timeout=30) == ["reserve", "charge", "ship"]
    assert undone == []
    assert shop.done == ["reserve", "charge", "ship"]
    check_file(db)


async def test_every_call_after_a_mismatch_raises_suspended_and_what_the_body_returns_is_discarded(
    db: Path, shop: Shop
) -> None:
    seen: list[str] = []

    async def stubborn(ctx: hf.Context) -> Any:
        for what in ("reserve", "other", "another"):
            try:
                await ctx.step(shop.act, what)
            except BaseException as error:  # noqa: BLE001 - what a very careless body does
                seen.append(type(error).__name__)
        return "done all the same"

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), stubborn)
        await _held(engine)
        assert seen == ["StepMismatch", "Suspended"]
        assert await run.status() == "suspended"
    assert shop.done == ["reserve", "charge"]
    check_file(db)


async def test_a_body_that_does_not_end_after_a_mismatch_holds_its_run_all_the_same(db: Path, shop: Shop) -> None:
    async def stuck(ctx: hf.Context) -> Any:
        try:
            await ctx.step(shop.act, "other")
        finally:
            await asyncio.Event().wait()

    async with hf.open(url(db), idle_seconds=0, grace_seconds=0.05) as engine:
        await _start_and_change(engine, shop, _old(shop), stuck)
        await _held(engine)
    check_file(db)


async def test_a_changed_sync_body_holds_its_run(db: Path, shop: Shop) -> None:
    calls = ["first", "second"]

    def note(what: str) -> str:
        shop.done.append(what)
        return what

    @hf.node
    def body(ctx: hf.SyncContext) -> Any:
        found = [ctx.step(note, what) for what in calls]
        ctx.receive("go")
        return [*found, ctx.patched("always")]

    @hf.workflow
    def sync_changes() -> Any:
        return body()

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(sync_changes, run_id="r")
        await shop.until_evicted(engine, run)
        calls[1] = "other"
        await run.signal("go")
        await _held(engine)
        calls[1] = "second"
        await engine.resume("r")
        assert await run.result(timeout=30) == ["first", "second", True]
    assert shop.done == ["first", "second"]
    check_file(db)


async def test_steps_of_other_tasks_that_complete_meanwhile_are_recorded(db: Path, shop: Shop) -> None:
    async def slow(what: str) -> str:
        await asyncio.sleep(0.05)
        return await shop.act(what)

    async def old(ctx: hf.Context) -> Any:
        await ctx.step(shop.act, "a")
        await ctx.receive("go")
        return await asyncio.gather(ctx.step(slow, "beside"), ctx.step(shop.act, "b"))

    async def new(ctx: hf.Context) -> Any:
        async def beside() -> Any:
            return await ctx.step(slow, "beside")

        task = asyncio.create_task(beside())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await ctx.step(shop.act, "changed")
        return await task

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, old, new)
        await _held(engine)
        recorded = [e.data["scope"] for e in await run.events() if e.type == "StepCompleted"]
    assert shop.done == ["a", "beside"]
    assert [scope.rpartition(".")[2] for scope in recorded] == ["", "1/"]
    check_file(db)


# --- accepting ------------------------------------------------------------------------------------------------------


def _changed(shop: Shop) -> Any:
    """A renamed step, an inserted one before it, and one removed."""

    async def body(ctx: hf.Context) -> Any:
        found = [await ctx.step(shop.act, "check"), await ctx.step(shop.act, "charge")]
        await ctx.receive("go")
        return [*found, await ctx.step(shop.act, "send")]

    return body


async def test_an_accepted_change_keeps_what_agrees_and_makes_the_other_calls_anew(db: Path, shop: Shop) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), _changed(shop))
        await _held(engine)
        row = engine.store.run("r")
        assert row is not None
        (shown,) = await changes.rehearse(engine.runtime, engine.custody, engine.bodies, row)
        assert shown.new == [f"step {__name__}.Shop.act"]
        assert len(shown.set_aside) == 3
        assert shop.done == ["reserve", "charge"], "a rehearsal does nothing"
        await run.resume(accept_change=True, actor="ann")
        assert await run.result(timeout=30) == ["check", "charge", "send"]
        assert [b["reason"] for b in await run.branches()][-1] == "accept_change"
        before, after = await run.branches()
        assert before["key_epoch"] == after["key_epoch"]
    assert shop.done == ["reserve", "charge", "check", "send"]
    check_file(db)


async def test_a_change_is_accepted_on_a_server_too(postgres: PostgresServer, shop: Shop) -> None:
    async with hf.open(postgres.url(), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), _changed(shop))
        await _held(engine)
        await run.resume(accept_change=True)
        assert await run.result(timeout=30) == ["check", "charge", "send"]
    assert shop.done == ["reserve", "charge", "check", "send"]


async def test_an_accepted_change_survives_the_next_eviction_and_a_second_one_holds_again(db: Path, shop: Shop) -> None:
    def accepted(last: str) -> Any:
        async def body(ctx: hf.Context) -> Any:
            found = [await ctx.step(shop.act, "check"), await ctx.step(shop.act, "charge")]
            await ctx.receive("go")
            found.append(await ctx.step(shop.act, last))
            await ctx.receive("again")
            return found

        return body

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), accepted("pack"))
        await _held(engine)
        await run.resume(accept_change=True)
        await until(lambda: "pack" in shop.done)
        await shop.until_evicted(engine, run)
        shop.body = accepted("wrap")
        await run.signal("again")
        assert "wrap" not in shop.done
        await _held(engine)
        shop.body = accepted("pack")
        await engine.resume("r")
        assert await run.result(timeout=30) == ["check", "charge", "pack"]
    assert shop.done == ["reserve", "charge", "check", "pack"]
    check_file(db)


async def test_only_a_run_that_is_held_by_a_change_can_be_accepted(db: Path, shop: Shop) -> None:
    shop.body = _old(shop)
    async with hf.open(url(db)) as engine:
        run = await engine.start(shop.workflow, run_id="r")
        with pytest.raises(hf.Refused, match="run r is not on hold because of a change of its code"):
            await run.resume(accept_change=True)
        with pytest.raises(hf.UsageError, match="accept_change goes by itself"):
            await run.resume(accept_change=True, path=".")
        await run.cancel()


async def test_a_fork_before_the_changed_step_goes_on_with_the_new_code(db: Path, shop: Shop) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), _changed(shop))
        await _held(engine)
        await run.fork("start")
        await run.signal("go", id="again")
        assert await run.result(timeout=30) == ["check", "charge", "send"]
    assert shop.done == ["reserve", "charge", "check", "charge", "send"]
    check_file(db)


# --- ctx.patched -----------------------------------------------------------------------------------------------------


def _patched_rename(shop: Shop) -> Any:
    async def body(ctx: hf.Context) -> Any:
        found = [await ctx.step(shop.act, "reserve")]
        found.append(await ctx.step(shop.act, "charge the card" if ctx.patched("card") else "charge"))
        await ctx.receive("go")
        return [*found, await ctx.step(shop.act, "ship")]

    return body


def _patched_insert(shop: Shop) -> Any:
    async def body(ctx: hf.Context) -> Any:
        found = [await ctx.step(shop.act, "reserve")]
        if ctx.patched("check fraud"):
            found.append(await ctx.step(shop.act, "check"))
        found.append(await ctx.step(shop.act, "charge"))
        await ctx.receive("go")
        if ctx.patched("pack"):  # behind everything that is remembered: also for runs in flight
            found.append(await ctx.step(shop.act, "pack"))
        return [*found, await ctx.step(shop.act, "ship")]

    return body


def _patched_remove(shop: Shop) -> Any:
    async def body(ctx: hf.Context) -> Any:
        found = []
        if not ctx.patched("no reservation"):
            found.append(await ctx.step(shop.act, "reserve"))
        found.append(await ctx.step(shop.act, "charge"))
        await ctx.receive("go")
        return [*found, await ctx.step(shop.act, "ship")]

    return body


@pytest.mark.parametrize(
    ("patched", "in_flight", "fresh"),
    [
        (_patched_rename, "reserve charge ship", "reserve charge-the-card ship"),
        (_patched_insert, "reserve charge pack ship", "reserve check charge pack ship"),
        (_patched_remove, "reserve charge ship", "charge ship"),
    ],
)
async def test_code_that_asks_patched_goes_the_old_way_for_runs_in_flight_and_the_new_one_for_others(
    db: Path, shop: Shop, patched: Any, in_flight: str, fresh: str
) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, _old(shop), patched(shop))
        assert await run.result(timeout=30) == in_flight.split()
        shop.done.clear()
        later = await engine.start(shop.workflow, run_id="later")
        await shop.until_evicted(engine, later)  # it is replayed with what it remembers, and goes the new way again
        await later.signal("go")
        wanted = [word.replace("-", " ") for word in fresh.split()]
        assert await later.result(timeout=30) == wanted
        assert shop.done == wanted
    check_file(db)


async def test_what_patched_said_is_kept_by_a_checkpoint(db: Path, shop: Shop) -> None:
    said: list[bool] = []

    def body(*, asks: bool) -> Any:
        async def counts(ctx: hf.Context) -> Any:
            state = ctx.checkpointed or 0
            while state < 2:
                if asks:
                    said.append(ctx.patched("way"))
                await ctx.step(shop.act, f"round {state}")
                await ctx.receive("go")
                state += 1
                await ctx.checkpoint(state)
            return state

        return counts

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await _start_and_change(engine, shop, body(asks=False), body(asks=True))
        await until(lambda: "round 1" in shop.done)
        await shop.until_evicted(engine, run)
        await run.signal("go", id="second")
        assert await run.result(timeout=30) == 2
    assert said
    assert set(said) == {False}
    check_file(db)


async def test_a_changed_compensation_holds_its_run_until_the_old_code_is_back(db: Path, shop: Shop) -> None:
    """An accepted change does not lead out of it and says so; nothing of it is tried again. (A cancel does:
    test_missing_code.py.)"""

    @hf.node
    async def give_back(ctx: hf.Context, charged: str) -> None:
        await shop.body(ctx)

    @hf.node(compensate=give_back)
    async def charge() -> str:
        return "charged"

    @hf.workflow(on_failure="compensate")
    async def undone_by_changed_code(ctx: hf.Context) -> None:
        await ctx.step(charge)
        raise ValueError("no")

    shop.body = _old(shop)
    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(undone_by_changed_code, run_id="r")
        await shop.until_evicted(engine, run)
        shop.body = _renamed(shop)
        await run.signal("go")
        assert (await _held(engine)).startswith("code_changed: charge~undo@")
        with pytest.raises(hf.Refused, match="a change of a compensation cannot be accepted"):
            await run.resume(accept_change=True)
        assert (await _held(engine)).startswith("code_changed: charge~undo@")
        shop.body = _old(shop)
        await run.resume()
        with pytest.raises(hf.RunFailed, match="no"):
            await run.result(timeout=30)
    assert shop.done == ["reserve", "charge", "ship"]
    check_file(db)
