"""What an earlier version wrote is opened and folded as it was then.

Every folder beside this file that holds a recorded database is frozen (see record.py). A recording of this version is
made for the tests as well, so that they run before anything was frozen and the recorder stays in order.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.inspect.doctor.audit import Audit
from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal
from holdfast.store.records.journal import History, Plans
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.golden import flows, journals
from tests.golden.journals import DATABASE, ROOT

FRESH = "this version"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "fresh"
    command = [sys.executable, "-m", "tests.golden.record", str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT.parents[1])}, cwd=ROOT.parents[1], check=True)
    return folder


@pytest.fixture(params=[FRESH, *(path.name for path in journals.recordings())])
def recording(request: pytest.FixtureRequest, fresh: Path) -> Path:
    return fresh if request.param == FRESH else ROOT / str(request.param)


@pytest.fixture
def store(recording: Path, tmp_path: Path) -> Iterator[SqliteStore]:
    """The recorded database, in a copy: opening it may migrate it."""
    shutil.copy(recording / DATABASE, tmp_path / DATABASE)
    with closing(SqliteStore(str(tmp_path / DATABASE))) as found:
        found.open()
        yield found


def _journals(recording: Path) -> list[journals.Journal]:
    found = [journals.read(file) for file in sorted(recording.glob("*.jsonl"))]
    assert len(found) >= 10
    return found


def test_every_recorded_journal_folds_to_the_recorded_states(recording: Path) -> None:
    for journal in _journals(recording):
        for branch, state in journal.states.items():
            assert list(journals.differences(journals.folded(journal, branch), state)) == [], (journal.run_id, branch)


def test_every_type_of_event_of_this_version_is_recorded_by_it(fresh: Path) -> None:
    types = {event["type"] for journal in _journals(fresh) for event in journal.events}
    assert types == ev.TYPES.keys()


def test_the_recorded_database_opens_and_has_the_recorded_runs(recording: Path, store: SqliteStore) -> None:
    known = {journal.run_id: journal for journal in _journals(recording)}
    assert {row.run_id for row in store.runs(limit=1_000)} == known.keys()
    for row in store.runs(limit=1_000):
        journal = known[row.run_id]
        history = History(store, Plans(store), row)
        assert [event.hash.hex() for event in history.rows] == [event["hash"] for event in journal.events]
        for branch, state in journal.states.items():
            found = journals.state_of(history.state(branch))
            assert list(journals.differences(found, state)) == [], (row.run_id, branch)


def test_the_doctor_finds_the_recorded_database_in_order(store: SqliteStore) -> None:
    for row in store.runs(limit=1_000):
        history = History(store, Plans(store), row)
        if history.shared_until:
            continue  # the audit of a forked run begins with the journal of its origin
        audit = Audit(history.plan(history.branches[1].version), row.run_no, row.run_id)
        assert audit.feed(history.rows) == []
        if len(history.branches) == 1:
            assert audit.compare(store.evidence(row.run_no, audit.seq)) == []


def test_a_recorded_run_that_waits_is_resumed_and_ends(recording: Path, tmp_path: Path) -> None:
    shutil.copy(recording / DATABASE, tmp_path / DATABASE)

    async def answer() -> str:
        async with hf.open(f"sqlite:///{tmp_path / DATABASE}") as engine:
            run = engine.get("question")
            (wait,) = await run.waits()
            assert wait.question == "Anything else?"
            assert wait.wait_id is not None
            await run.respond(wait.wait_id, "no", actor="ann")
            result: str = await run.result(timeout=30)
            return result

    assert flows.question.name == "golden_question"
    assert asyncio.run(answer()) == "True no"


def test_a_changed_byte_of_a_golden_journal_is_noticed(recording: Path) -> None:
    journal = _journals(recording)[0]
    event = journal.events[len(journal.events) // 2]
    event["at"] += 1
    with pytest.raises(CorruptJournal, match="not the one that was written"):
        journals.folded(journal, 1)
