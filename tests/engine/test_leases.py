"""Who may act on a run: takeover, fencing, and that a loser stops and writes nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from tests.engine.kit import attempts, check_file, types, until, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def behind_its_back(db: Path, sql: str, *values: Any) -> None:
    """What another engine would have written."""
    connection = apsw.Connection(str(db))
    connection.set_busy_timeout(10_000)
    try:
        connection.execute(sql, values)
    finally:
        connection.close()


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["returns", "steps", "raises"])
async def test_an_engine_that_lost_its_run_commits_nothing_and_stops_the_body(
    db: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    began, go, ended = asyncio.Event(), asyncio.Event(), []

    @hf.workflow
    async def body(ctx: hf.Context) -> str:
        began.set()
        try:
            await go.wait()
            if kind == "steps":
                await ctx.step(lambda: 1)
                ended.append("went on after the lease was lost")
            if kind == "raises":
                raise ValueError("late")
            return "late"
        finally:
            ended.append("gone")

    async with hf.open(url(db)) as engine:
        run = await engine.start(body, run_id="r")
        await began.wait()
        before = await run.events()
        behind_its_back(db, "UPDATE run_state SET token = token + 1, engine = 'somebody else' WHERE run_id = 'r'")
        with caplog.at_level(logging.ERROR, logger="holdfast.engine"):
            go.set()
            await until(lambda: not engine.actors, "the engine lets go of the run")
        assert await run.events() == before
        assert await run.status() == "running"
    assert ended == ["gone"]
    assert [r for r in caplog.records if r.levelno >= logging.CRITICAL] == []
    behind_its_back(db, "UPDATE run_state SET engine = NULL WHERE run_id = 'r'")
    check_file(db)


async def test_an_engine_that_was_declared_dead_stops_bodies_that_say_nothing(db: Path) -> None:
    """A body that never calls its ctx must not run on beside its successor for longer than it takes to notice."""
    began, stopped = asyncio.Event(), asyncio.Event()
    lives: list[int] = []

    @hf.node
    async def silent(ctx: hf.Context) -> str:
        lives.append(ctx.attempt)
        if len(lives) > 1:
            return "second"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    @hf.workflow
    def quiet():
        return silent()

    async with hf.open(url(db), lease_seconds=0.3, grace_seconds=0.05) as engine:
        run = await engine.start(quiet, run_id="r")
        await began.wait()
        # what release_dead_engines of another engine does
        behind_its_back(db, "UPDATE run_state SET engine = NULL, token = token + 1 WHERE run_id = 'r'")
        behind_its_back(db, "DELETE FROM engines")
        await asyncio.wait_for(stopped.wait(), 30)
        await engine.resume("r")
        assert await run.result(timeout=30) == "second"
        assert attempts(await run.events(), "silent") == [1, 2]
    check_file(db)


async def test_another_engine_takes_over_what_a_silent_one_held(db: Path) -> None:
    """The first engine's lease runs out because it does not renew; it is still alive, and is fenced."""
    began, go = asyncio.Event(), asyncio.Event()
    seen: list[tuple[int, str]] = []

    @hf.node
    async def work(ctx: hf.Context) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key))
        if len(seen) == 1:
            began.set()
            await go.wait()
            return "zombie"
        return "heir"

    @hf.workflow
    def held():
        return work()

    async with hf.open(url(db), grace_seconds=0.05) as zombie:
        run = await zombie.start(held, run_id="r")
        await began.wait()
        zombie.lease.stop_renewing()
        behind_its_back(db, "UPDATE engines SET awake_until = 0")
        async with hf.open(url(db)) as heir:
            assert await heir.get("r").result(timeout=30) == "heir"
            go.set()
            await until(lambda: not zombie.actors)
            assert await run.result(timeout=30) == "heir"
            events = await heir.get("r").events()
            assert types(events).count("RunTakenOver") == 1
            assert types(events).count("NodeCompleted") == 1
    assert [attempt for attempt, _ in seen] == [1, 2]
    assert len({key for _, key in seen}) == 1
    check_file(db)


async def test_what_a_refused_commit_computed_is_not_served_from_memory(db: Path) -> None:
    """The values of a commit that never landed must not answer for the events that somebody else wrote in its place.

    The refused commit is long, so that the other engine's completions fall on the same numbers.
    """
    began: list[int] = []
    go, joining, join_may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[list[int]] = []

    @hf.node
    async def part(i: int) -> int:
        began.append(i)
        if len(began) <= 60:
            await go.wait()
            return 1000 + i
        return 2000 + i

    @hf.node(inline=True)
    def same(x: int) -> int:
        return x

    @hf.node
    async def join(parts: list[int], more: list[int]) -> bool:
        seen.append(parts)
        joining.set()
        await join_may_end.wait()
        return True

    @hf.workflow
    def dice():
        parts = [part.named(f"p{i}")(i) for i in range(60)]
        # each completion is followed by a different number of events, so that numbers coincide somewhere
        more = [same.named(f"s{i}_{k}")(x) for i, x in enumerate(parts) for k in range(1 + i % 4)]
        return join(parts, more)

    async with hf.open(url(db), recover=False) as engine:
        run = await engine.start(dice, run_id="r")
        engine.claims.only_root_runs = set()  # what it loses it must not find again before the other one does
        await until(lambda: len(began) == 60)
        behind_its_back(db, "UPDATE run_state SET token = token + 1, engine = NULL WHERE run_id = 'r'")
        go.set()
        await until(lambda: not engine.actors)
        async with hf.open(url(db), grace_seconds=0) as other:
            assert other is not engine
            await joining.wait()
        join_may_end.set()
        await engine.resume("r")
        assert await run.result(timeout=30) is True
    assert seen == [[2000 + i for i in range(60)]] * 2
    check_file(db)


