"""Kit: what the tests of the engine share: opening a file, waiting for a condition, and the journal's own proof.

`check_journal` is the oracle of every test that ends a run in an unusual way: seq without a gap, a right hash chain,
rows that equal the fold of the events, at most one terminal event and nothing but the request behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.engine.rows import node_row
from holdfast.model import definition as definitions
from holdfast.model import events as ev
from holdfast.model.evolve import evolve
from holdfast.model.graph import compile_definition
from holdfast.model.state import RunState
from holdfast.store.api import RunRow, Store
from holdfast.store.sqlite import SqliteStore

TERMINAL = {"RunCompleted", "RunFailed", "RunCancelled"}
AFTER_TERMINAL = {"MessageConsumed", "MessageRefused"}
PATIENCE_SECONDS = 30.0
"""How long a test waits for something that must happen; it never decides whether something is quick enough."""


def url(path: Path) -> str:
    return f"sqlite:///{path}"


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
    version = store.version(row.workflow, row.version)
    assert version is not None
    plan = compile_definition(definitions.decode(version.definition), row.version)
    state = RunState.new(plan, row.run_no, row.run_id, row.created_at)
    previous, last_token = b"", 0
    events = store.events(row.run_no)
    for expected, event in enumerate(events, start=1):
        where = f"{row.run_id} event {expected} ({event.type})"
        assert event.seq == expected, f"{where}: a gap in seq, found {event.seq}"
        assert event.token >= last_token, f"{where}: the token went back"
        last_token = event.token
        entry = ev.Entry(event.seq, event.at, ev.decode(event.type, event.data), event.node, event.path, event.visit)
        previous = ev.link(
            previous,
            row.run_id,
            event.seq,
            event.branch,
            event.type,
            event.node,
            event.path,
            event.visit,
            event.at,
            event.token,
            event.data,
        )
        assert event.hash == previous, f"{where}: the hash chain is broken"
        evolve(state, entry)
    assert (row.last_seq, row.head_hash) == (len(events), previous)
    _check_ending(row, [event.type for event in events])
    _check_rows(store, row, state)
    return state


def _check_ending(row: RunRow, kinds: list[str]) -> None:
    ends = [i for i, kind in enumerate(kinds) if kind in TERMINAL]
    assert len(ends) <= 1, f"{row.run_id} ended more than once: {kinds}"
    if ends:
        assert set(kinds[ends[0] + 1 :]) <= AFTER_TERMINAL, f"{row.run_id}: events after the end: {kinds[ends[0] :]}"


def _check_rows(store: Store, row: RunRow, state: RunState) -> None:
    assert row.status == state.status, row.run_id
    assert (row.recoveries, row.started_at, row.finished_at) == (state.recoveries, state.started_at, state.finished_at)
    expected = {ns.key: node_row(row.run_no, ns, 1) for ns in state.nodes.values()}
    for ns in [n for n in state.changed if n.closed]:
        expected[ns.key] = node_row(row.run_no, ns, 0)
    found = {(n.node, n.path): n for n in store.nodes(row.run_no)}
    assert found.keys() == expected.keys(), f"{row.run_id}: {found.keys() ^ expected.keys()}"
    for key, node in found.items():
        assert node == expected[key], f"{row.run_id} {key}: the row is not the fold of its events"
    waits = {w.wait_id for w in store.open_waits([row.run_no])}
    assert waits == set(state.waits), row.run_id
    timers = {t.timer: t.due_at for t in store.set_timers([row.run_no])}
    assert timers == state.timers, row.run_id
