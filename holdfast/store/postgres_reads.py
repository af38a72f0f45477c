"""Reads on PostgreSQL: how lists are bound. The verbs are in reads.py.

Owns: lists as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.store.reads import Reads


class PostgresReads(Reads):
    """The reading half of the driver."""

    def _many(self, values: Sequence[int] | Sequence[str]) -> Any:
        return list(values)

    def _pairs(self, values: Sequence[tuple[int | str, int]]) -> tuple[Any, ...]:
        return [first for first, _ in values], [second for _, second in values]
