"""Driving: an engine in this process for some runs, until they have ended or somebody says stop.

Owns: the engine's life in a command, Ctrl-C and SIGTERM, and how each run ended as an exit code.
Never: decides which runs (see commands/run.py and resume.py), draws (see progress.py).
Invariants: the first signal stops in order and loses no attempt; the second cancels the runs; the third leaves at once,
which costs what a crash costs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.cli import output, progress
from holdfast.cli.crowds import Crowd
from holdfast.engine import loops
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model.errors import HoldfastError, RunSuspended
from holdfast.model.naming import unique
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.opening import open_engine
from holdfast.store.row_types import MessageRow, RunRow

EXITS = {
    RunStatus.COMPLETED: output.OK,
    RunStatus.FAILED: output.FAILED,
    RunStatus.CANCELLED: output.CANCELLED,
}
LOOK_MANY_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""How often a run that another engine drives is looked at: when that one stops, we go on."""


class Ending(msgspec.Struct):
    """How a run was left, as an exit code."""

    run_id: str
    exit_code: int


def drive(
    url: str,
    begin: Callable[[Engine], Awaitable[Sequence[Run[Any]]]],
    *,
    json: bool = False,
    quiet: bool = False,
    since: dict[int, int] | None = None,
) -> list[Ending]:
    """Open an engine, begin the runs, show them, and return when each has ended or rests, or a signal came.

    Empty when a signal came before they had begun. `since` is the journal position from which plain lines are told, by
    run number; `begin` may still fill it."""
    return loops.run(_drive(url, begin, json, quiet, {} if since is None else since))


async def _drive(
    url: str,
    begin: Callable[[Engine], Awaitable[Sequence[Run[Any]]]],
    json: bool,
    quiet: bool,
    since: dict[int, int],
) -> list[Ending]:
    stop = Stop()
    stop.listen(asyncio.get_running_loop())
    view: progress.View | None = None
    runs: Sequence[Run[Any]] = ()
    try:
        async with open_engine(url, recover=False) as engine:
            engine.committer.wait_when_full = False
            stop.engine = engine
            runs = stop.runs = await _unless_stopped(begin(engine), stop)
            if not runs:
                return []
            numbers = [_number(engine, run) for run in runs]
            if not quiet:
                view = _view(engine, numbers, json, since)
            try:
                endings = await _until_quiet(engine, runs, numbers, view, stop)
            finally:
                if view is not None:
                    view.close()
            if stop.signals and any(_is_busy(engine, number) for number in numbers):
                patience = engine.settings.patience_seconds
                output.note(f"stopping: bodies may go on for {patience:g} s; Ctrl-C again cancels the run")
        if stop.cancelling:
            endings = await _cancelled(url, runs)
        return endings
    finally:
        stop.silence()


