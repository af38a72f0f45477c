"""Clocks: the only place where the engine reads the time.

Owns: this machine's clock, the clock that all engines of a shared store use, and the boot id, by which two processes
know that they share a kernel and therefore OS locks and monotonic time.
Never: decides what is due or which engine is dead.
Invariants: on a shared store no engine is ahead of the store's clock, whatever its own machine's clock shows: nothing
that is planned for an instant happens early, and no engine is declared dead too early. On SQLite durations are counted
in elapsed time, which no administrator can set (model/timers.py).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import socket
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from holdfast.model.timers import Elapsed
from holdfast.store.contract import Store

DRIFT: Final = 0.0005
"""How much faster than the store's clock this machine's may run: the most by which time daemons speed a clock up. The
clock counts that much less, and so is behind rather than ahead between two readings of the store's clock."""

SET_BACK_MICROSECONDS: Final = 1_000_000
"""If the store's clock is behind ours by this much, it was set back; less than that is the latency of the network."""

SET_MICROSECONDS: Final = 1_000_000
"""If the wall clock differs from the elapsed time by this much, it was set; time daemons adjust it by less."""

log = logging.getLogger("holdfast.engine")

_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""On Linux CLOCK_MONOTONIC stops while the machine sleeps and CLOCK_BOOTTIME does not; on macOS CLOCK_MONOTONIC itself
does not."""


@cache
def boot_id() -> str:
    """The same text in all processes that share this boot of this kernel, in whichever container they run; another one
    after a restart and on every other machine. Not the host name, which containers may share."""
    try:
        return _LINUX_BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return _mac_boot_session() or f"host:{socket.gethostname()}"


def boot_mark() -> str:
    """The beginning of the boot id, which distinguishes the boots of one machine; empty where only the host is known,
    so that a restart would not be noticed."""
    return "" if boot_id().startswith("host:") else boot_id()[:8]


def _mac_boot_session() -> str:
    if sys.platform != "darwin":
        return ""
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    answer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = libc.sysctlbyname(b"kern.bootsessionuuid", answer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else answer.value.decode()


def awake_micros() -> int:
    """Microseconds of monotonic time, which stops while the machine sleeps. Comparable within one boot."""
    return time.monotonic_ns() // 1_000


elapsed_nanos: Callable[[], int] = (
    time.monotonic_ns if _ELAPSED_CLOCK is None else partial(time.clock_gettime_ns, _ELAPSED_CLOCK)
)
"""Nanoseconds that have passed since some instant of this boot, including the time that the machine slept."""


class Clock(Protocol):
    """Time is passed in, so that tests can control it."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def elapsed(self) -> Elapsed | None:
        """The time that has passed in this boot of the machine, in which durations are counted; None: they are counted
        by `now`."""
        ...

    def lease_time(self) -> int:
        """Microseconds of the time in which an engine counts its own lease."""
        ...

    def synchronise(self) -> None:
        """Read the clock that this one follows. Called before each renewal of the lease."""
        ...


class SystemClock:
    """This machine's clock, for a store that no engine on another machine uses.

    `now` adds the elapsed time to the last reading of the wall clock, which is read at each renewal of the lease, and
    follows
    the wall clock if that was set, forward or back. `elapsed` is not affected.
    """

    def __init__(self, wall: Callable[[], int] = time.time_ns, passing: Callable[[], int] = elapsed_nanos) -> None:
        self._wall = wall
        self._passing = passing
        self._boot = boot_mark()
        at, shown = passing(), wall() // 1000
        self._setting = _Setting(shown, at, shown)

    def now(self) -> int:
        told, at, floor = self._setting
        shown = told + (self._passing() - at) // 1000
        return shown if shown > floor else floor

    def elapsed(self) -> Elapsed | None:
        return Elapsed(self._boot, self._passing() // 1000) if self._boot else None

    def lease_time(self) -> int:
        """Monotonic time: no administrator can set it, and it stops while the machine, and with it every other engine
        of the file, sleeps."""
        return time.monotonic_ns() // 1_000  # as `awake_micros` does, by which other engines judge

    def synchronise(self) -> None:
        """Read the wall clock. An ordinary adjustment never makes this clock go back."""
        at, before = self._passing(), self.now()
        shown = self._wall() // 1000
        ahead = shown - before
        if abs(ahead) < SET_MICROSECONDS:
            self._setting = _Setting(shown, at, before)
            return
        self._setting = _Setting(shown, at, shown)
        log.warning(
            "the wall clock was set %s by %g s; timers that were set by a duration count the time that has passed, "
            "instants follow the wall clock",
            "forward" if ahead > 0 else "back",
            abs(ahead) / 1_000_000,
        )


class _Setting(NamedTuple):
    told: int
    """What the store's clock, or the wall clock, showed."""
    at: int
    """When, in nanoseconds of elapsed time."""
    floor: int
    """What this clock showed then, if that was a little more: it stops until the other one has caught up."""


class SharedClock:
    """The store's clock, as of its last reading plus the elapsed time since. The first use reads it."""

    def __init__(self, store: Store, passing: Callable[[], int] = elapsed_nanos) -> None:
        self._store = store
        self._passing = passing
        self._setting: _Setting | None = None

    def now(self) -> int:
        if self._setting is None:
            self.synchronise()
        assert self._setting is not None
        return _read(self._setting, self._passing())

    def elapsed(self) -> None:
        """None: the store's clock decides about durations as well."""

    def lease_time(self) -> int:
        """The store's time, by which engines on other machines judge."""
        return self.now()

    def synchronise(self) -> None:
        """Read the store's clock. The result is taken for the time at which its answer arrived: this clock is behind by
        the latency, and never ahead. Where that would make it go back a little, it stops instead. Raises StoreError if
        the store cannot be reached; then the clock continues as before."""
        told = self._store.now()
        at = self._passing()
        before = told if self._setting is None else _read(self._setting, at)
        self._setting = _Setting(told, at, before if before - told < SET_BACK_MICROSECONDS else told)


def _read(setting: _Setting, at: int) -> int:
    passed = (at - setting.at) / 1000 * (1 - DRIFT)
    return max(setting.floor, setting.told + int(passed))


def clock_of(store: Store) -> Clock:
    """The clock that the engines of a store use."""
    return SharedClock(store) if store.is_shared else SystemClock()
