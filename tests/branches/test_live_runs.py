"""Branches of runs that go on: bodies are stopped, waits superseded, late results refused; refusals change nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.branching import Branching
from holdfast.model import handlers
from holdfast.rules.branch_opening import Asked
from tests.branches import world
from tests.branches.world import World, add, ended
from tests.engine.kit import attempts, hold_time, node_of, types, until, until_async, url


async def reaches(run: hf.Run[Any], status: str) -> None:
    async def there() -> bool:
        return await run.status() == status

    await until_async(there, f"the run is {status}")


@hf.workflow
def br_live(x: int):
    a = add.named("a")(x)
    return [world.gated.named("slow")(a), add.named("b")(a)]


async def test_running_siblings_are_stopped_and_run_again_and_their_late_results_are_refused(
    db: Path, bodies: World
) -> None:
    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_live, x=0)
        await bodies.waiting.wait()
        bodies.waiting.clear()
        await until_async(lambda: _completed(run, "b"))
        bodies.again()
        await run.jump(to="b")
        await bodies.waiting.wait()
        bodies.gate.set()
        assert await ended(run) == [1, 2]
        assert bodies.again() == ["b", "slow"], "a completed before; slow was cut off"
        assert attempts(await run.events(), "slow") == [1, 2]
        assert types(await run.events()).count("NodeCompleted") == 4


async def _completed(run: hf.Run[Any], node: str) -> bool:
    return node_of(await run.nodes(), node)["status"] == "completed"


async def test_a_thread_that_ends_late_changes_nothing(db: Path, bodies: World) -> None:
    began, go = threading.Event(), threading.Event()
    results = iter(["too late", "in time"])

    @hf.node
    def blocking() -> str:
        mine = next(results)
        began.set()
        go.wait(20 if mine == "too late" else 0)
        return mine

    @hf.workflow
    def br_thread():
        return blocking()

    async with hf.open(url(db), grace_seconds=0, threads=4) as engine:
        run = await engine.start(br_thread)
        await asyncio.to_thread(began.wait, 20)
        await run.jump(to="blocking")
        assert await ended(run) == "in time"
        go.set()
        assert await ended(run) == "in time"


@hf.workflow
async def br_naps(ctx: hf.Context) -> str:
    world.here.enter("napping")
    await ctx.sleep(3600)
    return "rested"


async def test_a_dropped_wait_is_superseded_and_its_timer_cancelled(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_naps)
        await reaches(run, "suspended")
        (old,) = await run.waits()
        await run.jump(to="br_naps")
        await reaches(run, "suspended")
        (new,) = await run.waits()
        assert new.wait_id != old.wait_id
        closed = [e for e in await run.events() if e.type in ("WaitClosed", "TimerCancelled", "JumpRequested")]
        assert [(e.type, e.branch) for e in closed][:3] == [
            ("TimerCancelled", 1),
            ("WaitClosed", 1),
            ("JumpRequested", 1),
        ]
        assert closed[1].data["outcome"] == "superseded"
        await run.cancel()


async def test_children_of_what_is_dropped_are_cancelled(db: Path, bodies: World) -> None:
    @hf.workflow
    async def br_waits_for_child(ctx: hf.Context) -> str:
        return await ctx.child(br_naps)

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_waits_for_child, run_id="parent")
        await reaches(run, "suspended")
        first = next(r["run_id"] for r in await engine.list() if r["run_id"] != "parent")
        await run.jump(to="br_waits_for_child")
        assert await ended(engine.get(first)) == "cancelled"
        await reaches(run, "suspended")
        second = next(r["run_id"] for r in await engine.list() if r["run_id"] not in ("parent", first))
        assert await engine.get(second).status() in ("running", "suspended")
        await run.cancel()
        assert await ended(engine.get(second)) == "cancelled"


async def test_a_refused_request_does_not_touch_a_live_run(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_live, x=0)
        await bodies.waiting.wait()
        await until_async(lambda: _completed(run, "b"))
        with pytest.raises(hf.Refused):
            await run.retry()
        # what the sender thinks through first may be refused by the owner as well, when the run has moved meanwhile
        with pytest.raises(hf.Refused, match="nothing of the run has failed"):
            await engine.requests.request(engine.store.run(run.run_id).run_no, "retry", Asked())
        with pytest.raises(hf.Refused, match="cannot be read"):
            await engine.requests.request(engine.store.run(run.run_id).run_no, "jump", {"target": {"no": "text"}})
        bodies.gate.set()
        assert await ended(run) == [1, 2]
        assert attempts(await run.events(), "slow") == [1], "its body went on"
        assert [b["branch"] for b in await run.branches()] == [1]


def at_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many requests are thought over before any of them is sent: each of them knows nothing of the others."""
    together = threading.Barrier(number)
    prepare = Branching._prepare

    def prepare_together(self: Branching, *args: Any) -> Any:
        plan = prepare(self, *args)
        together.wait(30)
        return plan

    monkeypatch.setattr(Branching, "_prepare", prepare_together)


async def test_two_requests_at_once_are_applied_one_after_the_other(
    db: Path, bodies: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_live, x=0)
        await bodies.waiting.wait()
        await until_async(lambda: _completed(run, "b"))
        at_once(3, monkeypatch)
        forks = [run.fork(at="start", actor=who) for who in ("ann", "bob")]
        await asyncio.gather(*forks, run.jump(to="a"))
        bodies.gate.set()
        assert await ended(run) == [1, 2]
        assert [b["branch"] for b in await run.branches()] == [1, 2, 3, 4]


