"""Random graphs through the real engine on a file, with one crash at a random commit: the same result.

The crash: the store dies at its n-th commit, before or after having applied it. Whatever the engine still had in memory
is gone, its OS lock is free, and its row still says that it owns the run. A second engine takes over and finishes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.engine import Engine
from holdfast.engine.engine_settings import EngineSettings
from holdfast.inspect.inspector import Inspector
from holdfast.model.definition import Definition
from holdfast.model.errors import StoreError
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.row_types import Commit, CommitResult
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.worker.executor import LocalExecutor
from tests.budget import examples
from tests.engine.kit import check_file
from tests.property import graphs
from tests.property.graphs import Expected, definitions

INPUTS = st.fixed_dictionaries({"n": st.integers(0, 99)})
RUN = "run-1"
COMPOSED = True
"""store/records/stored_values.py does not yet read the list of a map whose items end in a map, a loop or something
outside them."""


class MortalStore(SqliteStore):
    """A store that dies at a commit: before it is applied, or after, when nobody hears of it any more."""

    def __init__(self, url: str, dies_at: int, applied: bool) -> None:
        super().__init__(url)
        self.commits = 0
        self.dead = False
        self._dies_at = dies_at
        self._applied = applied

    def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        if self.dead:
            raise StoreError("it is dead")
        self.commits += 1
        if self.commits == self._dies_at:
            self.dead = True
            if self._applied:
                super().commit(group)
            raise StoreError("killed")
        return super().commit(group)

    def _transaction(self, work: Any) -> Any:
        if self.dead and not self._applied:
            raise StoreError("it is dead")
        return super()._transaction(work)


async def life(path: Path, store: SqliteStore, definition: Definition, seed: Any, persistence: str) -> Any:
    """Start the run (or find it) and drive it until it ends or the store dies; the result, or None after a crash."""
    options = EngineSettings(grace_seconds=0.0, sweep_seconds=60.0)
    engine = Engine(store, LocalExecutor(threads=2), Inspector, settings=options)
    workflow: Any = SimpleNamespace(registered=graphs.registered(definition))
    await engine.open()

    async def drive_run() -> Any:
        await engine.claims.sweep()
        run = await engine.start(workflow, run_id=RUN, persistence=persistence, seed=seed)
        return await run.result(timeout=60)

    driving = asyncio.create_task(drive_run())
    try:
        while not driving.done() and engine.fatal is None:
            await asyncio.wait([driving], timeout=0.001)
        if engine.fatal is None:
            return await driving
        driving.cancel()
        await asyncio.wait([driving])
        return None
    finally:
        if isinstance(store, MortalStore) and store.dead and engine.lease._lock is not None:
            engine.lease._lock.forget()  # the process has died: its lock is free, its file and its row are there
        await engine.close()


def drive(path: Path, store: SqliteStore, definition: Definition, seed: Any, persistence: str) -> Any:
    graphs.ran.clear()
    graphs.broken.clear()  # another test of this process may have left some
    return asyncio.run(life(path, store, definition, seed, persistence))


@settings(max_examples=examples(30))
@given(definitions(composed=COMPOSED), INPUTS, st.sampled_from(["aggressive", "lazy"]))
def test_without_faults_every_body_runs_once_and_the_result_is_right(
    definition: Definition, seed: Any, persistence: str
) -> None:
    expected = Expected(definition, {"seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        result = drive(path, SqliteStore(f"sqlite:///{path}"), definition, seed, persistence)
        assert result == expected.result
        assert len(graphs.ran) == len(expected.bodies)
        assert {(node, at): x for node, at, _, x in graphs.ran} == expected.bodies
        assert {attempt for _, _, attempt, _ in graphs.ran} <= {1}
        check_file(path)


@settings(max_examples=examples(120))
@given(
    definitions(composed=COMPOSED),
    INPUTS,
    st.integers(1, 10) | st.integers(1, 40),
    st.booleans(),
    st.sampled_from(["aggressive", "aggressive", "lazy"]),
)
def test_a_crash_at_any_commit_gives_the_same_result_and_repeats_nothing_that_was_completed(
    definition: Definition, seed: Any, dies_at: int, applied: bool, persistence: str
) -> None:
    expected = Expected(definition, {"seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        mortal = MortalStore(f"sqlite:///{path}", dies_at, applied)
        result = drive(path, mortal, definition, seed, persistence)
        first = list(graphs.ran)
        if not mortal.dead:
            assert result == expected.result
            return
        left = states(path)
        check_file(path)
        assert drive(path, SqliteStore(f"sqlite:///{path}"), definition, seed, persistence) == expected.result
        check_second_life(left, list(graphs.ran))
        everything = {(node, at): x for node, at, _, x in [*first, *graphs.ran]}
        assert everything == expected.bodies
        (state,) = check_file(path).values()
        assert state.status in RUN_TERMINAL


def states(path: Path) -> dict[tuple[str, str], tuple[str, int]]:
    """Status and attempt of every instance, as the dead engine left them."""
    store = SqliteStore(f"sqlite:///{path}")
    store.open()
    try:
        rows = [node for run in store.runs() for node in store.nodes(run.run_no)]
        return {(row.node, row.path): (row.status, row.attempt) for row in rows if row.scope is None}
    finally:
        store.close()


def check_second_life(left: dict[tuple[str, str], tuple[str, int]], ran: list[tuple[str, str, int, Any]]) -> None:
    """Completed: never again. Started: once more, with the next attempt. Scheduled: the same one. Others: the first."""
    assert len(ran) == len({(node, path) for node, path, _, _ in ran}), "each at most once in the second life"
    attempts = {(node, path): attempt for node, path, attempt, _ in ran}
    for key, (status, attempt) in left.items():
        match status:
            case "completed" | "skipped":
                assert key not in attempts, f"{key} was {status} and ran again"
            case "running":
                assert attempts[key] == attempt + 1
            case "scheduled":
                assert attempts[key] == attempt
    assert all(attempt == 1 for key, attempt in attempts.items() if key not in left)
