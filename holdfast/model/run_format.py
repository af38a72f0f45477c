"""Run format: which versions of Holdfast can read a run.

Owns: `FORMAT`, the highest format that this version reads, and `RAISES`, what raises the format of a run.
Rule: a run has the lowest format whose readers know everything in it (`run_state.format`; 1 is what the first release
knows). A release that adds an event type, a field of an event or of the fold, or gives one another meaning, adds 1 to
`FORMAT` (once) and an entry to `RAISES` that says which events need it. Writing such an event raises the run's format
in the same commit; it is never lowered. So engines of the release before can still drive a run that uses nothing new.
An engine claims only runs whose format it reads (the condition is in the statement that claims), and refuses an event
type or a field that it does not know whatever the format says (`events.decode`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

FORMAT: Final = 1
"""The highest format that this version reads and writes."""

RAISES: Final[dict[type[Any], Callable[[Any], int]]] = {}
"""Event type to the format that one such event needs: `{NodeCompleted: lambda e: 2 if e.new_field else 1}`. Whatever is
not here needs format 1."""


def format_of(events: Iterable[Any]) -> int:
    """The format that readers of these events need."""
    return max((RAISES[type(event)](event) for event in events if type(event) in RAISES), default=1)


def is_newer(run_format: int) -> bool:
    """Whether a run of this format cannot be read here."""
    return run_format > FORMAT


def newer(run_format: int) -> str:
    """Why such a run is not touched, and what to do."""
    return f"written by a newer Holdfast (format {run_format}, this one reads {FORMAT}); upgrade this one"
