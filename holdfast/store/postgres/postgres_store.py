"""PostgreSQL: the store of many engines.

Owns: every write but the statements of a group, and the repairs of the doctor. Opening, and retries after a lost
connection, are in postgres_access.py.
Never: decides what is written (the engine), in which statements (group_statement.py), or reads (queries.py).
Invariants: what returned is on the server's disk. A caller never gets "unknown" as long as the server comes back: what
may have happened is looked up before it is retried. Nothing depends on a session.
On crash: the server rolls back what was not committed; every commit that returned is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import asyncpg

from holdfast.model.journal_format import FORMAT
from holdfast.model.statuses import accepts
from holdfast.store.postgres.driver_internals import Raw
from holdfast.store.postgres.group_statement import GroupWriter, portions, state_of_run
from holdfast.store.postgres.postgres_connections import describe, in_transaction
from holdfast.store.postgres.postgres_versions import PostgresVersions
from holdfast.store.row_types import (
    Check,
    Commit,
    CommitResult,
    EngineRow,
    Health,
    MessageRow,
    Rebuilt,
    RunRow,
    Sent,
)
from holdfast.store.sql_files import migrations

CLAIM_ROUNDS: Final = 3
"""How often a claim retries runs that another transaction was writing to: they are locked for the time of a commit."""

READ_EVERYTHING_SECONDS = 24 * 3600.0
"""How long reading a whole database may take: at 100 MB a second, 8 TB."""


class PostgresStore(PostgresVersions):
    """The store in a schema of a PostgreSQL database: `postgresql://user:password@host:5432/database?schema=holdfast`.

    Any thread may call any operation, also one that runs an event loop, which is blocked meanwhile. Raises StoreError
    or one of its kinds, and OutcomeUnknown from a write if the server did not come back in time.
    """

    # writing --------------------------------------------------------------------------------------------------

    def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        return [done for portion in portions(group) for done in self._commit(portion)]

    def _commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        return self._do(lambda raw, again: self._group_writer(raw, again).write(group))

    def reserve_run_numbers(self, count: int) -> int:
        assert count > 0
        end: int = self._write("take_run_numbers", (count,))[0][0]
        return end - count

    def register_engine(self, row: EngineRow) -> None:
        self._write("put_engine", row)

    def set_offer(self, engine: str, can_run: bytes) -> bool:
        return len(self._write("set_offer", (engine, can_run))) == 1

    def renew_engine(self, engine: str, expires_at: int, awake_until: int = 0) -> bool:
        renewed = self._at_once("renew_engine", (engine, expires_at, awake_until))
        self._note(renewed)
        return len(renewed) == 1

    def remove_engine(self, engine: str, expires_at: int | None = None) -> int | None:
        freed: int | None = self._write("remove_engine", (engine, expires_at))[0][0]
        return freed

    def take_slots(self, engine: str, pool: str, wanted: int, limit: int) -> int:
        return self._change_slots(pool, "take_slots", (engine, pool, wanted, limit))

    def give_slots(self, engine: str, pool: str, count: int) -> None:
        self._change_slots(pool, "give_slots", (engine, pool, count))

    def _change_slots(self, pool: str, name: str, bindings: tuple[Any, ...]) -> int:
        """Change slots of a pool exactly once: under the lock of the pool, the server is asked by the number of the
        transaction whether an earlier try has happened."""
        key = f"holdfast {self._address.schema} {pool}"
        earlier: list[tuple[int, int]] = []

        async def write(raw: Raw, _: bool) -> int:
            async with in_transaction(raw, *(self._sql[used] for used in ("lock_pool", "has_committed", name))):
                await raw.fetch(self._sql["lock_pool"], key)
                for places, transaction in earlier:
                    if await raw.fetchval(self._sql["has_committed"], str(transaction)):
                        return places
                ((places, transaction),) = await raw.fetch(self._sql[name], *bindings)
                self._changes.add_own(transaction)
                earlier.append((places, transaction))
            return cast(int, places)

        return self._do(write)

    def claim(self, engine: str, run_nos: Sequence[int]) -> list[RunRow]:
        won: dict[int, RunRow] = {}
        left = list(run_nos)
        for _ in range(CLAIM_ROUNDS):
            free = self._rows("free_to_claim", (left, FORMAT)) if left else []
            if not free:
                break
            won |= self._claim(engine, free)
            left = [run_no for run_no, _ in free if run_no not in won]
        return [won[run_no] for run_no in dict.fromkeys(run_nos) if run_no in won]

    def _claim(self, engine: str, free: list[tuple[int, int]]) -> dict[int, RunRow]:
        bindings = (engine, *self._pairs(free))

        async def take(raw: Raw, again: bool) -> list[Any]:
            won = await raw.fetch(self._sql["claimed"], *bindings) if again else []
            taken = await raw.fetch(self._sql["claim"], *bindings)
            self._note(taken)
            return [*won, *(row[:-1] for row in map(tuple, taken))]

        return {row[0]: RunRow(*row) for row in self._do(take)}

    def release(self, engine: str, leases: Sequence[tuple[int, int]], unused: bool = False) -> int:
        return len(self._write("release", (*self._pairs(sorted(leases)), engine, unused))) if leases else 0

    def set_hold(self, run_no: int, token: int, engine: str | None, hold: str | None) -> bool:
        return len(self._write("set_hold", (run_no, token, engine, hold))) == 1

    def raise_token(self, run_no: int, token: int, engine: str | None, raised: int) -> bool:
        return len(self._write("raise_token", (run_no, token, engine, raised))) == 1

    def send(self, messages: Sequence[MessageRow]) -> list[Sent]:
        if not messages:
            return []
        columns = zip(*(message[:5] for message in messages), strict=True)
        met = self._write("send", (*columns, sorted({message.run_no for message in messages})))
        raced = [message.message_id for message, one in zip(messages, met, strict=True) if _was_raced(message, one)]
        earlier = {row[0]: row[1:] for row in self._rows("known_messages", (raced,))} if raced else {}
        became: list[Sent] = []
        said: dict[str, tuple[Any, ...]] = {}
        for message, (status, is_known, is_same, is_stored) in zip(messages, met, strict=True):
            says = (message.run_no, message.kind, message.payload)
            if is_known:
                became.append("duplicate" if is_same else "conflict")
            elif (before := said.get(message.message_id) or earlier.get(message.message_id)) is not None:
                became.append("duplicate" if before == says else "conflict")
            elif status is None:
                became.append("unknown_run")
            elif not accepts(status, message.kind):
                became.append("finished")
            else:
                assert is_stored
                became.append("new")
                said[message.message_id] = says
        return became

    def _group_writer(self, raw: Raw, again: bool) -> GroupWriter:
        return GroupWriter(raw, self._sql, self._changes.add_own, in_doubt=again)

    # repairs ----------------------------------------------------------------------------------------------------

    def health(self, *, thorough: bool) -> Health:
        ((durable,),) = self._rows("durability")
        ((schema,),) = self._rows("schema_version")
        return Health(self._unreadable() if thorough else [], durable, schema, len(migrations("postgres")))

    def _unreadable(self) -> list[str]:
        """The errors that the server reports when it reads every table."""

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


def _was_raced(message: MessageRow, met: tuple[Any, ...]) -> bool:
    """True if a concurrent sender inserted the same message id between our look-up and our insert."""
    status, is_known, _, is_stored = met
    return not is_known and not is_stored and status is not None and accepts(status, message.kind)
