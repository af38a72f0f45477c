"""Times: microseconds since 1970 as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime


def when(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(moment: int | datetime | None) -> str | None:
    if moment is None:
        return None
    return iso(moment if isinstance(moment, datetime) else when(moment))
