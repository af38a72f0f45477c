"""Allowances: this engine's places in the pools that all engines of a store share.

Owns: asking the store for places when bodies or runs wait for one, and giving back those that nobody uses here.
Never: says who gets a place (slots.py).
Invariants: what all engines together were granted of a pool is never more than its limit. A place belongs to the
engine's lease: whoever declares the engine dead frees its places in the same transaction.
On crash: after the grant and before its use: the places go with the engine. A body that a dead engine's process still
runs can be beside its successor for a moment; nothing it says is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

AGAIN_SECONDS = 0.25
"""How soon is asked again for places that were not to be had, when nobody seems to have written."""


class Allowances:
    """Keeps one engine's slots supplied."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._short: set[str] = set()
        """Pools of which somebody here waits for a place."""
        self._spare: dict[str, int] = {}
        """What was not used at the last look."""
        self._asking = False
        self._next_ask = 0.0

    def short_of(self, pool: str) -> None:
        """Ask for places soon; whoever comes to wait in the same turn of the loop is asked for as well."""
        self._short.add(pool)
        if not self._asking:
            self._asking = True
            self._engine.spawn(self._ask())

    async def _ask(self) -> None:
        engine, slots = self._engine, self._engine.slots
        self._next_ask = engine.loop.time() + AGAIN_SECONDS
        try:
            asked: set[str] = set()
            while pools := self._short - asked:  # of another one somebody may run short meanwhile
                asked.add(pool := min(pools))
                wanted = slots.wanted(pool)
                if wanted <= 0:
                    if not slots.is_waited_for(pool):
                        self._short.discard(pool)
                    continue
                name = engine.lease.engine
                limit = slots.shared[pool]
                got = await engine.committer.insist(engine.store.take_slots, name, pool, wanted, limit)
                if got and name == engine.lease.engine:
                    slots.grant(pool, got)
        finally:
            self._asking = False

    async def look(self, others_wrote: bool) -> None:
        """Give back what has not been used since the last look, and ask again for what was not to be had: somebody may
        have given it back, or have died."""
        engine, slots = self._engine, self._engine.slots
        for pool in list(slots.shared):
            spare = slots.spare(pool)
            unused = min(spare, self._spare.get(pool, 0))
            self._spare[pool] = spare
            if unused and slots.wanted(pool) <= 0:
                given = slots.take_back(pool)
                self._spare[pool] = 0
                await engine.committer.insist(engine.store.give_slots, engine.lease.engine, pool, given)
        if self._short and not self._asking and (others_wrote or engine.loop.time() >= self._next_ask):
            self._asking = True
            await self._ask()

    def lost(self) -> None:
        """The engine was declared dead: what it had, others may have."""
        slots = self._engine.slots
        slots.lose_shared()
        self._spare.clear()
        self._short.update(slots.shared)
