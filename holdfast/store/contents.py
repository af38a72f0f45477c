"""Contents: a whole database, table by table, as it is copied into another one.

Owns: what both drivers offer for that, which tables are not copied, and how a database says that it is not whole.
Never: goes through the verbs of a store. What is copied is what the schema has: a column that is added there is copied
without a word here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from holdfast.model.errors import StoreInactive, UnfinishedCopy
from holdfast.store.row_types import EngineRow, Standing

UNFINISHED: Final = 0
"""The schema version of a database that is being copied into. No store has it, so nobody opens such a database."""

OWN: Final = frozenset({"store_meta", "store_migrations"})
"""What a database is and how it came to be. What of `store_meta` goes into a copy is in `copying.py`."""

OF_ENGINES: Final = frozenset({"engines", "engine_slots"})
"""Who works on a database, and on what; nobody works on a copy yet."""

NOT_COPIED: Final = OWN | OF_ENGINES

Row = tuple[Any, ...]
"""Integers, texts, bytes and None: the same on every database."""


class Table(NamedTuple):
    """What a table is made of, under the same names on every database."""

    columns: tuple[str, ...]
    """By name."""
    key: tuple[str, ...]
    """The order in which its rows are read."""


class Meta(NamedTuple):
    """What a database says about itself."""

    store_id: str
    next_run_no: int
    is_unfinished: bool
    epoch: int
    closed: str


class Contents(Protocol):
    """Everything in a database that has the newest schema. Raises StoreError or one of its kinds."""

    shown: str
    """Its address, for people."""

    def close(self) -> None: ...

    def freeze(self) -> None:
        """From now on nobody else writes, until this is closed; whoever tries waits."""
        ...

    def now(self) -> int: ...
    def meta(self) -> Meta: ...
    def engines(self) -> list[EngineRow]: ...
    def tables(self) -> dict[str, Table]:
        """Those that are copied, by name."""
        ...

    def count(self, name: str) -> int: ...
    def read(self, name: str, table: Table) -> Iterator[Row]:
        """All rows, in the order of the key, a few at a time."""
        ...

    def begin(self) -> None:
        """Mark it as unfinished and take every row out of it, in one transaction."""
        ...

    def write(self, name: str, table: Table, rows: Sequence[Row]) -> None:
        """Add rows, in one transaction."""
        ...

    def complete(self, meta: Meta) -> None:
        """It is whole, and says this about itself: numbers are given out behind those that are there, and it can be
        opened."""
        ...

    def mark(self, standing: Standing, *, token_step: int = 0) -> None:
        """Say what it is among its copies. With a `token_step`, also forget its engines and free every run, whose token
        grows by that; all in one transaction."""
        ...


def refuse_unfinished(version: int, where: str) -> None:
    """Raises UnfinishedCopy when this is the schema version of a database that is not whole."""
    if version == UNFINISHED:
        raise UnfinishedCopy(
            f"{where} is the beginning of a copy that did not come to its end. Copy again: "
            f"holdfast db copy FROM {shlex.quote(where)} --again"
        )


def refuse_closed(standing: Standing, where: str) -> None:
    """Raises StoreInactive when engines may not work on a database."""
    if standing.closed:
        what = "is a backup" if standing.closed == "backup" else "was restored from a backup"
        command = shlex.join(["holdfast", "db", "activate", "--db", where])
        raise StoreInactive(
            f"{where} {what} and is not active: engines do not work on it, so that nothing is done twice while a "
            "backup is tried out. Verbs that only read (`holdfast list`, `show`, `doctor`) work. If it is to replace "
            f"the original, stop every engine that works on that one, then: {command}"
        )
