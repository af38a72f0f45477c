"""Questions: what a run asks of people and receives as signals, and how an answer, or the lack of one, ends a wait.

Owns: answers (checked against the question's schema), deadlines, reminders, escalation, a change of assignee or basket;
the engine's own question whether a body that was cut off has done its work; which wait a signal answers, and keeping
signals that no call waits for yet.
Rules: the first answer wins. A second one is refused with the name of the first actor; a wrong answer is refused with
what is wrong, and the question stays open. An answer that was sent after the deadline comes second, whether or not an
engine was running at that moment.
The oldest wait for a name gets the oldest signal of that name. A signal that arrives early is kept: its row in the
inbox is `held`, which wakes no run, and the next call that asks for its name receives it. A signal that does not fit
the schema of the call that asks for it is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import answers
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.captures import captured
from holdfast.model.errors import HoldfastError
from holdfast.model.fold import GivenAnswer
from holdfast.model.limits import SECOND
from holdfast.model.naming import is_undo
from holdfast.model.state import HeldSignal, NodeState, WaitState
from holdfast.model.timers import QuestionTimer
from holdfast.rules import body_reports, waits
from holdfast.rules.draft import Draft, Outcome, Refusal, ToRun

DEADLINE = "deadline"
"""The actor of a default answer, and the outcome of a wait whose deadline passed without one."""
_ENDED = {
    "answered": "was answered",
    "received": "has received its signal",
    "resumed": "was resumed",
    "released": "was resumed",
    "deadline": "has passed its deadline",
    "cancelled": "was withdrawn: the call that asked was cancelled",
    "superseded": "was superseded: the run continued without the call that asked",
}


def asked(d: Draft, wait: WaitState) -> None:
    """Set the timers of a question: its reminder, and its escalations if no answer comes."""
    if "remind" in wait.about:
        d.set_timer(QuestionTimer("remind", wait.wait_id, 1).name, _micros(wait.about["remind"]))
    for number, step in enumerate(wait.about.get("escalate", ())):
        d.set_timer(QuestionTimer("escalate", wait.wait_id, number).name, _micros(step["after"]))


def given(d: Draft, c: cmd.OpenWait) -> GivenAnswer | None:
    """The answer that the edits of this branch contain for a question before it is asked. None: a person is asked, also
    when that answer does not fit a schema that has changed since."""
    for answer in d.state.fold.answers:
        if answer.is_for(c.node, c.path, c.visit, c.call):
            return None if answers.problems(c.about.get("schema"), bytes(answer.value)) else answer
    return None


def find(d: Draft, wait_id: str, c: cmd.Message) -> WaitState:
    """The open wait that a request names. Raises Refusal with how the wait ended."""
    wait = d.state.waits.get(wait_id)
    if wait is not None:
        return wait
    closed = [e.event for e in d.entries if isinstance(e.event, ev.WaitClosed) and e.event.wait_id == wait_id]
    ended = (closed[0].outcome, closed[0].actor) if closed else c.ended_by
    if ended is None:
        raise Refusal("unknown_wait", f"there is no wait {wait_id} in run {d.state.run_id}")
    raise Refusal("closed", how_it_ended(wait_id, *ended))


def how_it_ended(wait_id: str, outcome: str, actor: str) -> str:
    """How a wait has ended, for the sender of a late answer."""
    if (outcome, actor) == ("superseded", waits.RACE):
        return f"{wait_id} is no longer open: another call of the same ctx.race has won"
    how = _ENDED.get(outcome, f"has ended ({outcome})")
    return f"{wait_id} {how}{f' by {actor}' if actor and actor != DEADLINE else ''}"


def _because(d: Draft) -> str:
    reason = d.state.fold.cancel_reason
    return f" ({reason})" if reason else ""


def answer(d: Draft, wait_id: str, value: bytes, actor: str, c: cmd.Message) -> NodeState | None:
    """Answer a question; the instance that asked."""
    wait = find(d, wait_id, c)
    if wait.kind != "input":
        hint = {"basket": "resume it", "pause": "resume the run", "hold": "resume the run", "signal": "send a signal"}
        raise Refusal(
            "no_question", f"{wait_id} is not a question but a {wait.kind}: {hint.get(wait.kind, 'it ends by itself')}"
        )
    if d.state.fold.closing and not is_undo(wait.node):  # a compensation may ask as well
        raise Refusal("closing", f"the run is {d.state.fold.closing}{_because(d)}: {wait_id} no longer needs an answer")
    ns = d.state.nodes.get((wait.node, wait.path))
    if d.is_too_late(wait, c.sent_at):
        expire(d, wait)
        raise Refusal("closed", f"{wait_id} has passed its deadline")
    schema = wait.about.get("schema")
    wrong = answers.problems(schema, value)
    if wrong:
        raise Refusal("invalid_answer", f"this does not answer {wait_id}: {'; '.join(wrong)}")
    value = answers.completed(schema, value)
    if wait.is_crash_question:
        answer_crash_question(d, wait, value, actor)
    else:
        waits.close_wait(d, wait, "answered", value, actor)
    return ns


def expire(d: Draft, wait: WaitState) -> None:
    """Close a question or a wait for a signal whose deadline has passed: with its default, or without an answer."""
    d.fire_timer(wait.wait_id)
    if "default" in wait.about:
        outcome = "answered" if wait.kind == "input" else "received"
        default = answers.completed(wait.about.get("schema"), msgspec.json.encode(wait.about["default"]))
        waits.close_wait(d, wait, outcome, default, DEADLINE)
    else:
        waits.close_wait(d, wait, DEADLINE, b"null", DEADLINE)


# --- while a question is open ------------------------------------------------------------------------------------


def remind(d: Draft, timer: QuestionTimer) -> None:
    """Record a reminder, an event for programs that notify people, and set the timer of the next one."""
    _, wait_id, number = timer
    wait = d.state.waits[wait_id]
    d.fire_timer(timer.name)
    before = {"wait_id": wait_id, "reminders": number - 1}
    _edit(d, wait, "reminder", before, {"wait_id": wait_id, "reminders": number})
    d.set_timer(QuestionTimer("remind", wait_id, number + 1).name, _micros(wait.about["remind"]))


def escalate(d: Draft, timer: QuestionTimer) -> None:
    """Reassign a question that has been open for too long."""
    wait = d.state.waits[timer.wait_id]
    d.fire_timer(timer.name)
    step = wait.about["escalate"][timer.number]
    _reassign(d, wait, step.get("assignee"), step.get("basket"), "escalation")


def reassign(d: Draft, wait_id: str, assignee: str | None, basket: str | None, actor: str, c: cmd.Message) -> None:
    """Give a question or a pended node to another assignee, or put it into another basket."""
    wait = find(d, wait_id, c)
    if wait.kind not in ("input", "basket"):
        raise Refusal("no_question", f"{wait_id} is a {wait.kind}: it has no assignee and no basket")
    _reassign(d, wait, assignee, basket, actor)


def _reassign(d: Draft, wait: WaitState, assignee: str | None, basket: str | None, actor: str) -> None:
    before: dict[str, Any] = {"wait_id": wait.wait_id}
    after: dict[str, Any] = {"wait_id": wait.wait_id}
    if assignee is not None:
        before["assignee"], after["assignee"] = wait.assignee, assignee
    if basket is not None:
        before["basket"], after["basket"] = wait.basket, basket
    _edit(d, wait, actor, before, after)


def _edit(d: Draft, wait: WaitState, actor: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    d.emit(ev.RunEdited(actor, before, after), d.state.nodes.get((wait.node, wait.path)))


def _micros(seconds: float) -> int:
    return int(seconds * SECOND)


# --- the engine's own question: was it done? -----------------------------------------------------------------------


class CrashAnswer(msgspec.Struct):
    """A person's answer about a body that was cut off."""

    done: bool
    output: msgspec.Raw = msgspec.Raw(b"null")


