"""Step places: nodes with `concurrency` that bodies call as steps, counted with the same nodes in graphs.

Owns: a place in the pool of a handler for one try of a step, and refusing calls that could wait for each other.
Never: counts places (slots.py), asks the store for them (shared_slots.py).
Invariants: a body or step that holds a place waits for one of another pool only where no holder of that pool waits,
over any number of pools, for one of its own. The call that would close such a circle is refused.
On crash: places go with the engine's lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.engine.slots import Place, Rank
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from holdfast.engine.slots import Slots

Granted = Callable[[Exception | None], None]
"""Called once, when there is a place, or with the reason why there will be none."""


class StepPlace:
    """A place that a step waits for or holds."""

    def __init__(self, slots: Slots, place: Place, rank: Rank, granted: Granted) -> None:
        self._slots = slots
        self._place = place
        self._granted = granted
        self._held = self._over = False
        if not self._take():
            slots.wait(place, rank, self._take)

    def _take(self) -> bool:
        if self._over or not self._slots.take(self._place):
            return False
        self._held = True
        self._granted(None)
        return True

    def release(self) -> None:
        """Give the place back, or stop waiting for it. A second call does nothing."""
        if self._held:
            self._held = False
            self._slots.free(self._place)
        self._over = True


class Nesting:
    """Which handlers' bodies were seen to wait for a place of which others."""

    def __init__(self) -> None:
        self._waited_for: dict[str, set[str]] = {}

    def check(self, inside: Sequence[str], handler: str) -> None:
        """Note that a body or step that holds places of `inside` wants one of `handler`. Raises UsageError where they
        could wait for each other."""
        for holder in inside:
            if self._leads(handler, holder):
                raise UsageError(
                    f"{handler} has a concurrency limit and was called as a step inside {holder}, which has one as "
                    f"well{'' if holder == handler else f' and was called inside {handler} before'}: they could wait "
                    "for each other's places for ever. Remove the limit of one of them, or call the plain function: "
                    f"ctx.step({handler.rpartition('.')[2]}.fn, ...)"
                )
            self._waited_for.setdefault(holder, set()).add(handler)

    def _leads(self, start: str, to: str) -> bool:
        todo, seen = [start], set[str]()
        while todo:
            handler = todo.pop()
            if handler == to:
                return True
            if handler not in seen:
                seen.add(handler)
                todo += self._waited_for.get(handler, ())
        return False