@pytest.mark.parametrize("mode", ["aggressive", "lazy"])
async def test_one_fenced_run_does_not_hurt_the_others_in_its_group(db: Path, mode: str) -> None:
    go = asyncio.Event()
    began: list[int] = []

    @hf.node
    async def work(n: int) -> int:
        began.append(n)
        await go.wait()
        return n

    @hf.workflow(name=f"grouped_{mode}", persistence=mode)
    def grouped(n: int):
        return work(n)

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(grouped, n=n, run_id=f"r{n}") for n in range(10)]
        await until(lambda: len(began) == 10)
        behind_its_back(db, "UPDATE run_state SET token = token + 1, engine = 'x' WHERE run_id IN ('r3', 'r7')")
        go.set()
        for n, run in enumerate(runs):
            if n not in (3, 7):
                assert await run.result(timeout=30) == n
        await until(lambda: not engine.actors)
        assert await runs[3].status() == "running"
    behind_its_back(db, "UPDATE run_state SET engine = NULL WHERE engine = 'x'")
    check_file(db)


async def test_an_orderly_stop_does_not_count_as_a_recovery(db: Path) -> None:
    began = asyncio.Event()

    @hf.workflow
    async def stopped(ctx: hf.Context) -> None:
        began.set()
        await asyncio.Event().wait()

    for _ in range(4):
        async with hf.open(url(db), grace_seconds=0, max_recoveries=2) as engine:
            await engine.start(stopped, run_id="r")
            await began.wait()
            began.clear()
            assert (await engine.get("r").show())["recoveries"] == 0
    check_file(db)


# --- a lease that has run out ----------------------------------------------------------------------------------------


class Gated:
    """A node, and a step in durable code, that are to begin when the gate is open."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.reached: list[str] = []
        self.gate = asyncio.Event()

        async def act() -> None:
            self.did.append("a step")

        @hf.workflow(name="lease_code")
        async def code(ctx: hf.Context) -> None:
            self.reached.append("code")
            await self.gate.wait()
            await ctx.step(act)

        @hf.node(name="lease_first")
        async def first() -> int:
            self.reached.append("graph")
            await self.gate.wait()
            return 1

        @hf.node(name="lease_second")
        async def second(n: int) -> int:
            self.did.append("a body")
            return n

        @hf.workflow(name="lease_graph")
        def graph():
            return second(first())

        self.workflows = (code, graph)


async def test_an_engine_whose_lease_has_run_out_begins_no_body_and_no_step_until_it_is_renewed(db: Path) -> None:
    gated = Gated()
    async with hf.open(url(db), lease_seconds=3600) as engine:
        runs = [await engine.start(workflow) for workflow in gated.workflows]
        await until(lambda: len(gated.reached) == 2)
        engine.lease._runs_out_at = 0
        gated.gate.set()
        await until(lambda: len(engine.lease._deferred) == 2, "both wait")
        assert gated.did == []
        await engine.committer.call(engine.lease.renew_once)
        for run in runs:
            await run.result(timeout=30)
        assert sorted(gated.did) == ["a body", "a step"]
    check_file(db)


async def test_what_was_put_off_is_not_begun_when_its_runs_have_another_owner_by_then(db: Path) -> None:
    gated = Gated()
    async with hf.open(url(db), lease_seconds=3600, recover=False) as engine:
        for workflow in gated.workflows:
            await engine.start(workflow)
        await until(lambda: len(gated.reached) == 2)
        engine.lease._runs_out_at = 0
        gated.gate.set()
        await until(lambda: len(engine.lease._deferred) == 2, "both wait")
        behind_its_back(db, "UPDATE run_state SET token = token + 1, engine = 'somebody else'")
        behind_its_back(db, "UPDATE engines SET engine = 'somebody else', boot = 'elsewhere', expires_at = ?", 2**62)
        await engine.committer.call(engine.lease.renew_once)
        await until(lambda: not engine.lease._deferred, "it is another engine")
        assert engine.actors == {}
        assert gated.did == []
    behind_its_back(db, "UPDATE run_state SET engine = NULL")
    check_file(db)