_crash_answer = msgspec.json.Decoder(CrashAnswer).decode


def ask_if_done(d: Draft, ns: NodeState) -> None:
    """Ask a person whether a body that was cut off was done, and with which result: it must not be repeated unasked."""
    returns = ns.plan.definition.returns
    output = {key: value for key, value in returns.items() if key != "$defs"} if isinstance(returns, dict) else {}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "done": {"type": "boolean", "description": "yes: it has happened; no: it has not, run it again"},
            "output": {"description": "its result, where it was done", **output},
        },
        "required": ["done"],
        "additionalProperties": False,
    }
    if isinstance(returns, dict) and "$defs" in returns:
        schema["$defs"] = returns["$defs"]
    about = {
        "question": f"{ns.node} was running when its engine died. Was it done?",
        "schema": schema,
        "code": "outcome_unknown",
        "why": f"on_crash='ask' forbids repeating attempt {ns.attempt} of {ns.node} unasked",
    }
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, "input", {}, None, about), ns)
    d.emit(ev.NodeSuspended(ns.waits, None, "hold"), ns)


def answer_crash_question(d: Draft, wait: WaitState, value: bytes, actor: str) -> None:
    """Complete a node of which a person says that it was done, or run it again."""
    given = _crash_answer(value)
    ns = d.state.nodes[wait.node, wait.path]
    output = bytes(given.output)
    try:
        kept = captured(output, ns.plan.captures, f"the output of {ns.node}") if given.done else {}
    except HoldfastError as e:
        raise Refusal("invalid_answer", e.message) from None
    if given.done and output == b"null" and not _may_be_null(wait.about["schema"]):
        raise Refusal("invalid_answer", f"{ns.node} has a result: give it as `output`")
    d.emit(ev.WaitClosed(wait.wait_id, "answered", msgspec.Raw(value), actor), ns)
    waits.wake_run(d, wait.kind)
    if given.done:
        d.emit(ev.NodeResumed(wait.wait_id), ns)
        body_reports.complete(d, cmd.CompleteNode(ns.node, ns.path, ns.attempt, output, kept, visit=ns.visit))
    else:
        waits.run_again(d, ns, wait.wait_id)


