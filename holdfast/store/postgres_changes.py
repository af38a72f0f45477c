"""Changes: whether somebody else has written to a server.

Owns: comparing two moments of a server, each told as `xmin:xmax:xip,xip,...`: every transaction below xmin has ended,
none from xmax on has begun, and of those between the listed ones are still under way.
Invariants: what has ended since the last look and is not our own is told once. A transaction of ours whose number was
not noted yet is taken for somebody else's: a hint too many, never one too few.
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class _Moment(NamedTuple):
    xmin: int
    xmax: int
    under_way: frozenset[int]

    def has_ended(self, transaction: int) -> bool:
        return transaction < self.xmax and transaction not in self.under_way


def _moment(snapshot: str) -> _Moment:
    xmin, xmax, under_way = snapshot.split(":")
    return _Moment(int(xmin), int(xmax), frozenset(map(int, under_way.split(","))) if under_way else frozenset())


class Changes:
    """What has been written since the last look, and by whom. Transactions of other databases of the same server count,
    too: the hint is cheap, and whoever follows it finds nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = _Moment(0, 0, frozenset())
        self._own: set[int] = set()

    def add_own(self, transaction: int) -> None:
        """This one is ours."""
        with self._lock:
            self._own.add(transaction)

    def look(self, snapshot: str) -> bool:
        """Whether a transaction of somebody else has ended between the last look and this snapshot."""
        now = _moment(snapshot)
        with self._lock:
            before, self._seen = self._seen, now
            ended = (now.xmax - len(now.under_way)) - (before.xmax - len(before.under_way))
            own = [one for one in self._own if now.has_ended(one)]
            new_of_ours = sum(not before.has_ended(one) for one in own)
            self._own.difference_update(own)
            return ended != new_of_ours
