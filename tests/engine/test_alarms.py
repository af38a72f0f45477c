"""Alarms: one call when the clock shows an instant, whatever is done to the clock meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engine.alarms import LOOK_SECONDS, WALL_LOOK_SECONDS, Alarm
from holdfast.model.timers import Elapsed

SECOND = 1_000_000


class Handle:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Desk:
    """A loop whose time passes as we say, and a clock that can be set."""

    def __init__(self) -> None:
        self.time = 0.0
        self.set_by = 0
        self.handles: list[Handle] = []
        self.rang: list[float] = []

    def now(self) -> int:
        return int(self.time * SECOND) + self.set_by

    def elapsed(self) -> Elapsed:
        return Elapsed("here", int(self.time * SECOND))

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        self.handles.append(Handle(self.time + delay, callback))
        return self.handles[-1]

    def alarm(self, after_seconds: float, boot: str = "") -> Alarm:
        loop: Any = self
        after = int(after_seconds * SECOND)
        lasting = Elapsed(boot, self.elapsed().micros + after) if boot else None
        return Alarm(loop, self, self.now() + after, lambda: self.rang.append(self.time), lasting)

    def pass_seconds(self, seconds: float) -> None:
        until = self.time + seconds
        while due := [h for h in self.handles if not h.cancelled and h.due <= until]:
            first = min(due, key=lambda h: h.due)
            self.handles.remove(first)
            self.time = max(self.time, first.due)
            first.callback()
        self.time = until


@pytest.mark.parametrize("after", [0, 5, LOOK_SECONDS, 10 * LOOK_SECONDS + 1])
def test_an_alarm_rings_once_at_its_instant(after: float) -> None:
    desk = Desk()
    desk.alarm(after)
    desk.pass_seconds(20 * LOOK_SECONDS)
    assert desk.rang == [after]


def test_an_alarm_that_is_due_rings_in_a_later_turn() -> None:
    desk = Desk()
    desk.alarm(-1)
    assert desk.rang == []
    desk.pass_seconds(0)
    assert desk.rang == [0]


def test_a_clock_that_is_set_back_puts_an_alarm_off() -> None:
    desk = Desk()
    desk.alarm(5)
    desk.pass_seconds(4)
    desk.set_by = -10 * SECOND
    desk.pass_seconds(5)
    assert desk.rang == []
    desk.pass_seconds(10)
    assert desk.rang == [15]


def test_a_clock_that_is_set_forward_is_noticed_within_a_minute() -> None:
    desk = Desk()
    desk.alarm(3600)
    desk.set_by = 3600 * SECOND
    desk.pass_seconds(LOOK_SECONDS)
    assert len(desk.rang) == 1


@pytest.mark.parametrize("waited", [1, LOOK_SECONDS + 1, 5 * LOOK_SECONDS])
def test_an_alarm_can_be_cancelled_however_long_it_has_waited(waited: float) -> None:
    desk = Desk()
    alarm = desk.alarm(6 * LOOK_SECONDS)
    desk.pass_seconds(waited)
    alarm.cancel()
    desk.pass_seconds(20 * LOOK_SECONDS)
    assert desk.rang == []
    assert [h for h in desk.handles if not h.cancelled] == []


async def test_an_alarm_on_a_real_loop_rings() -> None:
    rang = asyncio.Event()

    class Still:
        def now(self) -> int:
            return 0

        def elapsed(self) -> None: ...

    Alarm(asyncio.get_running_loop(), Still(), 0, rang.set)
    await rang.wait()


@pytest.mark.parametrize("jump", [7_200, -7_200])
def test_a_duration_of_this_boot_rings_when_it_is_over_and_all_else_when_the_clock_shows_its_instant(jump: int) -> None:
    for boot, expected in (("here", 10_000.0), ("before", 10_000.0 - jump), ("", 10_000.0 - jump)):
        desk = Desk()
        desk.alarm(10_000, boot)
        desk.pass_seconds(1)
        desk.set_by += jump * SECOND
        desk.pass_seconds(30_000)
        assert desk.rang == [expected], boot


def test_an_instant_that_the_clock_was_set_past_is_met_within_seconds() -> None:
    desk = Desk()
    desk.alarm(10_000)
    desk.pass_seconds(1)
    desk.set_by += 20_000 * SECOND
    desk.pass_seconds(WALL_LOOK_SECONDS)
    assert len(desk.rang) == 1