async def test_two_retries_of_one_failure_open_one_branch(
    db: Path, bodies: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db)) as engine:
        bodies.broken = {"b"}
        bodies.gate.set()
        run = await engine.start(br_live, x=0)
        await ended(run)
        bodies.broken = set()
        at_once(2, monkeypatch)
        await asyncio.gather(run.retry(), run.retry())
        assert await ended(run) == [1, 2]
        assert len(await run.branches()) == 2


async def test_messages_are_taken_in_the_order_in_which_they_came(db: Path, bodies: World) -> None:
    """A cancel that came before a retry is carried out first; the retry lets the run go on."""
    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_live, x=0)
        await bodies.waiting.wait()
        cancelling = asyncio.ensure_future(run.cancel("wait"))
        jumping = asyncio.ensure_future(run.jump(to="a"))
        await asyncio.gather(cancelling, jumping, return_exceptions=True)
        bodies.gate.set()
        assert await ended(run) == [1, 2]
        assert types(await run.events()).count("RunCancelRequested") == 1


async def test_with_no_engine_running_the_sender_applies_it_without_the_code(db: Path, bodies: World) -> None:
    bodies.broken = {"b"}
    bodies.gate.set()
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_live, x=0, run_id="r")
        await ended(run)
    bodies.again()
    known = dict(handlers._handlers)
    handlers._handlers.clear()  # a process that has none of the code
    try:
        async with hf.open(url(db), recover=False) as stranger:
            await stranger.get("r").retry()
            assert await stranger.get("r").status() == "running"
            assert bodies.again() == []
    finally:
        handlers._handlers.update(known)
    bodies.broken = set()
    async with hf.open(url(db)) as engine:
        assert await ended(engine.get("r")) == [1, 2]
        assert bodies.again() == ["b"]


async def test_a_run_on_hold_can_be_forked(db: Path, bodies: World) -> None:
    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_live, x=0, run_id="r")
        await bodies.waiting.wait()
        row = engine.store.run("r")
        assert row is not None
        actor = engine.actors[row.run_no]
        actor.detach(None)
        await engine.custody.put_on_hold(row.run_no, row.token, "crash_loop: for this test")
        assert await run.status() == "suspended"
        bodies.gate.set()
        await run.fork(at="slow")
        assert await ended(run) == [1, 2]


async def test_edits_close_what_the_edited_node_waits_for(db: Path, bodies: World) -> None:
    @hf.node
    async def waits_long(ctx: hf.Context) -> int:
        await ctx.sleep(3600)
        return 1

    @hf.workflow
    def br_answered_by_hand():
        return add(waits_long())

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_answered_by_hand)
        await reaches(run, "suspended")
        await run.fork(edits={"outputs": {"waits_long": 41}})
        assert await ended(run) == 42


async def test_a_lazy_run_is_written_down_before_it_goes_on_from_elsewhere(db: Path, bodies: World) -> None:
    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_live, x=0, persistence="lazy")
        await bodies.waiting.wait()
        await run.jump(to="slow")
        bodies.gate.set()
        assert await ended(run) == [1, 2]
        assert bodies.again().count("a") == 1


async def test_long_journals_are_folded_beside_the_loop_and_not_on_it(db: Path, bodies: World) -> None:
    seen: list[int] = []
    prepare = Branching._prepare

    def noted(self: Any, *args: Any) -> Any:
        seen.append(threading.get_ident())
        return prepare(self, *args)

    Branching._prepare = noted  # type: ignore[method-assign]
    try:
        async with hf.open(url(db)) as engine:
            bodies.gate.set()
            run = await engine.start(br_live, x=0)
            await ended(run)
            await run.preview("fork", "a")
            await run.fork(at="a", as_run="other")
            await run.fork(at="a")
            await ended(run)
    finally:
        Branching._prepare = prepare  # type: ignore[method-assign]
    assert len(seen) == 3
    assert threading.get_ident() not in seen


@hf.workflow
async def br_sleeps_a_moment(ctx: hf.Context) -> str:
    await ctx.sleep(0.3)
    return "awake"


async def test_a_fork_between_a_wait_and_its_timer_takes_both_and_wakes_up(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        clock = hold_time(engine)
        run = await engine.start(br_sleeps_a_moment)
        await reaches(run, "suspended")
        journal = await run.events()
        asked = next(e.seq for e in journal if e.type == "WaitOpened")
        assert journal[asked].type == "TimerSet"
        await run.fork(at=asked)
        assert (await run.branches())[1]["cutoff_seq"] == asked + 1
        clock.go_on()
        assert await ended(run) == "awake"


async def test_a_child_goes_on_when_its_parent_will_ask_for_it_again_under_the_same_keys(db: Path) -> None:
    go, lives = asyncio.Event(), list[str]()

    @hf.node
    async def br_child_body(x: int) -> int:
        lives.append("child")
        await go.wait()
        return x + 1

    @hf.workflow
    def br_spared(x: int):
        return br_child_body(x)

    @hf.workflow
    async def br_sparing(ctx: hf.Context, x: int) -> int:
        lives.append("parent")
        return int(await ctx.child(br_spared, x=x))

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_sparing, x=1)
        await until(lambda: "child" in lives)
        await run.jump(to="br_sparing", keys="inherit")
        await until(lambda: lives.count("parent") == 2)
        go.set()
        assert await run.result(timeout=20) == 2
        assert len(await engine.list(workflow="br_spared")) == 1
    assert lives.count("child") == 1
