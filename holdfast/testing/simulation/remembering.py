"""Remembering: a database that executes the same query only once.

Owns: the tree of everything that was ever written in an exploration, and lazily bringing the real database to the
position of a schedule in it.
Never: knows what an operation does. What a database answers follows from what was written to it, in that order, and
from nothing else. So a schedule that begins like an earlier one gets the answers of that one, and the database only
executes new queries.
Invariants: everything that is written or queried is compared in full with what was remembered, so that a body which is
not deterministic simply leaves the remembered path. What was handed over is kept: a commit is not changed once it is
written.
"""

from __future__ import annotations

from typing import Any

from holdfast.store.row_types import Evidence
from holdfast.testing.simulation.database import Contents, Image, MemoryStore, WorldDatabase

PLACES_MAX = 20_000
"""Positions that are remembered, of some kilobytes each; then everything is forgotten. An exploration of depth 1 has a
few thousand, and deeper ones return only to the latest."""


class _Place:
    """The database after certain writes."""

    __slots__ = ("answers", "before", "contents", "notes", "write", "writes")

    def __init__(self, before: _Place | None, write: tuple[Any, ...]) -> None:
        self.before = before
        self.write = write
        """The write that led here from the position before."""
        self.writes: list[tuple[tuple[Any, ...], Any, _Place]] = []
        """Each write that was tried here, its result, and where it leads."""
        self.answers: dict[tuple[Any, ...], list[Any]] = {}
        self.notes: dict[Any, Any] = {}
        self.contents: Contents | None = None


class Remembering(WorldDatabase):
    """A layer over a real driver, which executes only what is not known yet."""

    def __init__(self, *args: Any) -> None:
        self._forget()
        self._is_writing = False
        """A write is in progress: its own queries are not remembered."""
        super().__init__(*args)

    def _forget(self) -> None:
        self._place = self._beginning = _Place(None, ())
        self._real: _Place | None = None
        """The position of the database; None: outside this tree."""
        self._places = 1

    @property
    def notes(self) -> dict[Any, Any]:
        """For conclusions from everything that was written so far: they hold whenever exactly that was written."""
        return self._place.notes

    def clear(self) -> None:
        if self._places > PLACES_MAX:
            self._forget()
        self._place = self._beginning

    # --- asking and writing --------------------------------------------------------------------------------------

    def write(self, verb: str, *args: Any) -> Any:
        place, write = self._place, (verb, *args)
        for known, result, after in place.writes:
            if known == write:
                self._place = after
                return result
        self._bring_up()
        result = self._really_write(*write)
        after = _Place(place, write)
        place.writes.append((write, result, after))
        self._places += 1
        self._place = self._real = after
        return result

    def _really_write(self, verb: str, *args: Any) -> Any:
        self._is_writing = True
        try:
            return super().write(verb, *args)
        finally:
            self._is_writing = False

    def _rows(self, name: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        if self._is_writing:
            return super()._rows(name, bindings)  # type: ignore[safe-super]  # the driver's
        key = (name, bindings)
        rows = self._place.answers.get(key)
        if rows is None:
            self._bring_up()
            rows = self._place.answers[key] = super()._rows(name, bindings)  # type: ignore[safe-super]  # as above
        return list(rows)

    def ask(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        key = (sql, bindings)
        rows = self._place.answers.get(key)
        if rows is None:
            self._bring_up()
            rows = self._place.answers[key] = super().ask(sql, bindings)  # type: ignore[safe-super]  # as above
        return list(rows)

    def image(self, run_no: int, after: int) -> Image:
        self._bring_up()
        return super().image(run_no, after)  # type: ignore[safe-super]  # as above

    def evidence(self, run_no: int, after: int = 0, limit: int | None = None) -> Evidence:
        self._bring_up()
        return super().evidence(run_no, after, limit)

    # --- the real database ---------------------------------------------------------------------------------------

    def _bring_up(self) -> None:
        """Bring the database to the position of the schedule."""
        if self._real is self._place:
            return
        missing: list[_Place] = []
        place = self._place
        while place is not self._real and place.contents is None and place.before is not None:
            missing.append(place)
            place = place.before
        if place is not self._real:
            self.fill(place.contents or {})
        for after in reversed(missing):
            self._really_write(*after.write)
        self._real = self._place
        if missing:
            self._real.contents = self.contents()


class RememberingStore(Remembering, MemoryStore):
    """On SQLite, in memory."""
