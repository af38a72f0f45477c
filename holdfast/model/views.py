"""Views: what programs get when they read a run, in shapes that all readers share.

Owns: `EventView` and `Wait` with their JSON forms, the same from Python, on the command line and over HTTP.
Never: reads anything (`inspect` makes them from a store).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.time_text import iso, iso_or_none


class EventView(msgspec.Struct, frozen=True):
    """One event of a journal."""

    seq: int
    branch: int
    type: str
    node: str | None
    path: str | None
    at: datetime
    data: dict[str, Any]
    visit: int = 1
    unknown: bool = False
    """A newer Holdfast wrote it: its type, or one of its fields, is not known here."""

    def as_json(self) -> dict[str, Any]:
        shown = {
            "seq": self.seq,
            "branch": self.branch,
            "type": self.type,
            "node": self.node,
            "path": self.path,
            "visit": self.visit,
            "at": iso(self.at),
            "data": self.data,
        }
        return {**shown, "unknown": True} if self.unknown else shown


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run waits for."""

    wait_id: str
    """Empty for a run that no engine may touch: that is on hold, and its journal knows nothing of it."""
    kind: str
    """`input`, `timer`, `signal`, `basket`, `pause`, `child` or `hold`."""
    run_id: str
    workflow: str
    node: str | None = None
    path: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    question: str | None = None
    about: Any = None
    """What a question is about."""
    schema: Any = None
    """JSON Schema of the answer or the signal."""
    basket: str | None = None
    assignee: str | None = None
    name: str | None = None
    """Of a signal."""
    mode: str | None = None
    """Of a basket: on resume runs the `next` node, the `same` one, or the same one after an `error`."""
    error: dict[str, Any] | None = None
    child: str | None = None
    """The run that is waited for."""

    def as_json(self) -> dict[str, Any]:
        shown = {field: getattr(self, field) for field in self.__struct_fields__}
        shown["wait_id"] = self.wait_id or None
        shown["since"], shown["until"] = iso_or_none(self.since), iso_or_none(self.until)
        return shown
