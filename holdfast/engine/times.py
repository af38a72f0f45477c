"""Times: microseconds since 1970 as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


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
