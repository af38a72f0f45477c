"""Time on real engines: durable timers that fire once, never early, also while no engine runs; and waits of all kinds
at once."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.ownership import claim
from holdfast.store.clocks import SystemClock
from holdfast.testing import harness
from tests.engine.kit import attempts, check_file, check_harness, hold_time, types, until, url, waiting, without_code_of


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _calls() -> None:
    CALLS.clear()


def note(what: str) -> str:
    CALLS[what] += 1
    return what


@hf.workflow
async def tim_sleeps(ctx: hf.Context, seconds: float) -> str:
    CALLS["bodies"] += 1
    await ctx.sleep(seconds)
    return await ctx.step(note, "awake")


async def test_a_sleep_of_years_is_slept_through_crashes_and_ends_once() -> None:
    years = timedelta(days=365 * 5)
    async with harness() as h:
        run = await h.start(tim_sleeps, seconds=years.total_seconds())
        for _ in range(4):
            await h.advance(years / 5)
            await h.crash()
        assert (await run.status(), CALLS["awake"]) == ("suspended", 0)
        await h.advance(years / 5 - timedelta(seconds=1))
        assert CALLS["awake"] == 0, "never early"
        await h.advance(seconds=1)
        assert await run.result() == "awake"
        events = await run.events()
        assert types(events).count("TimerFired") == 1
        assert attempts(events, "tim_sleeps") == [1]
        check_harness(h)


async def test_a_timer_never_fires_early_by_the_clock_of_the_store(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        runs = [await engine.start(tim_sleeps, seconds=0.01 * n) for n in range(1, 30)]
        for run in runs:
            await run.result()
            timers = {e.data["timer"]: e for e in await run.events() if e.type == "TimerSet"}
            for fired in [e for e in await run.events() if e.type == "TimerFired"]:
                due = datetime.fromtimestamp(timers[fired.data["timer"]].data["due_at"] / 1e6, UTC)
                assert fired.at >= due
    check_file(db)


async def test_timers_that_were_due_while_no_engine_ran_fire_when_one_comes(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        hold_time(engine)
        for n in range(5):
            await engine.start(tim_sleeps, seconds=0.3, run_id=f"r{n}")
        sleeping = await waiting(engine.get("r4"), "timer")
    due = sleeping[0].until
    assert due is not None
    await until(lambda: datetime.now(UTC) > due, "they are due")
    async with hf.open(url(db)) as engine:
        assert [await engine.get(f"r{n}").result() for n in range(5)] == ["awake"] * 5
    assert CALLS["awake"] == 5
    check_file(db)


async def test_an_evicted_run_is_woken_by_its_timer(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine:
        clock = hold_time(engine)
        run = await engine.start(tim_sleeps, seconds=0.3)
        await until(lambda: not engine.actors, "it is evicted")
        clock.go_on()
        assert await run.result() == "awake"
    assert CALLS["bodies"] == 2
    check_file(db)


@pytest.mark.parametrize("due_at_once", [claim.DUE_AT_ONCE, 3])
async def test_two_engines_fire_a_timer_once(db: Path, monkeypatch: pytest.MonkeyPatch, due_at_once: int) -> None:
    monkeypatch.setattr(claim, "DUE_AT_ONCE", due_at_once)
    async with hf.open(url(db), idle_seconds=0) as engine, hf.open(url(db), idle_seconds=0) as other:
        runs = [await (engine if n % 2 else other).start(tim_sleeps, seconds=0.2) for n in range(30)]
        assert [await run.result() for run in runs] == ["awake"] * 30
        for run in runs:
            assert types(await run.events()).count("TimerFired") == 1
    assert CALLS["awake"] == 30
    check_file(db)


async def test_a_timer_of_a_run_whose_code_is_not_here_waits_for_who_has_it(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        hold_time(engine)
        run = await engine.start(tim_sleeps, seconds=0.2, run_id="r")
        (wait,) = await waiting(run, "timer")
    due = wait.until
    assert due is not None
    with without_code_of("tim_sleeps"):
        async with hf.open(url(db)) as engine:
            await until(lambda: datetime.now(UTC) > due, "it is due")
            await engine.poll_loop.poll_once()
            assert await engine.get("r").status() == "suspended"
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == "awake"
    check_file(db)


@pytest.mark.parametrize("until_when", ["duration", "text", "timedelta", "datetime"])
async def test_a_sleep_takes_seconds_text_a_timedelta_or_an_instant(until_when: str) -> None:
    @hf.workflow(name=f"tim_by_{until_when}")
    async def by(ctx: hf.Context) -> str:
        now = await ctx.now()
        match until_when:
            case "duration":
                await ctx.sleep(5400)
            case "text":
                await ctx.sleep("1h30m")
            case "timedelta":
                await ctx.sleep(timedelta(minutes=90))
            case "datetime":
                await ctx.sleep(now + timedelta(minutes=90))
        return "awake"

    async with harness() as h:
        run = await h.start(by)
        await h.advance(minutes=89, seconds=59)
        assert await run.status() == "suspended"
        await h.advance(seconds=1)
        assert await run.result() == "awake"


async def test_an_instant_that_has_passed_is_no_wait_at_all() -> None:
    @hf.workflow
    async def tim_past(ctx: hf.Context) -> str:
        await ctx.sleep(datetime(2020, 1, 1, tzinfo=UTC))
        return "awake"

    async with harness() as h:
        run = await h.start(tim_past)
        assert await run.result() == "awake"


@pytest.mark.parametrize("duration", ["9999999d", -1.0, float("nan"), float("inf"), timedelta(days=999_999)])
@pytest.mark.parametrize("kind", ["code", "graph"])
async def test_what_is_no_time_to_sleep_is_an_error_and_no_wait(kind: str, duration: Any) -> None:
    @hf.workflow(name=f"tim_badly_{kind}_{duration}".replace(".", "_").replace(":", "_"))
    async def in_code(ctx: hf.Context) -> None:
        await ctx.sleep(duration)

    if kind == "graph":

        @hf.workflow(name=f"tim_bad_graph_{duration}".replace(".", "_").replace(":", "_"))
        def in_graph() -> None:
            hf.sleep(duration)

        with pytest.raises(hf.TraceError, match="is not a time to wait: it is 0 s to 1,000 years"):
            _ = in_graph.definition
        return
    async with harness() as h:
        run = await h.start(in_code)
        with pytest.raises(hf.RunFailed, match="is not a time to wait: it is 0 s to 1,000 years"):
            await run.result()
        assert "WaitOpened" not in types(await run.events())


async def test_a_wait_until_beyond_all_calendars_spoils_no_view(db: Path) -> None:
    """As an older version stored them."""

    @hf.workflow
    async def tim_for_ever(ctx: hf.Context) -> None:
        await ctx.ask("Well?", deadline="1d")

    async with hf.open(url(db)) as engine:
        run = await engine.start(tim_for_ever, run_id="r")
        await waiting(run, "input")
    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE run_waits SET until = 864000000000000000")
        connection.execute("UPDATE run_timers SET due_at = 864000000000000000")
    async with hf.open(url(db), recover=False) as engine:
        run = engine.get("r")
        (wait,) = await run.waits()
        assert wait.until == datetime.max.replace(tzinfo=UTC)
        assert [w.as_json()["until"] for w in await engine.asked()] == ["9999-12-31T23:59:59.999Z"]
        assert (await run.show())["waits"] == (await engine.list())[0]["waits"]
        assert "its deadline is" in await run.why()


async def test_a_timer_waits_on_when_the_clock_is_set_back(db: Path) -> None:
    class SetBack(SystemClock):
        def now(self) -> int:
            return super().now() - 500_000

    async with hf.open(url(db)) as engine:
        clock = hold_time(engine)
        run = await engine.start(tim_sleeps, seconds=0.1)
        await waiting(run, "timer")
        clock.go_on(by=SetBack())
        await run.result()
        events = await run.events()
    (due,) = [e.data["due_at"] for e in events if e.type == "TimerSet"]
    (fired,) = [e for e in events if e.type == "TimerFired"]
    assert fired.at.timestamp() * 1e6 >= due - 1  # a float knows no more


# --- several waits at once ------------------------------------------------------------------------------------------


@hf.workflow
async def tim_everything(ctx: hf.Context) -> list[Any]:
    """A node that waits for a person, a signal, time and a child, all at once."""
    CALLS["bodies"] += 1
    return await asyncio.gather(
        ctx.ask("Well?", schema=str),
        ctx.receive("go", schema=int),
        wake_up(ctx),
        ctx.child(tim_sleeps, seconds=3600.0, run_id=f"child-of-{ctx.run_id}"),
    )


async def wake_up(ctx: hf.Context) -> str:
    await ctx.sleep("2h")
    return "slept"


@pytest.mark.parametrize(
    "order", [["person", "signal", "time"], ["time", "signal", "person"], ["signal", "time", "person"]]
)
async def test_a_node_that_waits_for_everything_at_once_goes_on_with_each_over_crashes(order: list[str]) -> None:
    async with harness() as h:
        run = await h.start(tim_everything)
        waits = {w.kind: w for w in await run.waits()}
        assert set(waits) == {"input", "signal", "timer", "child"}
        for what in order:
            await h.crash()
            match what:
                case "person":
                    await run.respond(waits["input"].wait_id, "yes")
                case "signal":
                    await run.signal("go", 5)
                case "time":
                    await h.advance(hours=2)
        assert await run.result() == ["yes", 5, "slept", "awake"]
        events = await run.events()
        assert types(events).count("WaitOpened") == 4
        assert attempts(events, "tim_everything") == [1]
        check_harness(h)


async def test_a_run_with_all_kinds_of_waits_is_evicted_and_woken_by_each(db: Path) -> None:
    @hf.workflow
    async def tim_three(ctx: hf.Context) -> list[Any]:
        CALLS["bodies"] += 1
        return await asyncio.gather(ctx.ask("Well?"), ctx.receive("go"), ctx.receive("stop"))

    async with hf.open(url(db), idle_seconds=0) as engine, hf.open(url(db), recover=False) as other:
        run = await engine.start(tim_three)
        waits = {w.name or "input": w for w in await waiting(run, "input", "signal", "signal")}
        await until(lambda: not engine.actors, "it is evicted")
        await other.get(run.run_id).signal("stop", 3)
        await waiting(run, "input", "signal")
        await until(lambda: not engine.actors, "it is evicted again")
        await other.get(run.run_id).respond(waits["input"].wait_id, 1)
        await waiting(run, "signal")
        await until(lambda: not engine.actors, "and again")
        await other.get(run.run_id).signal("go", 2)
        assert await run.result() == [1, 2, 3]
        assert types(await run.events()).count("WaitOpened") == 3
    check_file(db)


async def test_what_waits_for_a_person_in_a_child_is_seen_from_its_parent(db: Path) -> None:
    @hf.workflow
    async def tim_child(ctx: hf.Context) -> str:
        return await ctx.ask("Deep down?", schema=str)

    @hf.workflow
    async def tim_parent(ctx: hf.Context) -> str:
        return await ctx.child(tim_child, run_id="kid")

    def run_it() -> Any:
        return hf.run(tim_parent, run_id="r", db=url(db))

    with pytest.raises(hf.RunSuspended) as caught:
        await asyncio.to_thread(run_it)
    (wait,) = caught.value.waits
    assert (wait.run_id, wait.question) == ("kid", "Deep down?")
    async with hf.open(url(db), recover=False) as engine:
        await engine.get("kid").respond(wait.wait_id, "yes")
    assert await asyncio.to_thread(run_it) == "yes"


# --- runs that write late -------------------------------------------------------------------------------------------


@hf.node
async def tim_add(x: int) -> int:
    return x + 1


@hf.node
async def tim_pends(x: int) -> int:
    return hf.pend("desk", output=x * 10)


@hf.workflow(persistence="lazy")
def tim_lazy(x: int) -> list[Any]:
    pended = tim_pends(tim_add(x))
    said = hf.ask("Number?", schema=int, after=pended)
    return [tim_add.named("last")(pended), said, hf.receive("go", after=said)]


async def test_a_lazy_run_has_written_everything_down_before_anybody_outside_hears_of_it() -> None:
    async with harness() as h:
        run = await h.start(tim_lazy, x=1)
        await h.crash()
        assert [w.kind for w in await run.waits()] == ["basket"]
        await run.signal("go", "early")
        await h.crash()
        await run.pause()
        await h.crash()
        await run.resume()
        await run.resume()
        await h.crash()
        (wait,) = await run.waits()
        await run.respond(wait.wait_id, 5)
        assert await run.result() == [21, 5, "early"]
        check_harness(h)
