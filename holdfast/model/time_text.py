"""Time as text: instants, durations and counts as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.model.limits import SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def when(micros: int) -> datetime:
    """The instant; the first or the last that can be shown, of one that lies beyond them."""
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
