"""The SQL of the PostgreSQL driver, for one schema, and the migrations of that schema.

Owns: inserting the schema's name, building the one statement of a group from its parts, and applying the migrations.
Never: puts a value into SQL: what is combined is in the files, and values are always bound. Never touches a database
that it refuses, or migrates backwards.
Invariants: the same parts give the same text, so that it is prepared once. One transaction for all missing migrations,
one process at a time. A database with the newest schema is only read, so that a user who may not create anything can
work with it.
On crash: the transaction was not committed, so nothing happened.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

from holdfast.model.errors import NotOurStore, StoreError, StoreMissing
from holdfast.store.postgres.driver_internals import Raw
from holdfast.store.sql_files import Migration, load, migrations, pending

Part = tuple[str, list[Any]]
"""The name of a part, and its rows."""

_PARAMETER = re.compile(r"\$(\d+)")
_OUR_SCHEMA = re.compile(r"\bholdfast(?=[.;])")
_OUR_CHANNEL = "pg_notify('holdfast'"


def in_schema(text: str, schema: str) -> str:
    """Our SQL with the name of its schema, which is also the channel of its notifications."""
    return _OUR_SCHEMA.sub(f'"{schema}"', text).replace(_OUR_CHANNEL, f"pg_notify('{schema}'")


class Statements:
    """Every named statement, and the statements of groups."""

    def __init__(self, schema: str) -> None:
        self._named = {name: in_schema(text, schema) for name, text in load("postgres").items()}
        self._groups: dict[tuple[str, ...], str] = {}

    def __getitem__(self, name: str) -> str:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def group(self, parts: list[Part]) -> tuple[str, list[Any]]:
        """The statement that writes these rows, and its arguments: an array for each column, the fence's first. With a
        fence it fails, and nothing happens, unless every run passes."""
        names = tuple(name for name, _ in parts)
        text = self._groups.get(names)
        if text is None:
            text = self._groups[names] = self._put_together(names)
        arguments: list[Any] = []
        for _, rows in parts:
            arguments += zip(*rows, strict=True)
        if names[0].startswith("fence"):
            arguments.append(len(parts[0][1]))
        return text, arguments

    def _put_together(self, names: tuple[str, ...]) -> str:
        bodies: list[str] = []
        used = 0
        if "lock_versions" in names:
            end = "when_all_passed_and_active" if names[0].startswith("fence") else "when_active"
        else:
            end = "when_all_passed" if names[0].startswith("fence") else "done"
        for name in (*names, end):
            body = self._named[name]
            bodies.append(_renumbered(body, used))
            used += max((int(number) for number in _PARAMETER.findall(body)), default=0)
        return f"WITH {', '.join(bodies[:-1])} {bodies[-1]}"


def _renumbered(text: str, used: int) -> str:
    """Shift the numbers of the parameters behind those that are used already."""
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + used}", text)


async def migrate(
    connection: Raw,
    sql: Statements,
    schema: str,
    where: str,
    known: tuple[Migration, ...] | None = None,
    *,
    create: bool = True,
) -> int:
    """Migrate a schema to the newest version; return the number of migrations applied here. Without `create` a missing
    one is not created."""
    if known is None:
        known = migrations("postgres")
    try:
        missing = await inspect(connection, sql, schema, where, known)
    except StoreError:  # another process may be migrating at this moment
        missing = await _inspect_alone(connection, sql, schema, where, known)
    if not missing:
        return 0
    if missing == known and not create:
        raise StoreMissing(f"{where}: nothing of Holdfast is in the schema {schema} of this database.")
    async with connection.transaction(isolation="read_committed"):
        await connection.fetch(sql["one_at_a_time"], schema)
        missing = await inspect(connection, sql, schema, where, known)
        if not await connection.fetch(sql["has_schema"], schema):
            await connection.execute(sql["create_schema"])
        for migration in missing:
            await connection.execute(in_schema(migration.sql, schema))
            await connection.fetch(sql["add_migration"], migration.number, migration.name, migration.checksum)
        if missing:
            await connection.fetch(sql["set_schema_version"], missing[-1].number, secrets.token_hex(16))
    return len(missing)


async def _inspect_alone(
    connection: Raw, sql: Statements, schema: str, where: str, known: tuple[Migration, ...]
) -> tuple[Migration, ...]:
    """Inspect again, after a concurrent migration has ended."""
    async with connection.transaction(isolation="read_committed"):
        await connection.fetch(sql["one_at_a_time"], schema)
        return await inspect(connection, sql, schema, where, known)


async def inspect(
    connection: Raw, sql: Statements, schema: str, where: str, known: tuple[Migration, ...]
) -> tuple[Migration, ...]:
    """The migrations to apply. Only reads; raises NotOurStore, NewerStore or UnfinishedCopy, and StoreError also if
    another process has migrated between two of its statements."""
    tables = {name for (name,) in await connection.fetch(sql["tables"], schema)}
    if not tables:
        return known
    if not tables >= {"store_meta", "store_migrations"}:
        raise NotOurStore(
            f"{where}: the schema {schema} holds tables of another program. Add ?schema=NAME with another name to the "
            "address; nothing was changed."
        )
    applied = {number: checksum for number, _, checksum in await connection.fetch(sql["applied_migrations"])}
    versions = [version for (version,) in await connection.fetch(sql["schema_version"])]
    return pending(known, applied, versions, where)
