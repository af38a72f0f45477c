"""The arrays that a group is written with arrive as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.postgres import driver_internals
from tests.servers import PostgresServer
from tests.store.postgres_kit import asking

LONGS = st.none() | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def there_and_back(server: PostgresServer, kind: str, columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """What the server has understood of these arrays, element by element."""

    async def ask(connection: asyncpg.Connection[Any]) -> list[list[Any]]:
        driver_internals.install_array_encoders(connection)
        statement = "SELECT value FROM unnest($1::KIND[]) WITH ORDINALITY AS v (value, place) ORDER BY place"
        found = [await connection.fetch(statement.replace("KIND", kind), column) for column in columns]
        return [[row[0] for row in rows] for rows in found]

    return asking(server.url(), ask)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]),
        ("bigint", [None, 5, None]),
        ("text", ["", "ä€😀", "{NULL}", '"', None, "x" * 100_000]),
        ("bytea", [b"", bytes(range(256)), None, b"\x00" * 100_000]),
    ],
)
def test_arrays_arrive_as_they_were(postgres: PostgresServer, kind: str, values: list[Any]) -> None:
    columns = [values, tuple(values), [], values[:1], [None, None]]
    assert there_and_back(postgres, kind, columns) == [list(column) for column in columns]


@given(st.data())
def test_ours_are_those_of_asyncpg(postgres: PostgresServer, data: st.DataObject) -> None:
    """Element by element the server reads what it would read if asyncpg had encoded them."""
    for kind, elements in (("bigint", LONGS), ("text", TEXTS), ("bytea", st.none() | st.binary())):
        columns = data.draw(st.lists(st.lists(elements), max_size=3))
        assert there_and_back(postgres, kind, columns) == columns


@pytest.mark.parametrize(
    ("kind", "values"), [("bigint", [2**63]), ("bigint", [None, 2**63]), ("bigint", ["1"]), ("text", ["\ud800"])]
)
def test_what_is_no_such_value_is_refused_as_asyncpg_does(
    postgres: PostgresServer, kind: str, values: list[Any]
) -> None:
    with pytest.raises(asyncpg.DataError, match=r"\$1"):
        there_and_back(postgres, kind, [values])
