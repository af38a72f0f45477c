"""Fibers: blocking code that can be paused in its middle and continued later, or never.

Owns: threads that run only while their caller waits for them, so that never more than one runs and the order of
everything is determined.
On crash: a fiber that will never continue is ended with PowerCut, which unwinds it; nothing it still does has an
effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

from holdfast.testing.simulation.faults import PowerCut
from holdfast.testing.simulation.sandbox import allow_real_waiting

current_fiber: ContextVar[Fiber | None] = ContextVar("holdfast_current_fiber", default=None)


class Fiber:
    """One blocking call, run piece by piece."""

    def __init__(self, function: Callable[[], Any], context: Context, on_finished: Callable[[Fiber], None]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self._killed = False
        self._function = function
        self._context = context
        self._on_finished = on_finished
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="holdfast-fiber", daemon=True)
        with allow_real_waiting():
            self._thread.start()

    def resume(self) -> None:
        """Let it run until it pauses or has finished."""
        self._switch()
        if isinstance(self.error, PowerCut):
            raise PowerCut
        if self.finished:
            self._on_finished(self)

    def pause(self) -> None:
        """Called inside: return control to the caller until `resume`."""
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise PowerCut

    def kill(self) -> None:
        """Unwind it, unless it has finished."""
        if not self.finished:
            self._killed = True
            self._switch()
        if self.finished:  # else it caught even that, and waits for ever
            self._thread.join()

    def _switch(self) -> None:
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._context.run(current_fiber.set, self)
                self.value = self._context.run(self._function)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; `resume` reports it
            self.error = error
        finally:
            self.finished = True
            self._back.release()
