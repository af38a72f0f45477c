"""Questions to people: answers, deadlines, reminders, escalation, and the engine's own question whether it was done."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.rules import decide
from tests.rules.play import RETRY_AT_ONCE, SECOND, START, Play, call, mapped, ref

HOUR = START + 3600 * SECOND
DECISION = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "note": {"type": "string", "default": ""}},
    "required": ["approved"],
    "additionalProperties": False,
}


def asking(**about: Any) -> tuple[Play, str]:
    """A run whose only node has asked, and waits."""
    play = Play(call("a"), result=ref("a"))
    wait_id = play.ask("a", **about)
    play.suspend("a")
    return play, wait_id


def edits(play: Play) -> list[tuple[str, Any, Any]]:
    return [(e.actor, e.before, e.after) for e in play.events(ev.RunEdited)]


# --- answers -----------------------------------------------------------------------------------------------------


def test_an_answer_closes_its_wait_with_value_and_actor_and_the_body_goes_on() -> None:
    play, wait_id = asking(schema={"type": "integer"})
    assert (play.status("a"), play.state.status) == ("suspended", "suspended")
    assert play.answer(wait_id, 7, "ada").status == "consumed"
    assert play.types() == ["WaitClosed a", "RunResumed", "NodeResumed a", "MessageConsumed a"]
    (closed,) = play.events(ev.WaitClosed)
    assert (closed.wait_id, closed.outcome, closed.actor) == (wait_id, "answered", "ada")
    assert play.answers == [(("a", "."), "answered", 7)]
    assert play.running == {("a", "."): {}}


def test_an_answer_that_does_not_fit_is_told_everything_that_is_wrong_and_the_question_stays_open() -> None:
    play, wait_id = asking(schema=DECISION)
    refused = play.answer(wait_id, {"approved": "yes", "colour": 1})
    assert (refused.status, refused.code) == ("dead", "invalid_answer")
    assert wait_id in refused.why
    assert "approved" in refused.why
    assert "colour" in refused.why, "all problems at once, not the first one"
    assert play.types() == ["MessageRefused"]
    assert (play.status("a"), play.waits()) == ("suspended", [wait_id])
    assert play.answer(wait_id, {"approved": True}).status == "consumed"


def test_defaults_of_the_schema_are_part_of_the_answer() -> None:
    play, wait_id = asking(schema={**DECISION, "additionalProperties": True})
    play.answer(wait_id, {"approved": True})
    assert play.answers[-1][2] == {"approved": True, "note": ""}


def test_a_question_without_a_schema_takes_any_answer() -> None:
    play, wait_id = asking()
    assert play.answer(wait_id, [1, {"x": None}]).status == "consumed"


def test_who_answers_second_is_told_who_was_first() -> None:
    play, wait_id = asking()
    play.answer(wait_id, "yes", "ada")
    second = play.answer(wait_id, "no", "bob")
    assert (second.status, second.code) == ("dead", "closed")
    assert "was answered by ada" in second.why
    assert [a[2] for a in play.answers] == ["yes"]
    play.complete("a")
    assert play.answer(wait_id, "no", "bob").code == "finished"


def test_two_answers_in_one_turn_have_one_winner_who_is_named() -> None:
    play, wait_id = asking()

    def both(draft: Any) -> None:
        for number, actor in enumerate(("ada", "bob")):
            payload = b'{"wait_id": "%s", "value": %d, "actor": "%s"}' % (wait_id.encode(), number, actor.encode())
            decide.apply(draft, cmd.Message(actor, "answer", payload, sent_at=play.now))

    play._turn(both)
    assert [(o.message_id, o.status) for o in play.outcomes] == [("ada", "consumed"), ("bob", "dead")]
    assert "by ada" in play.outcome("bob").why
    assert len(play.events(ev.WaitClosed)) == 1


def test_several_questions_of_one_node_are_answered_each_by_itself_in_any_order() -> None:
    play = Play(call("a"))
    first, second, third = play.ask("a", "1?"), play.ask("a", "2?"), play.ask("a", "3?")
    play.suspend("a")
    assert play.events(ev.NodeSuspended)[0].waits == (first, second, third)
    play.answer(second, 2)
    play.suspend("a")
    assert play.state.nodes["a", "."].waits == (first, third)
    play.answer(third, 3)
    play.suspend("a")
    play.answer(first, 1)
    assert [a[2] for a in play.answers] == [2, 3, 1]
    assert play.state.status == "running"


def test_an_answer_wakes_its_own_item_only() -> None:
    play = Play(mapped("m", ["const", [1, 2]], call("f", x=["param", "m", "item"])))
    waits = [play.ask("f", path=f".m.{key}.") for key in (0, 1)]
    for key in (0, 1):
        play.suspend("f", f".m.{key}.")
    play.answer(waits[1], "yes")
    assert (play.status("f", ".m.0."), play.status("f", ".m.1.")) == ("suspended", "running")


@pytest.mark.parametrize(
    ("kind", "how"), [("basket", "resume it"), ("pause", "resume the run"), ("signal", "send a signal")]
)
def test_an_answer_to_what_is_no_question_says_what_to_do_instead(kind: str, how: str) -> None:
    play = Play(call("a"))
    match kind:
        case "basket":
            play.pend("a")
        case "pause":
            play.pause()
        case "signal":
            play.receive("a", "go")
    refused = play.answer(play.waits()[-1], 1)
    assert refused.code == "no_question"
    assert how in refused.why


def test_an_answer_to_a_wait_that_never_was_is_refused() -> None:
    play, _ = asking()
    assert play.answer("w_nothing", 1).code == "unknown_wait"


def test_an_answer_after_a_cancel_comes_too_late() -> None:
    play, wait_id = asking()
    play.cancel("customer asked")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)
    assert play.answer(wait_id, 1).code == "finished"
    assert play.answers == []


def test_an_answer_while_a_cancel_is_carried_out_is_refused_with_who_was_first() -> None:
    play = Play(call("a"), call("b"))
    wait_id = play.ask("a")
    play.suspend("a")
    play.cancel("customer asked")
    refused = play.answer(wait_id, 1)
    assert refused.code == "closed"
    assert "was withdrawn" in refused.why
    assert "by ann" in refused.why
    play.drop("b")


def test_an_answer_before_a_cancel_counts_and_the_body_is_then_told_to_stop() -> None:
    play, wait_id = asking()
    assert play.answer(wait_id, 1).status == "consumed"
    play.cancel()
    assert play.told_to_stop == [("a", ".")]


def test_an_answer_to_a_body_at_work_that_is_told_to_stop_is_refused() -> None:
    play = Play(call("a"))
    wait_id = play.ask("a")  # another task of the body is at work
    play.cancel("enough")
    refused = play.answer(wait_id, 1)
    assert refused.code == "closing"
    assert "enough" in refused.why


def test_a_compensation_may_ask_and_is_answered_although_its_run_is_ending() -> None:
    play = Play(call("pay", compensate="refund"), call("ship", x=ref("pay")), on_failure="compensate")
    play.complete("pay", 1)
    play.fail("ship")
    wait_id = play.ask("pay~undo", "Refund by hand?")
    play.suspend("pay~undo")
    play.crash()
    assert play.answer(wait_id, "done").status == "consumed"
    play.complete("pay~undo")
    assert play.failure.error.node == "ship"


def test_a_question_that_a_ticket_passed_over_is_superseded_and_says_so() -> None:
    play = Play(call("a"), call("b"), call("c", after=("a", "b")))
    wait_id = play.ask("a")
    play.suspend("a")
    play.complete("b", goto="c")
    refused = play.answer(wait_id, 1)
    assert refused.code == "closed"
    assert "was superseded" in refused.why


def test_a_question_survives_a_crash_and_is_answered_by_whoever_takes_over() -> None:
    play, wait_id = asking(schema={"type": "integer"})
    play.crash()
    assert play.waits() == [wait_id]
    assert play.answer(wait_id, "no").code == "invalid_answer", "its schema is in the row as well"
    play.answer(wait_id, 5)
    assert play.running == {("a", "."): {}}
    assert play.state.nodes["a", "."].attempt == 1, "waiting is no attempt"


def test_a_retry_by_policy_keeps_the_question_open_and_its_answer_is_remembered() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE))
    wait_id = play.ask("a")
    play.fail("a")
    assert play.answer(wait_id, "yes").status == "consumed"
    assert play.answers == [(("a", "."), "answered", "yes")]


# --- deadlines -----------------------------------------------------------------------------------------------------


def test_past_its_deadline_the_default_answers_and_nobody_else() -> None:
    play, wait_id = asking(until=HOUR, default={"approved": False})
    play.due()
    assert play.types() == ["TimerFired", "WaitClosed a", "RunResumed", "NodeResumed a"]
    (closed,) = play.events(ev.WaitClosed)
    assert (closed.outcome, closed.actor) == ("answered", "deadline")
    assert play.answers[-1] == (("a", "."), "answered", {"approved": False})
    late = play.answer(wait_id, {"approved": True}, "ada")
    assert late.code == "closed"


def test_past_its_deadline_without_a_default_the_body_hears_that_nobody_answered() -> None:
    play, wait_id = asking(until=HOUR)
    play.due()
    assert play.answers[-1][1] == "deadline"
    late = play.answer(wait_id, 1)
    assert late.code == "closed"
    assert "has passed its deadline" in late.why


def test_a_default_may_be_none() -> None:
    play, _ = asking(until=HOUR, default=None)
    play.due()
    assert play.answers[-1][1:] == ("answered", None)


def test_an_answer_in_time_cancels_the_deadline() -> None:
    play, wait_id = asking(until=HOUR)
    play.now = HOUR - 1
    assert play.answer(wait_id, 1).status == "consumed"
    assert play.types()[0] == "TimerCancelled"
    assert not play.state.timers


def test_an_answer_that_was_sent_in_time_wins_however_late_it_is_read() -> None:
    play, wait_id = asking(until=HOUR)
    play.crash()
    play.now = HOUR + 5 * SECOND
    assert play.answer(wait_id, 1, sent_at=HOUR - 1).status == "consumed"
    assert play.answers[-1][1:] == ("answered", 1)


@pytest.mark.parametrize("late", [0, 1, 86_400 * SECOND])
def test_an_answer_that_was_sent_past_the_deadline_loses_also_when_nobody_was_awake_to_see_it_pass(late: int) -> None:
    play, wait_id = asking(until=HOUR, default="no")
    play.crash()
    play.now = HOUR + late
    refused = play.answer(wait_id, "yes")
    assert (refused.status, refused.code) == ("dead", "closed")
    assert "has passed its deadline" in refused.why
    assert play.answers[-1][1:] == ("answered", "no"), "the deadline itself is not forgotten over it"
    assert not play.state.timers


# --- reminders and escalation ---------------------------------------------------------------------------------------


def test_a_reminder_comes_again_and_again_until_the_answer() -> None:
    play, wait_id = asking(remind=60.0)
    for number in (1, 2, 3):
        play.due()
        assert play.now == START + number * 60 * SECOND
        assert play.state.status == "suspended", "a reminder wakes nobody's body"
    assert edits(play) == [
        ("reminder", {"wait_id": wait_id, "reminders": n - 1}, {"wait_id": wait_id, "reminders": n}) for n in (1, 2, 3)
    ]
    play.answer(wait_id, 1)
    assert not play.state.timers
    assert play.answers[-1][2] == 1


def test_escalation_hands_the_question_on_and_leaves_a_trace() -> None:
    steps = [{"after": 60.0, "assignee": "boss"}, {"after": 120.0, "basket": "managers"}]
    play, wait_id = asking(assignee="ann", basket="desk", escalate=steps)
    wait = play.state.waits[wait_id]
    play.due()
    assert (wait.assignee, wait.basket) == ("boss", "desk")
    play.due()
    assert play.now == START + 120 * SECOND, "each step counts from the question, not from the one before"
    assert (wait.assignee, wait.basket) == ("boss", "managers")
    assert edits(play) == [
        ("escalation", {"wait_id": wait_id, "assignee": "ann"}, {"wait_id": wait_id, "assignee": "boss"}),
        ("escalation", {"wait_id": wait_id, "basket": "desk"}, {"wait_id": wait_id, "basket": "managers"}),
    ]
    assert not play.state.timers
    play.crash()
    assert play.state.waits[wait_id].assignee == "boss"
    assert play.answer(wait_id, 1).status == "consumed"


@pytest.mark.parametrize("end", ["answer", "deadline", "cancel", "give up"])
def test_whatever_ends_a_question_ends_its_reminders_and_escalations(end: str) -> None:
    play, wait_id = asking(until=START + SECOND, remind=60.0, escalate=[{"after": 60.0, "assignee": "boss"}])
    match end:
        case "answer":
            play.answer(wait_id, 1)
        case "deadline":
            play.due()
        case "cancel":
            play.cancel()
        case "give up":
            play.tell(cmd.CloseWait(wait_id, "cancelled"))
    assert not play.state.timers


def test_a_person_hands_a_question_on_and_it_stays_open() -> None:
    play, wait_id = asking(assignee="ann")
    assert play.send("reassign", wait_id=wait_id, assignee="bob", basket="night", actor="cy").status == "consumed"
    assert edits(play) == [
        (
            "cy",
            {"wait_id": wait_id, "assignee": "ann", "basket": None},
            {"wait_id": wait_id, "assignee": "bob", "basket": "night"},
        )
    ]
    assert (play.status("a"), play.waits()) == ("suspended", [wait_id])
    play.crash()
    assert (play.state.waits[wait_id].assignee, play.state.waits[wait_id].basket) == ("bob", "night")


def test_only_questions_and_pended_nodes_can_be_handed_on() -> None:
    play = Play(call("a"))
    wait_id = play.wait("a", until=HOUR)
    refused = play.send("reassign", wait_id=wait_id, assignee="bob")
    assert refused.code == "no_question"
    assert play.send("reassign", wait_id="w_none", assignee="bob").code == "unknown_wait"


def test_a_question_that_was_answered_cannot_be_handed_on() -> None:
    play, wait_id = asking()
    play.answer(wait_id, 1, "ada")
    refused = play.send("reassign", wait_id=wait_id, assignee="bob")
    assert refused.code == "closed"
    assert "by ada" in refused.why


# --- was it done? ----------------------------------------------------------------------------------------------------


def cut_off(returns: Any = None, **options: Any) -> tuple[Play, str]:
    """A node that must not be repeated unasked was running when its engine died."""
    play = Play(
        call("a", on_crash="ask", returns=returns, **options), call("b", x=ref("a")), call("side"), result=ref("b")
    )
    play.crash()
    (wait_id,) = play.waits("input")
    return play, wait_id


def test_a_body_that_was_cut_off_is_not_repeated_but_a_person_is_asked() -> None:
    play, wait_id = cut_off()
    assert play.status("a") == "suspended"
    assert ("a", ".") not in play.running
    about = play.events(ev.WaitOpened)[0].about
    assert "Was it done?" in about["question"]
    assert about["code"] == "outcome_unknown"
    assert about["schema"]["required"] == ["done"]
    play.complete("side")
    assert play.state.status == "suspended"
    play.crash()
    assert play.waits() == [wait_id], "another crash asks nothing more"


def test_it_was_done_completes_the_node_with_the_output_that_the_person_gives() -> None:
    play, wait_id = cut_off({"type": "integer"})
    assert play.answer(wait_id, {"done": True, "output": 5}, "ada").status == "consumed"
    assert play.events(ev.WaitClosed)[0].actor == "ada"
    assert play.events(ev.NodeCompleted, node="a")[0].attempt == 1
    assert play.running["b", "."] == {"x": 5}
    assert play.log.count("a") == 1


def test_it_was_not_done_lets_the_node_run_once_more() -> None:
    play, wait_id = cut_off()
    play.answer(wait_id, {"done": False}, "ada")
    assert ("a", ".") in play.running
    assert play.state.nodes["a", "."].attempt == 2, "the attempt that was cut off counts"
    play.complete("a", 3)
    play.complete("side")
    play.complete("b", 4)
    assert play.result == 4


@pytest.mark.parametrize(
    "value", [{}, {"done": "yes"}, {"done": True, "output": "five"}, {"done": True}, {"done": True, "sum": 1}]
)
def test_a_verdict_that_does_not_fit_is_refused_and_the_question_stays(value: Any) -> None:
    play, wait_id = cut_off({"type": "integer"})
    refused = play.answer(wait_id, value)
    assert (refused.status, refused.code) == ("dead", "invalid_answer")
    assert play.waits("input") == [wait_id]
    assert play.status("a") == "suspended"


def test_a_verdict_of_a_node_without_a_result_needs_no_output() -> None:
    play, wait_id = cut_off({"type": "null"})
    assert play.answer(wait_id, {"done": True}).status == "consumed"
    assert play.running["b", "."] == {"x": None}


def test_the_output_of_a_verdict_refers_to_the_types_of_the_node() -> None:
    returns = {"$ref": "#/$defs/Receipt", "$defs": {"Receipt": {"type": "object", "required": ["id"]}}}
    play, wait_id = cut_off(returns)
    assert play.answer(wait_id, {"done": True, "output": {}}).code == "invalid_answer"
    assert play.answer(wait_id, {"done": True, "output": {"id": 1}}).status == "consumed"


def test_what_conditions_read_of_a_verdicts_output_is_there() -> None:
    play = Play(call("a", on_crash="ask"), call("b", when=["gt", ["get", ["node", "a"], "n"], 3]))
    play.crash()
    play.answer(play.waits()[0], {"done": True, "output": {"n": 5}})
    assert play.running == {("b", "."): {}}


def test_a_run_that_asks_whether_it_was_done_can_be_cancelled() -> None:
    play = Play(call("a", on_crash="ask"))
    play.crash()
    play.cancel()
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_plain_resume_does_not_answer_for_the_person() -> None:
    play, wait_id = cut_off()
    assert play.resume().status == "consumed"
    assert play.waits("input") == [wait_id]
    refused = play.resume(wait=wait_id)
    assert refused.code == "not_resumable"
    assert "respond" in refused.why


def test_a_verdict_can_be_handed_on_like_any_question() -> None:
    play, wait_id = cut_off()
    play.send("reassign", wait_id=wait_id, assignee="bob")
    assert play.state.waits[wait_id].assignee == "bob"
