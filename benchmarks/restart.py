"""Restart: how soon interrupted work goes on, in a file with much that only waits and in a run with a long past.

Owns: both sides. The parent's functions start `python -m benchmarks.restart WORK ...`, let it be killed, and
compare when bodies began with the moment of the restart or of the death; the monotonic clock is the same for all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import holdfast as hf
from benchmarks import workflows
from benchmarks.copies import copy_run, waiting_run
from benchmarks.processes import Figures, child, hear, say, tell
from benchmarks.sizes import SuiteSizes
from holdfast.cli.process_setup import tune
from holdfast.store.urls import store_at

LEASE_SECONDS = 1.0
"""Of an engine that stands still while its lock is held, or dies unseen: its successor has to wait for this long."""


# --- the parent's side ------------------------------------------------------------------------------------------


def many_runs(url: str, sizes: SuiteSizes) -> Figures:
    """Seconds from the start of a process until the first and the last of the interrupted runs are running again."""
    copy_run(url, waiting_run(url, workflows.waiting), sizes.suspended)
    _die("interrupt", url, sizes.interrupted)
    began = time.monotonic()
    with child("restart", "go-on", url, sizes.interrupted) as process:
        bodies = hear(process)["bodies"]
    return {"first_seconds": min(bodies) - began, "all_seconds": max(bodies) - began}


def long_run(url: str, sizes: SuiteSizes) -> Figures:
    """Seconds from the start of a process until a run with a long past is running again."""
    items = sizes.past_events // workflows.EVENTS_OF_AN_ITEM
    _die("long", url, items)
    store = store_at(url)
    store.open()
    events = store.runs()[0].last_seq
    store.close()
    began = time.monotonic()
    with child("restart", "go-on", url, workflows.ITEMS_LEFT) as process:
        return {"long_seconds": min(hear(process)["bodies"]) - began, "long_events": events}


def takeover_from_dead(url: str) -> Figures:
    """Seconds until a live engine takes over the run of one that dies. On a server its death cannot be seen: its lease
    has to expire."""
    return {"takeover_seconds": _takeover(url, subprocess.Popen.kill)}


def takeover_from_stopped(url: str) -> Figures:
    """The same of one that stands still until its lease ends: what it takes beyond the lease."""
    return {"takeover_after_lease_seconds": _takeover(url, tell) - LEASE_SECONDS}


def _takeover(url: str, end: Callable[[subprocess.Popen[bytes]], None]) -> float:
    with child("restart", "hold", url, 1) as owner:
        hear(owner)
        with child("restart", "go-on", url, 1) as heir:
            hear(heir)  # it is open, and finds the run in its owner's hands
            ended = time.monotonic()
            end(owner)
            began: float = hear(heir)["bodies"][0]
        owner.kill()
    return began - ended


def _die(work: str, url: str, count: int) -> None:
    """Let a process start what is to be interrupted; it kills itself in the middle."""
    with child("restart", work, url, count) as process:
        if process.wait() != -signal.SIGKILL:
            raise RuntimeError("the process that was to be killed ended by itself")


# --- the child's side -------------------------------------------------------------------------------------------


async def _interrupt(url: str, count: int, workflow: Any, inside: int) -> None:
    """Die when `count` bodies have begun, of which the last ones do not end."""
    workflows.stay_from = count - inside
    async with hf.open(url, lease_seconds=LEASE_SECONDS) as engine:
        if workflow is workflows.long_past:
            await engine.start(workflow, items=[0] * count)
        else:
            await asyncio.gather(*(engine.start(workflow, x=x) for x in range(count)))
        await _until(lambda: len(workflows.marks) == count)
        for actor in list(engine.actors.values()):
            await actor.flushed()
        os.kill(os.getpid(), signal.SIGKILL)


async def _hold(url: str) -> None:
    workflows.stay_from = 0
    async with hf.open(url, lease_seconds=LEASE_SECONDS) as engine:
        await engine.start(workflows.interrupted, x=0)
        await _until(lambda: bool(workflows.marks))
        say({"inside": True})
        await asyncio.to_thread(sys.stdin.readline)
        await engine.committer.call(_stand_still)


def _stand_still() -> None:
    """In the writer's turn: a process that stops in the middle of a transaction on a file locks all others out."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


async def _go_on(url: str, bodies: int) -> None:
    async with hf.open(url):
        if bodies == 1:
            say({"open": True})
        await _until(lambda: len(workflows.marks) >= bodies)
        say({"bodies": workflows.marks})


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the bodies only leave marks: what they do is not what is measured
        await asyncio.sleep(0.002)


def main(arguments: list[str]) -> None:
    tune()
    work, url, count = arguments
    match work:
        case "interrupt":
            asyncio.run(_interrupt(url, int(count), workflows.interrupted, int(count)))
        case "long":
            asyncio.run(_interrupt(url, int(count), workflows.long_past, workflows.ITEMS_LEFT))
        case "hold":
            asyncio.run(_hold(url))
        case "go-on":
            asyncio.run(_go_on(url, int(count)))


if __name__ == "__main__":
    main(sys.argv[1:])
