"""What people, signals and time are waited for across branches: kept under its id, or superseded and asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, add, ended
from tests.engine.kit import closed_waits, node_of, until_async, url, waiting


@hf.node
async def br_asks(ctx: hf.Context, x: int) -> str:
    world.here.enter("asks")
    return str(
        await ctx.ask(
            "Good?",
            schema=str,
            assignee="ann",
            deadline="30d",
            remind="1h",
            escalate=[hf.Escalate("1d", assignee="boss"), hf.Escalate("2d", basket="lost")],
        )
    )


@hf.workflow
def br_two_lanes(x: int):
    return [br_asks(x), add.named("b")(x)]


async def completed(run: hf.Run[Any], node: str) -> None:
    async def is_done() -> bool:
        return node_of(await run.nodes(), node)["status"] == "completed"

    await until_async(is_done, f"{node} completed")


def timers(engine: Any, run: hf.Run[Any]) -> list[str]:
    row = engine.store.run(run.run_id)
    return sorted(timer.timer.split(":")[0] for timer in engine.store.set_timers([row.run_no]))


async def test_a_question_that_is_kept_keeps_its_id_and_all_its_timers(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_two_lanes, x=1)
        (wait,) = await waiting(run, "input")
        await completed(run, "b")
        before = timers(engine, run)
        assert len(before) == 4, "its deadline, a reminder and two escalations"
        await run.jump(to="b")
        await completed(run, "b")
        (kept,) = await waiting(run, "input")
        assert kept == wait
        assert timers(engine, run) == before
        await run.respond(wait.wait_id, "yes")
        assert await ended(run) == ["yes", 2]
        assert timers(engine, run) == []


async def test_a_question_that_is_dropped_is_superseded_with_all_its_timers_and_asked_again(
    db: Path, bodies: World
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_two_lanes, x=1)
        (wait,) = await waiting(run, "input")
        before = timers(engine, run)
        await run.fork(at="br_asks")
        (again,) = await waiting(run, "input")
        assert again.wait_id != wait.wait_id
        assert len(timers(engine, run)) == len(before)
        with pytest.raises(hf.Refused, match="was superseded"):
            await run.respond(wait.wait_id, "too late")
        await run.respond(again.wait_id, "yes")
        assert await ended(run) == ["yes", 2]


async def test_a_question_that_was_handed_on_behind_the_cut_is_asked_anew_as_it_was(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_two_lanes, x=1)
        (wait,) = await waiting(run, "input")
        await completed(run, "b")
        here = (await run.events())[-1].seq
        await run.reassign(wait.wait_id, assignee="zoe")
        await run.fork(at=here)
        (again,) = await waiting(run, "input")
        assert (again.wait_id != wait.wait_id, again.assignee) == (True, "ann")
        await run.reassign(again.wait_id, assignee="bob")
        await run.fork()
        (kept,) = await waiting(run, "input")
        assert (kept.wait_id, kept.assignee) == (again.wait_id, "bob"), "what happened before the cut stays"
        await run.respond(kept.wait_id, "yes")
        assert await ended(run) == ["yes", 2]


# --- pause -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fork", "jump"])
async def test_whoever_lets_a_paused_run_go_on_from_elsewhere_ends_its_pause(
    db: Path, bodies: World, kind: str
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_two_lanes, x=1)
        await waiting(run, "input")
        await run.pause("wait a moment", actor="ann")
        await waiting(run, "input", "pause")
        await (run.fork() if kind == "fork" else run.jump(to="b"))
        (wait,) = await waiting(run, "input")
        assert ("superseded", "") in closed_waits(await run.events())
        await run.respond(wait.wait_id, "yes")
        assert await ended(run) == ["yes", 2]


async def test_a_fork_as_a_run_of_its_own_is_not_paused_and_the_other_one_stays_so(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_two_lanes, x=1)
        await waiting(run, "input")
        await run.pause()
        await waiting(run, "input", "pause")
        other = await run.fork(as_run="other")
        (wait,) = await waiting(other, "input")
        await other.respond(wait.wait_id, "yes")
        assert await ended(other) == ["yes", 2]
        await waiting(run, "input", "pause")


# --- baskets -----------------------------------------------------------------------------------------------------


@hf.node
async def br_pends(ctx: hf.Context, x: int, how: str) -> int:
    world.here.enter(f"pends {how}")
    if how == "next":
        hf.pend("review", output=x + 10)
    first = world.here.ran.count(f"pends {how}") == 1
    if how == "same" and first:
        hf.pend("review", rerun=True)
    if how == "error" and first:
        hf.pend("review", error="no stock")
    return x + 20


@hf.workflow
def br_pended(x: int, how: str):
    pended = br_pends(x, how)
    return [add.named("after")(pended), add.named("beside")(x)]


RESULT = {"next": 12, "same": 22, "error": 22}


@pytest.mark.parametrize("how", ["next", "same", "error"])
async def test_a_node_that_lies_in_a_basket_stays_there_under_its_id(db: Path, bodies: World, how: str) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_pended, x=1, how=how)
        (wait,) = await waiting(run, "basket")
        shown = await run.preview("jump", "beside")
        assert (shown["pended"], shown["runs_again"]) == (["br_pends"], ["beside"])
        await run.jump(to="beside")
        await completed(run, "beside")
        (kept,) = await waiting(run, "basket")
        assert kept == wait
        assert bodies.ran.count(f"pends {how}") == 1
        assert await run.resume(wait=wait.wait_id) == [wait.wait_id]
        assert await ended(run) == [RESULT[how], 2]
        assert bodies.ran.count(f"pends {how}") == (1 if how == "next" else 2)
        assert (await run.show(branch=2))["nodes"] == await run.nodes()


@pytest.mark.parametrize("how", ["next", "same", "error"])
async def test_a_node_that_was_resumed_behind_the_cut_lies_in_its_basket_again(
    db: Path, bodies: World, how: str
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_pended, x=1, how=how)
        (wait,) = await waiting(run, "basket")
        here = (await run.events())[-1].seq
        await run.resume()
        assert await ended(run) == [RESULT[how], 2]
        ran = bodies.ran.count(f"pends {how}")
        await run.fork(at=here)
        (again,) = await waiting(run, "basket")
        assert (again.wait_id != wait.wait_id, again.basket, again.mode, again.error) == (
            True,
            "review",
            how,
            wait.error,
        )
        assert bodies.ran.count(f"pends {how}") == ran, "nobody has resumed it"
        await run.resume()
        assert await ended(run) == [RESULT[how], 2]
        one, two = await run.show(branch=1), await run.show(branch=2)
        assert one["result"] == two["result"]
        assert (await run.diff(1, 2))["nodes"] == []


async def test_wherever_a_pended_run_is_cut_it_comes_to_the_same_end(db: Path, bodies: World) -> None:
    """Every event is a place to fork at; none of them lets a pended node run on by itself, or twice."""
    async with hf.open(url(db)) as engine:
        for how in RESULT:
            run = await engine.start(br_pended, x=1, how=how, run_id=how)
            await waiting(run, "basket")
            await run.resume()
            assert await ended(run) == [RESULT[how], 2]
            events = await run.events()
            pended = next(e.seq for e in events if e.type == "NodeSuspended")
            for event in events:
                bodies.again()
                other = await run.fork(at=event.seq, as_run=f"{how}-{event.seq}")
                where = f"{how}, cut behind event {event.seq} ({event.type})"
                assert await finished(other) == [RESULT[how], 2], where
                if how == "next" and event.seq >= pended:
                    assert "pends next" not in bodies.ran, where


async def finished(run: hf.Run[Any]) -> Any:
    """The result of a run, which is resumed whenever it lies in a basket."""

    async def is_over() -> bool:
        if await run.status() == "suspended":
            await run.resume()
        return await run.status() in ("completed", "failed", "cancelled")

    await until_async(is_over, f"{run} has ended")
    return await ended(run)


async def test_a_run_of_its_own_lies_in_a_basket_of_its_own(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_pended, x=1, how="next")
        (wait,) = await waiting(run, "basket")
        await run.reassign(wait.wait_id, basket="second look")
        other = await run.fork(as_run="other")
        (its,) = await waiting(other, "basket")
        assert (its.wait_id != wait.wait_id, its.basket) == (True, "second look")
        await other.resume()
        assert await ended(other) == [12, 2]
        assert [w.run_id for w in await engine.asked(basket="second look")] == [run.run_id]
        await run.resume()
        assert await ended(run) == [12, 2]
        assert bodies.ran.count("pends next") == 1


@hf.workflow
def br_gate_and_fault(x: int):
    return [add.named("after")(br_pends(x, "next")), add.named("faulty").after(world.gated(x))(x)]


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_a_run_that_was_stopped_with_a_node_in_a_basket_has_it_there_again_when_it_is_retried(
    db: Path, bodies: World, end: str
) -> None:
    """Nobody has resumed it: ending the run and going on with it is no way around that."""
    async with hf.open(url(db)) as engine:
        bodies.broken = {"faulty"}
        run = await engine.start(br_gate_and_fault, x=1)

        async def pended() -> bool:
            return [w.kind for w in await run.waits()] == ["basket"]

        await until_async(pended)
        if end == "cancelled":
            await run.cancel()
        bodies.gate.set()
        assert end in await ended(run)
        bodies.broken = set()
        await run.retry()
        (wait,) = await waiting(run, "basket")
        assert node_of(await run.nodes(), "after")["status"] == "pending"
        await run.resume()
        assert await ended(run) == [12, 2]
        assert bodies.ran.count("pends next") == 1
        assert wait.basket == "review"


async def test_retrying_what_lies_in_a_basket_of_errors_says_how_to_let_it_run_again(db: Path, bodies: World) -> None:
    @hf.workflow(on_failure="pend:faults")
    def br_fault_basket(x: int):
        return add.named("faulty")(x)

    async with hf.open(url(db)) as engine:
        bodies.broken = {"faulty"}
        run = await engine.start(br_fault_basket, x=1)
        (wait,) = await waiting(run, "basket")
        for retry in (run.retry(), run.retry("faulty")):
            with pytest.raises(hf.Refused, match=f"faulty waits in the basket 'faults'; resume {wait.wait_id}"):
                await retry
        bodies.broken = set()
        await run.resume()
        assert await ended(run) == 2


async def test_what_a_person_was_asked_on_an_old_branch_is_asked_again_when_that_branch_goes_on(
    db: Path, bodies: World
) -> None:
    """An old branch is continued by forking it at its end: there it waits as it did when it was left."""
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_pended, x=1, how="next")
        (wait,) = await waiting(run, "basket")
        await run.fork(at="start", edits={"input": {"how": "plain"}})
        assert await ended(run) == [22, 2]
        await run.fork(branch=1)
        (again,) = await waiting(run, "basket")
        assert again.wait_id != wait.wait_id
        await run.resume()
        assert await ended(run) == [12, 2]
        assert bodies.ran.count("pends next") == 1


async def test_the_output_of_a_pended_node_can_be_edited_and_its_basket_is_left(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_pended, x=1, how="next")
        await waiting(run, "basket")
        assert node_of(await run.nodes(), "br_pends")["output"] == 11
        await run.fork(edits={"outputs": {"br_pends": 99}})
        assert await ended(run) == [100, 2]
