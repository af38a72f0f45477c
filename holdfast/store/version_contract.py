"""The part of the store's contract that is about versions: definitions, aliases, and what is retired.

Owns: the rows and operations of versions and aliases. The rest of the contract is in contract.py.
Invariants: a version's number, content and hash never change. An alias only ever pointed to versions that existed and
were not retired when it was moved. No unfinished run, and no alias, has a retired version: `retire_version` refuses,
and a commit that would begin a run or a branch under a retired version is refused (`CommitResult.refusal`), however
long ago its engine chose the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol


class VersionRow(NamedTuple):
    """One row of `workflow_versions`: an immutable definition, numbered per name."""

    workflow: str
    version: int
    hash: str
    definition: bytes
    created_at: int
    code: bytes = b""
    """Where its code was when it was registered or last deployed (engine/versions.py has the form)."""
    retired_at: int | None = None


class AliasMove(NamedTuple):
    """One row of `alias_moves`; the key is (workflow, alias, no)."""

    workflow: str
    alias: str
    no: int
    """From 1 on, without a gap. The last one counts."""
    target: bytes | None
    """Where the alias points from then on (model/rollouts.py has the form); None: it was removed."""
    at: int
    actor: str
    reason: str


class Retirement(NamedTuple):
    """What became of a request to retire a version."""

    refusal: Literal["unknown_version", "unfinished", "aliased"] | None
    """None: it is retired (perhaps it was before)."""
    unfinished: int = 0
    aliases: Sequence[str] = ()


Moved = Literal["moved", "raced", "unknown_version", "retired"]
"""What became of a move: it is stored; another one has its number; it points to a version that does not exist, or is
retired."""


class VersionStore(Protocol):
    """What a driver offers for versions and aliases."""

    # writing --------------------------------------------------------------------------------------------------
    def register_version(
        self, workflow: str, content_hash: str, definition: bytes, now: int, code: bytes = b"", deploy: bool = False
    ) -> int:
        """Return the number of this definition under its name; a new number if its hash is new. With `deploy` an
        existing one gets this code, and is no longer retired."""
        ...

    def retire_version(self, workflow: str, version: int, now: int) -> Retirement:
        """Retire a version of which no run is unfinished, and that no alias points to."""
        ...

    def move_alias(self, move: AliasMove, versions: Sequence[int]) -> Moved:
        """Store a move, whose target names these versions. Of two moves with one number the first is stored; the same
        move once more is the same."""
        ...

    # reading --------------------------------------------------------------------------------------------------
    def version(self, workflow: str, version: int) -> VersionRow | None: ...
    def latest_version(self, workflow: str) -> VersionRow | None:
        """The one with the highest number, retired or not."""
        ...

    def latest_active(self, workflow: str) -> int | None:
        """The highest number that is not retired."""
        ...

    def versions(self, workflow: str | None = None) -> list[VersionRow]:
        """The stored definitions, of one name or all, by name and number."""
        ...

    def version_numbers(self) -> list[tuple[str, int]]:
        """Every stored version, by name and number, without its definition."""
        ...

    def unfinished_by_version(self, workflow: str) -> dict[int, int]:
        """How many runs of a workflow have not ended, by version; without versions that have none."""
        ...

    def alias(self, workflow: str, alias: str) -> AliasMove | None:
        """The last move of an alias."""
        ...

    def aliases(self, workflow: str | None = None) -> list[AliasMove]:
        """The last move of each alias, of one name or all, by name and alias; also of those that were removed."""
        ...

    def alias_moves(self, workflow: str, alias: str) -> list[AliasMove]:
        """All moves of an alias, the first one first."""
        ...
