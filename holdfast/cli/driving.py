"""Driving: an engine in this process for some runs, until they have ended, wait for a person, or a signal stops it.

Owns: importing the code that runs have recorded, the engine's life in a command, Ctrl-C and SIGTERM, the exit code of
each run, and the report at the end.
Never: chooses the runs (see commands), draws (see progress.py).
Invariants: the first signal stops in order and loses no attempt; the second cancels the runs; the third exits at once,
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

from holdfast.cli import output, progress, wording
from holdfast.cli.databases import reading
from holdfast.cli.progress import SHOWN_MAX, UNFINISHED, Crowd
from holdfast.engine import operator
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.inspect import run_views
from holdfast.model.errors import CorruptJournal, HoldfastError, MissingCode, RunSuspended
from holdfast.model.handlers import CodeLocation
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.opening import open_engine
from holdfast.store.contract import Store
from holdfast.store.records.run_records import creation_of, find_run, result_of, terminal_event
from holdfast.store.row_types import RunRow
from holdfast.worker.loading import load_given
from holdfast.worker.trust import load_recorded

EXITS = {
    RunStatus.COMPLETED: output.OK,
    RunStatus.FAILED: output.FAILED,
    RunStatus.CANCELLED: output.CANCELLED,
}
ACTOR = "command line"
POLL_MANY_SECONDS = 0.1
POLL_SECONDS = 1.0
"""How often a run that another engine drives is checked: when that engine stops, this one takes over."""
CANCEL_SECONDS = 5.0
"""How long a second Ctrl-C waits for the runs to end."""
FAMILY_MAX = 1_000
"""Unfinished runs of one family whose code is imported."""

Begin = Callable[[Engine], Awaitable[Sequence[Run[Any]]]]
Places = list[CodeLocation] | CorruptJournal
"""Where the code of a run was when it was started, or why that cannot be read."""


class Ending(msgspec.Struct):
    """The state in which a command leaves a run, as an exit code."""

    run_id: str
    exit_code: int


def drive_and_report(
    url: str, begin: Begin, *, json: bool = False, quiet: bool = False, since: dict[int, int] | None = None
) -> int:
    """Open an engine, begin the runs and show them until each has ended or waits, or a signal stops them; then print
    how each ended. Returns the exit code for all of them.

    `since` is the journal position from which plain lines are printed, by run number; `begin` may still fill it."""
    return report(url, operator.run_to_end(_drive(url, begin, json, quiet, {} if since is None else since)), json=json)


async def _drive(url: str, begin: Begin, json: bool, quiet: bool, since: dict[int, int]) -> list[Ending]:
    stop = Stop()
    stop.listen(asyncio.get_running_loop())
    view: progress.View | None = None
    runs: Sequence[Run[Any]] = ()
    try:
        async with open_engine(url, recover=False) as engine:
            operator.fail_when_full(engine)
            stop.engine = engine
            runs = stop.runs = await _unless_stopped(begin(engine), stop)
            if not runs:
                return []
            numbers = [operator.row_of(engine, run).run_no for run in runs]
            if not quiet:
                view = _view(engine, numbers, json, since)
            try:
                endings = await _until_quiet(engine, runs, numbers, view, stop)
            finally:
                if view is not None:
                    view.close()
            if stop.signals and any(operator.runs_bodies_of(engine, number) for number in numbers):
                output.note(f"{stopping(engine)}; Ctrl-C again cancels the run")
        if stop.cancelling:
            endings = await _cancelled(url, runs)
        return endings
    finally:
        stop.restore()


def stopping(engine: Engine) -> str:
    return f"stopping: bodies may run for {engine.settings.patience_seconds:g} s more"


async def _unless_stopped(work: Awaitable[Sequence[Run[Any]]], stop: Stop) -> Sequence[Run[Any]]:
    """The runs, or none if a signal arrives before they have begun."""
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
        return progress.LiveView(engine.store, numbers, lambda run_no: operator.progress_of(engine, run_no))
    return progress.PlainView(engine.store, numbers, since=since)


async def _until_quiet(
    engine: Engine, runs: Sequence[Run[Any]], numbers: list[int], view: progress.View | None, stop: Stop
) -> list[Ending]:
    with operator.changes_of(engine, numbers) as changed:
        shown = [] if view is None else [asyncio.ensure_future(progress.show(view, changed))]
        claiming = asyncio.ensure_future(_claim_released(engine, numbers))
        stopped = asyncio.ensure_future(stop.asked.wait())
        quiet = asyncio.ensure_future(
            _ending(runs[0], runs[0].until_quiet()) if len(runs) == 1 else _until_none_moves(engine, runs, numbers)
        )
        try:
            await asyncio.wait([quiet, stopped], return_when=asyncio.FIRST_COMPLETED)
            if quiet.done() and (found := quiet.result()) is not None:
                return [found]
            return [await _now(run) for run in runs]
        finally:
            tasks: list[asyncio.Future[Any]] = [claiming, stopped, quiet, *shown]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _until_none_moves(engine: Engine, runs: Sequence[Run[Any]], numbers: Sequence[int]) -> None:
    """Wait until each of many runs has ended or waits for the outside; one query a poll, however many there are."""
    crowd = Crowd(engine.store, numbers)
    by_number = dict(zip(numbers, runs, strict=True))
    while True:
        operator.check(engine)
        began = time.monotonic()
        crowd.refresh()
        moving = [n for n, row in crowd.live.items() if row is not None and row.status != RunStatus.SUSPENDED]
        if not moving:
            waiting = [by_number[number] for number in crowd.live]
            if all([(await _now(run)).exit_code == output.SUSPENDED for run in waiting]):
                return
        await asyncio.sleep(max(POLL_MANY_SECONDS, 10 * (time.monotonic() - began)))


async def _now(run: Run[Any]) -> Ending:
    """The state of a run at this moment; INTERRUPTED: it could continue."""
    return await _ending(run, run.if_quiet())


async def _ending(run: Run[Any], quiet: Awaitable[RunRow | None]) -> Ending:
    try:
        row = await quiet
    except RunSuspended:
        return Ending(run.run_id, output.SUSPENDED)
    return Ending(run.run_id, output.INTERRUPTED if row is None else EXITS[RunStatus(row.status)])


async def _claim_released(engine: Engine, numbers: Sequence[int]) -> None:
    """Take over runs that another engine drives as soon as that engine stops."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        await operator.claim_released(engine, numbers)


