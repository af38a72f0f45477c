"""Ranges: a set of whole numbers that is small when they lie close together.

Owns: which items of a map are done, in memory and in the map's row. Items end nearly in order, so 100,000 of them are a
handful of pairs.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec


class Ranges(msgspec.Struct, array_like=True):
    """A set of ints as sorted, disjoint, non-touching half-open pairs."""

    starts: list[int] = []
    ends: list[int] = []

    def add(self, n: int) -> None:
        """Put one number in; a second time changes nothing."""
        starts, ends = self.starts, self.ends
        i = bisect_right(starts, n)
        if i and n < ends[i - 1]:
            return
        joins_left = i > 0 and ends[i - 1] == n
        joins_right = i < len(starts) and starts[i] == n + 1
        if joins_left and joins_right:
            ends[i - 1] = ends.pop(i)
            starts.pop(i)
        elif joins_left:
            ends[i - 1] = n + 1
        elif joins_right:
            starts[i] = n
        else:
            starts.insert(i, n)
            ends.insert(i, n + 1)

    def __contains__(self, n: int) -> bool:
        i = bisect_right(self.starts, n)
        return i > 0 and n < self.ends[i - 1]

    def __len__(self) -> int:
        return sum(self.ends) - sum(self.starts)
