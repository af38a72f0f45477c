"""Signals across branches: each branch receives each of them at most once, and none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast as hf
from tests.branches import world
from tests.branches.world import World, add, ended
from tests.engine.kit import until_async, url, waiting


@hf.node
async def br_receives(ctx: hf.Context, x: int) -> list[int]:
    world.here.enter("receives")
    return [await ctx.receive("n", schema=int), await ctx.receive("n", schema=int)]


@hf.workflow
def br_received(x: int):
    return [br_receives(x), add.named("beside")(x)]


def inbox(engine: Any, run: hf.Run[Any]) -> list[str]:
    """What became of the signals of a run, in order of arrival."""
    row = engine.store.run(run.run_id)
    return [m.status for m in engine.store.evidence(row.run_no).messages if m.kind == "signal"]


async def send(run: hf.Run[Any], *numbers: int) -> None:
    for number in numbers:
        await run.signal("n", number)


async def test_what_a_dropped_instance_received_is_received_again(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_received, x=1)
        await send(run, 1, 2)
        assert await ended(run) == [[1, 2], 2]
        await run.fork(at="br_receives")
        assert await ended(run) == [[1, 2], 2]
        assert inbox(engine, run) == ["consumed", "consumed"]
        assert bodies.ran.count("receives") == 2


async def test_what_a_kept_instance_received_is_not_received_again(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_received, x=1)
        await send(run, 1)
        await waiting(run, "signal")
        await run.jump(to="beside")
        (wait,) = await waiting(run, "signal")
        assert inbox(engine, run) == ["consumed"]
        await send(run, 5)
        assert await ended(run) == [[1, 5], 2]
        assert wait.name == "n"


async def test_wherever_a_run_is_cut_each_signal_is_received_once(db: Path, bodies: World) -> None:
    """Also between the two events that say that a signal was received, and that it is consumed."""
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_received, x=1)
        await waiting(run, "signal")
        await run.signal("m", "never received")
        await send(run, 1, 2)
        assert await ended(run) == [[1, 2], 2]
        for event in await run.events():
            if event.branch == 1:
                await run.fork(at=event.seq, branch=1)
                assert await ended(run) == [[1, 2], 2], f"cut behind event {event.seq} ({event.type})"
                other = await run.fork(at=event.seq, branch=1, as_run=f"other-{event.seq}")
                assert await ended(other) == [[1, 2], 2], f"cut behind event {event.seq} ({event.type})"


async def test_signals_that_are_given_back_come_before_those_that_were_kept(db: Path, bodies: World) -> None:
    @hf.node
    async def br_takes_one(ctx: hf.Context, x: int) -> int:
        return int(await ctx.receive("n", schema=int))

    @hf.workflow
    def br_one_each(x: int):
        first = br_takes_one.named("first")(x)
        return [first, br_takes_one.named("second").after(world.gated(first))(x)]

    async with hf.open(url(db), grace_seconds=0) as engine:
        run = await engine.start(br_one_each, x=1)
        await send(run, 1, 2, 3)
        await bodies.waiting.wait()
        await until_async(lambda: _held(engine, run, 2))
        await run.fork(at="first")
        bodies.gate.set()
        assert await ended(run) == [1, 2]


async def _held(engine: Any, run: hf.Run[Any], count: int) -> bool:
    return inbox(engine, run).count("held") == count


async def test_a_branch_that_had_received_a_signal_has_received_it_when_it_goes_on(db: Path, bodies: World) -> None:
    """It was given back for a branch between, which never asked for it; the old one does not get it a second time."""

    @hf.workflow
    def br_received_later(x: int):
        return br_receives(world.gated(x))

    async with hf.open(url(db), grace_seconds=0) as engine:
        bodies.gate.set()
        run = await engine.start(br_received_later, x=1)
        await send(run, 1)
        await until_async(lambda: _is(engine, run, "consumed"))
        await waiting(run, "signal")
        bodies.gate.clear()
        await run.fork(at="start")
        await until_async(lambda: _is(engine, run, "held"))
        await run.fork(branch=1)
        await waiting(run, "signal")
        assert inbox(engine, run) == ["consumed"]
        await send(run, 9)
        assert await ended(run) == [1, 9]


async def _is(engine: Any, run: hf.Run[Any], status: str) -> bool:
    return inbox(engine, run) == [status]


async def test_a_signal_that_somebody_else_waits_for_goes_to_him(db: Path, bodies: World) -> None:
    @hf.node
    async def br_waits_for(ctx: hf.Context, x: int) -> int:
        return int(await ctx.receive("n", schema=int))

    @hf.workflow
    def br_two_wait(x: int):
        kept = br_waits_for.named("kept")(x)
        return [kept, br_waits_for.named("dropped")(x)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_two_wait, x=1)
        waits = await waiting(run, "signal", "signal")
        await send(run, 1)  # the one who asked first has it
        await waiting(run, "signal")
        first = waits[0].node
        assert first is not None
        await run.fork(at=first)
        await waiting(run, "signal")
        assert inbox(engine, run) == ["consumed"]
        await send(run, 2)
        assert sorted(await ended(run)) == [1, 2]


async def test_a_run_of_its_own_gets_copies_and_the_other_keeps_its_own(db: Path, bodies: World) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(br_received, x=1)
        await send(run, 1)
        await waiting(run, "signal")
        await run.signal("later", "kept for whoever asks")
        other = await run.fork(at="br_receives", as_run="other")
        await waiting(other, "signal")
        assert inbox(engine, other) == ["consumed", "held"]
        assert inbox(engine, run) == ["consumed", "held"]
        await send(other, 7)
        await send(run, 8)
        assert await ended(other) == [[1, 7], 2]
        assert await ended(run) == [[1, 8], 2]


async def test_a_signal_that_did_not_fit_whoever_asked_is_given_back_with_the_rest(db: Path, bodies: World) -> None:
    schema: dict[str, Any] = {"type": "integer"}

    @hf.node
    async def br_picky(ctx: hf.Context) -> Any:
        return await ctx.receive("n", schema=schema)

    @hf.workflow
    def br_picked():
        return br_picky.after(world.gated(1))()

    async with hf.open(url(db)) as engine:
        run = await engine.start(br_picked)
        await run.signal("n", "text")
        bodies.gate.set()
        await waiting(run, "signal")
        assert inbox(engine, run) == ["dead"]
        schema["type"] = "string"
        await run.fork(at="br_picky")
        assert await ended(run) == "text"
