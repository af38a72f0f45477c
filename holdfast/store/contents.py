"""Contents: a whole database, table by table, for copying it into another one.

Owns: what both drivers offer for that, and which tables are not copied.
Never: uses the operations of a store. What is copied is what the schema has: a new column is copied without a change
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from holdfast.model.errors import StoreInactive
from holdfast.model.views import command_line
from holdfast.store.row_types import EngineRow, Standing

OWN: Final = frozenset({"store_meta", "store_migrations"})
"""What a database is and how it was made. `copying.py` decides what of `store_meta` goes into a copy."""

OF_ENGINES: Final = frozenset({"engines", "engine_slots"})
"""The engines of a database and what they hold; a copy has no engines yet."""

NOT_COPIED: Final = OWN | OF_ENGINES

Row = tuple[Any, ...]
"""Integers, texts, bytes and None: the same on every database."""


class Table(NamedTuple):
    """The columns and the key of a table, under the same names on every database."""

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
    """Its address, as it may be shown."""

    def close(self) -> None: ...

    def freeze(self) -> None:
        """Keep all other writers waiting until this is closed."""
        ...

    def now(self) -> int: ...
    def meta(self) -> Meta: ...
    def engines(self) -> list[EngineRow]: ...
    def tables(self) -> dict[str, Table]:
        """The tables that are copied, by name."""
        ...

    def count(self, name: str) -> int: ...
    def read(self, name: str, table: Table) -> Iterator[Row]:
        """All rows, in the order of the key, a few at a time."""
        ...

    def begin(self) -> None:
        """Mark the database as unfinished and delete every row, in one transaction."""
        ...

    def write(self, name: str, table: Table, rows: Sequence[Row]) -> None:
        """Add rows, in one transaction."""
        ...

    def complete(self, meta: Meta) -> None:
        """Mark the database as complete, with this about itself: new numbers are given out after the existing ones, and
        it can be opened."""
        ...

    def mark(self, standing: Standing, *, token_step: int = 0) -> None:
        """Set which of several copies this is. With a `token_step`, also remove its engines and free every run, whose
        token grows by that; all in one transaction."""
        ...


def refuse_closed(standing: Standing, where: str) -> None:
    """Raise StoreInactive if engines may not work on a database."""
    if standing.closed:
        what = "is a backup" if standing.closed == "backup" else "was restored from a backup"
        raise StoreInactive(
            f"{where} {what} and is not active: engines do not work on it, so that nothing is done twice while a "
            "backup is tried out. Commands that only read, such as list, show and doctor, work. To let it replace "
            "the original, stop every engine that works on that one, then: "
            f"{command_line('db', 'activate', '--db', where)}"
        )
