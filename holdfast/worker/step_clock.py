"""Step clock: the timeout and the heartbeat of a node that is called as a step.

Owns: when a try has used up its time, as for a node in a graph: time in calls on ctx that wait is not counted.
Never: stops a thread (step_threads.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from holdfast.model.errors import HeartbeatLost, HoldfastError, NodeTimeout


class StepClock:
    """The limits of one try. `scope` is entered around it, and raises TimeoutError when one of them is reached."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float | None, heartbeat: float | None) -> None:
        self.scope = asyncio.timeout(None)
        self._loop = loop
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._left = timeout
        """Seconds that are left, while the clock stands still."""
        self._ends_at: float | None = None
        self._beats_by: float | None = None
        self._waits = 0
        self._runs = False
        self._around = current_clock.get()
        """The clock of the step in which this step is called."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count, inside the scope."""
        token = current_clock.set(self)
        self._runs = True
        self._go_on()
        try:
            yield
        finally:
            self._runs = False
            current_clock.reset(token)

    def expired(self, name: str) -> HoldfastError | None:
        """The limit that was reached, if one was."""
        if not self.scope.expired():
            return None
        if self._beats_by is not None and (self._ends_at is None or self._beats_by < self._ends_at):
            return HeartbeatLost(f"step {name} did not call ctx.heartbeat() for {self._heartbeat:g} s")
        return NodeTimeout(f"step {name} ran longer than its timeout of {self._timeout:g} s")

    def beat(self) -> None:
        """The step is alive, and so is the step around it."""
        if self._around is not None:
            self._around.beat()
        if self._heartbeat is not None and not self._waits:
            self._beats_by = self._loop.time() + self._heartbeat
            self._set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The step waits in a call on ctx, and so does the step around it."""
        with contextlib.nullcontext() if self._around is None else self._around.paused():
            self._waits += 1
            if self._waits == 1:
                self._left = None if self._ends_at is None else self._ends_at - self._loop.time()
                self._ends_at = self._beats_by = None
                self._set()
            try:
                yield
            finally:
                self._waits -= 1
                if not self._waits:
                    self._go_on()

    def _go_on(self) -> None:
        now = self._loop.time()
        self._ends_at = None if self._left is None else now + self._left
        self._beats_by = None if self._heartbeat is None else now + self._heartbeat
        self._set()

    def _set(self) -> None:
        if self._runs and not self.scope.expired():
            limits = [at for at in (self._ends_at, self._beats_by) if at is not None]
            self.scope.reschedule(min(limits, default=None))


current_clock: ContextVar[StepClock | None] = ContextVar("holdfast_step_clock", default=None)
"""The clock of the step that runs in this task or thread, where it has limits."""