async def _unless_stopped(work: Awaitable[Sequence[Run[Any]]], stop: Stop) -> Sequence[Run[Any]]:
    """The runs, or none when a signal comes before they have begun."""
    beginning = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.asked.wait())
    await asyncio.wait([beginning, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not beginning.done():
        beginning.cancel()
        await asyncio.wait([beginning])
    return () if beginning.cancelled() else beginning.result()


def _view(engine: Engine, numbers: list[int], json: bool, since: dict[int, int]) -> progress.View:
    if progress.wants_live(json):
        said: Any = getattr(engine.executor, "progress", lambda run_no: {})
        return progress.LiveView(engine.store, numbers, said)
    return progress.PlainView(engine.store, numbers, since=since)


async def _until_quiet(
    engine: Engine, runs: Sequence[Run[Any]], numbers: list[int], view: progress.View | None, stop: Stop
) -> list[Ending]:
    moved = engine.hub.listen(numbers[0]) if len(numbers) == 1 else asyncio.Event()
    shown = None if view is None else asyncio.ensure_future(progress.show(view, moved))
    looking = asyncio.ensure_future(_take_over_when_left(engine, numbers))
    stopped = asyncio.ensure_future(stop.asked.wait())
    resting = asyncio.ensure_future(
        _ending(runs[0], runs[0].until_quiet()) if len(runs) == 1 else _none_moves(engine, runs, numbers)
    )
    try:
        await asyncio.wait([resting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if resting.done() and (found := resting.result()) is not None:
            return [found]
        return [await _now(run) for run in runs]
    finally:
        tasks: list[asyncio.Future[Any]] = [looking, stopped, resting, *([shown] if shown else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if len(numbers) == 1:
            engine.hub.leave(numbers[0], moved)


def _number(engine: Engine, run: Run[Any]) -> int:
    row = engine.store.run(run.run_id)
    assert row is not None
    return row.run_no


def _is_busy(engine: Engine, number: int) -> bool:
    """Whether bodies of a run are at work in this process."""
    if number not in engine.actors:
        return False
    return any(node.status == NodeStatus.RUNNING and node.scope is None for node in engine.store.open_nodes([number]))


async def _none_moves(engine: Engine, runs: Sequence[Run[Any]], numbers: Sequence[int]) -> None:
    """Wait until each of many runs has ended or rests; one query a look, however many there are."""
    crowd = Crowd(engine.store, numbers)
    by_number = dict(zip(numbers, runs, strict=True))
    while True:
        engine.runtime.check()
        began = time.monotonic()
        crowd.look()
        moving = [n for n, row in crowd.live.items() if row is not None and row.status != RunStatus.SUSPENDED]
        if not moving:
            waiting = [by_number[number] for number in crowd.live]
            if all([(await _now(run)).exit_code == output.SUSPENDED for run in waiting]):
                return
        await asyncio.sleep(max(LOOK_MANY_SECONDS, 10 * (time.monotonic() - began)))


async def _now(run: Run[Any]) -> Ending:
    """How a run stands at this moment; INTERRUPTED: it could go on."""
    return await _ending(run, run.if_quiet())


async def _ending(run: Run[Any], quiet: Awaitable[RunRow | None]) -> Ending:
    try:
        row = await quiet
    except RunSuspended:
        return Ending(run.run_id, output.SUSPENDED)
    return Ending(run.run_id, output.INTERRUPTED if row is None else EXITS[RunStatus(row.status)])


async def _take_over_when_left(engine: Engine, numbers: Sequence[int]) -> None:
    """Runs that another engine drives are ours as soon as that one stops."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if any(number not in engine.actors for number in numbers):
            await engine.claims.sweep()


async def _cancelled(url: str, runs: Sequence[Run[Any]]) -> list[Ending]:
    """After a second Ctrl-C: make sure that every run is cancelled, also one whose engine closed too early for it."""
    endings = []
    async with open_engine(url, recover=False) as engine:
        for run in runs:
            again = engine.get(run.run_id)
            row = engine.store.run(run.run_id)
            if row is not None and row.status not in RUN_TERMINAL:
                with suppress(HoldfastError):
                    await again.cancel("Ctrl-C", actor="command line")
                with suppress(HoldfastError, TimeoutError):
                    async with asyncio.timeout(5):
                        await again.until_quiet()
            status = RunStatus(await again.status())
            endings.append(Ending(run.run_id, EXITS.get(status, output.INTERRUPTED)))
    return endings


class Stop:
    """Ctrl-C and SIGTERM, counted."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.signals = 0
        self.cancelling = False
        self.engine: Engine | None = None
        self.runs: Sequence[Run[Any]] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: set[asyncio.Task[None]] = set()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        with suppress(NotImplementedError):  # Windows: KeyboardInterrupt stays what it is
            loop.add_signal_handler(signal.SIGINT, self._interrupted)
            loop.add_signal_handler(signal.SIGTERM, self._terminated)

    def silence(self) -> None:
        if self._loop is not None:
            with suppress(NotImplementedError):
                self._loop.remove_signal_handler(signal.SIGINT)
                self._loop.remove_signal_handler(signal.SIGTERM)

    def _terminated(self) -> None:
        self.signals += 1
        self.asked.set()
        if self.signals >= 3:
            os._exit(output.INTERRUPTED)

    def _interrupted(self) -> None:
        self.signals += 1
        self.asked.set()
        if self.signals == 2 and self.engine is not None:
            self.cancelling = True
            output.note("cancelling; Ctrl-C again leaves at once")
            task = asyncio.ensure_future(self._cancel(self.engine))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        elif self.signals >= 3:
            output.note("left at once: what was running will run again")
            os._exit(output.INTERRUPTED)

    async def _cancel(self, engine: Engine) -> None:
        """By the one way in: the closing engine still takes messages for the runs that it owns."""
        payload = msgspec.json.encode({"reason": "Ctrl-C", "actor": "command line"})
        with suppress(HoldfastError):
            for run in self.runs:
                row = engine.store.run(run.run_id)
                if row is not None and row.status not in RUN_TERMINAL:
                    message = MessageRow(unique("m_"), row.run_no, "cancel", payload, engine.clock.now())
                    await engine.committer.call(engine.store.send, [message])
            await engine.inbox.look()
