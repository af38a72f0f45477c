"""Pump: which runs take a turn now, which commit what they have buffered, and which are evicted from memory.

Owns: the queue of runs that have mail; one turn for each of them in one turn of the event loop, so that their commits
become one group; commits of what `lazy` runs have buffered; and when a run that is suspended, or whose code is not
here, is evicted. A suspended run costs a row.
Never: does a turn (turn.py), decides that a run waits (rules/waits.py), or wakes one that was evicted (ownership/,
inbox.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.run.actor import Life, RunActor, WorkflowSlot
from holdfast.engine.run.turn import Turn
from holdfast.model import commands as cmd
from holdfast.model.statuses import RunStatus
from holdfast.model.timers import Elapsed
from holdfast.store.records.journal import CANNOT_BE_READ

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

_QUEUED, _DECIDING = Life.QUEUED, Life.DECIDING
BUSY_SECONDS = 0.1
"""How soon the eviction of a suspended run is tried again in which a body has resumed by itself."""


class Pump:
    """Lets the runs of one engine take their turns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.queued: list[RunActor] = []
        """The runs that take a turn in this turn of the event loop."""

    def queue(self, actor: RunActor) -> None:
        """Take a turn for a run soon: all mailboxes that fill in one turn of the loop become one group of commits."""
        if not self.queued:
            self._engine.loop.call_soon(self._pump)
        self.queued.append(actor)

    def _pump(self) -> None:
        actors, self.queued = self.queued, []
        clock = self._engine.clock
        now, elapsed = clock.now(), clock.elapsed()
        for actor in actors:
            if actor.life is _QUEUED:  # it was not flushed, paused or detached meanwhile
                self._take(actor, now, elapsed)
        self._engine.committer.flush()

    def _take(self, actor: RunActor, now: int, elapsed: Elapsed | None) -> None:
        """Decide what is in the mailbox, and hand the commit over."""
        actor.move(_DECIDING)
        mailbox, actor.mailbox = actor.mailbox, []
        try:
            turn = Turn(self._engine, actor, now, elapsed)
            turn.decide(mailbox)
            turn.fill()
            turn.hand_over()
        except CANNOT_BE_READ as e:
            self._engine.cannot_read(actor, e, [done for _, done in mailbox if done is not None])
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others go on
            self._engine.stop_loudly(actor, e, [done for _, done in mailbox if done is not None])
        if actor.life is _DECIDING:
            actor.move(Life.IDLE)

    def take_next(self, actor: RunActor) -> None:
        """Take the next turn of a run whose commit was just applied, and that has mail."""
        clock = self._engine.clock
        self._take(actor, clock.now(), clock.elapsed())

    def flush(self, actor: RunActor) -> None:
        """Commit what a lazy run has buffered."""
        if actor.write_buffer.entries and actor.life in (Life.IDLE, _QUEUED, Life.PAUSED):
            turn = Turn(self._engine, actor, self._engine.clock.now(), None)
            self._engine.committer.submit(turn.commit(), turn)
            self._engine.committer.flush()

    def flush_in(self, actor: RunActor, seconds: float | None) -> None:
        """Commit what an `interval` run has buffered, at least this often."""
        if seconds is not None and actor.flush_timer is None:
            actor.flush_timer = self._engine.loop.call_later(seconds, self._flush_now, actor)

    def _flush_now(self, actor: RunActor) -> None:
        actor.flush_timer = None
        self.flush(actor)

    def awaken(self, actor: RunActor) -> None:
        """A suspended run was claimed: its timers run here now, and those that are due fire at once."""
        clock = self._engine.clock
        now = clock.now()
        for timer in actor.due_timers(now):
            actor.submit(cmd.FireTimer(timer))
        if not actor.mailbox:  # else after the turn that decides it
            turn = Turn(self._engine, actor, now, clock.elapsed())
            turn.set_alarms()
            self.schedule_eviction(actor)

    # --- eviction ----------------------------------------------------------------------------------------------------

    def schedule_eviction(self, actor: RunActor) -> None:
        """Evict a run after a while if it is suspended, or at once if nothing of it can run here; keep any other."""
        engine = self._engine
        if actor.eviction is not None:
            actor.eviction.cancel()
            actor.eviction = None
        if actor.state.status is RunStatus.SUSPENDED:
            limit = engine.settings.concurrency
            is_one_too_many = limit is not None and len(engine.actors) > limit
            seconds = 0 if is_one_too_many else engine.settings.idle_seconds
            actor.eviction = engine.loop.call_later(seconds, self._evict, actor)
            if actor.workflow_slot is WorkflowSlot.HELD:  # another run of its workflow may go to work
                engine.starting.free_workflow_slot(actor)
            engine.claims.on_room_freed()
        elif not (actor.mailbox or actor.write_buffer.entries or actor.runs_here()):
            actor.eviction = engine.loop.call_soon(self._evict, actor)

    def evict_one(self) -> None:
        """Evict one suspended run: any of those in memory may wake, and then all of them are at work. A run whose
        suspension is not applied yet is evicted when it is (`schedule_eviction`)."""
        for actor in self._engine.actors.values():
            is_suspended = actor.state.status is RunStatus.SUSPENDED and actor.eviction is not None
            if is_suspended and actor.life is Life.IDLE and self._engine.executor.is_idle(actor.run_no):
                assert actor.eviction is not None
                actor.eviction.cancel()
                self._evict(actor)
                return

    def _evict(self, actor: RunActor) -> None:
        engine = self._engine
        actor.eviction = None
        if actor.has_work:
            return
        is_busy = actor.life is Life.PAUSED or not engine.executor.is_idle(actor.run_no)
        if actor.state.status is RunStatus.SUSPENDED and is_busy:
            later = max(engine.settings.idle_seconds, BUSY_SECONDS)
            actor.eviction = engine.loop.call_later(later, self._evict, actor)
        else:
            actor.detach(None)
            engine.spawn(engine.release(actor))
