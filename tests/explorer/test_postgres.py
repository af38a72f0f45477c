"""The explorer on PostgreSQL: the same engine and the same faults, with the real driver and a real server.

Not everything once more: what differs is the store, and that nobody knows of a death before its lease has run out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.cli.main import main
from holdfast.model.errors import UsageError
from holdfast.store.postgres.group_statement import GroupWriter
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import CommitResult, EngineRow
from holdfast.store.sql_files import load
from holdfast.testing import Report, explore
from holdfast.testing.simulation.server import RememberingServer, ServerStore
from tests.explorer import scenarios, waiting
from tests.explorer.ablations import ALL, Ablation
from tests.servers import PostgresServer
from tests.store.conformance.store import creation, message, node_row, step
from tests.store.postgres_kit import sql

STEPS = ["xp_step", "xp_sync_step", "xp_slow_step"]
SQL = load("postgres")
MADE_FOR_EXPLORING = "SELECT nspname FROM pg_namespace WHERE nspname LIKE '%explored%'"


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    """A server on which nothing is left afterwards."""
    url = postgres.url()
    yield url
    assert sql(url, MADE_FOR_EXPLORING) == []


# --- what is safe --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["xp_chain", "xp_graph_parent", "xp_code"])
def test_no_crash_changes_the_outcome_of(url: str, name: str) -> None:
    """A chain of commits; a child that reports to its parent; steps and a sleep."""
    report = explore(scenarios.ALWAYS_THE_SAME[name], idempotent=STEPS, database=url)
    assert report.safe, report.explain()
    assert report.schedules > 12 * (report.boundaries - 6)


@pytest.mark.parametrize("name", ["a question that is answered at once", "a signal"])
def test_no_crash_loses_what_somebody_was_told(url: str, name: str) -> None:
    workflow, _, options = waiting.CASES[name]
    report = explore(workflow, idempotent=STEPS, database=url, **options)
    assert report.safe, report.explain()
    assert report.outcome == "was completed"


def test_the_same_schedules_are_run_as_in_memory(url: str) -> None:
    here, there = (explore(scenarios.routed, database=database) for database in (None, url))
    assert there.safe, there.explain()
    assert (there.outcome, there.labels, there.schedules) == (here.outcome, here.labels, here.schedules)


# --- what is not ---------------------------------------------------------------------------------------------------


def _without(name: str, part: str, instead: str) -> tuple[str, str]:
    assert part in SQL[name], f"{name} does not contain {part!r} any more"
    return name, SQL[name].replace(part, instead)


BROKEN = {
    "no token in the fence": [
        _without("fence_steps", "AND r.token = v.token", ""),
        _without("fence_moves", "AND r.token = v.token", ""),
    ],
    "no new token when freed": [_without("remove_engine", "token = r.token + 1", "token = r.token")],
}
"""The statements of PostgreSQL in which a safeguard of tests/explorer/ablations.py is missing."""
UNCHANGED = ["refusal swallowed", "events and rows in two transactions"]
"""Some that are missing in the engine, and so on every store: those that do not let engines go round in circles, which
takes minutes on a server."""


@pytest.mark.parametrize("name", [*BROKEN, *UNCHANGED])
def test_the_explorer_catches(url: str, name: str) -> None:
    (ablation,) = [one for one in ALL if one.name == name]
    report = _caught(ablation, url)
    assert not report.safe, f"{ablation.what}: nothing was noticed in {report.schedules} schedules"
    assert report.suitable, report.explain()


def _caught(ablation: Ablation, url: str) -> Report:
    broken = mock.patch.dict(SQL, BROKEN[ablation.name]) if ablation.name in BROKEN else ablation.patch()
    with broken:
        return explore(ablation.workflow, database=url, stop_at_first=True, schedules_max=300, **ablation.options)


async def _always_ours(self: GroupWriter, commits: Any) -> dict[int, CommitResult]:
    return {run_no: CommitResult(None) for run_no in await self._own(commits)}


def test_it_catches_an_engine_that_goes_on_with_a_commit_that_landed_before_it_was_replaced(url: str) -> None:
    """Two safeguards: such a commit is told from one whose run is still ours, and nothing begins after the lease."""
    (too_late,) = [one for one in ALL if one.name == "bodies begin after the lease"]
    not_told = mock.patch.object(GroupWriter, "_done_before", _always_ours)
    with not_told:
        assert explore(too_late.workflow, database=url).safe
    with not_told, too_late.patch():
        report = explore(too_late.workflow, database=url, stop_at_first=True)
    assert [finding.subject for finding in report.findings] == ["I17"], report.explain()


# --- the database of such a world ----------------------------------------------------------------------------------


def _engine(name: str) -> EngineRow:
    return EngineRow(name, "host", 1, "lock", 1, 2, b"[]")


def test_it_begins_again_with_what_was_in_it(url: str) -> None:
    store = ServerStore(url)
    try:
        before = store.contents()
        store.reserve_run_numbers(7)
        store.register_engine(_engine("one"))
        store.commit([creation(1), creation(2)])
        store.send([message("m", 1), message("n", 2)])
        store.commit([step(1, nodes=[node_row(1, "a"), node_row(1, "b")])])
        full, image = store.contents(), store.image(1, 0)
        store.clear()
        assert store.contents() == before
        store.fill(full)
        assert store.contents() == full
        assert store.image(1, 0) == image
        assert store.reserve_run_numbers(1) == 8
        store.commit([step(1, 2, nodes=[node_row(1, "c")])])
        assert [node.node for node in store.nodes(1)] == ["a", "b", "c"]
        assert store.send([message("o", 1)]) == ["new"]
        assert [found.message_id for found in store.new_messages([1])] == ["m", "o"]
    finally:
        store.close()


def test_a_way_that_parts_from_a_remembered_one_is_really_gone(url: str) -> None:
    ways = (["one"], ["one", "two"], ["one", "two", "three"], ["one", "four"], ["five"], ["one", "two", "six"])
    store = RememberingServer(url)
    try:
        for way in (*ways, *reversed(ways)):
            store.clear()
            for name in way:
                store.write("register_engine", _engine(name))
            assert sorted(row.engine for row in store.engines()) == sorted(way)
            assert store.is_finished()
        with mock.patch.object(PostgresStore, "_over", side_effect=AssertionError):
            store.clear()
            store.write("register_engine", _engine("one"))
            assert [row.engine for row in store.engines()] == ["one"]
    finally:
        store.close()


def test_what_a_verb_asks_while_it_writes_is_not_remembered(url: str) -> None:
    """Inside the verb the database has changed already; the place of the world has not."""
    store = RememberingServer(url)
    try:
        store.write("commit", [creation(1, engine=None), creation(2, engine="other")])
        (won,) = store.write("claim", "one", [1, 2])
        assert (won.run_no, won.token) == (1, 2)
        assert all(name != "free_to_claim" for place in _places(store) for name, *_ in place.answers)
    finally:
        store.close()


def _places(store: RememberingServer) -> list[Any]:
    found = [store._beginning]
    for place in found:
        found += [after for *_, after in place.writes]
    return found


def test_tables_that_are_there_already_are_left_alone(url: str) -> None:
    store = PostgresStore(url)
    store.open()
    store.commit([creation(1)])
    explore(scenarios.chain, database=url, schedules_max=2)
    assert [row.run_no for row in store.runs()] == [1]
    store.close()


def test_a_file_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no PostgreSQL server: on SQLite everything is explored in memory"):
        explore(scenarios.chain, database=f"sqlite:///{tmp_path}/runs.db")


# --- the command line ----------------------------------------------------------------------------------------------

FLOWS = """
import holdfast as hf

@hf.node
async def crashtest_on_server(x: int) -> int:
    return x

@hf.workflow(name="crashtest_on_a_server")
def once(x: int = 1) -> int:
    return crashtest_on_server(x)
"""


def test_crashtest_runs_on_a_server(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crashtest_served.py"
    file.write_text(FLOWS)
    assert main(["crashtest", str(file), "--db", url, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [finding["what"] for finding in told["findings"]] == [
        "the body of crashtest_on_server ran 2 times and did not read ctx.idempotency_key"
    ]
    tape = told["findings"][0]["tape"]
    assert main(["crashtest", str(file), "--db", url, "--replay", tape]) == 1
    assert main(["crashtest", str(file), "--db", url, "--idempotent", "crashtest_on_server"]) == 0
    assert "survives every crash" in capsys.readouterr().out
    assert main(["crashtest", str(file), "--db", "runs.db"]) == 2
