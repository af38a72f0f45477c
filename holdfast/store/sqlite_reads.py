"""Reads on SQLite: how lists are bound. The verbs are in reads.py.

Owns: lists as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.store.reads import Reads


def as_json(values: Sequence[int] | Sequence[str] | Sequence[tuple[int | str, int]]) -> str:
    """A list as one binding; SQLite takes it apart with json_each."""
    return msgspec.json.encode(values).decode()


class SqliteReads(Reads):
    """The reading half of the driver."""

    def _many(self, values: Sequence[int] | Sequence[str]) -> Any:
        return as_json(values)

    def _pairs(self, values: Sequence[tuple[int | str, int]]) -> tuple[Any, ...]:
        return (as_json(values),)
