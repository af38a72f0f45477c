"""Lost threads: an engine that has given up too many threads starts no sync bodies until some of them end.

Owns: when that is so, saying it (the log, the engine's offer), and leaving the runs that only wait for a thread to
other engines.
Never: counts threads (worker/threads.py), fails a run.
On crash: the threads die with the process; the next engine begins with none lost.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.run.actor import Life, RunActor
from holdfast.model.limits import GIVEN_UP_THREADS_MAX
from holdfast.model.plans import Plan, handlers_of
from holdfast.model.statuses import NodeStatus

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")


class LostThreads:
    """The threads that one engine has lost to bodies and steps that did not stop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.too_many = False
        """Sync bodies and sync steps wait."""

    def changed(self, given_up: int) -> None:
        """A thread was given up, or the function of one has returned after all. Called on the engine's loop."""
        engine, before = self._engine, self.too_many
        self.too_many = given_up > GIVEN_UP_THREADS_MAX
        if self.too_many != before:
            engine.slots.resize("threads", 0 if self.too_many else engine.settings.threads)
            if self.too_many:
                log.error(
                    "engine %s starts no more sync bodies: %d threads are lost to bodies and steps that did not stop "
                    "after their timeout, cancellation or end (at most %d are allowed). Runs that need a thread wait, "
                    "or another engine takes them. Let those bodies check ctx.cancelled, or declare them with "
                    "process=True, which can be killed; restart this engine if they never end",
                    engine.lease.engine, given_up, GIVEN_UP_THREADS_MAX,
                )  # fmt: skip
            else:
                log.warning("engine %s starts sync bodies again: %d threads are lost", engine.lease.engine, given_up)
                engine.poll_loop.hint()
        if (self.too_many or before) and not engine.stopping:
            engine.spawn(self._say(given_up if self.too_many else 0))

    async def _say(self, lost: int) -> None:
        engine = self._engine
        engine.offer = msgspec.structs.replace(engine.offer, lost_threads=lost)
        await engine.committer.insist(engine.store.set_offer, engine.lease.engine, engine.offer.encode())

    def keep_from(self, plan: Plan) -> bool:
        """Whether runs of a workflow are not for this engine now."""
        if not self.too_many:
            return False
        found = [self._engine.handler(name) for name in handlers_of(plan.definition.nodes)]
        return any(handler is not None and handler.kind == "sync" for handler in found)

    def leave_waiting(self) -> None:
        """Let go of runs that only wait for a thread here, so that another engine can take them."""
        engine = self._engine
        for actor in list(engine.actors.values()):
            if self._only_waits(actor):
                actor.detach(None)
                engine.spawn(engine.release(actor))

    def _only_waits(self, actor: RunActor) -> bool:
        if actor.life is not Life.IDLE or actor.write_buffer.entries:
            return False
        scheduled = [ns for ns in actor.state.nodes.values() if ns.status is NodeStatus.SCHEDULED]
        isolated = actor.is_suspect
        waits = any("threads" in (self._engine.place_for(ns, isolated=isolated) or ()) for ns in scheduled)
        return waits and not actor.body_slots and self._engine.executor.is_idle(actor.run_no)
