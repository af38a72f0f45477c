"""Hand-overs: whether a commit goes to the writer's thread, or the loop writes it by itself.

Owns: that question. The way to a thread and back takes a quarter of a small step's time; a loop that writes can do
nothing else meanwhile, and a disk that is busy may take a while.
Never: writes (committer).
"""

from __future__ import annotations

import asyncio
import selectors

SLOW_SECONDS = 0.005
"""A commit that took longer: the disk is busy, and the loop does not wait for it for a while."""
WAITING_SHARE = 0.02
"""How much of its time a loop waits for a disk that is slow, at most."""


def nobody_listens(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop watches no socket and no pipe but its own: while it writes nobody outside is kept waiting. Of a
    loop that cannot be asked nobody knows."""
    selector = getattr(loop, "_selector", None)
    if not isinstance(selector, selectors.BaseSelector):
        return False
    watched = selector.get_map()
    return watched is not None and len(watched) <= 1  # by which threads wake it
