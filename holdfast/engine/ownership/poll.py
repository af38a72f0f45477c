"""Poll: an engine looks around, again and again.

Owns: when it looks, and what for: what other processes wrote, timers of runs that nobody owns, dead engines, orphans,
and whether it was declared dead itself.
Never: decides what becomes of what it finds (inbox.py, claim.py, shared_slots.py).
Invariants: hints only make a look come sooner. Everything is found without them.
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
DEAD_LOOK_SECONDS = 0.25
"""How often an engine looks whether another one has died: a read, and a lock that is tried, for each of them."""
HINT_SECONDS = 0.01
"""How soon after its last look an engine follows a hint."""


class PollLoop:
    """The eyes of one engine."""

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
        self._unowned_told = False
        """Perhaps there are runs that nobody drives."""
        self._mail_told = False
        """Perhaps there is mail: somebody wrote, and it was not looked for since."""
        self._others_wrote = False
        """Somebody has, since dead engines were last looked for."""
        self._next_dead = 0.0
        self._next_sweep = runtime.loop.time() + runtime.settings.sweep_seconds

    def start(self) -> None:
        """Look around from now on, until the engine is closed."""
        if self._runtime.drives:
            self._runtime.store.listen(self._hear)
        self._runtime.spawn(self.run())

    async def run(self) -> None:
        while self._runtime.fatal is None:
            await self.wait_for_next_poll()
            try:
                await self.poll_once()
            except Exception:  # one run that cannot be read must not make the engine deaf to all others
                if self._runtime.fatal is None:
                    log.exception("looking for work failed; trying again")
                    await asyncio.sleep(1.0)

    def _hear(self) -> None:
        """The store says, in a thread of its own, that something was written that wants an owner."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._runtime.loop.call_soon_threadsafe(self.hint)

    def hint(self) -> None:
        """Perhaps there is something for us."""
        self._unowned_told = True
        self._hinted.set()

    async def wait_for_next_poll(self) -> None:
        """Wait until the next look: less when there is something to see. But a moment in any case, or a crowd of hints
        would leave no time for anything else."""
        if self._claims.has_more_due_timers:
            await asyncio.sleep(0)
            return
        loop, pause = self._runtime.loop, self._runtime.settings.poll_seconds
        moment_over = loop.time() + min(pause, HINT_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._hinted.wait()
        if loop.time() < moment_over:
            await asyncio.sleep(moment_over - loop.time())
        self._hinted.clear()

    async def poll_once(self) -> None:
        """Look once. Safe to call at any time. While a server is away there is nothing to see."""
        runtime = self._runtime
        others_wrote = runtime.store.changed()
        if others_wrote is None:
            return
        now = runtime.loop.time()
        await self._look_at_writes(others_wrote)
        if now >= self._next_dead:
            self._next_dead = now + DEAD_LOOK_SECONDS
            await self._claims.release_dead_engines()
            if self._others_wrote:  # perhaps a run for whoever takes it; and an engine that stops leaves its own
                self._others_wrote = False
                self._unowned_told = True
        if now >= self._next_sweep:
            self._next_sweep = now + runtime.settings.sweep_seconds
            await self._claims.sweep()
        elif self._unowned_told:
            self._unowned_told = False
            try:
                await self._claims.claim_unowned()
            except Exception:
                self._unowned_told = True
                raise
        else:
            await self._claims.claim_if_room()

    async def _look_at_writes(self, others_wrote: bool) -> None:
        runtime = self._runtime
        if runtime.lease.lost or runtime.lease.former is not None:
            await self._take_new_identity()
        if others_wrote:
            runtime.hub.notify_all()
            self._mail_told = self._others_wrote = True
        if self._mail_told:
            await self._inbox.deliver_new()
            self._mail_told = False
        await self._claims.fire_due_timers()
        await self._shared_slots.poll(others_wrote)
        if self._lost_threads.too_many:
            self._custody.release_waiting_for_threads()

    # --- having been declared dead ---------------------------------------------------------------------------

    async def _take_new_identity(self) -> None:
        """Somebody declared this engine dead. It is another engine from now on: its old name and lock mean nothing."""
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
