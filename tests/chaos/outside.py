"""Outside: the world that bodies act upon, as one file of lines, and what can be read from it afterwards.

Every body and step writes a line when it acts: what acted, under which idempotency key, in which attempt. A body of
which only so many may be at work writes one when it comes and one when it goes. A line is one write; nothing is
synced, because processes are killed here and not the machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.appended import lines_in

VARIABLE = "CHAOS_OUTSIDE"
"""Says where the file is, to processes that run bodies."""


# --- what bodies do ------------------------------------------------------------------------------------------------


def act(ctx: Any, what: str) -> str:
    """The outside effect of a body or step; its name, which no other one has."""
    name = f"{ctx.run_id}/{what}"
    _write({"effect": name, "key": ctx.idempotency_key, "attempt": ctx.attempt})
    return name


@contextmanager
def at_work(ctx: Any, pool: str) -> Iterator[None]:
    """For a body of which only so many may be at work at once."""
    shift = {"pool": pool, "run_id": ctx.run_id, "node": ctx.node, "path": ctx.path, "attempt": ctx.attempt}
    _write({"came": time.time_ns() // 1000, **shift})
    try:
        yield
    finally:
        _write({"went": time.time_ns() // 1000, **shift})


def _write(line: dict[str, Any]) -> None:
    fd = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, json.dumps({**line, "pid": os.getpid()}).encode() + b"\n")
    finally:
        os.close(fd)


# --- what is read afterwards ---------------------------------------------------------------------------------------


class Effect(NamedTuple):
    """Once that somebody acted."""

    name: str
    key: str
    attempt: int


class Body(NamedTuple):
    """One attempt at a body."""

    run_id: str
    node: str
    path: str
    attempt: int


class Shift(NamedTuple):
    """The time of one body at work, in microseconds."""

    pool: str
    body: Body
    pid: int
    came: int
    went: int | None
    """None: its process was killed."""


class Outside:
    """The file, as those see it who look at it afterwards."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def effects(self) -> list[Effect]:
        return [Effect(line["effect"], line["key"], line["attempt"]) for line in self._lines() if "effect" in line]

    def shifts(self) -> list[Shift]:
        found: list[Shift] = []
        ends: dict[tuple[Body, int], int] = {}
        for line in self._lines():
            if "pool" in line:
                body = Body(line["run_id"], line["node"], line["path"], line["attempt"])
                if "went" in line:
                    ends[body, line["pid"]] = line["went"]
                else:
                    found.append(Shift(line["pool"], body, line["pid"], line["came"], None))
        return [shift._replace(went=ends.get((shift.body, shift.pid))) for shift in found]

    def _lines(self) -> Iterator[dict[str, Any]]:
        return lines_in(self.file.read_bytes())
