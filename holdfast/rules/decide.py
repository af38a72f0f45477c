"""Decide: a command becomes events, or is refused.

Owns: which rule applies to which command, what a message from the inbox asks for, and what is checked at the end of
every turn.
Pure: no clock, no I/O, no randomness, no await. `now` is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, assert_never

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.state import HeldSignal, NodeState, RunState
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.timers import milestone_timer, question_timer
from holdfast.rules import body_reports, journeys, milestones, nodes, questions, resuming, runs, scopes, undoing, waits
from holdfast.rules.draft import Draft, Outcome, Refusal

_MESSAGE, _CREATE = cmd.Message, cmd.Create


def decide(state: RunState, command: cmd.Command, now: int) -> Draft:
    """The turn that one command leads to."""
    draft = Draft(state, now)
    apply(draft, command)
    return draft


def apply(d: Draft, command: cmd.Command) -> Any:
    """Add a command and its consequences to a turn; the answer for its sender. Raises Refusal if it does not apply."""
    kind = type(command)
    if d.state.status in RUN_TERMINAL and kind is not _MESSAGE:
        runs.refuse_finished(d)
    answer = _apply(d, command)
    if kind is not _CREATE:
        settle(d)
    return answer


def settle(d: Draft) -> None:
    """Propagate every consequence of what was drafted, and suspend or end the run where that follows."""
    nodes.propagate(d)
    state = d.state
    if state.fold.ticket is not None:
        nodes.redeem_ticket(d)
    if state.plan.definition.start:
        journeys.move_all(d)
    if state.plan.definition.milestones:
        milestones.settle(d)
    if state.fold.closing or not state.scopes["."].unsettled:
        runs.conclude(d)
    if state.waits or state.timers:
        waits.suspend_run(d)


def _apply(d: Draft, command: cmd.Command) -> Any:
    """The one rule of each command, the most frequent ones first."""
    match command:
        case cmd.CompleteNode():
            return body_reports.complete(d, command)
        case cmd.RecordStep():
            return waits.record_step(d, command)
        case cmd.StartNode():
            return nodes.start_node(d, command)
        case cmd.Begin():
            return runs.begin(d)
        case cmd.Create():
            return runs.create(d)
        case cmd.FinishRun():
            return runs.finish(d, command)
        case cmd.OpenWait():
            return _open_wait(d, command)
        case cmd.SuspendNode():
            return waits.suspend_node(d, command)
        case cmd.Message():
            return _message(d, command)
        case cmd.FireTimer():
            return _fire(d, command)
        case cmd.Checkpoint():
            return body_reports.checkpoint(d, command)
        case cmd.FailNode():
            return body_reports.fail(d, command)
        case cmd.PendNode():
            return body_reports.pend(d, command)
        case cmd.DropNode():
            return body_reports.cancelled(d, command)
        case cmd.CloseWait():
            return waits.close_by_body(d, command)
        case cmd.SendSignal():
            return questions.send_signal(d, command)
        case cmd.TakeOver():
            return resuming.take_over(d, command)
        case cmd.StopNode():
            return resuming.stop_node(d, command)
        case cmd.BodyDied():
            return resuming.body_died(d, command)
        case cmd.ProvideParams():
            return nodes.provide_params(d, command)
        case cmd.ProvideOutput():
            return scopes.provide_output(d, command)
        case cmd.ProvideUndo():
            return undoing.provide(d, command)
        case cmd.FailRun():
            return runs.fail(d, command)
        case _:
            assert_never(command)


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
            questions.use_held_signal(d, wait)
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
    elif (of_milestone := milestone_timer(timer)) is not None:
        milestones.reach(d, of_milestone)
    else:
        waits.fire(d, timer)


# --- messages ----------------------------------------------------------------------------------------------------


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


class Reassigned(msgspec.Struct):
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
"""The answer to the sender of a signal that no call waits for yet."""

T = TypeVar("T")
_child_report = msgspec.json.Decoder(ChildReport).decode
_asked = msgspec.json.Decoder(Asked).decode
_answered = msgspec.json.Decoder(Answered).decode
_reassigned = msgspec.json.Decoder(Reassigned).decode
_signal = msgspec.json.Decoder(Signal).decode
_resume = msgspec.json.Decoder(resuming.Resume).decode


def _message(d: Draft, c: cmd.Message) -> None:
    """Consume a message with what it leads to, or refuse it for good."""
    try:
        runs.refuse_finished(d)
        if c.refusal is not None:
            raise Refusal(*c.refusal)
        by, detail = _consume(d, c)
    except Refusal as refusal:
        d.extra.outcomes.append(Outcome(c.message_id, "dead", refusal.code, refusal.why))
        if d.state.status not in RUN_TERMINAL:
            d.emit(ev.MessageRefused(c.message_id, c.kind, refusal.code, refusal.why))
        return
    if detail == HELD:  # it will be consumed when it is received
        d.extra.outcomes.append(Outcome(c.message_id, "held", detail=detail))
        return
    d.extra.outcomes.append(Outcome(c.message_id, "consumed", detail=detail))
    d.emit(ev.MessageConsumed(c.message_id, c.kind), by)


def _consume(d: Draft, c: cmd.Message) -> tuple[NodeState | None, dict[str, Any]]:
    """Do what a message asks for: the instance that it was for, and the answer for its sender."""
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
            to = _read(_reassigned, c)
            questions.reassign(d, to.wait_id, to.assignee, to.basket, to.actor, c)
        case "signal":
            signal = _read(_signal, c)
            held = HeldSignal(c.message_id, signal.name, bytes(signal.payload))
            receiver = questions.receive_signal(d, held, c.sent_at)
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
