"""Telling: spans of time and counts in words."""

from __future__ import annotations

SECOND = 1_000_000
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def in_words(micros: int) -> str:
    """`3 hours`, `1 minute`, `12 s`."""
    seconds = max(0, micros) // SECOND
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}{'s' if seconds >= 2 * size else ''}"
    return f"{seconds} s"


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"
