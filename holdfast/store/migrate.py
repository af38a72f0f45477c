"""Migrations: how a database gets the schema that this version of Holdfast needs.

Owns: what a file must be to be ours, the order of the `.sql` migrations, their checksums.
Never: touches a file that it refuses; goes backwards; writes anything but schema and its record.
Invariants: one transaction a migration, with its record and the schema version in it; a migration that was applied
is never changed. The schema that all of them lead to is schema.sql (a test compares).
On crash: the database has the schema before or after a migration, never one between; the next open goes on.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import apsw

from holdfast.model.errors import NewerStore, NotOurStore, StoreError
from holdfast.store.contents import refuse_unfinished
from holdfast.store.statements import load

APPLICATION_ID = 0x486F6C64
"""`Hold`, in the header of every database file of ours."""


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
    for file in files("holdfast.store").joinpath("sql", dialect, "migrations").iterdir():
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


def header_fits(header: bytes) -> bool:
    """Whether the first 100 bytes of a SQLite file without a WAL say that it is ours, and not newer than we are."""
    user_version, application_id = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    return application_id == APPLICATION_ID and 0 < user_version <= len(migrations("sqlite"))


def inspect(connection: apsw.Connection, where: str, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    """What is to be applied to this SQLite database. Only reads; raises NotOurStore, NewerStore or UnfinishedCopy."""
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
    if known is None:
        known = migrations("sqlite")
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
