"""The same random histories through a plain oracle, SQLite and PostgreSQL: every answer is the same.

HOLDFAST_EXPLORE=n runs n times as many, at random. A history that tells stores apart is made smaller, call by
call and row by row, before it is shown; hypothesis, which knows nothing of calls, would need minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from msgspec.structs import replace

from holdfast.store.contract import Store
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import Commit, CommitResult, MessageRow
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.budget import examples
from tests.servers import PostgresServer
from tests.store.histories import Call, History, histories
from tests.store.oracle.store import OracleStore
from tests.store.postgres_kit import sql

HISTORIES = 60
TABLES = (
    "workflow_versions", "alias_moves", "run_state", "run_node_state", "run_events", "run_branches",
    "run_inbox_messages", "run_waits", "run_timers", "engines", "engine_slots",
)  # fmt: skip
EMPTY = (
    f"WITH {', '.join(f'_{table} AS (DELETE FROM holdfast.{table})' for table in TABLES)} "  # noqa: S608
    "UPDATE holdfast.store_meta SET next_run_no = 1"
)


class Difference(NamedTuple):
    """Where a store does not answer what the oracle answers."""

    store: str
    number: int
    answer: Any
    expected: Any


class Stores:
    """The drivers, empty at the beginning of each history."""

    def __init__(self, postgres: PostgresStore, url: str) -> None:
        self._postgres = postgres
        self._url = url

    def difference(self, history: History) -> Difference | None:
        sql(self._url, EMPTY)
        sqlite, oracle = SqliteStore("sqlite://"), OracleStore()
        sqlite.open()
        stores: tuple[Store, ...] = (sqlite, self._postgres)
        try:
            for number, call in enumerate(history):
                expected = comparable(call.of(oracle))
                for store in stores:
                    answer = comparable(call.of(store))
                    if answer != expected:
                        return Difference(type(store).__name__, number, answer, expected)
        finally:
            sqlite.close()
        return None

    def smallest(self, history: History, found: Difference) -> tuple[History, Difference]:
        """The same with everything left out that is not needed to tell the stores apart."""
        history = History(history[: found.number + 1])
        size = len(history) // 2
        while size:
            place = 0
            while place < len(history):
                smaller = History(history[:place] + history[place + size :])
                if again := self.difference(smaller):
                    history, found = History(smaller[: again.number + 1]), again
                else:
                    place += size
            size //= 2
        return self._without_rows(history, found)

    def _without_rows(self, history: History, found: Difference) -> tuple[History, Difference]:
        place = 0
        while place < len(history):
            for call in _smaller_calls(history[place]):
                smaller = History([*history[:place], call, *history[place + 1 :]])
                if again := self.difference(smaller):
                    history, found = History(smaller[: again.number + 1]), again
                    break
            else:
                place += 1
        return history, found


@pytest.fixture(scope="module")
def stores(postgres: PostgresServer) -> Iterator[Stores]:
    store = PostgresStore(url := postgres.url())
    store.open()
    yield Stores(store, url)
    store.close()


@settings(max_examples=examples(HISTORIES), phases=[Phase.generate])
@given(history=histories())
def test_every_store_answers_what_the_oracle_answers(stores: Stores, history: History) -> None:
    found = stores.difference(history)
    if found is not None:
        history, found = stores.smallest(history, found)
        calls = "\n".join(f"  {call}" for call in history)
        pytest.fail(f"{found.store} answers\n  {found.answer}\ninstead of\n  {found.expected}\nafter\n{calls}")


def comparable(answer: Any) -> Any:
    """An answer with its types, less what stores may choose: the words of a refusal, and the numbers of messages, which
    only tell their order."""
    match answer:
        case CommitResult():
            return answer.refusal
        case MessageRow():
            return repr(answer._replace(no=0))
        case list() | tuple():
            if answer and all(isinstance(one, MessageRow) for one in answer):
                numbers = [message.no for message in answer]
                assert numbers == sorted(set(numbers)), "not in the order of arrival"
            return [comparable(one) for one in answer]
        case dict():
            return {key: comparable(value) for key, value in answer.items()}
        case _:
            return repr(answer)


def _smaller_calls(call: Call) -> Iterator[Call]:
    """The call with one member less of the list that it is given first, or with one row less of one commit."""
    given = call.args[0] if call.args else None
    for place, one in enumerate(given if isinstance(given, list) else []):
        variants = [[], *([smaller] for smaller in _smaller_commits(one))]
        for variant in variants:
            yield call._replace(args=([*given[:place], *variant, *given[place + 1 :]], *call.args[1:]))


def _smaller_commits(commit: Any) -> Iterator[Commit]:
    if isinstance(commit, Commit):
        for name in ("children", "messages", "outcomes", "waits", "timers", "nodes", "events"):
            rows = list(getattr(commit, name))
            for place in range(len(rows)):
                yield replace(commit, **{name: rows[:place] + rows[place + 1 :]})
