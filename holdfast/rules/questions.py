"""Questions: what a run asks of people, and how an answer, or the lack of one, ends the waiting.

Owns: answers (checked against the question's schema), deadlines, reminders, escalation, a change of assignee or basket,
and the engine's own question whether a body that was cut off has done its work.
Rule: one answer wins. Who comes second is told who was first; a wrong answer is told what is wrong, and the question
stays open. An answer that was sent when the deadline had passed comes second, whoever was awake at that moment.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import answers
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import SECOND
from holdfast.model.naming import is_undo
from holdfast.model.references import captured
from holdfast.model.state import GivenAnswer, NodeState, WaitState
from holdfast.model.timers import QuestionTimer
from holdfast.rules import nodes, waits
from holdfast.rules.draft import Draft, Refusal
from holdfast.rules.races import RACE

DEADLINE = "deadline"
"""Who answers when nobody has, and how a wait ends that nobody answers."""
_ENDED = {
    "answered": "was answered",
    "received": "has received its signal",
    "resumed": "was resumed",
    "released": "was resumed",
    "deadline": "has passed its deadline",
    "cancelled": "was withdrawn: whoever asked was cancelled",
    "superseded": "belongs to a line of history that was left",
}


def asked(d: Draft, wait: WaitState) -> None:
    """A question was put: its reminder and what happens when nobody answers are timers."""
    if "remind" in wait.about:
        d.set_timer(QuestionTimer("remind", wait.wait_id, 1).name, _micros(wait.about["remind"]))
    for number, step in enumerate(wait.about.get("escalate", ())):
        d.set_timer(QuestionTimer("escalate", wait.wait_id, number).name, _micros(step["after"]))


def given(d: Draft, c: cmd.OpenWait) -> GivenAnswer | None:
    """The answer that the edits of this branch have brought to a question before it is asked; None: a person is
    asked, also when that answer does not fit a schema that has changed since."""
    for answer in d.state.fold.answers:
        if answer.is_for(c.node, c.path, c.visit, c.call):
            return None if answers.problems(c.about.get("schema"), bytes(answer.value)) else answer
    return None


def find(d: Draft, wait_id: str, c: cmd.Message) -> WaitState:
    """The open wait that a request names, or who was first."""
    wait = d.state.waits.get(wait_id)
    if wait is not None:
        return wait
    closed = [e.event for e in d.entries if isinstance(e.event, ev.WaitClosed) and e.event.wait_id == wait_id]
    ended = (closed[0].outcome, closed[0].actor) if closed else c.ended_by
    if ended is None:
        raise Refusal("unknown_wait", f"there is no wait {wait_id} in run {d.state.run_id}")
    raise Refusal("closed", who_won(wait_id, *ended))


def who_won(wait_id: str, outcome: str, actor: str) -> str:
    """How a wait has ended, for whoever comes too late."""
    if (outcome, actor) == ("superseded", RACE):
        return f"{wait_id} is not open any more: another call of the same ctx.race has won"
    how = _ENDED.get(outcome, f"has ended ({outcome})")
    return f"{wait_id} {how}{f' by {actor}' if actor and actor != DEADLINE else ''}"


def _because(d: Draft) -> str:
    reason = d.state.fold.cancel_reason
    return f" ({reason})" if reason else ""


def answer(d: Draft, wait_id: str, value: bytes, actor: str, c: cmd.Message) -> NodeState | None:
    """Somebody answers; the instance that asked."""
    wait = find(d, wait_id, c)
    if wait.kind != "input":
        hint = {"basket": "resume it", "pause": "resume the run", "hold": "resume the run", "signal": "send a signal"}
        raise Refusal(
            "no_question", f"{wait_id} is no question but a {wait.kind}: {hint.get(wait.kind, 'it ends by itself')}"
        )
    if d.state.fold.closing and not is_undo(wait.node):  # a compensation may ask as well
        raise Refusal("closing", f"the run is {d.state.fold.closing}{_because(d)}: {wait_id} needs no answer any more")
    ns = d.state.nodes.get((wait.node, wait.path))
    if d.is_too_late(wait, c.sent_at):
        expire(d, wait)
        raise Refusal("closed", f"{wait_id} has passed its deadline")
    schema = wait.about.get("schema")
    wrong = answers.problems(schema, value)
    if wrong:
        raise Refusal("invalid_answer", f"this does not answer {wait_id}: {'; '.join(wrong)}")
    value = answers.completed(schema, value)
    if wait.is_verdict:
        hear_verdict(d, wait, value, actor)
    else:
        waits.close_wait(d, wait, "answered", value, actor)
    return ns


def expire(d: Draft, wait: WaitState) -> None:
    """The deadline of a question or of a signal has passed: its default answers, or nobody does."""
    d.fire_timer(wait.wait_id)
    if "default" in wait.about:
        outcome = "answered" if wait.kind == "input" else "received"
        default = answers.completed(wait.about.get("schema"), msgspec.json.encode(wait.about["default"]))
        waits.close_wait(d, wait, outcome, default, DEADLINE)
    else:
        waits.close_wait(d, wait, DEADLINE, b"null", DEADLINE)


# --- while nobody answers ----------------------------------------------------------------------------------------


def remind(d: Draft, timer: QuestionTimer) -> None:
    """Time for a reminder: an event that whoever notifies people hears of."""
    _, wait_id, number = timer
    wait = d.state.waits[wait_id]
    d.fire_timer(timer.name)
    before = {"wait_id": wait_id, "reminders": number - 1}
    _edit(d, wait, "reminder", before, {"wait_id": wait_id, "reminders": number})
    d.set_timer(QuestionTimer("remind", wait_id, number + 1).name, _micros(wait.about["remind"]))


def escalate(d: Draft, timer: QuestionTimer) -> None:
    """Nobody has answered for long enough: the question goes to somebody else."""
    wait = d.state.waits[timer.wait_id]
    d.fire_timer(timer.name)
    step = wait.about["escalate"][timer.number]
    hand_on(d, wait, step.get("assignee"), step.get("basket"), "escalation")


def reassign(d: Draft, wait_id: str, assignee: str | None, basket: str | None, actor: str, c: cmd.Message) -> None:
    """A person hands a question or a pended node on: to somebody else, into another basket."""
    wait = find(d, wait_id, c)
    if wait.kind not in ("input", "basket"):
        raise Refusal("no_question", f"{wait_id} is a {wait.kind}: nobody is assigned to it, and it lies in no basket")
    hand_on(d, wait, assignee, basket, actor)


def hand_on(d: Draft, wait: WaitState, assignee: str | None, basket: str | None, actor: str) -> None:
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


# --- was it done? --------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct):
    """A person's word about a body that was cut off."""

    done: bool
    output: msgspec.Raw = msgspec.Raw(b"null")


