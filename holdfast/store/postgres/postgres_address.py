"""PostgreSQL addresses: what a URL says about a store on a server.

Owns: the options of an address that are ours, and which part of an address may be shown.
Never: connects, or loads the driver: the command line shows addresses of stores that it does not open.
Invariants: the password of an address is in no message.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from holdfast.model.errors import StoreError

CONNECTIONS: Final = 8
"""Connections of one store: a commit in progress, and reads beside it. A server has 100 in total."""

STATEMENTS_KEPT: Final = 250
"""Prepared statements per connection: some hundred reads and writes, and the combinations of parts of a group."""

_SCHEMES: Final = ("postgresql", "postgres")
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Address(NamedTuple):
    """Where a store is: `postgresql://user:password@host:port/database?schema=holdfast`."""

    dsn: str
    """For asyncpg: without our options."""
    shown: str
    """As it may be shown: without the password."""
    schema: str
    """The schema that holds the tables; several stores in one database differ by it."""
    connections: int
    is_pooled: bool
    """`statement_cache_size=0`: there is a transaction pooler between; nothing may be prepared or set."""


def address(url: str) -> Address:
    """Parse an address. Our options: `schema`, `connections`, `statement_cache_size`; others are asyncpg's."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # refused here, where the message does not quote it
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise StoreError(
            "the address of the database cannot be read; it looks like postgresql://user:password@host:5432/database, "
            "with special characters of the password written as %XX"
        ) from None
    if parts.scheme not in _SCHEMES:
        raise StoreError(f"{parts.scheme}:// is not PostgreSQL; use postgresql://host/database")
    schema = options.pop("schema", "holdfast")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise StoreError(f"the schema name {schema!r} is not usable: small letters, digits and _, at most 63 of them")
    connections = _count(options.pop("connections", str(CONNECTIONS)), "connections", least=1)
    kept = _count(options.pop("statement_cache_size", str(STATEMENTS_KEPT)), "statement_cache_size", least=0)
    dsn = urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
    return Address(dsn, _without_password(url), schema, connections, kept == 0)


def _count(text: str, name: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise StoreError(f"{name}={text!r} in the address of the database is not a number from {least} on")
    return int(text)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    options = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if "password" not in k]
    query = urlencode(options, quote_via=quote, safe="/")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))
