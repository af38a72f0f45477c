"""Effects: what is done once a turn is committed.

Owns: their order: who asked is answered; bodies are answered, started, stopped; other parts of the engine hear of it;
what the rules asked for is brought; timers are set; the run rests, or has ended.
Never: does anything that the committed state does not order.
On crash: they are derived again from committed state. (A `lazy` run has those that stay inside it before its commit.)
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.engine import bodies, resting, supplies
from holdfast.engine.alarms import Alarms
from holdfast.engine.turns import Reply
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.state import OpenScope
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.rules.draft import Draft, Extras

if TYPE_CHECKING:
    from holdfast.engine.actor import RunActor

_TERMINAL_EVENTS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
_RUNNING, _RUN_SUSPENDED = NodeStatus.RUNNING, RunStatus.SUSPENDED
"""Members that every step is compared with: to look one up in its Enum takes as long as a call."""


def perform(actor: RunActor, draft: Draft, replies: Sequence[Reply]) -> None:
    """Do what the events of a turn order."""
    engine = actor.engine
    for done, answer, refusal in replies:
        done(answer, refusal)
    extras = draft.extras
    if extras is not None:
        _answer_and_supersede(actor, extras)
    for ns, args in draft.started:
        if ns.status is not _RUNNING or engine.executor.is_live(actor.run_no, ns.node, ns.path):
            continue
        if ns.memory_seq >= draft.since or bodies.take_place_again(actor, ns):
            bodies.start(actor, ns, args, draft.since)
    if extras is not None:
        for ns in extras.cancels:
            if not ns.settled:
                bodies.cancel(actor, ns)
        if extras.messages:
            engine.inbox.look_soon()
        if extras.outcomes:
            engine.inbox.settled(extras.outcomes)
            actor.delivered.difference_update(outcome.message_id for outcome in extras.outcomes)
        if extras.pauses:
            engine.executor.pause(actor.run_no)
    if actor.state.seq >= draft.since or (extras is not None and extras.outcomes):  # a kept signal has no event
        engine.hub.moved(actor.run_no)
    follow_up(actor, draft)


def _answer_and_supersede(actor: RunActor, extras: Extras) -> None:
    """Before anything starts: what is superseded may be an earlier visit of the same node."""
    for answer in extras.answers:
        ns, wait = answer.instance, answer.wait
        actor.engine.executor.answer(actor.run_no, ns.node, ns.path, wait.wait_id, answer.outcome, answer.value)
    for ns in extras.cancels:
        if ns.settled:
            bodies.supersede(actor, ns)


def follow_up(actor: RunActor, draft: Draft) -> None:
    """Effects that wait for something: values, timers, idleness, the end. Also of a turn without an event."""
    state = actor.state
    if state.status in RUN_TERMINAL:
        actor.ended(_end(draft))
        return
    if actor.is_for_others:
        actor.leave(None)
        actor.engine.recovery.is_behind = True  # whoever has room takes it, perhaps we
        actor.engine.inbox.look_soon()  # whatever came in while we let go must find an owner
        return
    if draft.extras is not None:
        for scope in draft.extras.params_wanted:
            _provide_params(actor, scope)
    if draft.undo_wanted:
        actor.engine.spawn(_provide_undo(actor))
    if draft.finish:
        actor.engine.spawn(_provide_result(actor))
    if state.timers or actor.alarms is not None or _has_late_starts(draft):
        set_alarms(actor, draft)
    if actor.resting is not None or not actor.has_code or state.status is _RUN_SUSPENDED:
        resting.rest(actor)


def _end(draft: Draft) -> ev.RunCompleted | ev.RunFailed | ev.RunCancelled | None:
    """How the run has ended, if it was in this turn."""
    for entry in reversed(draft.entries):
        if isinstance(entry.event, _TERMINAL_EVENTS):
            return entry.event
    return None


def _has_late_starts(draft: Draft) -> bool:
    for ns in draft.scheduled:  # noqa: SIM110 - of every step: the loop takes a third of what `any` does
        if ns.not_before:
            return True
    return False


def set_alarms(actor: RunActor, draft: Draft) -> None:
    """Bring the run's wake-ups in line with its timers, and with starts that this turn delayed."""
    if actor.alarms is None:
        start = functools.partial(bodies.start_if_wanted, actor)
        actor.alarms = Alarms(actor.engine, lambda timer: actor.tell(cmd.FireTimer(timer)), start)
    actor.alarms.set(actor.state, draft)


# --- what the rules asked for ---------------------------------------------------------------------------------------


def _provide_params(actor: RunActor, scope: OpenScope) -> None:
    if actor.held.entries:  # a map's output is read from its rows
        actor.engine.spawn(_provide_params_later(actor, scope))
    else:
        actor.tell(supplies.params(actor.engine.values, actor.state, scope))


async def _provide_params_later(actor: RunActor, scope: OpenScope) -> None:
    await actor.flushed()
    if not actor.gone:
        _provide_params(actor, scope)


async def _provide_undo(actor: RunActor) -> None:
    await actor.flushed()
    actor.tell(supplies.undo(actor.plan, await asyncio.to_thread(actor.engine.store.nodes, actor.run_no)))


async def _provide_result(actor: RunActor) -> None:
    try:
        result = await actor.load_slowly(supplies.located_result(actor.state))
    except HoldfastError as e:
        actor.tell(supplies.no_result(e))
        return
    actor.tell(supplies.result(result))
