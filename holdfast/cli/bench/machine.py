"""The machine on which figures were measured: what a reader needs to know to compare them."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import apsw

import holdfast

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems on which a commit costs nothing and means nothing."""


def describe(directory: Path, server: str | None) -> dict[str, Any]:
    """The machine that the benchmark runs on, and what the server that is measured says it is."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "server": server,
        "system": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "filesystem": filesystem(directory),
        "load": load,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def filesystem(directory: Path) -> str | None:
    """The kind of file system a directory is on, where the system tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    resolved = directory.resolve()
    longest, found = "", None
    for line in mounts:
        _, where, kind, *_ = line.split()
        where = where.replace("\\040", " ")
        if resolved.is_relative_to(where) and len(where) >= len(longest):
            longest, found = where, kind
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
