"""Alarms: the timers of one live run, in this process.

Owns: a wake-up per timer that is set and per start that is delayed. The table of timers is the truth: those of a run
that nobody drives are found there (recovery.py).
Invariant: nothing rings before its instant by the engine's clock, also when that is set back meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.engine.clock import Clock
from holdfast.model.state import RunState, retry_timer
from holdfast.model.statuses import NodeStatus
from holdfast.rules.draft import Draft

LOOK_SECONDS = 60.0
"""How long an alarm goes by the loop's time: the clock may be set meanwhile, and the two drift apart."""


class Alarm:
    """One call when a clock shows an instant. The loop only says when to look at the clock."""

    __slots__ = ("_call", "_clock", "_due_at", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, due_at: int, call: Callable[[], object]) -> None:
        self._loop = loop
        self._clock = clock
        self._due_at = due_at
        self._call = call
        self._handle = loop.call_later(min(max(0.0, self._left_seconds()), LOOK_SECONDS), self._look)

    def _left_seconds(self) -> float:
        return (self._due_at - self._clock.now()) / 1_000_000

    def _look(self) -> None:
        left = self._left_seconds()
        if left <= 0:
            self._call()
        else:
            self._handle = self._loop.call_later(min(left, LOOK_SECONDS), self._look)

    def cancel(self) -> None:
        self._handle.cancel()


class Clockwork(Protocol):
    """Who can call at a time."""

    def call_at(self, due_at: int, function: Callable[..., None], *args: Any) -> Alarm: ...


class Alarms:
    """Rings `fire(timer)` and `start(node, path)` when they are due."""

    def __init__(self, clockwork: Clockwork, fire: Callable[[str], None], start: Callable[[str, str], object]) -> None:
        self._clockwork = clockwork
        self._fire = fire
        self._start = start
        self._timers: dict[str, Alarm] = {}
        self._starts: dict[tuple[str, str], Alarm] = {}

    def set(self, state: RunState, draft: Draft) -> None:
        """Bring the wake-ups in line with the run's timers, and with starts that this turn delayed."""
        for name in [n for n in self._timers if n not in state.timers]:
            self._timers.pop(name).cancel()
        for name, due_at in state.timers.items():
            if name not in self._timers:
                self._timers[name] = self._clockwork.call_at(due_at, self._ring_timer, name)
        for ns in draft.scheduled:
            if ns.status is NodeStatus.SCHEDULED and ns.not_before > draft.now and retry_timer(ns) not in self._timers:
                self._starts[ns.key] = self._clockwork.call_at(ns.not_before, self._ring_start, ns.node, ns.path)

    def _ring_timer(self, name: str) -> None:
        self._timers.pop(name, None)
        self._fire(name)

    def _ring_start(self, node: str, path: str) -> None:
        self._starts.pop((node, path), None)
        self._start(node, path)

    def clear(self) -> None:
        for handle in [*self._timers.values(), *self._starts.values()]:
            handle.cancel()
        self._timers.clear()
        self._starts.clear()
