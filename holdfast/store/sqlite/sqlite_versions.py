"""Versions and aliases on SQLite: each write is one transaction of the one writer; no check can be overtaken."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import apsw

from holdfast.model.rollouts import points_to
from holdfast.store.sql_files import load
from holdfast.store.sqlite.sqlite_reads import SqliteReads
from holdfast.store.version_contract import AliasMove, Moved, Retirement

_SQL = load("sqlite")
_T = TypeVar("_T")


class SqliteVersions(SqliteReads):
    """The part of the SQLite store that is about versions."""

    @abstractmethod
    def _transaction(self, work: Callable[[apsw.Cursor], _T]) -> _T:
        """Call `work` in one transaction, durable when this returns."""

    def register_version(
        self, workflow: str, content_hash: str, definition: bytes, now: int, code: bytes = b"", deploy: bool = False
    ) -> int:
        def register(cursor: apsw.Cursor) -> int:
            known = cursor.execute(_SQL["version_of_hash"], (workflow, content_hash)).fetchall()
            if not known:
                row = (workflow, content_hash, definition, now, code)
                return cast(int, cursor.execute(_SQL["add_version"], row).fetchall()[0][0])
            version = cast(int, known[0][0])
            if deploy:
                cursor.execute(_SQL["deploy_version"], (workflow, version, code))
            return version

        return self._transaction(register)

    def retire_version(self, workflow: str, version: int, now: int) -> Retirement:
        def retire(cursor: apsw.Cursor) -> Retirement:
            if not cursor.execute(_SQL["version"], (workflow, version)).fetchall():
                return Retirement("unknown_version")
            left = cast(list[tuple[int, int]], cursor.execute(_SQL["unfinished_by_version"], (workflow,)).fetchall())
            unfinished = dict(left)
            if version in unfinished:
                return Retirement("unfinished", unfinished[version])
            there = [AliasMove._make(row) for row in cursor.execute(_SQL["aliases"], (workflow,))]
            pointing = [move.alias for move in there if version in points_to(move.target)]
            if pointing:
                return Retirement("aliased", 0, pointing)
            cursor.execute(_SQL["retire_version"], (workflow, version, now))
            return Retirement(None)

        return self._transaction(retire)

    def move_alias(self, move: AliasMove, versions: Sequence[int]) -> Moved:
        def write(cursor: apsw.Cursor) -> Moved:
            for version in versions:
                rows = cursor.execute(_SQL["version"], (move.workflow, version)).fetchall()
                if not rows:
                    return "unknown_version"
                if rows[0][-1] is not None:
                    return "retired"
            last = cursor.execute(_SQL["alias"], (move.workflow, move.alias)).fetchall()
            if last and cast(int, last[0][2]) >= move.no:
                return "moved" if last[0] == tuple(move) else "raced"
            cursor.execute(_SQL["add_alias_move"], move)
            return "moved"

        return self._transaction(write)