def _may_be_null(schema: dict[str, Any]) -> bool:
    return not answers.problems({**schema["properties"]["output"], "$defs": schema.get("$defs", {})}, b"null")


# --- signals -----------------------------------------------------------------------------------------------------


def receive_signal(d: Draft, signal: HeldSignal, sent_at: int) -> NodeState | None:
    """Give a signal that has arrived to the wait for it; the instance that receives it. None: the signal is kept until
    a call asks for it."""
    for wait in list(d.state.waits.values()):
        if wait.kind == "signal" and wait.about["name"] == signal.name:
            if d.is_too_late(wait, sent_at):
                expire(d, wait)
                continue
            wrong = answers.problems(wait.about.get("schema"), signal.payload)
            if wrong:
                raise Refusal("invalid_signal", f"signal {signal.name!r}: {'; '.join(wrong)}")
            ns = d.state.nodes.get((wait.node, wait.path))
            _close_with(d, wait, signal)
            return ns
    d.state.hold_signal(signal)
    return None


def use_held_signal(d: Draft, wait: WaitState) -> None:
    """Close a new wait for a signal if one was kept that fits it; refuse those that do not fit."""
    name = wait.about["name"]
    ns = d.state.nodes.get((wait.node, wait.path))
    early = d.state.signals.get(name)
    while early:
        signal = early.popleft()
        wrong = answers.problems(wait.about.get("schema"), signal.payload)
        if wrong:
            why = f"signal {name!r}: {'; '.join(wrong)}"
            d.extra.outcomes.append(Outcome(signal.message_id, "dead", "invalid_signal", why))
            d.emit(ev.MessageRefused(signal.message_id, "signal", "invalid_signal", why), ns)
            continue
        d.extra.outcomes.append(Outcome(signal.message_id, "consumed"))
        _close_with(d, wait, signal)
        d.emit(ev.MessageConsumed(signal.message_id, "signal"), ns)
        return


def _close_with(d: Draft, wait: WaitState, signal: HeldSignal) -> None:
    waits.close_wait(d, wait, "received", answers.completed(wait.about.get("schema"), signal.payload))


def send_signal(d: Draft, c: cmd.SendSignal) -> None:
    """Send a signal of a body to another run: the message goes out with the commit that records the call."""
    body_reports.record(d, c, c.event)
    payload = {"name": c.name, "payload": msgspec.Raw(c.payload)}
    d.extra.messages.append(ToRun(c.to, c.message_id, "signal", payload))
