"""Texts: what people write beside values, and the options of a question to a person.

Owns: whether a name (of a person, a basket, a signal), a question or a reason can be stored, searched for and shown,
checked before it is used; the default, reminders and escalations of a question, as graphs and bodies give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from holdfast.model.errors import UsageError
from holdfast.model.limits import NAME_LENGTH_MAX, QUOTED_LENGTH_MAX, TEXT_LENGTH_MAX
from holdfast.model.policies import delay_seconds


def name(value: Any, what: str) -> str:
    """Check the name of a person or thing, which is an index key: not empty."""
    return _checked(value, what, "a name", NAME_LENGTH_MAX, may_be_empty=False)


def actor(value: Any, what: str) -> str:
    """Check the name of the actor of a request; it may be empty."""
    return _checked(value, f"{what}: actor", "a name", NAME_LENGTH_MAX, may_be_empty=True)


def question(value: Any, what: str) -> str:
    """Check a text that must not be empty."""
    return _checked(value, what, "a text", TEXT_LENGTH_MAX, may_be_empty=False)


def reason(value: Any, what: str) -> str:
    """Check a text that may be empty."""
    return _checked(value, f"{what}: reason", "a text", TEXT_LENGTH_MAX, may_be_empty=True)


def is_name(value: Any) -> bool:
    """Whether this can be a name, or the beginning of one."""
    return isinstance(value, str) and bool(value) and len(value) <= NAME_LENGTH_MAX and _can_be_stored(value)


def _checked(value: Any, what: str, kind: str, length_max: int, *, may_be_empty: bool) -> str:
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise UsageError(f"{what} is {kind}, not {_quoted(value)}")
    if len(value) > length_max:
        raise UsageError(f"{what} has {len(value):,} characters; at most {length_max:,} are allowed")
    if not _can_be_stored(value):
        raise UsageError(f"{what}: {_quoted(value)} has characters that cannot be stored (a lone surrogate, or NUL)")
    return value


def _can_be_stored(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _quoted(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= QUOTED_LENGTH_MAX else f"{shown[:QUOTED_LENGTH_MAX]}…"


# --- options of a question -------------------------------------------------------------------------------------


class Nothing:
    """No default was given; None is one."""

    def __repr__(self) -> str:
        return "<no default>"


NOTHING: Final[Any] = Nothing()


class Escalate:
    """Reassign a question that has no answer after some time: `hf.Escalate("2d", assignee="boss")`."""

    def __init__(
        self, after: float | str | timedelta, *, assignee: str | None = None, basket: str | None = None
    ) -> None:
        if assignee is None and basket is None:
            raise UsageError("hf.Escalate: give assignee='boss' or basket='managers'")
        self.after = delay_seconds(after, "hf.Escalate")
        if not self.after:
            raise UsageError(f"hf.Escalate: {after!r} is not a time to wait: no one could answer before it")
        self.assignee = None if assignee is None else name(assignee, "hf.Escalate: assignee")
        self.basket = None if basket is None else name(basket, "hf.Escalate: basket")

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"after": self.after}
        if self.assignee is not None:
            shown["assignee"] = self.assignee
        if self.basket is not None:
            shown["basket"] = self.basket
        return shown


def escalations(given: Escalate | Sequence[Escalate]) -> list[dict[str, Any]]:
    """One or several escalations, as data."""
    steps = [given] if isinstance(given, Escalate) else given
    if not isinstance(steps, list | tuple) or not all(isinstance(step, Escalate) for step in steps):
        raise UsageError(f"escalate is hf.Escalate('2d', assignee='boss'), or a list of them, not {given!r:.60}")
    return [step.as_json() for step in steps]


def reminder_seconds(every: float | str | timedelta, what: str) -> float:
    """The seconds between two reminders."""
    amount = delay_seconds(every, f"{what}: remind")
    if amount < 1:
        raise UsageError(f"{what}: remind={every!r} is too often; at least '1s'")
    return amount