_verdict = msgspec.json.Decoder(Verdict).decode


def ask_verdict(d: Draft, ns: NodeState) -> None:
    """A body was cut off and must not be repeated unasked: a person says whether it was done, and with which result."""
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
        "why": f"on_crash='ask' forbids to repeat attempt {ns.attempt} of {ns.node} unasked",
    }
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, "input", {}, None, about), ns)
    d.emit(ev.NodeSuspended(ns.waits, None, "hold"), ns)


def hear_verdict(d: Draft, wait: WaitState, value: bytes, actor: str) -> None:
    """A person has said whether it was done: it has completed, or it runs again."""
    verdict = _verdict(value)
    ns = d.state.nodes[wait.node, wait.path]
    output = bytes(verdict.output)
    try:
        kept = captured(output, ns.plan.captures, f"the output of {ns.node}") if verdict.done else {}
    except HoldfastError as e:
        raise Refusal("invalid_answer", e.message) from None
    if verdict.done and output == b"null" and not _may_be_null(wait.about["schema"]):
        raise Refusal("invalid_answer", f"{ns.node} has a result: say which, as `output`")
    d.emit(ev.WaitClosed(wait.wait_id, "answered", msgspec.Raw(value), actor), ns)
    waits.wake_run(d, wait.kind)
    if verdict.done:
        d.emit(ev.NodeResumed(wait.wait_id), ns)
        nodes.complete(d, cmd.CompleteNode(ns.node, ns.path, ns.attempt, output, kept, visit=ns.visit))
    else:
        waits.try_again(d, ns, wait.wait_id)


def _may_be_null(schema: dict[str, Any]) -> bool:
    return not answers.problems({**schema["properties"]["output"], "$defs": schema.get("$defs", {})}, b"null")
