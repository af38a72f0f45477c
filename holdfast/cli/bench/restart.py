"""Restart: how soon interrupted work goes on, in a file with much that only waits and in a run with a long past.

Owns: both sides. The parent's functions start `python -m holdfast.cli.bench.restart WORK ...`, let it be killed, and
compare when bodies began with the moment of the restart or of the death; the monotonic clock is the same for all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.cli.bench import workflows
from holdfast.cli.bench.copies import copy_run, waiting_run
from holdfast.cli.bench.processes import Figures, child, hear, say
from holdfast.cli.bench.reference import Sizes
from holdfast.cli.tuning import tune
from holdfast.store.sqlite import SqliteStore

LEASE_SECONDS = 1.0
"""Of an engine that stands still while its lock is held: its successor has to wait for this long."""


# --- the parent's side ------------------------------------------------------------------------------------------


def many_runs(directory: Path, sizes: Sizes) -> Figures:
    """Seconds from the start of a process until the first and the last of the interrupted runs are running again."""
    database = directory / "bench.db"
    copy_run(database, waiting_run(database, workflows.waiting), sizes.suspended)
    _die("interrupt", database, sizes.interrupted)
    began = time.monotonic()
    with child("restart", "go-on", database, sizes.interrupted) as process:
        bodies = hear(process)["bodies"]
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
    with child("restart", "go-on", database, workflows.ITEMS_LEFT) as process:
        return {"long_seconds": min(hear(process)["bodies"]) - began, "long_events": events}


def takeover(directory: Path) -> Figures:
    """Seconds until a living engine goes on with the run of one that dies, or that stands still until its lease ends
    (what it takes beyond the lease)."""
    died = _takeover(directory / "died.db", signal.SIGKILL)
    return {
        "takeover_seconds": died,
        "takeover_after_lease_seconds": _takeover(directory / "stopped.db", signal.SIGSTOP) - LEASE_SECONDS,
    }


def _takeover(database: Path, how: signal.Signals) -> float:
    with child("restart", "hold", database, 1) as owner:
        hear(owner)
        with child("restart", "go-on", database, 1) as heir:
            hear(heir)  # it is open, and finds the run in its owner's hands
            ended = time.monotonic()
            owner.send_signal(how)
            began: float = hear(heir)["bodies"][0]
        owner.kill()
    return began - ended


def _die(work: str, database: Path, count: int) -> None:
    """Let a process start what is to be interrupted; it kills itself in the middle."""
    with child("restart", work, database, count) as process:
        if process.wait() != -signal.SIGKILL:
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
        say({"inside": True})
        await asyncio.Event().wait()


async def _go_on(database: str, bodies: int) -> None:
    async with hf.open(_url(database)):
        if bodies == 1:
            say({"open": True})
        await _until(lambda: len(workflows.marks) >= bodies)
        say({"bodies": workflows.marks})


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the bodies only leave marks: what they do is not what is measured
        await asyncio.sleep(0.002)


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
