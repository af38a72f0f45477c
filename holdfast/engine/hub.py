"""Hub: tells whoever listens in this process that a run has moved.

Owns: wake-ups. What has happened is read from the store; a lost wake-up costs a poll, never an event.
"""

from __future__ import annotations

import asyncio


class Hub:
    """One event per run that somebody follows."""

    def __init__(self) -> None:
        self._listeners: dict[int, list[asyncio.Event]] = {}

    def listen(self, run_no: int) -> asyncio.Event:
        """An event that is set whenever the run may have moved. Give it back with `leave`."""
        event = asyncio.Event()
        self._listeners.setdefault(run_no, []).append(event)
        return event

    def leave(self, run_no: int, event: asyncio.Event) -> None:
        listeners = self._listeners.get(run_no)
        if listeners is not None:
            listeners.remove(event)
            if not listeners:
                del self._listeners[run_no]

    def notify(self, run_no: int) -> None:
        """A run of this engine has a new event."""
        for event in self._listeners.get(run_no, ()):
            event.set()

    def notify_all(self) -> None:
        """Another process has written: everybody looks."""
        for listeners in self._listeners.values():
            for event in listeners:
                event.set()

    @property
    def listening(self) -> bool:
        return bool(self._listeners)
