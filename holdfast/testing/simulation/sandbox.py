"""Sandbox: code under simulation does not wait for the real world, and draws no real randomness.

Owns: noticing, through Python's audit events, that code under simulation really sleeps, connects, starts a thread or
another process: such a call is refused, and recorded, because the code may catch the error. Fixed randomness. Silent
logs and garbage collection in portions, for thousands of schedules.
Never: checks files; reading and writing them does not wait.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.model.current import current_body
from holdfast.model.errors import HoldfastError
from holdfast.testing.simulation.python_internals import random_bytes_from

_REFUSED = {
    "time.sleep": "really sleeps (time.sleep)",
    "socket.connect": "opens a connection (a socket)",
    "socket.bind": "listens on a socket",
    "socket.getaddrinfo": "asks a name server (a socket)",
    "socket.gethostbyname": "asks a name server (a socket)",
    "_thread.start_new_thread": "starts a thread",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.fork": "forks",
    "os.exec": "replaces this process",
}


class Unsuitable(HoldfastError):
    """This code cannot run in the simulation."""

    code = "unsuitable"


class _Fence:
    def __init__(self) -> None:
        self.closed = False
        self.installed = False
        self.found: list[str] = []

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.closed and event in _REFUSED and not (event == "time.sleep" and args[0] == 0):
            what = f"{current_body.get() or 'something'} {_REFUSED[event]}"
            self.found.append(what)
            raise Unsuitable(f"{what}; {WAY_OUT}")


def refuse_sleep(seconds: float) -> None:
    """Replaces time.sleep: before Python 3.13 no audit event reports it."""
    if seconds > 0 and _fence.closed:
        _fence.hook("time.sleep", (seconds,))


WAY_OUT = (
    "in a simulation nothing may wait for the real world. Replace the callable that does it by a fake "
    "(`fakes={'module:name': fake}`, or `--fake module:name=module:fake`)"
)
_fence = _Fence()


@contextmanager
def refuse_real_waiting() -> Iterator[list[str]]:
    """Refuse everything that waits for the real world; the list has what was refused so far."""
    if not _fence.installed:  # an audit hook cannot be taken away again; while open it does nothing
        _fence.installed = True
        sys.addaudithook(_fence.hook)
    before, start = (_fence.closed, _fence.found), threading.Thread.start
    _fence.closed, _fence.found = True, []

    def watched_start(thread: threading.Thread) -> None:
        _fence.hook("_thread.start_new_thread", ())  # before Python 3.12 no audit event tells of it
        start(thread)

    threading.Thread.start = watched_start  # type: ignore[method-assign, assignment]
    try:
        yield _fence.found
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        _fence.closed, _fence.found = before


@contextmanager
def allow_real_waiting() -> Iterator[None]:
    """Allow it for the simulation itself, which sometimes needs a thread."""
    before, _fence.closed = _fence.closed, False
    try:
        yield
    finally:
        _fence.closed = before


@contextmanager
def fixed_randomness() -> Iterator[Callable[[int], None]]:
    """Draw random numbers from a seed until the block ends; the yielded function sets the seed again."""
    state = random.getstate()
    hidden = random.Random(0)

    def reseed(seed: int) -> None:
        random.seed(seed)
        hidden.seed(seed + 1)

    reseed(0)
    try:
        with random_bytes_from(hidden.randbytes):
            yield reseed
    finally:
        random.setstate(state)


SCHEDULES_PER_COLLECTION = 20


@contextlib.contextmanager
def collect_in_portions() -> Iterator[Callable[[], None]]:
    """Collect garbage in portions. Every schedule leaves a few thousand objects in cycles; collected every few
    schedules, and only the young generation, they cost little, and what the exploration keeps is scanned once."""
    enabled = gc.isenabled()
    gc.disable()
    schedules = itertools.count(1)

    def collect() -> None:
        if next(schedules) % SCHEDULES_PER_COLLECTION == 0:
            gc.collect(0)

    try:
        yield collect
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def silence_logs() -> Iterator[None]:
    """Log nothing: a thousand crashes would fill the log."""
    loggers = [logging.getLogger(name) for name in ("holdfast", "asyncio")]
    before = [logger.disabled for logger in loggers]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, disabled, level in zip(loggers, before, levels, strict=True):
            logger.disabled = disabled
            logger.setLevel(level)
