"""SQL files: the statements, the schema and the migrations of a driver, read from its `.sql` files.

Owns: finding the named blocks, the order of migrations and their checksums, and which of them a database still needs.
Never: puts a value into SQL: values are always bound. Applies no migration (see sqlite_opening.py and
postgres_schema.py).
Invariants: a name stands for one block of one driver. The statements of a migration that was released never change.
schema.sql is what all of them lead to (a test compares), and is the only one until the schema first changes after the
first release: then copy it to migrations/0001_initial.sql, write the change as migrations/0002_NAME.sql, and change
schema.sql as well.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from holdfast.model.errors import NewerStore, StoreError, UnfinishedCopy
from holdfast.model.views import command_line

UNFINISHED: Final = 0
"""The schema version of a database that is being copied into. No store has it, so that no engine opens such a
database."""

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


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
    """Strip comment lines: a statement is looked up by its text, so it should be short."""
    lines = (line.strip() for line in text.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--"))


class Migration(NamedTuple):
    """One step of the schema: `0002_queues.sql` is number 2, name `queues`."""

    number: int
    name: str
    sql: str
    checksum: str
    """Of the statements alone: a comment or a line break may change after a release."""


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The migrations of a driver, in order, numbered from 1 without a gap."""
    return migrations_in(files("holdfast.store").joinpath(dialect, "sql"))


def migrations_in(folder: Traversable) -> tuple[Migration, ...]:
    """The migrations of a folder of SQL files: those in its `migrations`, or schema.sql as the only one."""
    changes = folder.joinpath("migrations")
    if not changes.is_dir():
        return (_migration(1, "initial", folder.joinpath("schema.sql")),)
    found = []
    for file in changes.iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(_migration(int(number), name, file))
    found.sort()
    assert [m.number for m in found] == list(range(1, len(found) + 1)), "migrations are numbered without a gap"
    return tuple(found)


def _migration(number: int, name: str, file: Traversable) -> Migration:
    sql = file.read_text(encoding="utf-8")
    return Migration(number, name, sql, hashlib.sha256(_bare(sql).encode()).hexdigest())


def pending(
    known: tuple[Migration, ...], applied: dict[int, str], versions: list[int], where: str
) -> tuple[Migration, ...]:
    """The migrations still to apply to a database with these migrations and schema versions (one, unless it is
    damaged). Raises UnfinishedCopy for an incomplete database, StoreError for one with other migrations than ours (also
    one from before the first release), and NewerStore for one of a newer version."""
    if UNFINISHED in versions:
        raise UnfinishedCopy(
            f"{where} is the beginning of a copy that was not completed. Copy again: "
            f"{command_line('db', 'copy', 'FROM', where, '--again')}"
        )
    if versions != [max(applied, default=0)]:
        raise StoreError(f"{where}: the schema version and the applied migrations disagree; nothing was changed.")
    if applied and applied.get(1) != known[0].checksum:
        raise StoreError(
            f"{where} was made by another Holdfast than this one: by one from before the first release, or by a "
            "modified one. Its runs can be finished and read with the Holdfast that made it. To use this one, move the "
            "database away or name another; nothing was changed."
        )
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
