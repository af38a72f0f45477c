"""What the tests of the PostgreSQL driver share: looking at a server beside the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_schema import in_schema

T = TypeVar("T")


def asking(url: str, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
    """What somebody does over a connection of their own."""

    async def ask() -> T:
        connection = await asyncpg.connect(address(url).dsn)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(ask())


def sql(url: str, *statements: str) -> list[Any]:
    """Executes SQL in the schema of an address; what the last statement gave."""

    async def execute(connection: asyncpg.Connection[Any]) -> list[Any]:
        for statement in statements:
            rows = await connection.fetch(in_schema(statement, address(url).schema))
        return [tuple(row) for row in rows]

    return asking(url, execute)


def columns(url: str) -> set[tuple[str, str]]:
    """(table, column) of everything in the schema of an address."""
    text = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = $1"

    async def ask(connection: asyncpg.Connection[Any]) -> set[tuple[str, str]]:
        return {(row[0], row[1]) for row in await connection.fetch(text, address(url).schema)}

    return asking(url, ask)
