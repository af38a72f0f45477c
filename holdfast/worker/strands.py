"""Strands: parts of a body of which a race lets only one go on.

Owns: what a part of a body has been told, the keys that it has used, and the races around it. The body itself is one
strand; every call of a race is another, because a race that is remembered runs its winner only. Tasks belong to the
strand that they were created in (tasks.py).
Rule: a strand that loses its race leaves no trace. How far it comes depends on time, so whoever goes on afterwards may
use its keys, and is not answered by what it was told.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import DuplicateKey

_LANE = re.compile(r"(?<![^/])r\d+\.\d+/")


def lane_scope(race: str, place: int) -> str:
    """The scope of what one call of a race does."""
    return f"{race}.{place}/"


def race_name(scope: str, place: int) -> str:
    """The name of a race, which is unique in its instance."""
    return f"{scope}r{place}"


def lanes_around(scope: str) -> list[str]:
    """The scopes of the calls of races that a scope lies in, outermost first."""
    return [scope[: match.end()] for match in _LANE.finditer(scope)]


class Lane(NamedTuple):
    """One of the calls of a race."""

    race: str
    """The race, by a name that is unique in its instance."""
    place: int
    race_call: object
    """The race as a remembered call."""
    only_call: object | None
    """The remembered call that this lane is, where it is a single one and not a coroutine of several."""
    around: Strand


class Strand:
    """The body itself, or one call of a race with whatever it starts."""

    __slots__ = ("heard", "keys", "lane", "lost", "memory", "over")

    def __init__(self, lane: Lane | None = None) -> None:
        self.memory: object = None
        """Of the body itself: what it remembers, while it lives."""
        self.lane = lane
        self.keys: dict[str, str] = {}
        """The scope that each key was used in, of the calls that this life of the strand has made."""
        self.heard = 0
        """The latest word of the memory that it was told."""
        self.lost = False
        """It is cancelled, and the body goes on without it."""
        self.over = False
        """Its race is over: tasks that it left behind belong to the body."""

    @property
    def body(self) -> Strand:
        """The strand of the whole body."""
        strand = self
        while strand.lane is not None:
            strand = strand.lane.around
        return strand

    def use_key(self, key: str, scope: str, call: str) -> None:
        """A call uses a key. Raises DuplicateKey where another scope of this strand, or of those around it, has used
        it."""
        strand: Strand | None = self
        while strand is not None:
            used_in = strand.keys.setdefault(key, scope) if strand is self else strand.keys.get(key, scope)
            if used_in != scope:
                raise DuplicateKey(
                    f"the key {key!r} is used by {call} in {shown(scope)} and before that in {shown(used_in)}: a key "
                    "names one call of a body. Add to the key what tells the two calls apart, for example the name of "
                    "the step"
                )
            strand = None if strand.lane is None else strand.lane.around

    def take_over_keys(self, winner: Strand) -> None:
        """A race of this strand is won: what its winner has called counts as called here. Raises DuplicateKey where a
        key of it was used here meanwhile."""
        for key, scope in winner.keys.items():
            self.use_key(key, scope, "the winner of a race")

    def races_of(self, call: object) -> tuple[tuple[tuple[str, int], ...], int]:
        """The races around a remembered call of this strand, innermost first, each with the place of its lane; and how
        many of them end when the call does: those in which it, or the race that it ends, is all that a lane does."""
        found: list[tuple[str, int]] = []
        decides = 0
        lane = self.lane
        while lane is not None:
            if lane.only_call is call and decides == len(found):
                decides += 1
            found.append((lane.race, lane.place))
            call, lane = lane.race_call, lane.around.lane
        return tuple(found), decides


def shown(scope: str) -> str:
    """A scope as messages name it."""
    return f"scope {scope!r}" if scope else "the body"
