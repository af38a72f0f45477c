"""Turns: everything that has arrived for a run, decided into one draft.

Owns: what is decided together: the commands; that a body of which nothing goes on is suspended; starts for which there
is a place; the result, if it is at hand.
Never: decides by itself (rules), or lets anybody know: that is for after the commit (effects.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine import bodies, supplies
from holdfast.engine.inbox import informed
from holdfast.engine.protocols import Done
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.graph import Plan
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.rules import decide, nodes
from holdfast.rules.draft import Draft, Refusal

if TYPE_CHECKING:
    from holdfast.engine.actor import RunActor

Mail = tuple[Any, Done | None]
"""A command, and who wants to hear what became of it."""
Reply = tuple[Done, Any, BaseException | None]
"""Who is told, once it is durable, and what: the rule's answer, or why it was refused."""
_SCHEDULED, _RUNNING = NodeStatus.SCHEDULED, NodeStatus.RUNNING
"""Members that every step is compared with: to look one up in its Enum takes as long as a call."""
_MESSAGE, _SUSPEND, _NODE_COMPLETED = cmd.Message, cmd.SuspendNode, ev.NodeCompleted
_PARKING = frozenset({cmd.OpenWait, cmd.SuspendNode})
"""What a body says when a part of it waits."""


def take(actor: RunActor, mailbox: Sequence[Mail], now: int) -> tuple[Draft, list[Reply]]:
    """One turn of a run: what comes of all that was told to it, and what those who told it are answered."""
    draft = Draft(actor.state, now)
    replies: list[Reply] = []
    if actor.is_for_others:
        draft.leaves_bodies = True
    if actor.creating is not None:
        draft.emit(actor.creating.event)
    waiting: tuple[cmd.OpenWait | cmd.SuspendNode, ...] = ()
    for command, done in mailbox:
        kind = type(command)
        if kind in _PARKING:
            waiting = (*waiting, command)
        if kind is _MESSAGE:
            command = informed(actor.engine.store, actor.state, command)
        try:
            answer = None if kind is _SUSPEND else decide.apply(draft, command)
        except Refusal as refusal:  # also when it ended earlier in this turn
            if done is not None:
                replies.append((done, None, refusal))
        else:
            if done is not None:
                replies.append((done, answer, None))
    if waiting:
        _suspend_parked(actor, draft, waiting)
    complete(actor, draft)
    return draft, replies


def take_first(actor: RunActor) -> Draft:
    """The first turn of a new run that nobody has told anything: it is created by another run, or for others to
    drive."""
    assert actor.creating is not None
    draft = Draft(actor.state, actor.engine.clock.now())
    draft.emit(actor.creating.event)
    if not actor.is_for_others and actor.engine.starting.admit(actor, cmd.Begin()):
        decide.apply(draft, cmd.Begin())
    for ns in draft.scheduled:
        if ns.not_before <= draft.now and bodies.take_place(actor, ns):
            nodes.start(draft, ns)
    return draft


def _suspend_parked(actor: RunActor, draft: Draft, waiting: Sequence[cmd.OpenWait | cmd.SuspendNode]) -> None:
    """Bodies that said that they wait, and of which nothing goes on after this turn, are suspended in it."""
    answered = () if draft.extras is None else [answer.instance.key for answer in draft.extras.answers]
    for key, c in {(c.node, c.path): c for c in waiting}.items():
        if key not in answered and actor.engine.executor.all_parked(actor.run_no, *key):
            with contextlib.suppress(Refusal):  # it ended earlier in this turn
                decide.apply(draft, cmd.SuspendNode(c.node, c.path, c.attempt, visit=c.visit))


def complete(actor: RunActor, draft: Draft) -> None:
    """What belongs into the same commit: starts for which there is a place, and the result if it is at hand."""
    for entry in draft.entries:
        event = entry.event
        if type(event) is not _NODE_COMPLETED or event.virtual or event.pended_at is not None:
            continue
        if entry.path == "." or _has_readers(actor.plan, entry):
            actor.engine.values.put(actor.run_no, entry.seq, bytes(event.output))
    for ns in draft.scheduled:
        if ns.status is _SCHEDULED and ns.not_before <= draft.now and bodies.take_place(actor, ns):
            nodes.start(draft, ns)
    if draft.started and (draft.leaves_bodies or not (actor.has_code or actor.runs_here())):
        _leave_bodies(draft)
    if draft.finish and actor.state.status not in RUN_TERMINAL:
        located = supplies.located_result(actor.state)
        if actor.engine.values.in_memory(actor.run_no, located):
            _finish(actor, draft, located)


def _has_readers(plan: Plan, entry: ev.Entry) -> bool:
    """Whether somebody will soon read an output by itself. The last node of an item has none: a map's output is
    read as a whole, from its rows, and 100,000 items must not fill the cache."""
    if entry.node is None or entry.path is None:
        return True
    scope = plan.scope_of(entry.path)
    if scope.parent is None or scope.parent.nodes[scope.owner].definition.kind != "map":
        return True
    return bool(scope.nodes[entry.node.removesuffix("~undo")].dependents)


def _leave_bodies(draft: Draft) -> None:
    """What was answered where its code is not goes on elsewhere, with the same attempt: nobody was cut off."""
    started, draft.started = draft.started, []
    for ns, _ in started:
        if ns.status is _RUNNING:
            decide.apply(draft, cmd.StopNode(ns.node, ns.path, ns.attempt, visit=ns.visit))


def _finish(actor: RunActor, draft: Draft, located: Any) -> None:
    try:
        finishing = supplies.result(actor.engine.values.load(actor.state, located))
    except HoldfastError as e:
        finishing = supplies.no_result(e)
    decide.apply(draft, finishing)
    draft.finish = False
