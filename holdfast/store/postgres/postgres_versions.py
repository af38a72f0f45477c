"""Versions and aliases on PostgreSQL.

Invariants: a version is retired under a lock on its row, which every transaction that starts runs of it, or moves an
alias to it, holds as well (the weaker one that foreign keys use): each of them sees what the other has done. A
statement that was sent twice after a lost connection has one effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from holdfast.model.rollouts import points_to
from holdfast.store.postgres.driver_internals import Raw
from holdfast.store.postgres.postgres_access import PostgresAccess
from holdfast.store.postgres.postgres_connections import in_transaction
from holdfast.store.version_contract import AliasMove, Moved, Retirement


class PostgresVersions(PostgresAccess):
    """The part of the PostgreSQL store that is about versions."""

    def register_version(
        self, workflow: str, content_hash: str, definition: bytes, now: int, code: bytes = b"", deploy: bool = False
    ) -> int:
        while True:
            known = self._rows("version_of_hash", (workflow, content_hash))
            if known and deploy:
                self._write("deploy_version", (workflow, known[0][0], code))
            known = known or self._write("add_version", (workflow, content_hash, definition, now, code))
            if known:
                return cast(int, known[0][0])

    def retire_version(self, workflow: str, version: int, now: int) -> Retirement:
        lock, unfinished, aliases, retire = (
            self._sql[name] for name in ("lock_version", "unfinished_by_version", "aliases", "retire_version")
        )

        async def write(raw: Raw, _: bool) -> Retirement:
            async with in_transaction(raw, lock, unfinished, aliases, retire):
                found = await raw.fetch(lock, workflow, version)
                if not found:
                    return Retirement("unknown_version")
                if found[0][0] is not None:
                    return Retirement(None)
                left = dict(map(tuple, await raw.fetch(unfinished, workflow)))
                if version in left:
                    return Retirement("unfinished", left[version])
                there = [AliasMove._make(tuple(row)) for row in await raw.fetch(aliases, workflow)]
                pointing = [move.alias for move in there if version in points_to(move.target)]
                if pointing:
                    return Retirement("aliased", 0, pointing)
                self._note(await raw.fetch(retire, workflow, version, now))
            return Retirement(None)

        return self._do(write)

    def move_alias(self, move: AliasMove, versions: Sequence[int]) -> Moved:
        lock, add, last = (self._sql[name] for name in ("lock_targets", "add_alias_move", "alias"))

        async def write(raw: Raw, _: bool) -> Moved:
            async with in_transaction(raw, lock, add, last):
                found = dict(map(tuple, await raw.fetch(lock, move.workflow, list(versions))))
                if not found.keys() >= set(versions):
                    return "unknown_version"
                if any(retired_at is not None for retired_at in found.values()):
                    return "retired"
                here = [AliasMove._make(tuple(row)) for row in await raw.fetch(last, move.workflow, move.alias)]
                if here and here[0].no >= move.no:
                    return "moved" if here[0] == move else "raced"
                added = await raw.fetch(add, *move)
                self._note(added)
            return "moved" if added else "raced"

        return self._do(write)
