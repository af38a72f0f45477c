"""Restart: how soon interrupted work goes on, in a file with much that only waits and in a run with a long past.

Owns: both sides. The parent's functions start `python -m holdfast.cli.bench.restart WORK ...`, let it be killed, and
compare when bodies began with the moment of the restart or of the death; the monotonic clock is the same for all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast as hf
from holdfast.cli.bench import workflows
from holdfast.cli.bench.reference import Sizes
from holdfast.cli.tuning import tune
from holdfast.store.api import Commit, RunRow
from holdfast.store.sqlite import SqliteStore

Figures = dict[str, Any]
LEASE_SECONDS = 1.0
"""Of an engine that stands still while its lock is held: its successor has to wait for this long."""
AT_ONCE = 1_000
"""Copies that are written in one transaction."""


# --- the parent's side ------------------------------------------------------------------------------------------


def many_runs(directory: Path, sizes: Sizes) -> Figures:
    """Seconds from the start of a process until the first and the last of the interrupted runs are running again."""
    database = directory / "bench.db"
    asyncio.run(_wait_in(database))
    _copy_waiting_run(database, sizes.suspended)
    _die("interrupt", database, sizes.interrupted)
    began = time.monotonic()
    with _child("go-on", database, sizes.interrupted) as child:
        bodies = _tell(child)["bodies"]
    return {"first_seconds": min(bodies) - began, "all_seconds": max(bodies) - began}


def long_run(directory: Path, sizes: Sizes) -> Figures:
    """Seconds from the start of a process until a run with a long past is running again."""
    database = directory / "bench.db"
    items = sizes.past_events // workflows.EVENTS_OF_AN_ITEM
    _die("long", database, items)
    store = SqliteStore(_url(database))
    store.open()
    events = store.runs()[0].last_seq
    store.close()
    began = time.monotonic()
    with _child("go-on", database, workflows.ITEMS_LEFT) as child:
        return {"long_seconds": min(_tell(child)["bodies"]) - began, "long_events": events}


def takeover(directory: Path) -> Figures:
    """Seconds until a living engine goes on with the run of one that dies, or that stands still until its lease ends
    (what it takes beyond the lease)."""
    died = _takeover(directory / "died.db", signal.SIGKILL)
    return {
        "takeover_seconds": died,
        "takeover_after_lease_seconds": _takeover(directory / "stopped.db", signal.SIGSTOP) - LEASE_SECONDS,
    }


def _takeover(database: Path, how: signal.Signals) -> float:
    with _child("hold", database, 1) as owner:
        _tell(owner)
        with _child("go-on", database, 1) as heir:
            _tell(heir)  # it is open, and finds the run in its owner's hands
            ended = time.monotonic()
            owner.send_signal(how)
            began: float = _tell(heir)["bodies"][0]
        owner.kill()
    return began - ended


async def _wait_in(database: Path) -> None:
    async with hf.open(_url(database)) as engine:
        run = await engine.start(workflows.waiting)
        while await run.status() != "suspended":  # noqa: ASYNC110 - one run, once
            await asyncio.sleep(0.001)


def _copy_waiting_run(database: Path, count: int) -> None:
    """The run that waits, as often as wanted: its rows, through the store's own statements. (By running them it takes a
    minute; only the links between the events of a copy are those of another run.)"""
    store = SqliteStore(_url(database))
    store.open()
    try:
        (row,) = store.runs()
        model = Commit(
            row.run_no,
            1,
            0,
            create=row,
            nodes=store.nodes(row.run_no),
            events=store.events(row.run_no),
            waits=store.open_waits([row.run_no]),
            timers=store.set_timers([row.run_no]),
        )
        first = store.reserve_run_numbers(count)
        for start in range(first, first + count - 1, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, first + count - 1))
            store.commit([_copy(row, model, run_no) for run_no in numbers])
    finally:
        store.close()


def _copy(row: RunRow, model: Commit, run_no: int) -> Commit:
    return Commit(
        run_no,
        1,
        0,
        create=replace(row, run_no=run_no, root_no=run_no, run_id=f"copy-{run_no}", token=1),
        nodes=[node._replace(run_no=run_no) for node in model.nodes],
        events=[event._replace(run_no=run_no) for event in model.events],
        waits=[wait._replace(run_no=run_no) for wait in model.waits],
        timers=[timer._replace(run_no=run_no) for timer in model.timers],
    )


@contextmanager
def _child(work: str, database: Path, count: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "holdfast.cli.bench.restart", work, str(database), str(count)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def _tell(child: subprocess.Popen[bytes]) -> Figures:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError("a child process of the benchmark failed; its error is above")
    found: Figures = json.loads(line)
    return found


def _die(work: str, database: Path, count: int) -> None:
    """Let a process start what is to be interrupted; it kills itself in the middle."""
    with _child(work, database, count) as child:
        child.wait()
        if child.returncode != -signal.SIGKILL:
            raise RuntimeError("the process that was to be killed ended by itself")


def _url(database: Path | str) -> str:
    return f"sqlite:///{database}"


# --- the child's side -------------------------------------------------------------------------------------------


async def _interrupt(database: str, count: int, workflow: Any, inside: int) -> None:
    """Die when `count` bodies have begun, of which the last ones do not end."""
    workflows.stay_from = count - inside
    async with hf.open(_url(database)) as engine:
        if workflow is workflows.long_past:
            await engine.start(workflow, items=[0] * count)
        else:
            await asyncio.gather(*(engine.start(workflow, x=x) for x in range(count)))
        await _until(lambda: len(workflows.marks) == count)
        for actor in list(engine.actors.values()):
            await actor.flushed()
        os.kill(os.getpid(), signal.SIGKILL)


async def _hold(database: str) -> None:
    workflows.stay_from = 0
    async with hf.open(_url(database), lease_seconds=LEASE_SECONDS) as engine:
        await engine.start(workflows.interrupted, x=0)
        await _until(lambda: bool(workflows.marks))
        _say({"inside": True})
        await asyncio.Event().wait()


async def _go_on(database: str, bodies: int) -> None:
    async with hf.open(_url(database)):
        if bodies == 1:
            _say({"open": True})
        await _until(lambda: len(workflows.marks) >= bodies)
        _say({"bodies": workflows.marks})


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the bodies only leave marks: what they do is not what is measured
        await asyncio.sleep(0.002)


def _say(answer: Figures) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    tune()
    work, database, count = arguments
    match work:
        case "interrupt":
            asyncio.run(_interrupt(database, int(count), workflows.interrupted, int(count)))
        case "long":
            asyncio.run(_interrupt(database, int(count), workflows.long_past, workflows.ITEMS_LEFT))
        case "hold":
            asyncio.run(_hold(database))
        case "go-on":
            asyncio.run(_go_on(database, int(count)))


if __name__ == "__main__":
    main(sys.argv[1:])
