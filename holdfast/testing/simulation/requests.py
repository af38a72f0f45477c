"""Requests: what somebody outside asks of the processes, again and again until there is an answer.

Owns: who was asked, and when to ask again: whoever died, stands still or reported an error has not answered.
Never: knows what is asked (explorer/client.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdfast.testing.simulation.process import Process

ASKED_MAX = 60
"""How often the same is asked in vain before the world counts as stuck."""
Request = Callable[[Process], Coroutine[Any, Any, None]]
"""Something that is asked of the engine of a process."""


class Client(Protocol):
    """Who wants something of the engines, from outside."""

    @property
    def served(self) -> bool:
        """Whether nobody need wait for it any more, once every run has ended."""
        ...

    def wants(self, now: int) -> Request | None: ...
    def due_at(self, now: int) -> int | None:
        """When it will want something, if nothing else happens."""
        ...


class Requests:
    """The requests of one client, one at a time."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._asked: tuple[Process, asyncio.Task[None]] | None = None
        self._in_vain = 0

    @property
    def stuck(self) -> bool:
        """Whether nobody ever answers."""
        return self._in_vain > ASKED_MAX

    @property
    def state(self) -> tuple[Any, ...]:
        """Whom the client has asked, and whether it was answered; for telling two states apart."""
        if self._asked is None:
            return ()
        at, task = self._asked
        return (at.alive, task.done())

    @property
    def done(self) -> bool:
        """Whether nothing is asked, and the client has what it wants at least."""
        return self._client is None or (self._asked is None and self._client.served)

    def due_at(self, now: int) -> int | None:
        """When the client will want something."""
        return None if self._client is None or self._asked is not None else self._client.due_at(now)

    def serve(self, process: Process, now: int) -> bool:
        """Let the client ask this process, if it wants something and waits for nobody's answer."""
        if self._client is None or not self._is_free():
            return False
        request = self._client.wants(now)
        if request is None:
            return False
        self._asked = (process, process.loop.create_task(request(process)))
        return True

    def _is_free(self) -> bool:
        if self._asked is None:
            return True
        at, task = self._asked
        if at.runs and not task.done():
            return False
        answered = task.done() and not task.cancelled() and task.exception() is None
        self._in_vain = 0 if answered else self._in_vain + 1
        self._asked = None
        return not self.stuck
