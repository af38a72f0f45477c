"""Racing: `ctx.race`, several recorded calls at once of which the first to end counts.

Owns: the parts that the calls run in, which of them has won, and stopping the others.
Rule: the winner is committed before anybody learns of it and before a loser is stopped. A call on ctx that was answered
has won with that commit (rules/waits.py), whatever another one has come to meanwhile; a coroutine of several calls wins
when it ends, with a commit of its own.
On replay: the winner runs again, from its own memory; the losers never do. A race that was cut off before anything of
it was decided is run again; of coroutines the one goes first that was told its last word first.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.model.errors import Suspended, UsageError
from holdfast.model.values import decoder, encode
from holdfast.worker import call_scopes
from holdfast.worker.activation import Activation
from holdfast.worker.call_scopes import BodyPart, RaceBranch, race_branch_scope, race_name
from holdfast.worker.recorded_calls import Call, RaceEnd, Recorded
from holdfast.worker.recording import RecordingContext

T = TypeVar("T")
Calls = Sequence[Coroutine[Any, Any, T]]


class Won(NamedTuple, Generic[T]):
    """What `ctx.race` returns: which of its calls has won, counted from 0, and what that call returned."""

    index: int  # type: ignore[assignment]  # hides `tuple.index`, which searches for a value
    value: T


_calls_of: weakref.WeakKeyDictionary[Coroutine[Any, Any, Any], Calls[Any]] = weakref.WeakKeyDictionary()
"""The calls of races that are not awaited yet: a race that is dropped drops them with it."""


def enter(ctx: RecordingContext, calls: Calls[T]) -> Coroutine[Any, Any, Won[T]]:
    """Take a race's position and give back what runs it."""
    try:
        _check(calls)
        made = ctx._made("race", "race", len(calls))
        race = ctx._activation.made(made, _run(ctx, made, calls))
    except BaseException:
        for call in calls:
            _drop(call)
        raise
    _calls_of[race] = calls
    return race


def _check(calls: Calls[Any]) -> None:
    if not calls:
        raise UsageError("ctx.race needs at least one call: await ctx.race(ctx.step(fetch), ctx.sleep('1h'))")
    for call in calls:
        if not asyncio.iscoroutine(call):
            raise UsageError(
                f"ctx.race takes calls that are not awaited yet, such as ctx.step(...) or ctx.sleep(...), not {call!r}"
            )
    if len({id(call) for call in calls}) < len(calls):
        raise UsageError("ctx.race was given the same call twice: make one call for each place in the race")


def _drop(call: object) -> None:
    """Close a call that will not be awaited; does nothing to one that has ended."""
    if asyncio.iscoroutine(call):
        for inner in _calls_of.pop(call, ()):
            _drop(inner)
        call.close()


async def _run(ctx: RecordingContext, call: Call, calls: Calls[T]) -> Won[T]:
    race = _Race(ctx, call, calls)
    try:
        recorded = ctx._activation.recall(call)
        race.found(recorded)
        if recorded is None or recorded.output is None:
            return await race.run()
        return await race.run_again(decoder(RaceEnd)(recorded.output).index)
    finally:
        await race.stop()


class _Race(Generic[T]):
    """One race, in one life of its body."""

    def __init__(self, ctx: RecordingContext, call: Call, calls: Calls[T]) -> None:
        self._ctx = ctx
        self._activation = ctx._activation
        self._call = call
        self._calls = calls
        self._name = race_name(call.scope, call.place)
        self._tasks: dict[int, asyncio.Task[T]] = {}
        self._parts: dict[asyncio.Task[T], BodyPart] = {}
        self._ended: list[asyncio.Task[T]] = []
        """In the order in which they ended."""

    def found(self, recorded: Recorded | None) -> None:
        """Note the record of the race, perhaps from another place in the code: its calls are recorded there."""
        if recorded is not None:
            self._name = race_name(self._call.scope, recorded.position if recorded.key is None else self._call.place)

    async def run(self) -> Won[T]:
        answered = self._answered()
        for index in range(len(self._calls)) if answered is None else [answered]:
            self._start(index)
        index = await self._first_to_end()
        while (other := await self._win(index)) is not None:
            index = other
            await asyncio.wait([self._start(index)])
        self._take_over_keys(index)
        return Won(index, self._tasks[index].result())

    async def _win(self, index: int) -> int | None:
        """Commit who has won; or the call that has won instead, because it was answered while this one ended."""
        error = self._tasks[index].exception()
        if error is not None and not isinstance(error, Exception):
            return None  # the body is left, or ends with it
        end = encode(RaceEnd(index, raised=error is not None))
        return await self._ctx._record(self._call, end, won=((self._name, index),))

    async def run_again(self, index: int) -> Won[T]:
        """The race is decided: only its winner runs."""
        singles = [self._activation.calls.get(call) for call in self._calls]
        self._activation.replay.forget_losers(self._name, singles, index)
        task = self._start(index)
        try:
            await task
        finally:
            self._take_over_keys(index)
        return Won(index, task.result())

    def _take_over_keys(self, index: int) -> None:
        """What the winner has called is called by the part of the body that the race belongs to."""
        task = self._tasks[index]
        if task.done() and not (task.cancelled() or _was_left(task)):
            part = self._parts[task]
            assert part.race_branch is not None
            part.race_branch.around.take_over_keys(part)

    def _answered(self) -> int | None:
        """The call that has won by its record: the first one that was answered."""
        answers = [(_answered(self._activation, call), index) for index, call in enumerate(self._calls)]
        return min((answer for answer in answers if answer[0]), default=(0, None))[1]

    async def stop(self) -> None:
        """Stop what is left of the race."""
        for index, call in enumerate(self._calls):
            if index not in self._tasks:
                _drop(call)
        pending = [task for task in self._parts if not task.done()]
        for task in pending:
            self._parts[task].lost = True
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        for task, part in self._parts.items():
            part.over = True
            if task.done() and not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not warn: how a loser ended does not matter
        for call in self._calls:
            _drop(call)

    def _start(self, index: int) -> asyncio.Task[T]:
        if index in self._tasks:
            return self._tasks[index]
        replay = self._activation.replay
        lane = RaceBranch(self._name, index, self._call, self._activation.calls.get(self._calls[index]), replay.part)
        part = BodyPart(lane)

        async def in_part() -> T:
            call_scopes.begin(part, race_branch_scope(self._name, index))
            return await self._calls[index]

        task = self._activation.loop.create_task(in_part())
        task.add_done_callback(self._ended.append)
        self._parts[task] = part
        self._tasks[index] = task
        return task

    async def _first_to_end(self) -> int:
        """The first call to end. Being left is no way to win: it may be the last word of all of them, or of none."""
        pending = set(self._parts)
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in self._ended if not _was_left(task)]
            if ended:
                # those that were only replayed have ended at once: of these the one that was answered first counts
                first = min(ended, key=lambda task: self._parts[task].last_answer or sys.maxsize)
                return next(index for index, task in self._tasks.items() if task is first)
        raise Suspended


def _answered(activation: Activation, awaited: Coroutine[Any, Any, Any]) -> int:
    """Which word of the memory has ended a call of a race; 0: none has, or it is a coroutine of several calls. A race
    has ended with a call of it."""
    call = activation.calls.get(awaited)
    if call is None:
        return 0
    inner = [_answered(activation, each) for each in _calls_of.get(awaited, ())]
    return min((word for word in [activation.replay.answered(call), *inner] if word), default=0)


def _was_left(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and isinstance(task.exception(), Suspended)
