"""Statements: the SQL of a driver, read from its `.sql` files.

Owns: finding the named blocks, and repeating a row's template as often as there are rows.
Never: puts a value into SQL. What is repeated stands in the file; values are always bound.
Invariants: a name stands for one block of one driver. Row counts are `SIZES`, so that few different statements exist
and each is prepared once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

SIZES = (64, 32, 16, 8, 4, 3, 2, 1)
"""Rows of one statement. More than 64 were not quicker when measured, and the writer holds the GIL while it binds them.
Three is what one step of one run appends to its journal: a run that is alone waits for every statement."""

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROW_MARK = "/*row*/"


class Repeated:
    """A statement whose row template is repeated: `batches` cuts any number of rows into prepared sizes."""

    __slots__ = ("_few", "_texts")

    def __init__(self, name: str, text: str) -> None:
        try:
            before, row, after = text.split(_ROW_MARK)
            row = row.replace(" ", "")  # a prepared statement is found by its text, however long that is
        except ValueError:
            raise ValueError(f"the statement {name} needs exactly one row between two {_ROW_MARK}") from None
        self._texts = [(size, before + ",".join([row] * size) + after) for size in SIZES]
        self._few = [self._cut(count) for count in range(SIZES[0] + 1)]

    def batches(self, count: int) -> Sequence[tuple[int, int, str]]:
        """(from, to, sql) for `count` rows, the largest statements first."""
        return self._few[count] if count < len(self._few) else self._cut(count)

    def _cut(self, count: int) -> list[tuple[int, int, str]]:
        batches, start = [], 0
        for size, sql in self._texts:
            while count - start >= size:
                batches.append((start, start + size, sql))
                start += size
        return batches


@cache
def load(dialect: str) -> dict[str, str]:
    """Every named block of a driver's `.sql` files. The schema has no names and is not among them."""
    found: dict[str, str] = {}
    for file in sorted(files("holdfast.store").joinpath("sql", dialect).iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"the SQL block {name} stands twice under {dialect}")
            found[name] = _bare(text)
    return found


def schema(dialect: str) -> str:
    """The schema file: what all migrations together must lead to."""
    return files("holdfast.store").joinpath("sql", dialect, "schema.sql").read_text(encoding="utf-8")


def _bare(text: str) -> str:
    """Without comment lines: a statement is looked up by its text, so it should be short."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("--"))
