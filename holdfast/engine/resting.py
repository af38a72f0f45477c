"""Resting: a run that waits, or whose code is not here, does not stay in memory.

Owns: when a run is let go of, with its lease, although it has not ended. A suspended run costs a row.
Never: decides that a run waits (rules/waits.py), or wakes one that was let go of (recovery.py, inbox.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.statuses import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.actor import RunActor
    from holdfast.engine.engine import Engine

BUSY_SECONDS = 0.1
"""How soon a suspended run is looked at again in which a body has gone on by itself, and must not be left now."""


def rest(actor: RunActor) -> None:
    """Let go of a run in a while if it waits, or at once if nothing of it can run here; not of any other."""
    engine = actor.engine
    if actor.resting is not None:
        actor.resting.cancel()
        actor.resting = None
    if actor.state.status is RunStatus.SUSPENDED:
        limit = engine.settings.concurrency
        is_one_too_many = limit is not None and len(engine.actors) > limit
        actor.resting = engine.loop.call_later(0 if is_one_too_many else engine.settings.idle_seconds, _evict, actor)
        if actor.counted:  # another run of its workflow may go to work
            engine.starting.run_left(actor)
        engine.recovery.room_left()
    elif not (actor.mailbox or actor.held.entries or actor.runs_here()):
        actor.resting = engine.loop.call_soon(_evict, actor)


def make_room(engine: Engine) -> None:
    """Let go of one run that waits: any of those in memory may wake, and then all of them are at work. One that has not
    been told yet that it waits goes when it is (`rest`)."""
    for actor in engine.actors.values():
        waits = actor.state.status is RunStatus.SUSPENDED and actor.resting is not None and not actor.paused
        if waits and not _has_something_to_do(actor) and engine.executor.is_idle(actor.run_no):
            assert actor.resting is not None
            actor.resting.cancel()
            _evict(actor)
            return


def _evict(actor: RunActor) -> None:
    engine = actor.engine
    actor.resting = None
    if _has_something_to_do(actor):
        return
    if actor.state.status is RunStatus.SUSPENDED and not engine.executor.is_idle(actor.run_no):
        later = max(engine.settings.idle_seconds, BUSY_SECONDS)
        actor.resting = engine.loop.call_later(later, _evict, actor)
    else:
        actor.leave(None)
        engine.spawn(engine.release(actor))


def _has_something_to_do(actor: RunActor) -> bool:
    return bool(actor.gone or actor.in_flight or actor.mailbox)
