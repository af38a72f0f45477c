"""Reads about versions and aliases that both drivers share. The statements are in each driver's catalog.sql."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.store.version_contract import AliasMove, VersionRow


class VersionQueries(ABC):
    """The part of the reading half of a driver that is about versions."""

    @abstractmethod
    def _rows(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """Return all rows of the statement with this name."""

    def version(self, workflow: str, version: int) -> VersionRow | None:
        rows = self._rows("version", (workflow, version))
        return VersionRow._make(rows[0]) if rows else None

    def latest_version(self, workflow: str) -> VersionRow | None:
        rows = self._rows("latest_version", (workflow,))
        return VersionRow._make(rows[0]) if rows else None

    def latest_active(self, workflow: str) -> int | None:
        found: int | None = self._rows("latest_active", (workflow,))[0][0]
        return found

    def versions(self, workflow: str | None = None) -> list[VersionRow]:
        rows = self._rows("all_versions") if workflow is None else self._rows("versions", (workflow,))
        return [VersionRow._make(row) for row in rows]

    def version_numbers(self) -> list[tuple[str, int]]:
        return [(workflow, version) for workflow, version in self._rows("version_numbers")]

    def unfinished_by_version(self, workflow: str) -> dict[int, int]:
        return dict(self._rows("unfinished_by_version", (workflow,)))

    def alias(self, workflow: str, alias: str) -> AliasMove | None:
        rows = self._rows("alias", (workflow, alias))
        return AliasMove._make(rows[0]) if rows else None

    def aliases(self, workflow: str | None = None) -> list[AliasMove]:
        return [AliasMove._make(row) for row in self._rows("aliases", (workflow,))]

    def alias_moves(self, workflow: str, alias: str) -> list[AliasMove]:
        return [AliasMove._make(row) for row in self._rows("alias_moves", (workflow, alias))]
