"""Shared slots: this engine's grants in the pools that all engines of a store share.

Owns: requesting slots from the store when bodies or runs of this engine wait for one, and returning unused ones; and
whether this engine has lost too many threads to start sync bodies.
Never: decides which body or run gets a slot (slots.py).
Invariants: the grants of all engines in a pool never exceed its limit. A grant belongs to the engine's lease: the
transaction that declares the engine dead frees its grants.
On crash: grants go with the engine's row. A body that still executes in the process of an engine that was declared dead
is not counted; its commits are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from holdfast.engine.runtime import Runtime
from holdfast.model.definition import handlers_of
from holdfast.model.limits import GIVEN_UP_THREADS_MAX
from holdfast.model.plans import Plan

log = logging.getLogger("holdfast.engine")

AGAIN_SECONDS = 0.25
"""How soon slots that were not available are requested again, if no other engine seems to have written."""


class SharedSlots:
    """Keeps the slots of one engine supplied with grants."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._committer = runtime.committer
        self._lease = runtime.lease
        self._slots = runtime.slots
        self._slots.request_more = self.request_more
        self._short: set[str] = set()
        """Pools for whose slots a body or run waits here."""
        self._spare: dict[str, int] = {}
        """Slots of each pool that were unused at the last poll."""
        self._asking = False
        self._next_ask = 0.0

    def request_more(self, pool: str) -> None:
        """Request slots of a pool on the next turn of the loop; requests of the same turn are batched."""
        self._short.add(pool)
        if not self._asking:
            self._asking = True
            self._runtime.spawn(self._ask())

    async def _ask(self) -> None:
        slots = self._slots
        self._next_ask = self._runtime.loop.time() + AGAIN_SECONDS
        try:
            asked: set[str] = set()
            while pools := self._short - asked:  # another pool may run short meanwhile
                asked.add(pool := min(pools))
                demand = slots.demand(pool)
                if demand <= 0:
                    if not slots.is_waited_for(pool):
                        self._short.discard(pool)
                    continue
                engine = self._lease.engine
                granted = await self._committer.insist(self._store.take_slots, engine, pool, demand, slots.shared[pool])
                if granted and engine == self._lease.engine:
                    slots.grant(pool, granted)
        finally:
            self._asking = False

    async def poll(self, others_wrote: bool) -> None:
        """Return slots that were unused since the last poll, and request again those that were not available: another
        engine may have returned them, or may have died."""
        slots = self._slots
        for pool in list(slots.shared):
            spare = slots.spare(pool)
            unused = min(spare, self._spare.get(pool, 0))
            self._spare[pool] = spare
            if unused and slots.demand(pool) <= 0:
                returned = slots.take_back(pool)
                self._spare[pool] = 0
                await self._committer.insist(self._store.give_slots, self._lease.engine, pool, returned)
        if self._short and not self._asking and (others_wrote or self._runtime.loop.time() >= self._next_ask):
            self._asking = True
            await self._ask()

    def forget_grants(self) -> None:
        """This engine was declared dead: its grants are free for other engines."""
        self._slots.forget_grants()
        self._spare.clear()
        self._short.update(self._slots.shared)


class LostThreads:
    """The threads that one engine has lost to bodies and steps that did not stop."""

    has_room_again: Callable[[], None]
    """Called when sync bodies may start again: runs may be claimed for them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.too_many = False
        """Sync bodies and sync steps wait."""

    def changed(self, given_up: int) -> None:
        """A thread was given up, or the function of one has returned after all. Called on the engine's loop."""
        runtime, before = self._runtime, self.too_many
        self.too_many = given_up > GIVEN_UP_THREADS_MAX
        if self.too_many != before:
            runtime.slots.resize("threads", 0 if self.too_many else runtime.settings.threads)
            if self.too_many:
                log.error(
                    "engine %s starts no more sync bodies: %d threads are lost to bodies and steps that did not stop "
                    "after their timeout, cancellation or end (at most %d are allowed). Runs that need a thread wait, "
                    "or another engine takes them. Let those bodies check ctx.cancelled, or declare them with "
                    "process=True, which can be killed; restart this engine if they never end",
                    runtime.lease.engine, given_up, GIVEN_UP_THREADS_MAX,
                )  # fmt: skip
            else:
                log.warning("engine %s starts sync bodies again: %d threads are lost", runtime.lease.engine, given_up)
                self.has_room_again()
        if (self.too_many or before) and not runtime.stopping:
            runtime.spawn(self._say(given_up if self.too_many else 0))

    async def _say(self, lost: int) -> None:
        runtime = self._runtime
        runtime.offer = msgspec.structs.replace(runtime.offer, lost_threads=lost)
        await runtime.committer.insist(runtime.store.set_offer, runtime.lease.engine, runtime.offer.encode())

    def keep_from(self, plan: Plan) -> bool:
        """Whether runs of a workflow are not for this engine now."""
        if not self.too_many:
            return False
        found = [self._runtime.handler(name) for name in handlers_of(plan.definition.nodes)]
        return any(handler is not None and handler.kind == "sync" for handler in found)
