"""SQL files: the statements, the schema and the migrations of a driver, read from its `.sql` files.

Owns: finding the named blocks, repeating a row's template as often as there are rows, the order of migrations and their
checksums, and which of them a database still needs.
Never: puts a value into SQL: what is repeated stands in the file, and values are always bound. Applies no migration
(see sqlite_schema.py and postgres_schema.py).
Invariants: a name stands for one block of one driver. Row counts are `SIZES`, so that few different statements exist
and each is prepared once. A migration that was applied is never changed. The schema that all of them lead to is
schema.sql (a test compares).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from holdfast.model.errors import NewerStore, StoreError

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
    for file in sorted(files("holdfast.store").joinpath(dialect, "sql").iterdir(), key=lambda f: f.name):
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
    return files("holdfast.store").joinpath(dialect, "sql", "schema.sql").read_text(encoding="utf-8")


def _bare(text: str) -> str:
    """Without comment lines: a statement is looked up by its text, so it should be short."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("--"))


class Migration(NamedTuple):
    """One file: `0001_initial.sql` is number 1, name `initial`."""

    number: int
    name: str
    sql: str
    checksum: str


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The known migrations of a driver, in order, numbered from 1 without a gap."""
    found = []
    for file in files("holdfast.store").joinpath(dialect, "sql", "migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest()))
    found.sort()
    assert [m.number for m in found] == list(range(1, len(found) + 1)), "migrations are numbered without a gap"
    return tuple(found)


def pending(known: tuple[Migration, ...], applied: dict[int, str], where: str) -> tuple[Migration, ...]:
    """The migrations still to apply; refuses a database from a newer version, and one whose past differs from ours."""
    newest = max(applied, default=0)
    if newest > len(known):
        raise NewerStore(
            f"{where} has schema {newest}, and this Holdfast knows {len(known)}. Upgrade Holdfast; nothing was changed."
        )
    for migration in known[:newest]:
        if applied.get(migration.number) != migration.checksum:
            raise StoreError(
                f"{where}: migration {migration.number} ({migration.name}) is not the one that was applied there. "
                "Install an unmodified Holdfast; nothing was changed."
            )
    return known[newest:]
