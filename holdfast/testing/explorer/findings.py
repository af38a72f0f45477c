"""Findings: what an exploration has to say, one sentence each.

Owns: the kinds of findings and their words. A finding names what it is about, so that the same trouble met in a hundred
schedules is told once, with the shortest of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class Kind(Enum):
    """What is wrong, and for whom."""

    INVARIANT = "the engine broke a promise"
    OUTCOME = "the run ended otherwise than without the fault"
    REPEATED = "something was done twice, and nothing tells the receiver"
    NEW_KEY = "the same thing was done again under another key"
    DIFFERS = "two executions gave different results"
    OUTLIVES = "a step was at work after its body had ended, or beside itself"
    UNSUITABLE = "the workflow cannot be explored"


class Finding(msgspec.Struct, kw_only=True):
    """One kind of trouble with one subject."""

    kind: Kind
    subject: str
    """What it is about: a node, a callable, an invariant. One subject is told once."""
    what: str
    advice: str = ""
    tape: str = ""
    where: str = ""
    """The boundary, in words."""
    timeline: list[str] = []
    schedules: int = 1
    """In how many schedules it was met."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.name.lower(),
            "subject": self.subject,
            "what": self.what,
            "advice": self.advice,
            "where": self.where,
            "tape": self.tape,
            "schedules": self.schedules,
            "timeline": self.timeline,
        }
