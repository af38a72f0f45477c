"""Machine: which boot of which kernel this process runs on, and the two times that no administrator can set.

Owns: the boot id, by which two processes know that they share a kernel and therefore OS locks and monotonic time.
Never: says what the wall clock shows (clock.py).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""On Linux CLOCK_MONOTONIC stands still while the machine sleeps and CLOCK_BOOTTIME does not; on macOS CLOCK_MONOTONIC
itself does not."""


@cache
def boot_id() -> str:
    """The same text in all processes that share this boot of this kernel, in whichever container they run; another
    one after a restart and on every other machine. A host name is none of that: containers may share it."""
    try:
        return _LINUX_BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return _mac_boot_session() or f"host:{socket.gethostname()}"


def boot_mark() -> str:
    """The beginning of the boot id, which tells the boots of one machine apart; empty where only the host is known, and
    so a restart would not be noticed."""
    return "" if boot_id().startswith("host:") else boot_id()[:8]


def _mac_boot_session() -> str:
    if sys.platform != "darwin":
        return ""
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    answer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = libc.sysctlbyname(b"kern.bootsessionuuid", answer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else answer.value.decode()


def awake_micros() -> int:
    """Microseconds of monotonic time, which stands still while the machine sleeps. Comparable within one boot."""
    return time.monotonic_ns() // 1_000


elapsed_nanos: Callable[[], int] = (
    time.monotonic_ns if _ELAPSED_CLOCK is None else partial(time.clock_gettime_ns, _ELAPSED_CLOCK)
)
"""Nanoseconds that have really passed since some instant of this boot, also while the machine slept."""
