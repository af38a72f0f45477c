"""Strands: parts of a body whose calls are remembered apart from each other.

Owns: which strand is calling (a context variable: tasks that are started in a strand belong to it), and the scopes of
the tasks in it. The body itself is one strand; every call of a race is another, because a race that is remembered runs
its winner only, and what the losers once called must not shift anybody's place.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


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

    __slots__ = ("_tasks", "heard", "lane", "lost", "memory", "scope")

    def __init__(self, memory: object, scope: str, lane: Lane | None = None) -> None:
        self.memory = memory
        """Whose strand it is; None when it is over: whoever inherited the context since is somebody else."""
        self.scope = scope
        self.lane = lane
        self.heard = 0
        """The latest word of the memory that it was told."""
        self.lost = False
        """It is cancelled, and the body goes on without it."""
        self._tasks = 0

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

    def next_task(self) -> str:
        """The scope of one more asyncio task that makes calls."""
        self._tasks += 1
        return f"{self.scope}t{self._tasks}/"


current_strand: ContextVar[Strand | None] = ContextVar("holdfast_current_strand", default=None)
