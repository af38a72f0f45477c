"""What a run can wait for: timers, children, holds, and when the run itself is suspended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from tests.rules.play import RETRY_AT_ONCE, SECOND, START, Play, call, error, looped, mapped, ref

HOUR = START + 3600 * SECOND


def child(**options: Any) -> cmd.NewChild:
    return cmd.NewChild(7, "sub", 1, b'{"n":1}', "hash", {}, {}, None, {}, **options)


def ended(run_id: str, status: str = "completed", **fields: Any) -> cmd.Message:
    payload = msgspec.json.encode({"child": run_id, "status": status, **fields})
    return cmd.Message(f"m-{run_id}-{status}", "child_ended", payload)


# --- timers ------------------------------------------------------------------------------------------------------


def test_a_sleep_is_a_wait_with_a_timer_and_the_run_is_suspended_with_it() -> None:
    play = Play(call("a"), result=ref("a"))
    wait_id = play.wait("a", until=HOUR)
    assert play.types() == ["WaitOpened a", "TimerSet"]
    play.suspend("a")
    assert play.types() == ["NodeSuspended a", "RunSuspended"]
    assert play.entries[-1].event == ev.RunSuspended((wait_id,))
    play.due()
    assert play.types() == ["TimerFired", "WaitClosed a", "RunResumed", "NodeResumed a"]
    assert play.answers == [(("a", "."), "fired", None)]
    assert play.state.nodes["a", "."].attempt == 1, "resuming is not an attempt"
    play.complete("a", 1)
    assert play.result == 1


def test_a_timer_fires_once() -> None:
    play = Play(call("a"))
    wait_id = play.wait("a", until=HOUR)
    play.due()
    assert play.refusal(cmd.FireTimer(wait_id)) == "stale"


def test_a_suspended_run_that_was_read_again_goes_on_when_its_timer_fires() -> None:
    play = Play(call("a"), result=ref("a"))
    play.wait("a", until=HOUR)
    play.suspend("a")
    play.crash()
    assert play.running == {}
    play.due()
    assert play.running == {("a", "."): {}}
    assert play.state.nodes["a", "."].attempt == 1
    assert play.state.recoveries == 0


def test_the_run_is_suspended_only_when_nothing_in_it_can_move() -> None:
    play = Play(call("a"), call("b"))
    play.wait("a", until=HOUR)
    play.suspend("a")
    assert play.state.status == "running"
    play.wait("b", until=HOUR + 1)
    play.suspend("b")
    assert play.state.status == "suspended"


def test_a_scheduled_node_keeps_a_run_running_and_a_delayed_retry_does_not() -> None:
    play = Play(call("a"), call("b"), slots=1)
    play.wait("a", until=HOUR)
    play.suspend("a")
    assert play.state.status == "running"
    assert play.state.nodes["b", "."].start_timer not in play.state.timers


def test_a_body_that_waits_in_two_places_goes_on_with_the_first_answer() -> None:
    play = Play(call("a"))
    first = play.wait("a", until=HOUR)
    second = play.wait("a", until=HOUR + SECOND)
    play.suspend("a")
    assert play.state.nodes["a", "."].waits == (first, second)
    play.due()
    assert play.status("a") == "running"
    play.suspend("a")
    assert play.state.status == "suspended"
    assert play.state.nodes["a", "."].waits == (second,)


def test_a_task_of_a_parked_body_that_goes_on_by_itself_wakes_node_and_run() -> None:
    step = ev.StepCompleted("", 1, "step", "f", "d", msgspec.Raw(b"1"))
    commands = {
        "step": cmd.RecordStep("a", ".", 1, step),
        "wait": cmd.OpenWait("a", ".", 1, "timer", {}, HOUR + 5),
        "checkpoint": cmd.Checkpoint("a", ".", 1, b"1", 1),
        "end": cmd.CompleteNode("a", ".", 1, b"1"),
        "failure": cmd.FailNode("a", ".", 1, error()),
    }
    for name, command in commands.items():
        play = Play(call("a"), call("b", after=("a",)))
        play.wait("a", until=HOUR)
        play.suspend("a")
        play.tell(command)
        turn = play.types(-2 if name == "failure" and len(play.turns[-1]) == 1 else -1)
        assert turn[:2] == ["RunResumed", "NodeResumed a"], name
        assert play.state.status == ("failed" if name == "failure" else "running"), name


def test_a_body_that_ends_closes_what_it_still_waited_for() -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    wait_id = play.wait("a", until=HOUR)
    play.complete("a", 1)
    assert play.types()[:3] == ["TimerCancelled", "WaitClosed a", "NodeCompleted a"]
    assert not play.state.waits
    assert play.refusal(cmd.FireTimer(wait_id)) == "stale"


def test_a_retry_by_policy_keeps_its_waits_open() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE))
    wait_id = play.wait("a", until=HOUR)
    play.fail("a")
    assert play.state.nodes["a", "."].waits == (wait_id,)


def test_a_wait_that_the_body_gave_up_is_closed_with_its_timer() -> None:
    play = Play(call("a"))
    wait_id = play.wait("a", until=HOUR)
    play.tell(cmd.CloseWait(wait_id, "cancelled"))
    assert play.types() == ["TimerCancelled", "WaitClosed a"]
    assert play.state.nodes["a", "."].waits == ()
    assert play.answers == []


def test_a_suspended_body_that_gives_a_wait_up_has_gone_on_by_itself() -> None:
    play = Play(call("a"))
    given_up, other = play.wait("a", until=HOUR), play.wait("a", until=2 * HOUR)
    play.suspend("a")
    play.tell(cmd.CloseWait(given_up, "superseded"))
    assert play.types()[:2] == ["RunResumed", "NodeResumed a"]
    assert play.state.nodes["a", "."].waits == (other,)
    assert [e.outcome for e in play.events(ev.WaitClosed)] == ["superseded"]


def test_cancelling_closes_waits_and_cancels_the_suspended_body() -> None:
    play = Play(call("a"), call("b"))
    play.wait("a", until=HOUR)
    play.suspend("a")
    play.cancel()
    assert play.events(ev.NodeCancelled, node="a")[0].outcome == "unknown"
    assert [e.outcome for e in play.events(ev.WaitClosed)] == ["cancelled"]
    play.drop("b")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_wait_ids_are_derived_and_differ() -> None:
    def ids() -> list[str]:
        play = Play(call("a"))
        return [play.wait("a", until=HOUR), play.wait("a", until=HOUR)]

    assert ids() == ids()
    assert len(set(ids())) == 2


# --- scopes that were read again ---------------------------------------------------------------------------------


def test_a_body_inside_a_scope_goes_on_only_when_the_scopes_parameters_are_known_again() -> None:
    """`until` and `when` read them when it ends; they are not stored."""
    value = ["param", "l", "item"]
    body = (call("f", x=value), call("g", x=ref("f"), when=["lt", ["param", "l", "low"], 5]))
    play = Play(
        looped("l", 0, ["ge", ref("g"), ["param", "l", "high"]], *body, low=["input", "low"], high=["input", "high"]),
        inputs={"low": 1, "high": 2},
        result=ref("l"),
    )
    play.wait("f", until=HOUR, path=".l.0.")
    play.suspend("f", ".l.0.")
    assert play.state.status == "suspended"
    play.crash()
    play.due()
    assert set(play.running) == {("f", ".l.0.")}
    play.run({"f": lambda x: x + 1, "g": lambda x: x})
    assert play.result == 2


def test_an_answer_in_the_turn_of_a_takeover_is_no_new_attempt() -> None:
    play = Play(call("a"), call("b"), result=ref("a"))
    play.wait("a", "child", child=child())
    play.suspend("a")
    play.crash(first=[ended(play.children[0].run_id, result=5)])
    assert (play.state.nodes["a", "."].attempt, play.state.nodes["b", "."].attempt) == (1, 2)
    assert set(play.running) == {("a", "."), ("b", ".")}


# --- children ----------------------------------------------------------------------------------------------------


def test_a_child_is_created_in_the_commit_of_its_wait_and_its_report_ends_it() -> None:
    play = Play(call("a"), result=ref("a"))
    play.wait("a", "child", child=child())
    assert play.types() == ["WaitOpened a", "ChildStarted a"]
    (spec,) = play.children
    assert (spec.depth, spec.parent["run_id"]) == (1, "run-1")
    play.suspend("a")
    play.tell(ended(spec.run_id, result={"n": 2}))
    assert play.types() == ["ChildEnded a", "WaitClosed a", "RunResumed", "NodeResumed a", "MessageConsumed"]
    assert play.answers == [(("a", "."), "completed", {"n": 2})]
    assert play.state.fold.children == {}
    play.tell(ended(spec.run_id, result={"n": 2}))
    assert play.outcomes[-1][1:3] == ("dead", "stale"), "a report is heard once"


def test_a_failed_child_answers_with_its_error() -> None:
    play = Play(call("a"))
    play.wait("a", "child", child=child())
    play.tell(ended(play.children[0].run_id, "failed", error={"code": "error", "message": "no luck"}))
    ((_, outcome, value),) = play.answers
    assert (outcome, value["message"]) == ("failed", "no luck")


def test_the_default_id_of_a_child_survives_a_crash_and_changes_after_a_failure() -> None:
    def started(crash: bool = False, fail: bool = False, step: str = "k0", run_id: str = "run-1") -> str:
        play = Play(call("a", retry=RETRY_AT_ONCE), run_id=run_id)
        if crash:
            play.crash()
        if fail:
            play.fail("a")
        play.wait("a", "child", child=child(), call={"step_key": step})
        return str(play.children[0].run_id)

    assert started() == started() == started(crash=True)
    assert len({started(), started(fail=True), started(step="k1"), started(run_id="run-2")}) == 4


def test_an_explicit_id_is_taken_and_an_existing_run_is_only_waited_for() -> None:
    play = Play(call("a"))
    play.wait("a", "child", child=child(run_id="mine", attach=True))
    assert play.children == []
    assert play.state.fold.children == {"mine": play.events(ev.WaitOpened)[0].wait_id}


def test_a_detached_child_answers_with_its_id_at_once_and_is_not_cancelled_with_its_parent() -> None:
    play = Play(call("a"))
    play.wait("a", "child", child=child(detached=True))
    assert play.types() == ["WaitOpened a", "ChildStarted a", "WaitClosed a"]
    (spec,) = play.children
    assert spec.parent is None
    assert play.answers == [(("a", "."), "started", spec.run_id)]
    play.fail("a")
    assert play.messages == []


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_parent_that_ends_otherwise_than_completed_cancels_its_children_by_message(end: str) -> None:
    play = Play(call("a"), call("b"))
    play.wait("a", "child", child=child())
    play.suspend("a")
    if end == "fail":
        play.fail("b")
    else:
        play.cancel()
        play.drop("b")
    (message,) = play.messages
    assert (message.run_id, message.kind) == (play.children[0].run_id, "cancel")
    assert "its parent run-1 " in message.payload["reason"]


def test_a_parent_that_completes_leaves_its_children_alone() -> None:
    play = Play(call("a"))
    play.wait("a", "child", child=child())
    play.complete("a")
    assert play.messages == []


@pytest.mark.parametrize(
    ("end", "payload"),
    [
        ("complete", {"child": "run-1", "status": "completed", "result": 7}),
        ("fail", {"child": "run-1", "status": "failed"}),
        ("cancel", {"child": "run-1", "status": "cancelled"}),
    ],
)
def test_a_child_reports_its_end_to_its_parent_in_its_last_commit(end: str, payload: dict[str, Any]) -> None:
    play = Play(call("a"), result=ref("a"), parent={"run_id": "above", "wait_id": "w"})
    if end == "complete":
        play.complete("a", 7)
    elif end == "fail":
        play.fail("a")
    else:
        play.cancel("because")
        play.drop("a")
    (message,) = play.messages
    assert (message.run_id, message.kind) == ("above", "child_ended")
    told = msgspec.json.decode(msgspec.json.encode(message.payload))
    assert {k: told.get(k) for k in payload} == payload
    if end == "cancel":
        assert "because" in told["error"]["message"]


# --- nothing to resume -----------------------------------------------------------------------------------------------


def test_resume_where_nothing_waits_for_it_changes_nothing_and_is_consumed() -> None:
    play = Play(call("a"))
    play.tell(cmd.Message("m1", "resume", b"{}"))
    assert play.types() == ["MessageConsumed"]
    play.complete("a")
    play.tell(cmd.Message("m2", "resume", b"{}"))
    assert play.outcomes[-1][:3] == ("m2", "dead", "finished")
    assert isinstance(play.entries[-1].event, ev.RunCompleted)


def test_waits_inside_items_of_a_map_suspend_the_run_and_wake_their_item_only() -> None:
    play = Play(mapped("m", ["const", [1, 2]], call("f", x=["param", "m", "item"])), result=ref("m"))
    for key in (0, 1):
        play.wait("f", until=HOUR + key, path=f".m.{key}.")
        play.suspend("f", f".m.{key}.")
    assert play.state.status == "suspended"
    play.due()
    assert (play.status("f", ".m.0."), play.status("f", ".m.1.")) == ("running", "suspended")
    play.complete("f", "one", ".m.0.")
    assert play.state.status == "suspended"
    play.due()
    play.complete("f", "two", ".m.1.")
    assert play.result == ["one", "two"]