async def _cancelled(url: str, runs: Sequence[Run[Any]]) -> list[Ending]:
    """After a second Ctrl-C: make sure that every run is cancelled, even if its engine closed too early for it."""
    endings = []
    async with open_engine(url, recover=False) as engine:
        for run in runs:
            again = engine.get(run.run_id)
            if await again.status() not in RUN_TERMINAL:
                with suppress(HoldfastError):
                    await again.cancel("Ctrl-C", actor=ACTOR)
                with suppress(HoldfastError, TimeoutError):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await again.until_quiet()
            status = RunStatus(await again.status())
            endings.append(Ending(run.run_id, EXITS.get(status, output.INTERRUPTED)))
    return endings


def driven_elsewhere(engine: Engine, run: Run[Any]) -> str:
    """Which other engine drives a run; empty if this one does, or none has to."""
    row = engine.store.run(run.run_id)
    if row is None or row.engine in (None, operator.engine_id(engine)) or row.status in RUN_TERMINAL:
        return ""
    for other in engine.store.engines():
        if other.engine == row.engine:
            who = f"engine {other.engine} (pid {other.pid} on {output.line(other.host)})"
            return f"run {output.line(run.run_id)} is driven by {who}; following it"
    return ""


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
        with suppress(NotImplementedError):  # Windows: KeyboardInterrupt stays as it is
            loop.add_signal_handler(signal.SIGINT, self._interrupted)
            loop.add_signal_handler(signal.SIGTERM, self._terminated)

    def restore(self) -> None:
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
            output.note("cancelling; Ctrl-C again exits at once")
            task = asyncio.ensure_future(self._cancel(self.engine))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        elif self.signals >= 3:
            output.note("exiting at once: bodies that are running will run again")
            os._exit(output.INTERRUPTED)

    async def _cancel(self, engine: Engine) -> None:
        with suppress(HoldfastError):
            await operator.cancel_while_closing(engine, self.runs, "Ctrl-C", ACTOR)


