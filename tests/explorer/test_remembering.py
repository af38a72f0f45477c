"""The database of an exploration: it answers like any other, and asks SQLite each thing once."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from holdfast.store.row_types import EngineRow
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.testing.simulation import remembering
from holdfast.testing.simulation.remembering import RememberingStore
from tests.store.conformance.store import creation, step


@pytest.fixture
def store() -> RememberingStore:
    return RememberingStore()


def engine(name: str) -> EngineRow:
    return EngineRow(name, "host", 1, "lock", 1, 2, b"[]")


def seqs(store: RememberingStore, run_no: int) -> list[int]:
    return [event.seq for event in store.events(run_no)]


def test_the_same_way_again_asks_sqlite_nothing(store: RememberingStore) -> None:
    def go() -> list[Any]:
        store.clear()
        answers: list[Any] = [store.write("reserve_run_numbers", 2), store.write("commit", [creation(1), creation(2)])]
        answers += [seqs(store, 1), store.write("commit", [step(1)]), seqs(store, 1), store.run("run-1")]
        return answers

    first = go()
    with (
        mock.patch.object(SqliteStore, "_rows", side_effect=AssertionError),
        mock.patch.object(SqliteStore, "_transaction", side_effect=AssertionError),
    ):
        assert go() == first


def test_other_arguments_are_another_question(store: RememberingStore) -> None:
    store.write("commit", [creation(1), creation(2)])
    store.write("commit", [step(2)])
    assert (seqs(store, 1), seqs(store, 2)) == ([1], [1, 2])
    assert store.ask("SELECT last_seq FROM run_state WHERE run_no = ?", (1,)) == [(1,)]
    assert store.ask("SELECT last_seq FROM run_state WHERE run_no = ?", (2,)) == [(2,)]


def test_a_way_that_parts_from_a_remembered_one_is_really_gone(store: RememberingStore) -> None:
    ways = (["one"], ["one", "two"], ["one", "two", "three"], ["one", "four"], ["five"], ["one", "two", "six"])
    for number, way in enumerate((*ways, *reversed(ways))):
        store.clear()
        for name in way:
            store.write("register_engine", engine(name))
        assert sorted(row.engine for row in store.engines()) == sorted(way)
        assert store.is_finished()
        asked_for_the_first_time = (f"{number}",)  # so that SQLite has to stand where we stand
        assert store.ask("SELECT count(*) FROM engines WHERE engine <> ?", asked_for_the_first_time) == [(len(way),)]


def test_what_was_there_comes_back_whole(store: RememberingStore) -> None:
    def begin() -> None:
        store.clear()
        assert store.write("reserve_run_numbers", 3) == 1
        store.write("register_version", "order", "h1", b"{}", 1)
        store.write("commit", [creation(1), creation(2)])
        store.write("commit", [step(1)])

    begin()
    before = store.contents()
    store.clear()
    store.write("register_engine", engine("another way"))
    for _ in range(2):  # by the same writes, then by the rows that were kept
        begin()
        assert store.image(1, 0)[1][-1][1] == 2
        assert store.contents() == before
        store.clear()
        store.image(1, 0)
    begin()
    assert store.write("reserve_run_numbers", 1) == 4


def test_what_is_noted_belongs_to_what_was_written(store: RememberingStore) -> None:
    store.write("register_engine", engine("one"))
    store.notes["seen"] = True
    store.write("register_engine", engine("two"))
    assert "seen" not in store.notes
    store.clear()
    assert "seen" not in store.notes
    store.write("register_engine", engine("one"))
    assert store.notes["seen"]


def test_it_forgets_before_it_grows_too_large(store: RememberingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "PLACES_MAX", 2)
    for number in range(4):
        store.clear()
        store.write("register_engine", engine("one"))
        assert store.notes.get("seen") == (None if number in (0, 3) else True)
        store.notes["seen"] = True
        if number == 2:
            store.write("register_engine", engine("two"))
    assert len(store.engines()) == 1
