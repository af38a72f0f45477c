"""Addresses: which database a URL means.

Owns: the supported schemes, choosing the driver, and which part of an address may be shown.
Never: connects. PostgreSQL's driver is imported by the first address that needs it, so that no other program waits for
it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from holdfast.model.errors import UsageError
from holdfast.store.contents import Contents
from holdfast.store.contract import Store
from holdfast.store.sqlite import sqlite_connections
from holdfast.store.sqlite.sqlite_contents import SqliteContents
from holdfast.store.sqlite.sqlite_store import SqliteStore

SUPPORTED: Final = "sqlite:///file.db, a path, or postgresql://user:password@host:5432/database"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_OF_POSTGRES: Final = ("postgresql", "postgres")


def store_at(url: str, *, create: bool = True, allow_network: bool = False) -> Store:
    """The store that an address means, not open yet. Without `create`, opening one that does not exist raises
    StoreMissing and creates nothing. With `allow_network` a file may be on a file system whose locks do not work.
    Raises UsageError for an unknown scheme."""
    if is_postgres(url):
        from holdfast.store.postgres.postgres_store import PostgresStore

        return PostgresStore(url, create=create)
    return SqliteStore(url, create=create, allow_network=allow_network)


def contents_at(url: str) -> Contents:
    """Everything in the database that an address means, which must exist; for copying."""
    if is_postgres(url):
        from holdfast.store.postgres.postgres_contents import PostgresContents

        return PostgresContents(url)
    path = sqlite_connections.database_path(url)
    if path is None:
        raise UsageError(f"{url} is a database in memory, and gone with its process; name a file or a server")
    return SqliteContents(path)


def is_postgres(url: str) -> bool:
    """True if an address names a PostgreSQL server, False for a SQLite file. Raises UsageError for anything else."""
    found = _SCHEME.match(url)
    scheme = "sqlite" if found is None else found[1].lower()
    if scheme not in ("sqlite", *_OF_POSTGRES):
        raise UsageError(f"{scheme}:// is no database that Holdfast knows; use {SUPPORTED}")
    return scheme in _OF_POSTGRES


def database_file(url: str) -> Path | None:
    """The absolute path of the file that an address names; None for a server or a database in memory."""
    return None if is_postgres(url) else sqlite_connections.database_path(url)


def outlives_process(url: str) -> bool:
    """True unless an address names a database in memory."""
    return is_postgres(url) or sqlite_connections.database_path(url) is not None


def shown(url: str) -> str:
    """An address as it may be printed and logged: without a password, and independent of the current directory."""
    if is_postgres(url):
        from holdfast.store.postgres.postgres_address import address

        return address(url).shown
    path = sqlite_connections.database_path(url)
    return url if path is None else f"sqlite:///{path}"
