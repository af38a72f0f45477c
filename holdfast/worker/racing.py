"""Racing: `ctx.race`, several remembered calls at once of which the first to end counts.

Owns: the strands that the calls run in, which of them has won, and stopping the others.
Rule: the winner is committed before anybody learns of it and before a loser is stopped. A race that was cut off before
that is run again, and goes to the call that was answered first.
On replay: the remembered winner runs again, from its own memory; the losers never do.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from holdfast.model.errors import Suspended, UsageError
from holdfast.model.values import decoder, encode
from holdfast.worker.memory import Call, RaceEnd
from holdfast.worker.strands import Strand, current_strand

if TYPE_CHECKING:
    from holdfast.worker.context import Context

T = TypeVar("T")
Calls = Sequence[Coroutine[Any, Any, T]]


class Won(NamedTuple, Generic[T]):
    """What `ctx.race` returns: which of its calls has won, counted from 0, and what that call returned."""

    index: int  # type: ignore[assignment]  # nobody looks for a value in it, which is what a tuple's `index` does
    value: T


_calls_of: weakref.WeakKeyDictionary[Coroutine[Any, Any, Any], Calls[Any]] = weakref.WeakKeyDictionary()
"""The calls of races that are not awaited yet: a race that is dropped drops them with it."""


def enter(ctx: Context, calls: Calls[T]) -> Coroutine[Any, Any, Won[T]]:
    """Take a race's position and give back what runs it."""
    try:
        _check(calls)
        race = _run(ctx, ctx._made("race", "race", len(calls)), calls)
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
    """Forget a call that will not be awaited any more; nothing happens to one that has ended."""
    if asyncio.iscoroutine(call):
        for inner in _calls_of.pop(call, ()):
            _drop(inner)
        call.close()


async def _run(ctx: Context, call: Call, calls: Calls[T]) -> Won[T]:
    race = _Race(ctx, call, calls)
    try:
        memo = ctx._activation.recall(call)
        if memo is None or memo.output is None:
            return await race.run()
        return await race.run_again(decoder(RaceEnd)(memo.output).index)
    finally:
        await race.stop()


class _Race(Generic[T]):
    """One race, in one life of its body."""

    def __init__(self, ctx: Context, call: Call, calls: Calls[T]) -> None:
        self._ctx = ctx
        self._activation = ctx._activation
        self._call = call
        self._calls = calls
        self._strands: dict[asyncio.Task[T], Strand] = {}
        self._ended: list[asyncio.Task[T]] = []
        """In the order in which they ended."""

    async def run(self) -> Won[T]:
        tasks = [self._start(index) for index in range(len(self._calls))]
        winner = await self._winner()
        error = winner.exception()
        end = RaceEnd(tasks.index(winner), raised=error is not None)
        if error is None or isinstance(error, Exception):
            await self._ctx._record(self._call, encode(end))
        return Won(end.index, winner.result())

    async def run_again(self, index: int) -> Won[T]:
        """The race is decided: only its winner runs."""
        return Won(index, await self._start(index))

    async def stop(self) -> None:
        """Nothing of a race goes on when it is over."""
        pending = [task for task in self._strands if not task.done()]
        for task in pending:
            self._strands[task].lost = True
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        for task, strand in self._strands.items():
            strand.memory = None
            if task.done() and not task.cancelled():
                task.exception()  # how a loser ended matters to nobody
        for call in self._calls:
            _drop(call)

    def _start(self, index: int) -> asyncio.Task[T]:
        strand = Strand(self._activation.memory, f"{self._call.scope}r{self._call.position}.{index}/")

        async def in_strand() -> T:
            current_strand.set(strand)
            return await self._calls[index]

        task = self._activation.loop.create_task(in_strand())
        task.add_done_callback(self._ended.append)
        self._strands[task] = strand
        return task

    async def _winner(self) -> asyncio.Task[T]:
        """The first call to end. Being left is no way to win: it may be the last word of all of them, or of none."""
        pending = set(self._strands)
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in self._ended if not _was_left(task)]
            if ended:
                # those that only remembered have ended at once: of these the one that was answered first counts
                return min(ended, key=lambda task: self._strands[task].heard or sys.maxsize)
        raise Suspended


def _was_left(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and isinstance(task.exception(), Suspended)
