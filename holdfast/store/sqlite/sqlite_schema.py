"""The schema on SQLite: made, found, or brought to what this version needs.

Owns: what a file must be to be ours, and applying the `.sql` migrations to it.
Never: touches a file that it refuses; goes backwards; writes anything but schema and its record.
Invariants: one transaction a migration, with its record and the schema version in it.
On crash: the database has the schema before or after a migration, never one between; the next open goes on.
"""

from __future__ import annotations

import secrets

import apsw

from holdfast.model.errors import NotOurStore, StoreError
from holdfast.store.contents import refuse_unfinished
from holdfast.store.sql_files import Migration, load, migrations, pending

SQLITE_MAGIC = b"SQLite format 3\0"
APPLICATION_ID = 0x486F6C64
"""`Hold`, in the header of every database file of ours."""


def is_our_header(header: bytes) -> bool:
    """Whether the first 100 bytes of a file say that it is a SQLite database of ours, of whatever version."""
    return header.startswith(SQLITE_MAGIC) and int.from_bytes(header[68:72], "big") == APPLICATION_ID


def header_fits(header: bytes) -> bool:
    """Whether the first 100 bytes of a SQLite file without a WAL say that it is ours, and not newer than we are."""
    user_version, application_id = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    return application_id == APPLICATION_ID and 0 < user_version <= len(migrations("sqlite"))


def inspect(
    connection: apsw.Connection, where: str, known: tuple[Migration, ...] | None = None
) -> tuple[Migration, ...]:
    """What is to be applied to this SQLite database. Only reads; raises NotOurStore, NewerStore or UnfinishedCopy."""
    if known is None:
        known = migrations("sqlite")
    if connection.in_transaction:
        return _inspect(connection, where, known)
    connection.execute("BEGIN")  # one snapshot: another process may migrate between two of our statements
    try:
        return _inspect(connection, where, known)
    finally:
        if connection.in_transaction:  # some errors have ended it already
            connection.execute("ROLLBACK")


def _inspect(connection: apsw.Connection, where: str, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    sql = load("sqlite")
    tables = {name for (name,) in connection.execute(sql["tables"])}
    application_id = connection.pragma("application_id")
    if not tables and application_id in (0, APPLICATION_ID):
        return known
    if application_id != APPLICATION_ID or not tables >= {"store_meta", "store_migrations"}:
        raise NotOurStore(f"{where} is a database of another program. Choose another file; nothing was changed.")
    applied = {number: checksum for number, _, checksum in connection.execute(sql["applied_migrations"])}
    versions = [version for (version,) in connection.execute(sql["schema_version"])]
    for version in versions:
        refuse_unfinished(version, where)
    if versions != [max(applied, default=0)]:
        raise StoreError(f"{where}: the schema version and the applied migrations disagree; nothing was changed.")
    return pending(known, applied, where)


def migrate(connection: apsw.Connection, where: str, known: tuple[Migration, ...] | None = None) -> int:
    """Brings a SQLite database to the newest schema; the number of migrations applied here.

    Safe beside other processes that do the same: what is to be done is decided again inside each transaction.
    """
    done = 0
    while inspect(connection, where, known):
        connection.execute("BEGIN IMMEDIATE")
        try:
            todo = inspect(connection, where, known)
            if todo:
                _apply(connection, todo[0])
                done += 1
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return done


def _apply(connection: apsw.Connection, migration: Migration) -> None:
    sql = load("sqlite")
    if migration.number == 1:
        connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", migration.number)
    connection.execute(migration.sql)
    connection.execute(sql["add_migration"], (migration.number, migration.name, migration.checksum))
    connection.execute(sql["set_schema_version"], (migration.number, secrets.token_hex(16)))
