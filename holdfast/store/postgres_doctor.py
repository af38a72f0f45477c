"""The doctor's verbs on PostgreSQL.

Owns: the repairs of rows, and the state of the database itself. The questions are in checks.py.
Never: judges what it finds (engine/doctor), deletes an event.
Invariants: a repair is one transaction, and changes nothing when the run has moved meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from holdfast.store.api import Check, Health, Rebuilt
from holdfast.store.checks import Checks
from holdfast.store.migrate import migrations
from holdfast.store.postgres_connections import Raw, describe, in_transaction
from holdfast.store.postgres_group import state_of_run
from holdfast.store.postgres_reads import PostgresReads
from holdfast.store.postgres_statements import Statements

READ_EVERYTHING_SECONDS = 24 * 3600.0
"""How long reading a whole database may take: at 100 MB a second, 8 TB."""

_T = TypeVar("_T")

Work = Callable[[Raw, bool], Coroutine[Any, Any, _T]]
"""What is done over one connection. True: it is done again, and may have happened before."""


class PostgresDoctor(PostgresReads, Checks):
    """What only the doctor asks and repairs."""

    _sql: Statements

    @abstractmethod
    def _do(self, work: Work[_T], *, writes: bool = True) -> _T:
        """Does `work`, again when the server was away."""

    @abstractmethod
    def _write(self, name: str, bindings: tuple[Any, ...]) -> list[Any]:
        """Executes a statement that gives the number of its transaction last; its rows without it."""

    def health(self, *, thorough: bool) -> Health:
        ((durable,),) = self._rows("durability")
        ((schema,),) = self._rows("schema_version")
        return Health(self._unreadable() if thorough else [], durable, schema, len(migrations("postgres")))

    def _unreadable(self) -> list[str]:
        """What the server says when it reads every table whole."""

        async def read(connection: Raw, _: bool) -> list[str]:
            try:
                await connection.fetch(self._sql["read_everything"], timeout=READ_EVERYTHING_SECONDS)
            except (asyncpg.InternalServerError, asyncpg.PostgresIOError) as error:
                return [describe(error)]
            return []

        return self._do(read, writes=False)

    def rebuild(self, rebuilt: Rebuilt) -> bool:
        *columns, nodes, waits, timers = rebuilt
        rebuild, is_rebuilt = self._sql["rebuild_run"], self._sql["is_rebuilt"]
        done = (rebuilt.run_no, rebuilt.token + 1, rebuilt.last_seq, rebuilt.head_hash)
        rows = [(self._sql[f"drop_{table}_of_run"], [rebuilt.run_no]) for table in ("nodes", "waits", "timers")]
        rows += state_of_run(self._sql, nodes, waits, timers)

        async def write(connection: Raw, again: bool) -> bool:
            async with in_transaction(connection, rebuild, is_rebuilt, *(text for text, _ in rows)):
                if not await connection.fetch(rebuild, *columns):
                    return again and bool(await connection.fetch(is_rebuilt, *done))
                for text, arguments in rows:
                    await connection.fetch(text, *arguments)
                return True

        return self._do(write)

    def remove_orphans(self, check: Check, run_no: int) -> int:
        return len(self._write(f"remove_{check}", (run_no,)))

    def close_inbox(self, run_no: int) -> int:
        return len(self._write("close_inbox_of_ended", (run_no,)))