# --- the report -----------------------------------------------------------------------------------------------------


def report(url: str, endings: list[Ending], *, json: bool) -> int:
    """Print how the runs ended; the exit code for all of them."""
    if not endings:
        return output.complain("interrupted", "stopped before anything began; nothing is lost", output.INTERRUPTED)
    with reading(url) as store:
        rows = [find_run(store, ending.run_id) for ending in endings]
        if json:
            for row in rows:
                output.document(run_views.run_json(store, row), compact=len(rows) > 1)
        pairs = [pair for pair in zip(rows, endings, strict=True) if len(rows) == 1 or pair[1].exit_code != output.OK]
        for row, ending in pairs[:SHOWN_MAX]:
            _print_ending(store, row, ending, url, json=json)
        if len(pairs) > SHOWN_MAX:
            output.note(f"… and {len(pairs) - SHOWN_MAX} more that did not complete; `holdfast list` shows them")
    codes = [ending.exit_code for ending in endings]
    worst = (output.INTERRUPTED, output.FAILED, output.CANCELLED, output.SUSPENDED)
    return next((code for code in worst if code in codes), output.OK)


def _print_ending(store: Store, row: RunRow, ending: Ending, url: str, *, json: bool) -> None:
    run_id = output.line(row.run_id)
    lines: list[str] = []
    match ending.exit_code:
        case output.OK:
            if not json:
                output.write(wording.result_text(result_of(store, row, terminal_event(store, row))))
        case output.FAILED:
            lines = wording.failure_lines(terminal_event(store, row), run_id)
            lines.append(f"`{wording.command('show', row.run_id, url)}` shows more")
        case output.CANCELLED:
            terminal = terminal_event(store, row)
            why = f": {output.line(terminal.reason)}" if terminal.reason else ""
            lines = [f"holdfast: run {run_id} was cancelled{why}", *wording.other_lines(terminal)]
        case output.SUSPENDED:
            lines = wording.suspended_lines(store, row, url)
        case output.INTERRUPTED:
            lines = [
                f"holdfast: stopped; run {run_id} is {row.status}, and no attempt is lost. To continue it:",
                f"  {wording.command('resume', row.run_id, url)}",
            ]
    for text in lines:
        output.note(text)


# --- the code of recorded runs ----------------------------------------------------------------------------------------


def recorded_code(store: Store, row: RunRow) -> Places:
    """Where the code of a run and of its unfinished children was when they were started."""
    found: dict[CodeLocation, None] = {}
    family = store.runs(status=UNFINISHED, root_no=row.root_no, limit=FAMILY_MAX)
    for member in [row, *(m for m in family if m.run_no != row.run_no)]:
        try:
            created = creation_of(store, member)
        except CorruptJournal as damage:
            return damage
        if created.code is not None:
            found |= dict.fromkeys(msgspec.convert(created.code, CodeLocation).needed)
    return list(found)


def load_code(
    rows: Sequence[RunRow], locations: dict[int, Places], code: str | None, store_id: str
) -> tuple[list[RunRow], list[HoldfastError]]:
    """Import the code of runs; return the runs whose code is loaded, and an error for each of the others."""
    if code is not None:
        load_given(code, [place for found in locations.values() if isinstance(found, list) for place in found])
    loaded: list[RunRow] = []
    missing: list[HoldfastError] = []
    tried: dict[CodeLocation, HoldfastError | None] = {}
    for row in rows:
        places = locations.get(row.run_no, []) if code is None else []
        if isinstance(places, CorruptJournal):
            missing.append(places)
            continue
        problem: HoldfastError | None = None
        for location in places:
            if location not in tried:
                tried[location] = _import_error(location, store_id)
            problem = problem or tried[location]
        if problem is None:
            loaded.append(row)
        else:
            missing.append(MissingCode(f"run {row.run_id}: {problem.message}"))
    return loaded, missing


def _import_error(location: CodeLocation, store_id: str) -> HoldfastError | None:
    try:
        load_recorded(location, store_id)
    except HoldfastError as error:
        return error
    return None
