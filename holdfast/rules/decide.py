"""Decide: a command becomes events, or is refused.

Owns: which rule answers which command, and what is always asked at the end of a turn.
Pure: no clock, no I/O, no randomness, no await. `now` is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.state import HeldSignal, NodeState, RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.model.timers import question_timer
from holdfast.rules import nodes, pends, questions, races, recovery, resuming, runs, signals, tickets, undoing, waits
from holdfast.rules.draft import Draft, Outcome, Refusal


class ChildReport(msgspec.Struct):
    """The payload of `child_ended`."""

    child: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ev.ErrorInfo | None = None


class Asked(msgspec.Struct):
    """The payload of `cancel` and `pause`."""

    reason: str = ""
    actor: str = ""
    gives_up_undo: bool = False
    """Of a cancel: compensations that cannot run are recorded as failed."""
    hold: str = ""
    """Of a cancel: why the run was on hold while it compensated."""


class Answered(msgspec.Struct):
    """The payload of `answer`."""

    wait_id: str
    value: msgspec.Raw
    actor: str = ""


class HandedOn(msgspec.Struct):
    """The payload of `reassign`."""

    wait_id: str
    assignee: str | None = None
    basket: str | None = None
    actor: str = ""


class Signal(msgspec.Struct):
    """The payload of `signal`."""

    name: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


HELD = {"held": True}
"""What the sender of a signal is told that nobody waits for yet."""

T = TypeVar("T")
_MESSAGE, _CREATE = cmd.Message, cmd.Create
_child_report = msgspec.json.Decoder(ChildReport).decode
_asked = msgspec.json.Decoder(Asked).decode
_answered = msgspec.json.Decoder(Answered).decode
_handed_on = msgspec.json.Decoder(HandedOn).decode
_signal = msgspec.json.Decoder(Signal).decode
_resume = msgspec.json.Decoder(resuming.Resume).decode


def decide(state: RunState, command: Any, now: int) -> Draft:
    """The turn that one command leads to."""
    draft = Draft(state, now)
    apply(draft, command)
    return draft


def apply(d: Draft, command: Any) -> Any:
    """Add a command's consequences to a turn. Raises Refusal before anything was drafted for it."""
    kind = type(command)
    if d.state.status in RUN_TERMINAL and kind is not _MESSAGE:
        raise Refusal("finished", f"the run has {d.state.status}")
    answer = _RULES[kind](d, command)
    if kind is not _CREATE:
        settle(d)
    return answer


def settle(d: Draft) -> None:
    """Draw every consequence of what was drafted, and ask whether the run rests or ends."""
    nodes.draw_consequences(d)
    state = d.state
    if state.fold.ticket is not None:
        tickets.redeem(d)
    if state.fold.closing or not state.scopes["."].unsettled:
        runs.conclude(d)
    if state.waits or state.timers:
        waits.suspend_run(d)


def _begin(d: Draft, c: cmd.Begin) -> None:
    if d.state.fold.closing or runs.is_finished(d.state.status):
        raise Refusal("stale", "the run was cancelled before it began")
    runs.begin(d)


def _start(d: Draft, c: cmd.StartNode) -> None:
    ns = d.state.nodes.get((c.node, c.path))
    if ns is None or ns.status is not NodeStatus.SCHEDULED:
        raise Refusal("stale", f"{c.node}@{c.path} is not scheduled any more")
    if d.state.fold.paused:  # since its place became free; it starts when the pause ends
        raise Refusal("paused", f"{c.node}@{c.path} does not start while the run is paused")
    nodes.start(d, ns)


def _drop(d: Draft, c: cmd.DropNode) -> None:
    nodes.drop(d, nodes.current(d, c, NodeStatus.RUNNING))


def _record(d: Draft, c: cmd.RecordStep) -> int | None:
    """A body remembers something; of the end of a race the call that has won it, where it is another one."""
    winner = races.winner(d, c)
    if winner is None:
        ns = nodes.record(d, c, c.event)
        if c.races:
            races.won(d, ns, c.races)
    return winner


def _open_wait(d: Draft, c: cmd.OpenWait) -> str:
    given = questions.given(d, c) if d.state.fold.answers else None
    wait = waits.open_wait(d, c)
    match c.kind:
        case _ if wait.wait_id not in d.state.waits:
            pass  # it has lost a race, or there is nothing to wait for
        case "input" if given is not None:
            waits.close_wait(d, wait, "answered", bytes(given.value), given.actor)
        case "input":
            questions.asked(d, wait)
        case "signal":
            signals.wanted(d, wait)
    return wait.wait_id


def _fire(d: Draft, c: cmd.FireTimer) -> None:
    timer = c.timer
    if timer not in d.state.timers:
        raise Refusal("stale", f"timer {timer} is not set")
    wait = d.state.waits.get(timer)
    if wait is not None and wait.kind not in ("timer", ev.STEP_RETRY):
        questions.expire(d, wait)
    elif (of_question := question_timer(timer)) is not None:
        (questions.remind if of_question.kind == "remind" else questions.escalate)(d, of_question)
    else:
        waits.fire(d, timer)


