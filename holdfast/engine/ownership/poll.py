"""Poll: the loop by which an engine finds work that other processes left in the database.

Owns: when it polls, and for what: writes of other processes, due timers and runs without an owner, dead engines, and
whether this engine was declared dead itself.
Never: decides what to do with what it finds (messages.py, claim.py, shared_slots.py).
Invariants: hints only make the next poll come sooner. Everything is found without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from holdfast.engine.messages import Inbox
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.runtime import Runtime
from holdfast.engine.shared_slots import LostThreads, SharedSlots

log = logging.getLogger("holdfast.engine")
DEAD_POLL_SECONDS = 0.25
"""How often an engine checks whether another one has died: a read, and one try of a lock, for each of them."""
HINT_SECONDS = 0.01
"""How soon after its last poll an engine follows a hint."""


class PollLoop:
    """The poll loop of one engine."""

    def __init__(
        self,
        runtime: Runtime,
        custody: Custody,
        claims: Claims,
        inbox: Inbox,
        shared_slots: SharedSlots,
        lost_threads: LostThreads,
    ) -> None:
        self._runtime = runtime
        self._custody = custody
        self._claims = claims
        self._inbox = inbox
        self._shared_slots = shared_slots
        self._lost_threads = lost_threads
        self._hinted = asyncio.Event()
        self._may_have_unowned = False
        """There may be runs without an owner."""
        self._may_have_messages = False
        """There may be new messages: another process has written since they were last read."""
        self._others_wrote = False
        """Another process has, since dead engines were last checked."""
        self._next_dead = 0.0
        self._next_sweep = runtime.loop.time() + runtime.settings.sweep_seconds

    def start(self) -> None:
        """Poll from now on, until the engine is closed."""
        if self._runtime.drives:
            self._runtime.store.listen(self._on_notification)
        self._runtime.spawn(self.run())

    async def run(self) -> None:
        while self._runtime.fatal is None:
            await self.wait_for_next_poll()
            try:
                await self.poll_once()
            except Exception:  # one run that cannot be read must not stop the polling for all others
                if self._runtime.fatal is None:
                    log.exception("polling failed; trying again")
                    await asyncio.sleep(1.0)

    def _on_notification(self) -> None:
        """The store notifies, in a thread of its own, that something was written that needs an owner."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._runtime.loop.call_soon_threadsafe(self.hint)

    def hint(self) -> None:
        """Poll soon: there may be work for this engine."""
        self._may_have_unowned = True
        self._hinted.set()

    async def wait_for_next_poll(self) -> None:
        """Wait until the next poll is due, less after a hint. But a moment in any case: many hints would otherwise
        leave no time for anything else."""
        if self._claims.has_more_due_timers:
            await asyncio.sleep(0)
            return
        loop, pause = self._runtime.loop, self._runtime.settings.poll_seconds
        not_before = loop.time() + min(pause, HINT_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._hinted.wait()
        if loop.time() < not_before:
            await asyncio.sleep(not_before - loop.time())
        self._hinted.clear()

    async def poll_once(self) -> None:
        """Poll once. Safe to call at any time. Does nothing while a server is unreachable."""
        runtime = self._runtime
        others_wrote = runtime.store.changed()
        if others_wrote is None:
            return
        now = runtime.loop.time()
        await self._follow_writes(others_wrote)
        if now >= self._next_dead:
            self._next_dead = now + DEAD_POLL_SECONDS
            await self._claims.release_dead_engines()
            if self._others_wrote:  # perhaps a new run without an owner, or the runs of an engine that stops
                self._others_wrote = False
                self._may_have_unowned = True
        if now >= self._next_sweep:
            self._next_sweep = now + runtime.settings.sweep_seconds
            await self._claims.sweep()
        elif self._may_have_unowned:
            self._may_have_unowned = False
            try:
                await self._claims.claim_unowned()
            except Exception:
                self._may_have_unowned = True
                raise
        else:
            await self._claims.claim_if_room()

    async def _follow_writes(self, others_wrote: bool) -> None:
        runtime = self._runtime
        if runtime.lease.lost or runtime.lease.former is not None:
            await self._take_new_identity()
        if others_wrote:
            runtime.hub.notify_all()
            self._may_have_messages = self._others_wrote = True
        if self._may_have_messages:
            await self._inbox.deliver_new()
            self._may_have_messages = False
        await self._claims.fire_due_timers()
        await self._shared_slots.poll(others_wrote)
        if self._lost_threads.too_many:
            self._custody.release_waiting_for_threads()

    # --- having been declared dead ---------------------------------------------------------------------------

    async def _take_new_identity(self) -> None:
        """Another engine has declared this one dead. Register under a new id: the old id and lock are void."""
        runtime, lease = self._runtime, self._runtime.lease
        if lease.lost:
            lease.renew_identity()
            await runtime.committer.insist(lease.register, runtime.offer.encode())
        await runtime.committer.insist(
            runtime.store.remove_engine, lease.former
        )  # frees what was started under that name
        self._shared_slots.forget_grants()
        await self._custody.detach_lost_runs()
        lease.settle()
        await self._claims.sweep()
