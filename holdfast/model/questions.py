"""Questions: words that graphs and bodies share when they ask people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from holdfast.model import texts
from holdfast.model.errors import UsageError
from holdfast.model.policies import delay_seconds


class Nothing:
    """No default was given; None is one."""

    def __repr__(self) -> str:
        return "<no default>"


NOTHING: Final[Any] = Nothing()


class Escalate:
    """Hand a question on when nobody has answered it for so long: `hf.Escalate("2d", assignee="boss")`."""

    def __init__(
        self, after: float | str | timedelta, *, assignee: str | None = None, basket: str | None = None
    ) -> None:
        if assignee is None and basket is None:
            raise UsageError("hf.Escalate: say to whom: assignee='boss' or basket='managers'")
        self.after = delay_seconds(after, "hf.Escalate")
        if not self.after:
            raise UsageError(f"hf.Escalate: {after!r} is not a time to wait: nobody could have answered yet")
        self.assignee = None if assignee is None else texts.name(assignee, "hf.Escalate: assignee")
        self.basket = None if basket is None else texts.name(basket, "hf.Escalate: basket")

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"after": self.after}
        if self.assignee is not None:
            shown["assignee"] = self.assignee
        if self.basket is not None:
            shown["basket"] = self.basket
        return shown


def escalations(given: Escalate | Sequence[Escalate]) -> list[dict[str, Any]]:
    """One or several of them, as data."""
    steps = [given] if isinstance(given, Escalate) else given
    if not isinstance(steps, list | tuple) or not all(isinstance(step, Escalate) for step in steps):
        raise UsageError(f"escalate is hf.Escalate('2d', assignee='boss'), or a list of them, not {given!r:.60}")
    return [step.as_json() for step in steps]


def reminder_seconds(every: float | str | timedelta, what: str) -> float:
    """How often somebody is reminded."""
    amount = delay_seconds(every, f"{what}: remind")
    if amount < 1:
        raise UsageError(f"{what}: remind={every!r} is too often; at least '1s'")
    return amount
