"""Views: what programs and people get when they read a run, in shapes that all readers share.

Owns: `EventView` and `Wait` with their JSON forms, the same from Python, on the command line and over HTTP; a wait in
words, and which verb with which ids ends it; instants, durations and counts as text.
Never: reads anything (`inspect` makes them from a store).
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from holdfast.model.limits import SECOND
from holdfast.model.naming import instance_text


class Emitted(msgspec.Struct, frozen=True):
    """One value that a body has shown with `ctx.emit`."""

    number: int
    """From 1, for each attempt."""
    topic: str
    value: msgspec.Raw
    node: str
    path: str
    attempt: int


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
    """A newer Holdfast wrote it: this version does not know its type, or one of its fields."""

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
    """Empty for a run that is on hold without an event: its journal does not record the hold."""
    kind: str
    """`input`, `timer`, `signal`, `basket`, `pause`, `child`, `retry` (of a step) or `hold`."""
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


# --- a wait in words ---------------------------------------------------------------------------------------------


def wait_text(wait: Wait, left: str = "") -> str:
    """What a node or run waits for, behind its name: `asks ada: Ship this order?`, `waits for signal packed`. Every
    text about a wait is made of this clause. `left` is the time until the wait ends by itself."""
    match wait.kind:
        case "input":
            whom = [wait.assignee] * bool(wait.assignee) + [f"in {wait.basket}"] * bool(wait.basket)
            return f"{' '.join(('asks', *map(str, whom)))}: {wait.question}"
        case "signal":
            return f"waits for signal {wait.name}"
        case "basket":
            error = f": {wait.error.get('message', '')}" if wait.error else ""
            return f"is in basket {wait.basket}{error}"
        case "pause":
            return str(wait.question)
        case "timer":
            return f"sleeps for {left} more"
        case "retry":
            return f"retries step {wait.name} in {left}"
        case "child":
            return f"waits for run {wait.child}" if wait.child else "waits for a child run"
        case "hold":
            return f"on hold: {wait.question}"
    return f"waits for {wait.kind}"


def wait_place(wait: Wait) -> str:
    """The node that waits, as `wait_text` follows it; empty where the whole run waits."""
    return "" if wait.node is None else f"{instance_text(wait.node, wait.path or '.')} "


WAIT_ENDS: Final = {
    "input": "answers",
    "signal": "sends it",
    "basket": "resumes it",
    "pause": "ends the pause",
    "hold": "resumes it",
}
"""What the command of `wait_ended_by` does, by the kind of the wait."""


def wait_ended_by(wait: Wait, *, alone: bool = False) -> tuple[str, ...]:
    """The verb that ends a wait, with its arguments; empty if it ends by itself. `alone`: the run has no other wait, so
    its id is enough."""
    match wait.kind:
        case "input":
            return ("respond", wait.wait_id)
        case "signal":
            return ("signal", wait.run_id, str(wait.name), "PAYLOAD")
        case "basket" if not alone:
            return ("resume", wait.run_id, "--wait", wait.wait_id)
        case "basket" | "pause" | "hold":
            return ("resume", wait.run_id)
    return ()


def command_line(*words: str) -> str:
    """A command as an operator types it, between backquotes. No other text below the command line spells one: readers
    and errors name verb and arguments, as `wait_ended_by` does."""
    return f"`{shlex.join(('holdfast', *words))}`"


# --- times as text -----------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def when(micros: int) -> datetime:
    """The instant; one that cannot be shown becomes the first or the last that can."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _LAST if micros > 0 else _FIRST


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(moment: int | datetime | None) -> str | None:
    if moment is None:
        return None
    return iso(moment if isinstance(moment, datetime) else when(moment))


def humanize_duration(micros: int) -> str:
    """`3 hours`, `1 minute`, `12 s`."""
    seconds = max(0, micros) // SECOND
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}{'s' if seconds >= 2 * size else ''}"
    return f"{seconds} s"


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"
