"""Alarms: the timers of one live run, in this process.

Owns: a wake-up per timer that is set and per start that is delayed. The table of timers is the truth: those of a run
that no engine drives are found there (ownership/claim.py).
Invariant: no alarm fires before its instant by the engine's clock, also when that is set back meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from holdfast.model.state import RunState
from holdfast.model.statuses import NodeStatus
from holdfast.model.timers import Elapsed, due
from holdfast.rules.draft import Draft
from holdfast.rules.nodes import is_time
from holdfast.store.clocks import Clock

LOOK_SECONDS = 60.0
"""How long an alarm goes by the loop's time: the clock may be set meanwhile, and the two drift apart."""

WALL_LOOK_SECONDS = 5.0
"""The same for an instant of a wall clock that an administrator may set."""


class Alarm:
    """One call when a clock shows an instant. The loop only says when to read the clock."""

    __slots__ = ("_call", "_clock", "_due_at", "_handle", "_lasting", "_look_seconds", "_loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        due_at: int,
        call: Callable[[], object],
        lasting: Elapsed | None = None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._due_at = due_at
        self._call = call
        self._lasting = lasting
        self._look_seconds = LOOK_SECONDS if lasting or clock.elapsed() is None else WALL_LOOK_SECONDS
        self._handle = loop.call_later(min(max(0.0, self._left_seconds()), self._look_seconds), self._look)

    def _left_seconds(self) -> float:
        now = self._clock.now()
        return (due(self._due_at, self._lasting, now, self._clock.elapsed()) - now) / 1_000_000

    def _look(self) -> None:
        left = self._left_seconds()
        if left <= 0:
            self._call()
        else:
            self._handle = self._loop.call_later(min(left, self._look_seconds), self._look)

    def cancel(self) -> None:
        self._handle.cancel()


def _lasting(due_at: int, draft: Draft) -> Elapsed | None:
    now = draft.elapsed
    return None if now is None else Elapsed(now.boot, now.micros + due_at - draft.now)


class Alarms:
    """Calls `fire(timer)` and `start(node, path)` when they are due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        fire: Callable[[str], None],
        start: Callable[[str, str], object],
    ) -> None:
        self._loop = loop
        self._clock = clock
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
                self._timers[name] = self.call_at(due_at, state.lasting.get(name), self._ring_timer, name)
        for ns in draft.scheduled:
            if ns.status is not NodeStatus.SCHEDULED or not ns.not_before or ns.start_timer in self._timers:
                continue
            if not is_time(draft, ns):
                lasting = _lasting(ns.not_before, draft)
                self._starts[ns.key] = self.call_at(ns.not_before, lasting, self._ring_start, ns.node, ns.path)

    def call_at(self, due_at: int, lasting: Elapsed | None, function: Callable[..., None], *args: Any) -> Alarm:
        """Call when the clock shows `due_at`, or when the duration is over that `lasting` describes; never early."""
        return Alarm(self._loop, self._clock, due_at, functools.partial(function, *args), lasting)

    def _ring_timer(self, name: str) -> None:
        self._timers.pop(name, None)
        self._fire(name)

    def _ring_start(self, node: str, path: str) -> None:
        self._starts.pop((node, path), None)
        self._start(node, path)

    def cancel(self) -> None:
        for handle in [*self._timers.values(), *self._starts.values()]:
            handle.cancel()
        self._timers.clear()
        self._starts.clear()
