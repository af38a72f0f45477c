"""Slots: how many bodies and runs may be at work at once, and which comes next.

Owns: the slots for sync bodies (threads), processes and bodies of crash suspects of this engine, and those of pools
that all engines of a store share: of a handler, and of a workflow (their `concurrency`). Of a shared pool this engine
has only the slots that it was granted (shared_slots.py). A slot for each try of a step whose node has a limit.
Never: starts a body; it grants a slot at once, or calls back when one is free.
Invariants: a body or step that holds a slot waits for one of another pool only where no holder of that pool waits, over
any number of pools, for one of its own. The call that would close such a circle is refused.
On crash: slots go with the engine's lease.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from holdfast.model.errors import UsageError
from holdfast.model.handlers import Handler
from holdfast.model.limits import ISOLATED_PROCESSES

Place = tuple[str, ...]
"""The pools in which a body or a run holds one slot each; empty when nothing limits it."""

Rank = tuple[int, int]
"""The priority of a run, then that of its node: a node's priority orders bodies of runs of the same priority only."""
_Waiting = tuple[Rank, int, Callable[[], bool]]
"""The rank, negated (the smallest comes first), order of asking, and what to call."""


class Slots:
    """Counts the slots of pools. A caller that needs a slot in several pools gets all of them or none."""

    def __init__(self, threads: int, processes: int) -> None:
        self._own = {"threads": threads, "processes": processes, "suspects": ISOLATED_PROCESSES}
        self.request_more: Callable[[str], None]
        """Called with a shared pool of which this engine needs more slots than it was granted (shared_slots.py)."""
        self.shared: dict[str, int] = {}
        """The limit of each shared pool that was asked for."""
        self._granted: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._waiting: dict[Place, list[_Waiting]] = {}
        self._order = itertools.count()

    def place_for(self, handler: Handler, concurrency: int | None, *, isolated: bool = False) -> Place:
        """The pools that a body of this handler needs a slot in. Crash suspects have a pool of their own, so that no
        other body waits for them."""
        pools: list[str] = []
        if handler.kind == "process":
            pools.append("processes")
        elif isolated:
            pools.append("suspects")
        elif handler.kind == "sync":
            pools.append("threads")
        if concurrency is not None:
            pools.append(self._share(f"handler:{handler.name}", concurrency))
        return tuple(pools)

    def place_of_run(self, workflow: str, concurrency: int) -> Place:
        """The pool that a run of this workflow needs a slot in."""
        return (self._share(f"workflow:{workflow}", concurrency),)

    def place_of_step(self, handler: str, concurrency: int) -> Place:
        """The pool that a step of this handler needs a slot in: that of its bodies in graphs."""
        return (self._share(f"handler:{handler}", concurrency),)

    def _share(self, pool: str, limit: int) -> str:
        self.shared[pool] = limit
        return pool

    def resize(self, pool: str, size: int) -> None:
        """Change how many slots this engine has in a pool of its own. Slots in use stay in use."""
        self._own[pool] = size
        self._wake()

    def take(self, place: Place) -> bool:
        """Take a slot in every pool, or none at all."""
        if not self._fits(place):
            return False
        for pool in place:
            self._used[pool] = self._used.get(pool, 0) + 1
        return True

    def _fits(self, place: Place) -> bool:
        return all(self._used.get(pool, 0) < self._size(pool) for pool in place)

    def _size(self, pool: str) -> int:
        own = self._own.get(pool)
        return self._granted.get(pool, 0) if own is None else own

    def wait(self, place: Place, rank: Rank, wake: Callable[[], bool]) -> None:
        """Call `wake` when there is a slot, which it takes or not; higher rank first, then in order of asking."""
        of_run, of_node = rank
        heapq.heappush(self._waiting.setdefault(place, []), ((-of_run, -of_node), next(self._order), wake))
        for pool in place:
            if pool in self.shared:
                self.request_more(pool)

    def free(self, place: Place) -> None:
        """Return the slots, and call back those that were waiting for them."""
        for pool in place:
            self._used[pool] -= 1
        self._wake()
        for pool in self.shared:  # a waiter that also needs a thread may get one now
            if self.demand(pool) > 0:
                self.request_more(pool)

    def _wake(self) -> None:
        while True:
            fitting = [waiting for place, waiting in self._waiting.items() if waiting and self._fits(place)]
            if not fitting:
                return
            _, _, wake = heapq.heappop(min(fitting, key=lambda waiting: waiting[0][:2]))
            wake()  # a waiter that no longer needs its slot passes it on

    # --- shared pools ----------------------------------------------------------------------------------------

    def demand(self, pool: str) -> int:
        """How many more slots of a shared pool could be used here now."""
        waiting = sum(
            len(waiting) for place, waiting in self._waiting.items() if pool in place and self._has_own(place)
        )
        return min(waiting - self.spare(pool), self.shared[pool] - self._granted.get(pool, 0))

    def is_waited_for(self, pool: str) -> bool:
        return any(waiting for place, waiting in self._waiting.items() if pool in place)

    def _has_own(self, place: Place) -> bool:
        """Whether the pools that this engine does not share (threads, processes) have a free slot."""
        return all(self._used.get(pool, 0) < self._own[pool] for pool in place if pool in self._own)

    def spare(self, pool: str) -> int:
        """How many granted slots of a shared pool this engine does not use."""
        return max(0, self._granted.get(pool, 0) - self._used.get(pool, 0))

    def grant(self, pool: str, places: int) -> None:
        """This engine was granted more slots of a shared pool."""
        self._granted[pool] = self._granted.get(pool, 0) + places
        self._wake()

    def take_back(self, pool: str) -> int:
        """Stop using the spare slots of a shared pool, and return how many there were."""
        spare = self.spare(pool)
        if spare:
            self._granted[pool] -= spare
        return spare

    def forget_grants(self) -> None:
        """The engine was declared dead: its grants went with its lease."""
        self._granted.clear()

    def used(self) -> dict[str, int]:
        return {pool: n for pool, n in self._used.items() if n}


# --- steps of nodes that have a limit -------------------------------------------------------------------------------

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
