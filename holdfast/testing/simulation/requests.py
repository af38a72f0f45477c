"""Requests: what a client outside asks of the processes, repeated until there is a response.

Owns: which process was asked, and when to ask again: one that died, hangs or reported an error has not responded.
Never: knows what is asked (explorer/client.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdfast.testing.simulation.process import Process

ASKED_MAX = 60
"""How often the same request is repeated before the world counts as stuck."""
Request = Callable[[Process], Coroutine[Any, Any, None]]
"""A request to the engine of a process."""


class Client(Protocol):
    """A caller of the engines, from outside."""

    @property
    def served(self) -> bool:
        """True if the world may end, as far as the client is concerned, once every run has ended."""
        ...

    def wants(self, now: int) -> Request | None: ...
    def due_at(self, now: int) -> int | None:
        """When it makes its next request, if nothing else happens."""
        ...


class Requests:
    """The requests of one client, one at a time."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._asked: tuple[Process, asyncio.Task[None]] | None = None
        self._in_vain = 0

    @property
    def stuck(self) -> bool:
        """True if no process ever responds."""
        return self._in_vain > ASKED_MAX

    @property
    def state(self) -> tuple[Any, ...]:
        """Which process was asked, and whether it has responded; to distinguish two states."""
        if self._asked is None:
            return ()
        at, task = self._asked
        return (at.alive, task.done())

    @property
    def done(self) -> bool:
        """True if no request is pending, and the client has at least what it wants."""
        return self._client is None or (self._asked is None and self._client.served)

    def due_at(self, now: int) -> int | None:
        """When the client makes its next request."""
        return None if self._client is None or self._asked is not None else self._client.due_at(now)

    def serve(self, process: Process, now: int) -> bool:
        """Let the client ask this process, if it has a request and waits for no response."""
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
