"""An arena on a PostgreSQL server, where processes end and what they sent may still be under way.

Nobody there can tell that a process is dead but by its lease. That this is waited for is shown in
tests/engine/test_shared_leases.py; here the time of a lease is over as soon as its process is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres_connections import address, connected
from tests.crash.nursery import Life, Nursery
from tests.crash.supervisor import Arena
from tests.engine.kit import check_journal
from tests.servers import PostgresServer

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
        self._beside = connected(address(f"{self.url}&search_path={address(self.url).schema}"))

    @property
    def address(self) -> str:
        return self.way(self.url)

    def start(self, *runs: str, **environment: str) -> Life:
        return super().start(*runs, **{"HOLDFAST_LEASE_SECONDS": "3", **environment})

    def sibling(self, name: str) -> PostgresArena:
        return PostgresArena(self.server, self.folder / name, self._nursery)

    def close(self) -> None:
        self.store.close()
        self._beside.close()

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
