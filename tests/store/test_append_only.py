"""The journal is only appended to, and instants are integers: read off the statements and schemas of both drivers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast

PACKAGE = Path(holdfast.__file__).parent
ONLY_FOR_TESTS = PACKAGE / "testing"
CHANGES = re.compile(
    r"\b(?:DELETE\s+FROM|UPDATE|REPLACE\s+INTO|TRUNCATE|DROP\s+TABLE)\s+(?:\S+\.)?\"?run_events\b", re.IGNORECASE
)
UPSERTS = re.compile(
    r"INSERT\s+(?:OR\s+\w+\s+)?INTO\s+(?:\S+\.)?run_events\b[^;]*?ON\s+CONFLICT[^;]*?DO\s+UPDATE", re.IGNORECASE
)


def statements() -> list[Path]:
    found = [*PACKAGE.rglob("*.sql"), *PACKAGE.rglob("*.py")]
    return [path for path in found if ONLY_FOR_TESTS not in path.parents]


def test_no_statement_changes_or_deletes_an_event() -> None:
    texts = {path: path.read_text("utf-8") for path in statements()}
    assert sum("run_events" in text for text in texts.values()) >= 4, "it reads where the statements are"
    wrong = [str(path) for path, text in texts.items() if CHANGES.search(text) or UPSERTS.search(text)]
    assert wrong == []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM run_events WHERE seq > 2",
        "delete\nfrom {schema}.run_events",
        "UPDATE run_events SET at = 1",
        "REPLACE INTO run_events VALUES (1)",
    ],
)
def test_such_a_statement_would_be_found(statement: str) -> None:
    assert CHANGES.search(statement)


@pytest.mark.parametrize("driver", ["sqlite", "postgres"])
def test_every_instant_is_stored_as_an_integer(driver: str) -> None:
    """Microseconds since 1970: no column has a zone that it could lack."""
    (schema,) = (PACKAGE / "store" / driver).rglob("schema.sql")
    columns = re.findall(r"^\s+(\w*(?:_at|_until)|at)\s+(\w+)", schema.read_text("utf-8"), re.MULTILINE)
    assert len(columns) >= 8
    assert {kind.upper() for _, kind in columns} <= {"INTEGER", "BIGINT"}
