"""Kit: what the tests of the engine share: opening a file, waiting for a condition, and the journal's own proof.

`check_journal` is the oracle of every test that ends a run in an unusual way; it asks the doctor's auditor.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.engine.versions import Versions
from holdfast.inspect.doctor.check import audit_of, prove
from holdfast.model import handlers
from holdfast.model.definition import handlers_of
from holdfast.model.state import RunState
from holdfast.model.views import Wait
from holdfast.store.clocks import Clock
from holdfast.store.contract import Store
from holdfast.store.row_types import RunRow
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.testing.harnessing import Harness

PATIENCE_SECONDS = 30.0
"""How long a test waits for something that must happen; it never decides whether something is quick enough."""


def url(path: Path) -> str:
    return f"sqlite:///{path}"


class HeldClock:
    """An engine's clock that stands still until it is let go: nothing becomes due before a test has seen what it wants
    to see, however long the machine takes for that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: int | None = clock.now()

    def now(self) -> int:
        return self._clock.now() if self._now is None else self._now

    def elapsed(self) -> None:
        """Durations are counted by what it shows."""

    def lease_time(self) -> int:
        return self._clock.lease_time()

    def synchronise(self) -> None:
        self._clock.synchronise()

    def go_on(self, *, by: Clock | None = None) -> None:
        """From now on it shows what time it is, as before or by another clock."""
        self._clock = by or self._clock
        self._now = None


def hold_time(engine: Engine) -> HeldClock:
    """Time stands still for this engine, from before the next run is started. Its lease goes on by the real clock."""
    engine.clock = engine.runtime.clock = held = HeldClock(engine.clock)
    return held


@contextlib.asynccontextmanager
async def opened_with(clock: HeldClock, address: str, **options: Any) -> AsyncIterator[Engine]:
    """`hf.open`, with an engine that has this clock from its first poll on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.engine.engine.clock_of", lambda _store: clock)
        async with hf.open(address, **options) as engine:
            yield engine


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition holds and give back what it said."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what or condition}")
        await asyncio.sleep(0.005)


async def until_async(condition: Callable[[], Any], what: str = "") -> Any:
    """The same for a condition that is asked by awaiting it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what or condition}")
        await asyncio.sleep(0.005)


def types(events: list[Any]) -> list[str]:
    return [event.type for event in events]


def attempts(events: list[Any], node: str, path: str = ".") -> list[int]:
    """The attempts of a node that were started."""
    return [e.data["attempt"] for e in events if e.type == "NodeStarted" and (e.node, e.path) == (node, path)]


def node_of(nodes: list[dict[str, Any]], node: str, path: str = ".") -> dict[str, Any]:
    (found,) = [n for n in nodes if n["node"] == node and n["path"] == path]
    return found


def owner(engine: Engine, run_id: str) -> str | None:
    """The engine that holds a run, if any."""
    row = engine.store.run(run_id)
    assert row is not None
    return row.engine


def check_file(path: Path) -> dict[str, RunState]:
    """Check every run of a file; the states that their journals fold to, by run id."""
    store = SqliteStore(url(path))
    store.open()
    try:
        return {row.run_id: check_journal(store, row) for row in store.runs(limit=1_000_000)}
    finally:
        store.close()


def check_journal(store: Store, row: RunRow) -> RunState:
    """Prove a run's journal and its rows; the state that the journal folds to."""
    audit = audit_of(store, Versions(store), row)
    wrong = prove(store, audit)
    assert not wrong, "\n".join(f"{v.code} {v.run_id} event {v.seq}: {v.what}" for v in wrong)
    return audit.state


def check_harness(h: Harness) -> dict[str, RunState]:
    """Check every run of a harness."""
    store = h._store  # as it lies there, beside the simulated process
    return {row.run_id: check_journal(store, row) for row in store.runs(limit=1_000_000)}


async def waiting(run: Run[Any], *kinds: str) -> list[Wait]:
    """The waits of a run once it is suspended and has waits of exactly these kinds, oldest first."""

    async def found() -> list[Wait] | None:
        waits = await run.waits()
        is_there = await run.status() == "suspended" and sorted(w.kind for w in waits) == sorted(kinds)
        return waits if is_there else None

    return await until_async(found, f"{run} waits for {', '.join(kinds)}")  # type: ignore[no-any-return]


def closed_waits(events: list[Any]) -> list[tuple[str, str]]:
    """How waits have ended, and by whom."""
    return [(e.data["outcome"], e.data.get("actor", "")) for e in events if e.type == "WaitClosed"]


@contextlib.contextmanager
def without_code_of(*names: str) -> Iterator[None]:
    """Meanwhile this process has no code for these workflows, nor for their nodes."""
    plans = [found.definition for name in names if (found := handlers.find_workflow(name)) is not None]
    nodes = {use for plan in plans for use in handlers_of(plan.nodes) if not use.startswith("holdfast.")}
    kept = {name: handlers._workflows.pop(name) for name in names}
    code = {name: handlers._handlers.pop(name) for name in nodes}
    try:
        yield
    finally:
        handlers._workflows.update(kept)
        handlers._handlers.update(code)
