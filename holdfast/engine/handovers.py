"""Hand-overs: whether a commit goes to the writer's thread, or the loop writes it by itself.

Owns: that question. The way to a thread and back takes a quarter of a small step's time; a loop that writes does
nothing else meanwhile, and a disk that is busy may take a while.
Never: writes (committer).
"""

from __future__ import annotations

import asyncio
import signal
import threading

from holdfast.engine.asyncio_internals import watches_only_itself
from holdfast.store.row_types import Commit

SLOW_SECONDS = 0.002
"""A commit on the loop that took longer: the disk is busy, and the loop keeps away from it for a while."""
WAITING_SHARE = 0.1
"""How much of its time a loop waits for a disk that is slow, at most."""
KEEPS_AWAY_SECONDS = 60.0
ROWS_MAX, BYTES_MAX = 100, 100_000
"""A commit with more takes a millisecond and more on any disk: that is no time for a loop, and says nothing about the
disk."""


class Handovers:
    """What is known about the loop and its disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slow_until = 0.0

    def can_be_saved(self, commit: Commit) -> bool:
        """Whether nobody notices when the loop itself writes this commit."""
        if self._loop.time() < self._slow_until or not is_small(commit):
            return False
        return nobody_listens(self._loop) and not may_be_interrupted()

    def took(self, seconds: float) -> None:
        """How long the loop was at it."""
        if seconds > SLOW_SECONDS:
            self._slow_until = self._loop.time() + min(seconds / WAITING_SHARE, KEEPS_AWAY_SECONDS)


def is_small(commit: Commit) -> bool:
    """Whether it takes hardly longer than the smallest. What writes for other runs as well does not count as small."""
    if commit.children or commit.messages or commit.gone:
        return False
    if len(commit.events) + len(commit.nodes) + len(commit.waits) + len(commit.timers) > ROWS_MAX:
        return False
    return sum([len(event[-1]) for event in commit.events]) <= BYTES_MAX  # its data, which is a row's last column


def nobody_listens(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop watches no socket and no pipe but its own: while it writes nobody outside is kept waiting. Of a
    loop that cannot be asked nobody knows."""
    return watches_only_itself(loop)


def may_be_interrupted() -> bool:
    """Whether Ctrl-C would break into whatever this thread does, and the program may go on after it, as in a REPL.
    `asyncio.run` makes a cancellation of it."""
    return (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.get_ident() == threading.main_thread().ident
    )
