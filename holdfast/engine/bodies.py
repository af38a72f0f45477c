"""Bodies: how the bodies of one run come to run here, and are told to stop.

Owns: taking places for them, orders to the executor, and bodies that have their answer and no place yet.
Never: decides that a body starts or ends (rules), counts places (slots.py), runs anything (executor).
On crash: places go with the engine; whoever takes the run over starts its bodies again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.protocols import Attempt
from holdfast.engine.slots import Place
from holdfast.model import commands as cmd
from holdfast.model.state import NodeState
from holdfast.model.statuses import NodeStatus
from holdfast.rules import nodes

if TYPE_CHECKING:
    from holdfast.engine.actor import RunActor


def take_place(actor: RunActor, ns: NodeState) -> bool:
    """Whether a scheduled body may start now: its code is here, and there was a place for it. If only that is missing,
    it starts when there is one."""
    engine = actor.engine
    if actor.state.fold.paused or actor.is_for_others:
        return False  # it is scheduled again when the pause ends, or by whoever takes the run
    if actor.places and ns.key in actor.places:
        return True  # it was kept for this body
    place = engine.place_for(ns) if actor.has_code or actor.runs_here() else None
    if place is None:
        return False  # its code is not here
    return not (place or engine.isolation.closed) or _take_limited(actor, ns, place)


def _take_limited(actor: RunActor, ns: NodeState, place: Place) -> bool:
    """The same where bodies of its kind are limited, or where runs are looked at one at a time."""
    engine, key = actor.engine, ns.key

    def again() -> bool:
        return start_if_wanted(actor, *key)

    if engine.isolation.closed and not engine.isolation.admits(actor.run_no, again):
        return False
    if place and not engine.slots.take(place):
        engine.slots.wait(place, _priority(actor, ns), again)
        return False
    if place:
        actor.places[key] = place
    return True


def start_if_wanted(actor: RunActor, node: str, path: str) -> bool:
    """A place has become free, or it is time: start a body that is still scheduled, if there is a place for it."""
    ns = actor.state.nodes.get((node, path))
    if actor.gone or ns is None or ns.status is not NodeStatus.SCHEDULED or not take_place(actor, ns):
        return False
    actor.tell(cmd.StartNode(node, path))
    return True


def _priority(actor: RunActor, ns: NodeState) -> int:
    return actor.state.fold.settings.priority * 1000 + ns.plan.definition.priority


# --- bodies that run again because their answer is there ------------------------------------------------------------


def take_place_again(actor: RunActor, ns: NodeState) -> bool:
    """A body that was left has its answer and runs again: where bodies of its kind are limited it needs a place like
    any other, and runs when there is one."""
    node, path = key = ns.key
    place = actor.engine.place_for(ns)
    if key in actor.places or not place:
        return True
    if actor.engine.slots.take(place):
        actor.places[key] = place
        return True
    actor.queueing.add(key)
    actor.engine.slots.wait(place, _priority(actor, ns), lambda: _run_if_wanted(actor, node, path))
    return False


def _run_if_wanted(actor: RunActor, node: str, path: str) -> bool:
    """A place has become free for a body that has its answer, if it still wants it."""
    ns = actor.state.nodes.get((node, path))
    if actor.gone or ns is None or ns.key not in actor.queueing:
        return False
    actor.queueing.discard(ns.key)
    return ns.status is NodeStatus.RUNNING and _run_again(actor, ns)


def _run_again(actor: RunActor, ns: NodeState) -> bool:
    if not take_place_again(actor, ns):
        return False
    start(actor, ns, nodes.located_args(actor.state, ns), actor.state.seq + 1)
    return True


def left(actor: RunActor, key: tuple[str, str]) -> None:
    """A body was left and said nothing. If it counts as running, its thread was given back because it waits, and the
    answer came before it had gone: it runs again."""
    ns = actor.state.nodes.get(key)
    if ns is None or ns.status is not NodeStatus.RUNNING or ns.cancelling:
        return
    if actor.restarted_at == actor.state.seq:  # it did not: what it waits for is known to another owner only
        actor.engine.spawn(actor.engine.patrol.leave_lost())
        return
    actor.restarted_at = actor.state.seq
    _run_again(actor, ns)


def leave_queue(actor: RunActor) -> None:
    """The engine stops: bodies that have their answer and no place yet go on later, with the same attempt."""
    for node, path in actor.queueing:
        ns = actor.state.nodes.get((node, path))
        if ns is not None and ns.status is NodeStatus.RUNNING:
            actor.tell(cmd.StopNode(node, path, ns.attempt, visit=ns.visit))
    actor.queueing.clear()


# --- orders to the executor -----------------------------------------------------------------------------------------


def start(actor: RunActor, ns: NodeState, args: dict[str, Any], since: int) -> None:
    """Run a body. What it remembers, if anything, is in events before `since`."""
    handler = actor.engine.handler(ns.plan.definition.uses)
    if handler is None:
        return
    attempt = Attempt(
        port=actor,
        plan=actor.plan,
        definition=ns.plan.definition,
        handler=handler,
        node=ns.node,
        path=ns.path,
        visit=ns.visit,
        attempt=ns.attempt,
        failures=ns.failures,
        memory_seq=ns.memory_seq,
        has_memory=ns.memory_seq < since,
        args=args,
        captures=ns.plan.captures,
    )
    actor.engine.executor.start(attempt)


def cancel(actor: RunActor, ns: NodeState) -> None:
    """Ask a body to stop."""
    engine = actor.engine
    if engine.executor.is_live(actor.run_no, ns.node, ns.path):
        engine.executor.cancel(actor.run_no, ns.node, ns.path, engine.settings.grace_seconds)
    elif ns.status is NodeStatus.RUNNING:  # nobody runs it (its code is not here): there is nothing to wait for
        actor.tell(cmd.DropNode(ns.node, ns.path, ns.attempt, visit=ns.visit))


def supersede(actor: RunActor, ns: NodeState) -> None:
    """A body that waited is not wanted any more: its end is recorded already."""
    place = actor.places.pop(ns.key, None)
    actor.engine.executor.supersede(actor.run_no, ns.node, ns.path)
    current = actor.state.nodes.get(ns.key)
    if place and current is not None and current.status is NodeStatus.RUNNING:
        actor.places[ns.key] = place  # the next visit has taken it in this turn
    elif place:
        actor.engine.slots.free(place)
