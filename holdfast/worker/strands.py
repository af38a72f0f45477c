"""Strands: parts of a body whose calls are remembered apart from each other.

Owns: which strand is calling (a context variable: tasks that are started in a strand belong to it), and the scopes of
the tasks in it. The body itself is one strand; every call of a race is another, because a race that is remembered runs
its winner only, and what the losers once called must not shift anybody's place.
"""

from __future__ import annotations

from contextvars import ContextVar


class Strand:
    """The body itself, or one call of a race with whatever it starts."""

    __slots__ = ("_tasks", "heard", "lost", "memory", "scope")

    def __init__(self, memory: object, scope: str) -> None:
        self.memory = memory
        """Whose strand it is; None when it is over: whoever inherited the context since is somebody else."""
        self.scope = scope
        self.heard = 0
        """The latest word of the memory that it was told."""
        self.lost = False
        """It is cancelled, and the body goes on without it."""
        self._tasks = 0

    def next_task(self) -> str:
        """The scope of one more asyncio task that makes calls."""
        self._tasks += 1
        return f"{self.scope}t{self._tasks}/"


current_strand: ContextVar[Strand | None] = ContextVar("holdfast_current_strand", default=None)
