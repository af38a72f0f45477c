"""Time limits: the timeout and the heartbeat of a body, and of a node that is called as a step.

Owns: when an attempt or a try has used up its time. Time in calls on ctx that wait is not counted.
Never: stops anything: a body is stopped by its activation, a thread by tries.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from holdfast.model.errors import HeartbeatLost, HoldfastError, NodeTimeout


class BodyClock:
    """The limits of one execution of a body; made only where its node has some. `expire` is called with the limit that
    was reached."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: str,
        timeout: float | None,
        heartbeat: float | None,
        expire: Callable[[HoldfastError], None],
    ) -> None:
        self._loop = loop
        self._node = node
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._expire = expire
        self._left = timeout
        """Seconds that are left, while the clock is paused."""
        self._since = 0.0
        self._runs = False
        self._deadline: asyncio.TimerHandle | None = None
        self._next_beat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Count from here; does nothing while it counts."""
        if self._runs:
            return
        self._runs = True
        self.beat()
        if self._left is not None and self._timeout is not None:
            self._since = self._loop.time()
            why = timed_out(self._node, self._timeout)
            self._deadline = self._loop.call_later(max(0.0, self._left), self._expire, why)

    def pause(self) -> None:
        """Stop counting, until `start`."""
        if not self._runs:
            return
        self._runs = False
        if self._next_beat is not None:
            self._next_beat.cancel()
        if self._deadline is not None and self._left is not None:
            self._deadline.cancel()
            self._left -= self._loop.time() - self._since

    def beat(self) -> None:
        """The body is alive."""
        if self._heartbeat is None or not self._runs:
            return
        if self._next_beat is not None:
            self._next_beat.cancel()
        why = HeartbeatLost(f"{self._node} did not call ctx.heartbeat() for {self._heartbeat:g} s")
        self._next_beat = self._loop.call_later(self._heartbeat, self._expire, why)


def timed_out(node: str, timeout: float) -> NodeTimeout:
    return NodeTimeout(f"{node} ran longer than its timeout of {timeout:g} s")


class StepClock:
    """The limits of one try. `scope` is entered around it, and raises TimeoutError when one of them is reached."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float | None, heartbeat: float | None) -> None:
        self.scope = asyncio.timeout(None)
        self._loop = loop
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._left = timeout
        """Seconds that are left, while the clock is paused."""
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
