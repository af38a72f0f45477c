"""An arena on a PostgreSQL server, where processes end and what they sent may still be under way.

Nobody there can tell that a process is dead but by its lease. That this is waited for is shown in
tests/engine/test_shared_leases.py; here the time of a lease is over as soon as its process is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import Connection, connected
from holdfast.store.postgres.postgres_store import PostgresStore
from tests.crash.nursery import Life, Nursery
from tests.crash.supervisor import Arena
from tests.engine.kit import check_journal
from tests.servers import PostgresServer
from tests.store.postgres_kit import sql

UNDER_WAY = "SELECT pid, query_start FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid()"
_BINDING = re.compile(r"\?")


class PostgresArena(Arena):
    """One schema, the effects of its bodies, and the processes that drive it. SQL is written as for SQLite."""

    def __init__(self, server: PostgresServer, folder: Path, nursery: Nursery) -> None:
        super().__init__(folder, nursery)
        self.server = server
        self.url = server.url()
        self.way: Callable[[str], str] = lambda url: url
        """From our address to that of the processes."""
        self.store = PostgresStore(self.url)
        self.store.open()
        self._where = address(f"{self.url}&search_path={address(self.url).schema}")
        self._beside = connected(self._where)

    @property
    def address(self) -> str:
        return self.way(self.url)

    def sibling(self, name: str) -> PostgresArena:
        return PostgresArena(self.server, self.folder / name, self._nursery)

    def close(self) -> None:
        self.store.close()
        self._beside.close()

    def lets_others_write(self) -> bool:
        return not self.query("SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")

    def gone(self, life: Life) -> None:
        """What it sent last is done or not; its lease has run out."""
        left = set(self.query(UNDER_WAY))
        self.wait_for(lambda: left.isdisjoint(self.query(UNDER_WAY)))
        self.write("UPDATE engines SET expires_at = 0 WHERE pid = ?", life.pid)

    def exists(self) -> bool:
        return True

    def prove(self) -> None:
        for row in self.store.runs(limit=1_000_000):
            check_journal(self.store, row)

    def query(self, sql: str, *values: Any) -> list[Any]:
        numbers = count(1)
        text = _BINDING.sub(lambda _: f"${next(numbers)}", sql)
        return list(map(tuple, self._beside.wait(self._beside.raw.fetch(text, *values))))

    def write(self, sql: str, *values: Any) -> None:
        self.query(sql, *values)

    # --- weather -----------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Somebody else's, which is committed when the block is left."""
        with closing(connected(self._where)) as other:
            transaction = other.raw.transaction()
            other.wait(transaction.start())
            yield other
            other.wait(transaction.commit())

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Somebody has locked a table and takes his time."""
        with self.transaction() as other:
            other.wait(other.raw.execute(f"LOCK TABLE {table} IN SHARE MODE"))
            yield

    @contextmanager
    def refusing(self, table: str, condition: str) -> Iterator[None]:
        """Nothing can be added to a table, for a reason that PL/pgSQL knows by this name."""
        self.write(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{condition}'; END $$"
        )
        self.write(f"CREATE TRIGGER refusal BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")
        yield
        self.write(f"DROP TRIGGER refusal ON {table}")

    @contextmanager
    def configured(self, setting: str, value: str) -> Iterator[None]:
        """The server has another setting, for every session."""
        self.write(f"ALTER SYSTEM SET {setting} = {value}")
        self.write("SELECT pg_reload_conf()")
        try:
            # Every session is told by the server's main process, as we are; who comes after that finds all told.
            self.wait_for(lambda: self.query("SELECT current_setting(?)", setting) == [(value,)])
            sql(self.url, "SELECT 1")
            yield
        finally:
            self.write(f"ALTER SYSTEM RESET {setting}")
            self.write("SELECT pg_reload_conf()")

    def rolls_back(self, times: int) -> None:
        """Wait until so many more transactions were rolled back."""
        rolled_back = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ((before,),) = self.query(rolled_back)
        self.wait_for(lambda: self.query(rolled_back)[0][0] >= before + times)

    def with_own_clock(self) -> None:
        """From now on the clock of the server is ours to move: engines find this one first."""
        self.write("CREATE TABLE own_clock AS SELECT interval '0' AS ahead")
        self.write(
            "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
            "$$ SELECT pg_catalog.clock_timestamp() + (SELECT ahead FROM own_clock) $$"
        )
        self.way = lambda url: f"{url}&search_path={self._where.schema},pg_catalog"
