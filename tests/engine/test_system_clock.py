"""Time on SQLite when an administrator sets the wall clock: durations last what they last, instants follow it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.engine import engine as engine_module
from holdfast.inspect.doctor import check
from holdfast.store.clocks import SystemClock, elapsed_nanos
from tests.engine.kit import check_file, owner, until, url

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


class Hands:
    """A wall clock and the time that passes, in microseconds."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000 * SECOND
        self.passed = 5_000 * SECOND
        self.clock = SystemClock(lambda: self.wall * 1000, lambda: self.passed * 1000)

    def pass_by(self, seconds: float) -> None:
        """Time passes; the clock looks at the wall clock every few seconds, as it does with each renewal."""
        while seconds > 0:
            some = min(seconds, 3)
            self.wall += int(some * SECOND)
            self.passed += int(some * SECOND)
            self.clock.synchronise()
            seconds -= some


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 2 * SECOND, -2 * SECOND])
def test_a_wall_clock_that_is_set_is_told_once_and_followed(jump: int, caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    hands.pass_by(10)
    began = hands.clock.elapsed()
    assert began is not None
    hands.wall += jump
    with caplog.at_level(logging.WARNING, logger="holdfast.engine"):
        hands.pass_by(60)
        (told,) = [record.getMessage() for record in caplog.records]
    direction = "forward" if jump > 0 else "back"
    assert told.startswith(f"the wall clock was set {direction} by {abs(jump) / SECOND:g} s; ")
    assert hands.clock.now() == hands.wall
    assert hands.clock.elapsed() == (began.boot, began.micros + 60 * SECOND), "what has passed, and nothing else"


@pytest.mark.parametrize("step", [300_000, -300_000])
def test_a_small_step_is_followed_without_going_back(step: int, caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    before = hands.clock.now()
    hands.wall += step
    hands.clock.synchronise()
    assert hands.clock.now() == max(before, hands.wall)
    hands.pass_by(3)
    assert hands.clock.now() == hands.wall
    assert caplog.records == []


class Machine:
    """This machine, with a wall clock that can be set, and that can sleep for long."""

    def __init__(self) -> None:
        self.set_by = 0
        self.slept = 0
        self.booted = 0
        """Elapsed time begins anew with each boot."""
        self.boot = "boot-1"
        self.clocks: list[SystemClock] = []

    def clock_of(self, store: object) -> SystemClock:
        """What a process sees that starts now."""
        clock = SystemClock(
            lambda: time.time_ns() + (self.set_by + self.slept) * 1000,
            lambda: elapsed_nanos() + (self.slept - self.booted) * 1000,
        )
        clock._boot = self.boot
        self.clocks.append(clock)
        return clock

    def is_set(self, by: int) -> None:
        self.set_by += by
        for clock in self.clocks:
            clock.synchronise()

    def sleep_until(self, passed: int) -> None:
        self.slept = passed

    def restart(self) -> None:
        self.boot, self.booted = "boot-2", elapsed_nanos() // 1000 + self.slept - SECOND


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()
    monkeypatch.setattr(engine_module, "clock_of", machine.clock_of)
    return machine


@hf.workflow
async def clock_sleeps(ctx: hf.Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


@hf.workflow
async def clock_sleeps_until(ctx: hf.Context, at: float) -> str:
    await ctx.sleep(datetime.fromtimestamp(at, UTC))
    return "slept"


@hf.workflow
async def clock_asks(ctx: hf.Context) -> str:
    return await ctx.ask("Well?", schema=str, deadline="1d", default="nothing")


@hf.workflow(timeout="1d")
async def clock_times_out(ctx: hf.Context) -> None:
    await ctx.receive("never")


@hf.node(retry=hf.Retry(attempts=2, backoff=1.2, jitter=0))
async def clock_fails_once(ctx: hf.Context) -> int:
    if ctx.attempt == 1:
        raise ValueError("once more")
    return ctx.attempt


@hf.node(retry=hf.Retry(attempts=2, backoff=0.4, jitter=0))
async def clock_fails_once_in_memory(ctx: hf.Context) -> int:
    if ctx.attempt == 1:
        raise ValueError("once more")
    return ctx.attempt


@hf.workflow
def clock_retries():
    return clock_fails_once(), clock_fails_once_in_memory()


NAMES = ["clock_sleeps", "clock_sleeps_until", "clock_asks", "clock_times_out"]


def due(engine: hf.Engine) -> list[str]:
    """The workflows whose timers the table calls due, of runs that no engine has in memory."""
    now, elapsed = engine.clock.now(), engine.clock.elapsed()
    found = engine.store.due_timers(now, 10, NAMES, elapsed=elapsed)
    return sorted(row.workflow for timer in found if (row := engine.store.run_by_no(timer.run_no)) is not None)


async def evicted(engine: hf.Engine, runs: list[hf.Run]) -> None:
    for run in runs:
        await until(lambda run=run: owner(engine, run.run_id) is None, f"{run} is evicted")


@pytest.mark.parametrize(
    ("jump", "idle_seconds"),
    [
        pytest.param(HOUR, 0, id="forward-from-the-table"),
        pytest.param(-HOUR, 0, id="back-from-the-table"),
        pytest.param(-HOUR, 60, id="back-in-memory"),
    ],
)
async def test_sleeps_and_retries_last_as_long_as_they_were_meant_to_when_the_wall_clock_is_set(
    tmp_path: Path, machine: Machine, jump: int, idle_seconds: float
) -> None:
    """(In memory a clock that is set forward hastens nothing within a minute; for more see test_alarms.py.)"""
    async with hf.open(url(tmp_path / "runs.db"), idle_seconds=idle_seconds) as engine:
        began = time.monotonic()
        runs = [await engine.start(clock_sleeps, seconds=1.3), await engine.start(clock_retries)]
        await until(lambda: engine.store.set_timers([1]) and engine.store.set_timers([2]), "both wait")
        machine.is_set(jump)
        assert [await run.result(timeout=20) for run in runs] == ["slept", [2, 2]]
        assert time.monotonic() - began >= 1.3, "nothing was early"
        for run in runs:
            times = [event.at for event in await run.events()]
            assert times == sorted(times), "history does not go back"
    check_file(tmp_path / "runs.db")


@pytest.mark.parametrize("other_process", [False, True], ids=["", "other-process"])
@pytest.mark.parametrize("jump", [6 * HOUR, -6 * HOUR], ids=["forward", "back"])
async def test_long_durations_last_and_instants_follow_the_wall_clock(
    tmp_path: Path, machine: Machine, jump: int, other_process: bool
) -> None:
    db = url(tmp_path / "runs.db")
    async with hf.open(db, idle_seconds=0) as engine:
        noon = engine.clock.now() + 12 * HOUR
        runs = [
            await engine.start(clock_sleeps_until, at=noon / SECOND),
            await engine.start(clock_sleeps, seconds=86_400.0),
            await engine.start(clock_asks),
            await engine.start(clock_times_out),
        ]
        await evicted(engine, runs)
        if not other_process:
            await judge(engine, machine, runs, jump)
    if other_process:
        machine.set_by += jump
        machine.clocks.clear()
        async with hf.open(db, idle_seconds=0) as engine:
            await judge(engine, machine, runs, jump)
    check_file(tmp_path / "runs.db")


async def judge(engine: hf.Engine, machine: Machine, runs: list[hf.Run], jump: int) -> None:
    instant, sleeps, asks, times_out = [engine.get(run.run_id) for run in runs]
    if machine.set_by == 0:
        machine.is_set(jump)
    assert due(engine) == []
    machine.sleep_until(12 * HOUR - jump - 60 * SECOND)
    assert due(engine) == []
    machine.sleep_until(12 * HOUR - jump)
    assert await instant.result(timeout=20) == "slept"
    machine.sleep_until(DAY - 60 * SECOND)
    assert due(engine) == []
    assert check.check(engine.store, clock=engine.clock, orphan_seconds=1).violations == []
    machine.sleep_until(DAY)
    assert await sleeps.result(timeout=20) == "slept"
    assert await asks.result(timeout=20) == "nothing"
    with pytest.raises(hf.RunFailed, match="timeout"):
        await times_out.result(timeout=20)


async def test_an_answer_in_time_is_taken_when_the_wall_clock_is_past_the_deadline(
    tmp_path: Path, machine: Machine
) -> None:
    async with hf.open(url(tmp_path / "runs.db"), idle_seconds=0) as engine:
        run = await engine.start(clock_asks)
        await evicted(engine, [run])
        machine.is_set(2 * DAY)
        (wait,) = await run.waits()
        await run.respond(wait.wait_id, "yes")
        assert await run.result(timeout=20) == "yes"
    check_file(tmp_path / "runs.db")


async def test_durations_follow_the_wall_clock_after_a_restart_of_the_machine(tmp_path: Path, machine: Machine) -> None:
    db = url(tmp_path / "runs.db")
    async with hf.open(db, idle_seconds=0) as engine:
        run = await engine.start(clock_sleeps, seconds=86_400.0)
        await evicted(engine, [run])
    machine.restart()
    machine.clocks.clear()
    async with hf.open(db, idle_seconds=0) as engine:
        machine.is_set(DAY - HOUR)
        assert due(engine) == []
        machine.is_set(HOUR)
        assert await engine.get(run.run_id).result(timeout=20) == "slept"
    check_file(tmp_path / "runs.db")