def _checkpoint(d: Draft, c: cmd.Checkpoint) -> None:
    ns = nodes.current(d, c, NodeStatus.RUNNING, NodeStatus.SUSPENDED)
    if ns.status is NodeStatus.SUSPENDED:
        nodes.wake(d, ns)
    raw = {name: msgspec.Raw(value) for name, value in c.vars.items()}
    d.emit(ev.NodeCheckpointed(msgspec.Raw(c.value), {}, c.number, raw, c.captured_vars, c.patches), ns)
    ns.races = None


def _provide_params(d: Draft, c: cmd.ProvideParams) -> None:
    scope = d.state.scopes.get(c.scope_path)
    if scope is None:
        raise Refusal("stale", f"scope {c.scope_path} is closed")
    scope.params = c.values
    # scopes inside it were held back as well
    d.extra.opened += [inner for inner in d.state.scopes.values() if inner.path.startswith(scope.path)]
    nodes.params_known(d, scope)


def _message(d: Draft, c: cmd.Message) -> None:
    """A message is consumed with what it leads to, or refused for good; either way it is over."""
    try:
        if runs.is_finished(d.state.status):
            raise Refusal("finished", f"the run has {d.state.status} already")
        if c.refusal is not None:
            raise Refusal(*c.refusal)
        by, detail = _take(d, c)
    except Refusal as refusal:
        d.extra.outcomes.append(Outcome(c.message_id, "dead", refusal.code, refusal.why))
        if not runs.is_finished(d.state.status):
            d.emit(ev.MessageRefused(c.message_id, c.kind, refusal.code, refusal.why))
        return
    if detail == HELD:  # it will be consumed when it is received
        d.extra.outcomes.append(Outcome(c.message_id, "held", detail=detail))
        return
    d.extra.outcomes.append(Outcome(c.message_id, "consumed", detail=detail))
    d.emit(ev.MessageConsumed(c.message_id, c.kind), by)


def _take(d: Draft, c: cmd.Message) -> tuple[NodeState | None, dict[str, Any]]:
    """Do what a message asks for: the instance that it was for, and what its sender is told."""
    match c.kind:
        case "cancel":
            asked = _read(_asked, c)
            runs.cancel(d, asked.reason, asked.actor, gives_up_undo=asked.gives_up_undo, hold=asked.hold)
        case "pause":
            asked = _read(_asked, c)
            resuming.pause(d, asked.reason, asked.actor)
        case "resume":
            return None, {"resumed": resuming.resume(d, c, _read(_resume, c))}
        case "answer":
            answered = _read(_answered, c)
            return questions.answer(d, answered.wait_id, bytes(answered.value), answered.actor, c), {}
        case "reassign":
            to = _read(_handed_on, c)
            questions.reassign(d, to.wait_id, to.assignee, to.basket, to.actor, c)
        case "signal":
            signal = _read(_signal, c)
            receiver = signals.arrive(d, HeldSignal(c.message_id, signal.name, bytes(signal.payload)), c.sent_at)
            return receiver, HELD if receiver is None else {}
        case "child_ended":
            report = _read(_child_report, c)
            waits.child_ended(d, report.child, report.status, bytes(report.result), report.error)
        case _:
            raise Refusal("unknown_kind", f"this version does not know messages of kind {c.kind!r}")
    return None, {}


def _read(decode: Callable[[bytes], T], c: cmd.Message) -> T:
    try:
        return decode(c.payload)
    except msgspec.MsgspecError as e:
        raise Refusal("bad_request", f"this request cannot be read: {e}") from None


_RULES: dict[type[Any], Any] = {
    cmd.Create: lambda d, c: runs.create(d),
    cmd.Begin: _begin,
    cmd.StartNode: _start,
    cmd.CompleteNode: tickets.complete,
    cmd.FailNode: nodes.fail,
    cmd.DropNode: _drop,
    cmd.StopNode: runs.stop_node,
    cmd.BodyDied: recovery.body_died,
    cmd.RecordStep: _record,
    cmd.SendSignal: signals.send,
    cmd.PendNode: pends.pend,
    cmd.Checkpoint: _checkpoint,
    cmd.OpenWait: _open_wait,
    cmd.SuspendNode: waits.suspend_node,
    cmd.CloseWait: waits.give_up,
    cmd.FireTimer: _fire,
    cmd.ProvideParams: _provide_params,
    cmd.ProvideUndo: undoing.provide,
    cmd.FinishRun: runs.finish,
    cmd.FailRun: runs.fail,
    cmd.TakeOver: recovery.take_over,
    cmd.Message: _message,
}
