"""Questions: words that graphs and bodies share when they ask people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from holdfast.model.errors import UsageError
from holdfast.model.policies import seconds


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
        self.after = seconds(after)
        if not 0 < self.after < float("inf"):
            raise UsageError(f"hf.Escalate: {after!r} is not a time to wait")
        self.assignee = assignee
        self.basket = basket

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"after": self.after}
        if self.assignee is not None:
            shown["assignee"] = self.assignee
        if self.basket is not None:
            shown["basket"] = self.basket
        return shown


def escalations(given: Escalate | Sequence[Escalate]) -> list[dict[str, Any]]:
    """One or several of them, as data."""
    return [step.as_json() for step in ([given] if isinstance(given, Escalate) else given)]
