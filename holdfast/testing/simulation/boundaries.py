"""Boundaries: acts that outlive the process that does them, and the outcome of each.

Owns: applying the tape to every write to the store and every effect: it happens or not, and its process gets the
result, gets an error, dies, or hangs.
Never: says what dying or hanging means for the other processes (world.py).
Invariants: boundaries are numbered in the order in which they are reached, so that the same choices give the same
schedule.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.testing.simulation.faults import Outcome, Postponed, PowerCut, Until
from holdfast.testing.simulation.fibers import Fiber, current_fiber
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.virtual_loop import VirtualClock

T = TypeVar("T")
ALL_OUTCOMES = tuple(Outcome)
OUTCOMES_ON_THE_LOOP = tuple(o for o in Outcome if not (o.hangs and not o.applied))
"""A body on the loop itself cannot hang before it began: its caller would hang as well, and that is tried."""


class Boundary(msgspec.Struct):
    """One act that outlives its process, and its outcome."""

    number: int
    process: str
    label: str
    about: Any
    outcome: Outcome
    possible: tuple[Outcome, ...]
    instant: int
    is_write: bool
    """A write to the store; else an effect."""
    contacts: int
    """How often its process had contact with the rest of the world before."""


Ended = dict[int, tuple[int, int]]
"""Acts that succeeded: how many boundaries had been reached, and contacts made, when each was over."""


def next_to_next(met: Sequence[Boundary], ended: Ended) -> set[int]:
    """Boundaries after which a fault is the same as one before the next: no boundary between them, no time passed, and
    the process had no contact with the rest of the world."""
    return {
        one.number
        for one, other in pairwise(met)
        if one.process == other.process
        and one.instant == other.instant
        and ended.get(one.number) == (other.number, other.contacts)
    }


class Fate(Protocol):
    """Carries out what a boundary does to its process."""

    def kill(self, process: Process) -> None: ...
    def freeze(self, process: Process, until: Until) -> None: ...
    def wrote(self, process: Process, verb: str, about: Any, result: Any) -> None:
        """Called after a write has happened."""
        ...


class Boundaries:
    """The boundaries of one schedule."""

    def __init__(self, tape: Callable[[int], int], clock: VirtualClock, fate: Fate) -> None:
        self.met: list[Boundary] = []
        self.ended: Ended = {}
        self._tape = tape
        self._clock = clock
        self._fate = fate

    def write(self, process: Process, verb: str, about: Any, apply: Callable[[], T]) -> T:
        """A write to the store, in a callback that can be repeated."""
        if process.resumed is not None:  # it was stopped here
            resumed, process.resumed = process.resumed, None
            if resumed:
                return process.store.found_out(verb, about, resumed[0])  # type: ignore[no-any-return]
            return self._apply(process, verb, about, apply)
        outcome = self._choose(process, verb, about, ALL_OUTCOMES, is_write=True)
        if outcome is Outcome.OK:
            number = len(self.met) - 1
            result = self._apply(process, verb, about, apply)
            self.ended[number] = (number + 1, process.store.contacts)
            return result
        result = self._apply(process, verb, about, apply) if outcome.applied else None  # type: ignore[assignment]
        if outcome.dies:
            self._fate.kill(process)
            raise PowerCut
        if outcome.hangs:
            process.resumed = [result] if outcome.applied else []
            self._fate.freeze(process, outcome.until)
            raise Postponed
        raise process.store.unknown(verb) if outcome.applied else process.store.full(verb)

    def _apply(self, process: Process, verb: str, about: Any, apply: Callable[[], T]) -> T:
        result = apply()
        self._fate.wrote(process, verb, about, result)
        return result

    async def act(
        self,
        process: Process,
        label: str,
        about: Any,
        apply: Callable[[], Awaitable[T]],
        die: Callable[[], None] | None = None,
    ) -> T:
        """An effect of an async body. `die` is what dying means for a body that has a process of its own."""
        die = die or functools.partial(self._fate.kill, process)
        outcome = self._choose(process, label, about, ALL_OUTCOMES)
        if outcome is Outcome.OK:
            number = len(self.met) - 1
            result = await apply()
            self.ended[number] = (len(self.met), process.store.contacts)
            return result
        if outcome is Outcome.DIE_BEFORE:
            die()
            await process.loop.create_future()  # nothing resumes it: not even a `finally` runs
        if outcome.hangs and not outcome.applied:
            await self._stand_still(process, outcome.until)
        result = await apply() if outcome is not Outcome.ERROR_NOT_APPLIED else None  # type: ignore[assignment]
        if outcome is Outcome.DIE_AFTER:
            die()
            await process.loop.create_future()
        if outcome.hangs and outcome.applied:
            await self._stand_still(process, outcome.until)
        if outcome.fails:
            raise LostReply(label, outcome)
        return result

    def act_blocking(self, process: Process, label: str, about: Any, apply: Callable[[], T]) -> T:
        """An effect of a sync body. Only in a fiber it can hang before it happens."""
        fiber = current_fiber.get()
        outcome = self._choose(process, label, about, OUTCOMES_ON_THE_LOOP if fiber is None else ALL_OUTCOMES)
        if outcome is Outcome.OK:
            number = len(self.met) - 1
            result = apply()
            self.ended[number] = (len(self.met), process.store.contacts)
            return result
        if outcome is Outcome.DIE_BEFORE:
            self._fate.kill(process)
            raise PowerCut
        if outcome.hangs and not outcome.applied:
            assert fiber is not None
            self._pause_fiber(process, fiber, outcome.until)
        result = apply() if outcome is not Outcome.ERROR_NOT_APPLIED else None  # type: ignore[assignment]
        if outcome is Outcome.DIE_AFTER:
            self._fate.kill(process)
            raise PowerCut
        if outcome.hangs and outcome.applied:
            if fiber is None:
                self._fate.freeze(process, outcome.until)  # takes effect when this callback ends
            else:
                self._pause_fiber(process, fiber, outcome.until)
        if outcome.fails:
            raise LostReply(label, outcome)
        return result

    async def _stand_still(self, process: Process, until: Until) -> None:
        self._fate.freeze(process, until)
        assert process.thawed is not None
        await process.thawed

    def _pause_fiber(self, process: Process, fiber: Fiber, until: Until) -> None:
        self._fate.freeze(process, until)
        assert process.thawed is not None
        process.thawed.add_done_callback(lambda _: fiber.resume())
        fiber.pause()

    def _choose(
        self, process: Process, label: str, about: Any, possible: tuple[Outcome, ...], *, is_write: bool = False
    ) -> Outcome:
        number = len(self.met)
        chosen = self._tape(number)
        outcome = Outcome(chosen) if chosen and chosen in possible else Outcome.OK
        self.met.append(
            Boundary(
                number,
                process.name,
                label,
                about,
                outcome,
                possible,
                self._clock.now(),
                is_write,
                process.store.contacts,
            )
        )
        return outcome


class LostReply(ConnectionError):
    """An effect failed, or its answer was lost, because the explorer chose so."""

    def __init__(self, label: str, outcome: Outcome) -> None:
        super().__init__(f"{label}: {outcome} (this is the explorer's doing)")
