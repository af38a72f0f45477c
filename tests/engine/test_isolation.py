"""What the other runs of an engine do while one that is suspected of killing engines has its turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from tests.engine.kit import attempts, hold_time, until, url

gates: dict[str, asyncio.Event] = {}
"""What bodies wait for, by name; a test makes its own."""
inside: list[str] = []


@hf.node
async def behind_gate(name: str) -> str:
    inside.append(name)
    await gates[name].wait()
    return name


@hf.workflow
def isolation_gated(name: str):
    return behind_gate(name)


@hf.workflow
async def isolation_asleep(ctx: hf.Context, seconds: float = 0.01) -> str:
    await ctx.sleep(seconds)
    inside.append("awake")
    return "rested"


@hf.node
async def quick(x: str) -> str:
    inside.append(x)
    return x


@hf.workflow
async def isolation_parent(ctx: hf.Context) -> str:
    await gates["parent"].wait()
    inside.append("parent")
    return await ctx.child(isolation_child, x="child")


@hf.workflow
def isolation_child(x: str):
    return quick(x)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    gates.clear()
    inside.clear()
    return tmp_path / "runs.db"


async def cut_off(db: Path, workflow: Any, recoveries: int, run_id: str = "suspect", **inputs: Any) -> None:
    """Leave a run as engines leave it that died while it ran, several times in a row."""
    async with hf.open(url(db), recover=False, grace_seconds=0) as engine:
        await engine.start(workflow, run_id=run_id, **inputs)
        await until(lambda: engine.store.run(run_id).status == "running")
        connection = apsw.Connection(str(db))
        connection.set_busy_timeout(10_000)
        connection.execute(
            "UPDATE run_state SET token = token + 1, engine = NULL, recoveries = ? WHERE run_id = ?",
            (recoveries, run_id),
        )
        connection.close()
    inside.clear()


async def test_no_other_body_starts_while_a_suspect_runs_and_all_go_on_afterwards(db: Path) -> None:
    gates.update(suspect=asyncio.Event(), other=asyncio.Event())
    gates["other"].set()
    await cut_off(db, isolation_gated, 2, name="suspect")
    async with hf.open(url(db)) as engine:
        await until(lambda: inside == ["suspect"])
        other = await engine.start(isolation_gated, name="other")  # durable at once, whatever it has to wait for
        asleep = await engine.start(isolation_asleep)
        assert await other.status() == "running"
        assert [(n["node"], n["status"]) for n in await other.nodes()] == [("behind_gate", "scheduled")]
        assert inside == ["suspect"]
        gates["suspect"].set()
        assert await engine.get("suspect").result(timeout=30) == "suspect"
        assert await other.result(timeout=30) == "other"
        assert await asleep.result(timeout=30) == "rested"
        assert attempts(await other.events(), "behind_gate") == [1]


async def test_a_suspect_waits_until_no_other_body_runs(db: Path) -> None:
    gates.update(suspect=asyncio.Event(), other=asyncio.Event())
    await cut_off(db, isolation_gated, 2, name="suspect")
    gates["suspect"].set()
    async with hf.open(url(db), recover=False) as engine:
        other = await engine.start(isolation_gated, name="other")
        await until(lambda: inside == ["other"])
        await engine.resume("suspect")
        await until(lambda: engine.isolation.closed)  # its patience is over: nothing new starts
        third = await engine.start(isolation_gated, name="suspect")
        assert (await third.nodes())[0]["status"] == "scheduled"
        assert inside == ["other"]
        gates["other"].set()
        assert await engine.get("suspect").result(timeout=30) == "suspect"
        assert await other.result(timeout=30) == "other"
        assert await third.result(timeout=30) == "suspect"


@pytest.mark.parametrize("then", ["goes on", "cancelled"])
async def test_a_timer_of_another_run_does_not_wake_it_beside_a_suspect(db: Path, then: str) -> None:
    gates.update(suspect=asyncio.Event())
    await cut_off(db, isolation_gated, 2, name="suspect")
    async with hf.open(url(db), recover=False, idle_seconds=60) as engine:
        clock = hold_time(engine)
        asleep = await engine.start(isolation_asleep, seconds=0.5)
        await until(lambda: engine.store.run(asleep.run_id).status == "suspended")
        await engine.resume("suspect")
        await until(lambda: inside == ["suspect"])
        clock.go_on()
        actor = engine.actors[engine.store.run(asleep.run_id).run_no]
        await until(lambda: actor.mailbox or "awake" in inside, "the timer rings")
        for _ in range(10):
            await asyncio.sleep(0)
        assert inside == ["suspect"]
        if then == "cancelled":  # that is heard, whatever else waits
            await asleep.cancel()
            await until(lambda: engine.store.run(asleep.run_id).status == "cancelled")
        gates["suspect"].set()
        if then == "goes on":
            assert await asleep.result(timeout=30) == "rested"


async def test_a_waiting_suspect_and_a_run_beside_one_can_be_cancelled(db: Path) -> None:
    gates.update(suspect=asyncio.Event(), other=asyncio.Event())
    await cut_off(db, isolation_gated, 2, name="suspect")
    async with hf.open(url(db), recover=False, grace_seconds=0.05) as engine:
        other = await engine.start(isolation_gated, name="other")
        await until(lambda: inside == ["other"])
        await engine.resume("suspect")
        await engine.get("suspect").cancel("not worth it")
        with pytest.raises(hf.RunCancelled):
            await engine.get("suspect").result(timeout=30)
        gates["other"].set()
        assert await other.result(timeout=30) == "other"
        assert "suspect" not in inside


async def test_a_child_of_a_suspect_starts_when_the_suspect_rests(db: Path) -> None:
    gates.update(parent=asyncio.Event())
    await cut_off(db, isolation_parent, 2)
    gates["parent"].set()
    async with hf.open(url(db)) as engine:
        assert await engine.get("suspect").result(timeout=30) == "child"
        assert inside == ["parent", "parent", "child"] or inside == ["parent", "child"]


async def test_a_suspended_run_is_no_suspect(db: Path) -> None:
    gates.update(suspect=asyncio.Event())
    async with hf.open(url(db), recover=False) as engine:
        hold_time(engine)
        asleep = await engine.start(isolation_asleep, seconds=1.0, run_id="asleep")
        await until(lambda: engine.store.run("asleep").status == "suspended")
    connection = apsw.Connection(str(db))
    connection.execute("UPDATE run_state SET recoveries = 9")
    connection.close()
    async with hf.open(url(db)) as engine:
        assert await engine.get(asleep.run_id).result(timeout=30) == "rested"
        assert engine.isolation.turn_of is None


@hf.workflow(concurrency=1)
async def isolation_one_at_a_time(ctx: hf.Context, name: str) -> str:
    inside.append(name)
    await gates[name].wait()
    return name


async def test_a_suspect_waits_for_a_place_that_another_engine_holds_and_holds_nobody_up_meanwhile(db: Path) -> None:
    gates.update(suspect=asyncio.Event(), holder=asyncio.Event(), other=asyncio.Event())
    await cut_off(db, isolation_one_at_a_time, 2, name="suspect")
    async with hf.open(url(db), recover=False) as first:
        holder = await first.start(isolation_one_at_a_time, name="holder")
        await until(lambda: inside == ["holder"])
        async with hf.open(url(db)) as second:
            await until(lambda: 1 in second.isolation)
            gates["other"].set()
            assert await (await second.start(isolation_gated, name="other")).result(timeout=30) == "other"
            assert inside == ["holder", "other"]
            gates["suspect"].set()
            gates["holder"].set()
            assert await holder.result(timeout=30) == "holder"
            assert await second.get("suspect").result(timeout=30) == "suspect"
            assert inside == ["holder", "other", "suspect"]
            await until(lambda: not second.slots.used())


async def test_a_suspect_does_not_wait_for_those_who_wait_for_its_place(db: Path) -> None:
    """Both were cut off, and the rows of both say that a body runs."""
    gates.update(suspect=asyncio.Event(), other=asyncio.Event())
    await cut_off(db, isolation_one_at_a_time, 2, name="suspect")
    await cut_off(db, isolation_one_at_a_time, 0, run_id="other", name="other")
    async with hf.open(url(db)) as engine:
        await until(lambda: inside == ["suspect"])
        for gate in gates.values():
            gate.set()
        assert await engine.get("suspect").result(timeout=30) == "suspect"
        assert await engine.get("other").result(timeout=30) == "other"
    assert inside == ["suspect", "other"]


async def test_a_suspect_that_ends_elsewhere_gives_its_place_back(db: Path) -> None:
    gates.update(suspect=asyncio.Event(), other=asyncio.Event())
    await cut_off(db, isolation_one_at_a_time, 2, name="suspect")
    async with hf.open(url(db), recover=False) as engine:
        other = await engine.start(isolation_gated, name="other")
        await until(lambda: inside == ["other"])
        await engine.resume("suspect")  # it waits until the other one has ended
        await until(engine.slots.used)
        await engine.get("suspect").cancel("not worth it")
        gates["other"].set()
        assert await other.result(timeout=30) == "other"
        await until(lambda: not engine.slots.used())


async def test_progress_ends_the_suspicion(db: Path) -> None:
    gates.update(suspect=asyncio.Event())
    await cut_off(db, isolation_gated, 2, name="suspect")
    gates["suspect"].set()
    async with hf.open(url(db)) as engine:
        await engine.get("suspect").result(timeout=30)
        assert (await engine.get("suspect").show())["recoveries"] == 0
