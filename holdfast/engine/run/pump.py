"""Pump: which runs take a turn now, and which commit what they have buffered.

Owns: the queue of runs that have mail; one turn for each of them in one turn of the event loop, so that their commits
become one group; and the commits of what `lazy` runs have buffered.
Never: does a turn (turn.py), decides that a run waits (rules/waits.py).
"""

from __future__ import annotations

from holdfast.engine.messages import Inbox
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.run.actor import Life, RunActor
from holdfast.engine.run.bodies import Bodies
from holdfast.engine.run.turn import Turn, TurnParts
from holdfast.engine.runtime import Runtime
from holdfast.engine.starting import Starting
from holdfast.model import commands as cmd
from holdfast.rules.draft import Draft
from holdfast.store.row_types import Commit

_QUEUED = Life.QUEUED


class Pump:
    """Lets the runs of one engine take their turns."""

    def __init__(self, runtime: Runtime, custody: Custody, starting: Starting, inbox: Inbox, bodies: Bodies) -> None:
        self._runtime = runtime
        self._custody = custody
        self._parts = TurnParts(runtime, custody, starting, inbox, bodies, self._flush_in)
        self.queued: list[RunActor] = []
        """The runs that take a turn in this turn of the event loop."""

    def queue(self, actor: RunActor) -> None:
        """Take a turn for a run soon: all mailboxes that fill in one turn of the loop become one group of commits."""
        if not self.queued:
            self._runtime.loop.call_soon(self._pump)
        self.queued.append(actor)

    def _pump(self) -> None:
        actors, self.queued = self.queued, []
        clock = self._runtime.clock
        now, elapsed = clock.now(), clock.elapsed()
        for actor in actors:
            if actor.life is _QUEUED:  # it was not flushed, paused or detached meanwhile
                Turn(self._parts, actor, now, elapsed).take()
        self._runtime.committer.flush()

    def flush(self, actor: RunActor) -> None:
        """Commit what a lazy run has buffered."""
        if actor.write_buffer.entries and actor.life in (Life.IDLE, _QUEUED, Life.PAUSED):
            turn = Turn(self._parts, actor, self._runtime.clock.now(), None)
            try:
                commit = turn.commit()
            except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others continue
                self._custody.stop_loudly(actor, e)
                return
            self._runtime.committer.submit(commit, turn)
            self._runtime.committer.flush()

    def _flush_in(self, actor: RunActor, seconds: float | None) -> None:
        """Commit what an `interval` run has buffered, at least this often."""
        if seconds is not None and actor.flush_timer is None:
            actor.flush_timer = self._runtime.loop.call_later(seconds, self._flush_now, actor)

    def _flush_now(self, actor: RunActor) -> None:
        actor.flush_timer = None
        self.flush(actor)

    def awaken(self, actor: RunActor) -> None:
        """A suspended run was claimed: its timers run here now, and those that are due fire at once."""
        clock = self._runtime.clock
        now = clock.now()
        for timer in actor.due_timers(now):
            actor.submit(cmd.FireTimer(timer))
        if not actor.mailbox:  # else after the turn that decides it
            self._parts.bodies.set_alarms(actor, Draft(actor.state, now, clock.elapsed()))
            self._custody.schedule_eviction(actor)

    def first_commit(self, actor: RunActor) -> Commit:
        """The commit of a new run that another engine is to drive."""
        return Turn.of_new_run(self._parts, actor).commit()
