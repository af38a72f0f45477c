"""Places: where a measurement has its database, new and gone afterwards.

Owns: a file in a directory of its own, or a schema of its own on a server; and SQL beside every store, for making and
seeing what no store would.
Never: touches another schema of the server, or anything that was there before.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from holdfast.store.urls import database_file, is_postgres

Execute = Callable[..., list[Any]]
"""Executes a statement with its values and gives its rows. Values are `$1`, `$2`, ... on both kinds of databases."""


class Place(NamedTuple):
    """Where one measurement happens."""

    url: str
    directory: Path
    """For files that are not the database's."""


def in_file(directory: Path) -> Place:
    return Place(f"sqlite:///{directory / 'bench.db'}", directory)


@contextmanager
def on_server(url: str, directory: Path) -> Iterator[Place]:
    """A new schema of the database that `url` names."""
    schema = f"holdfast_bench_{secrets.token_hex(6)}"
    parts = urlsplit(url)
    options = {**dict(parse_qsl(parts.query)), "schema": schema}
    own = urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
    try:
        yield Place(own, directory)
    finally:
        with connected(own) as execute:
            execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@contextmanager
def connected(url: str) -> Iterator[Execute]:
    """SQL on the tables of a database."""
    if is_postgres(url):
        with _on_server(url) as execute:
            yield execute
        return
    with closing(sqlite3.connect(str(database_file(url)), isolation_level=None)) as connection:
        yield lambda text, *values: connection.execute(text, _by_number(values)).fetchall()


def _by_number(values: tuple[Any, ...]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, 1)}


@contextmanager
def _on_server(url: str) -> Iterator[Execute]:
    import asyncpg

    from holdfast.store.postgres.postgres_address import address

    where = address(url)
    with asyncio.Runner() as runner:
        connection = runner.run(_connect(asyncpg, where.dsn, where.schema))
        try:
            yield lambda text, *values: [tuple(row) for row in runner.run(connection.fetch(text, *values))]
        finally:
            runner.run(connection.close())


async def _connect(asyncpg: Any, dsn: str, schema: str) -> Any:
    return await asyncpg.connect(dsn, server_settings={"search_path": schema}, command_timeout=600)


def server_version(url: str) -> str:
    """What the server says it is."""
    with connected(url) as execute:
        return str(execute("SELECT split_part(version(), ' on ', 1)")[0][0])
