"""The schema on PostgreSQL: made, found, or brought to what this version needs.

Owns: what a database must hold to be ours, and applying the `.sql` migrations to it.
Never: touches a database that it refuses; goes backwards.
Invariants: one transaction for all that is missing, one process at a time. A database that has the newest schema is
only read, so that a user who may not create anything can work with it.
On crash: the transaction was not committed, so nothing happened.
"""

from __future__ import annotations

import secrets

from holdfast.model.errors import NotOurStore, StoreError, StoreMissing
from holdfast.store.contents import refuse_unfinished
from holdfast.store.postgres.driver_internals import Raw
from holdfast.store.postgres.postgres_statements import Statements, in_schema
from holdfast.store.sql_files import Migration, migrations, pending


async def migrate(
    connection: Raw,
    sql: Statements,
    schema: str,
    where: str,
    known: tuple[Migration, ...] | None = None,
    *,
    create: bool = True,
) -> int:
    """Brings a schema to the newest version; the number of migrations applied here. Without `create` one that is not
    there is not made."""
    if known is None:
        known = migrations("postgres")
    try:
        missing = await inspect(connection, sql, schema, where, known)
    except StoreError:  # it may be that somebody migrates at this moment
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
    """A second look, when whoever migrates has ended."""
    async with connection.transaction(isolation="read_committed"):
        await connection.fetch(sql["one_at_a_time"], schema)
        return await inspect(connection, sql, schema, where, known)


async def inspect(
    connection: Raw, sql: Statements, schema: str, where: str, known: tuple[Migration, ...]
) -> tuple[Migration, ...]:
    """What is to be applied. Only reads; raises NotOurStore, NewerStore or UnfinishedCopy, and StoreError also when
    somebody has migrated between two of its statements."""
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
    for version in versions:
        refuse_unfinished(version, where)
    if versions != [max(applied, default=0)]:
        raise StoreError(f"{where}: the schema version and the applied migrations disagree; nothing was changed.")
    return pending(known, applied, where)
