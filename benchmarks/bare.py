"""Bare: what a server allows, measured with a loop that has no engine around it.

Owns: the least that could be called durable steps: an upsert and an insert a step, everything that has queued since the
last commit in one statement, the next step when it is committed. No leases, no rules, no recovery.
Why: a server is slower than a file by what its round trips take, and a ratio to this loop leaves that out.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

_TABLES = (
    'CREATE SCHEMA IF NOT EXISTS "{schema}"',
    "CREATE TABLE node_state (run text, node int, status text, output bytea, PRIMARY KEY (run, node))",
    "CREATE TABLE event (id bigserial PRIMARY KEY, run text, node int, kind text, at float8, payload bytea)",
)
_COMMIT = """
WITH put AS (
    INSERT INTO node_state (run, node, status, output)
    SELECT r, n, s, o FROM unnest($1::text[], $2::int[], $3::text[], $4::bytea[]) AS v (r, n, s, o)
    ON CONFLICT (run, node) DO UPDATE SET status = excluded.status, output = excluded.output)
INSERT INTO event (run, node, kind, at, payload)
SELECT r, n, s, 0, o FROM unnest($1::text[], $2::int[], $3::text[], $4::bytea[]) AS v (r, n, s, o)
"""


class _Loop:
    """One connection, and one group under way."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._queue: list[tuple[asyncio.Future[None], tuple[str, int, str, bytes]]] = []
        self._more = asyncio.Event()

    async def step(self, run: str, node: int) -> None:
        landed = asyncio.get_running_loop().create_future()
        self._queue.append((landed, (run, node, "done", b'{"i":1}')))
        self._more.set()
        await landed

    async def chain(self, run: str, steps: int, times: list[float]) -> None:
        for node in range(steps):
            began = time.perf_counter()
            await self.step(run, node)
            times.append(time.perf_counter() - began)

    async def work(self) -> None:
        statement = await self._connection.prepare(_COMMIT)
        while True:
            await self._more.wait()
            self._more.clear()
            group, self._queue = self._queue, []
            await statement.fetch(*map(list, zip(*(row for _, row in group), strict=True)))
            for landed, _ in group:
                landed.set_result(None)


def step_times(url: str, steps: int) -> list[float]:
    """Seconds of each step of one chain."""
    return asyncio.run(_chains(url, 1, steps))[1]


def steps_per_second(url: str, runs: int, steps: int) -> float:
    """Of many chains at once."""
    return runs * steps / asyncio.run(_chains(url, runs, steps))[0]


async def _chains(url: str, runs: int, steps: int) -> tuple[float, list[float]]:
    import asyncpg

    from holdfast.store.postgres.postgres_address import address

    where = address(url)
    connection = await asyncpg.connect(where.dsn, server_settings={"search_path": where.schema})
    try:
        for text in _TABLES:
            await connection.execute(text.format(schema=where.schema))
        loop = _Loop(connection)
        times: list[float] = []
        work = asyncio.create_task(loop.work())
        await loop.step("first", 0)  # prepares the statement
        began = time.perf_counter()
        await asyncio.gather(*(loop.chain(f"run-{number}", steps, times) for number in range(runs)))
        seconds = time.perf_counter() - began
        work.cancel()
        return seconds, times
    finally:
        await connection.close()
