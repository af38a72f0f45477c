"""An operator's pause: nothing new starts, nothing is lost, and everything goes on with resume."""

from __future__ import annotations

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.policies import Retry
from holdfast.rules import decide
from holdfast.rules.draft import Refusal
from tests.rules.play import RETRY_AT_ONCE, SECOND, START, Play, call, error, looped, mapped, ref

HOUR = START + 3600 * SECOND


def test_while_a_run_is_paused_bodies_finish_and_nothing_new_starts() -> None:
    play = Play(call("a"), call("b", x=ref("a")), result=ref("b"))
    assert play.pause("audit", "ada").status == "consumed"
    (opened,) = play.events(ev.WaitOpened)
    assert (opened.kind, opened.about) == ("pause", {"reason": "audit", "actor": "ada"})
    play.complete("a", 1)
    assert (play.status("a"), play.status("b"), play.state.status) == ("completed", "pending", "suspended")
    told = play.resume("bob")
    assert told.detail["resumed"] == [opened.wait_id]
    assert play.events(ev.WaitClosed)[0].actor == "bob"
    assert play.running == {("b", "."): {"x": 1}}
    play.complete("b", 2)
    assert play.result == 2


def test_a_second_pause_is_a_no_op() -> None:
    play = Play(call("a"))
    play.pause()
    assert play.pause().status == "consumed"
    assert len(play.waits("pause")) == 1
    play.resume()
    assert play.waits() == []


def test_a_paused_run_is_suspended_only_when_no_body_is_at_work() -> None:
    play = Play(call("a"), call("b"))
    play.pause()
    assert play.state.status == "running"
    play.complete("a")
    assert play.state.status == "running"
    play.leave("b")
    assert play.state.status == "suspended"


def test_a_body_that_was_left_goes_on_with_the_same_attempt_and_memory() -> None:
    play = Play(call("a"))
    memory = play.state.nodes["a", "."].memory_seq
    play.pause()
    play.leave("a")
    assert (play.status("a"), play.running) == ("suspended", {})
    play.resume()
    ns = play.state.nodes["a", "."]
    assert (play.running, ns.attempt, ns.memory_seq) == ({("a", "."): {}}, 1, memory)


def test_a_body_that_is_left_when_the_pause_is_over_already_goes_on_at_once() -> None:
    play = Play(call("a"))
    play.pause()
    play.resume()
    play.leave("a")
    assert play.running == {("a", "."): {}}
    play.complete("a")
    assert isinstance(play.entries[-1].event, ev.RunCompleted)


def test_a_body_of_which_a_part_waits_is_left_and_goes_on() -> None:
    for is_over in (False, True):
        play = Play(call("a"))
        wait_id = play.ask("a")
        play.pause()
        if is_over:
            play.resume()
        play.leave("a")
        if not is_over:
            assert play.running == {}
            play.resume()
        assert play.running == {("a", "."): {}}
        assert play.answer(wait_id, 1).status == "consumed"


def test_pause_resume_pause_holds_the_last_word() -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    play.pause()
    play.resume()
    play.pause()
    play.leave("a")
    assert play.running == {}
    play.resume()
    play.complete("a")
    assert play.running == {("b", "."): {"x": None}}


# --- what comes in meanwhile ----------------------------------------------------------------------------------------


def test_an_answer_during_a_pause_is_taken_and_its_body_goes_on_when_the_pause_ends() -> None:
    play = Play(call("a"), call("side"))
    wait_id = play.ask("a")
    play.suspend("a")
    play.pause()
    play.complete("side")
    assert play.answer(wait_id, "yes", "ada").status == "consumed"
    assert play.answer(wait_id, "no", "bob").code == "closed"
    assert (play.status("a"), play.state.status) == ("suspended", "suspended")
    assert play.answers == [], "nobody is told before the pause ends"
    play.crash()
    play.resume()
    assert play.running == {("a", "."): {}}


def test_a_signal_during_a_pause_is_taken() -> None:
    play = Play(call("a"))
    play.receive("a", "go")
    play.suspend("a")
    play.pause()
    assert play.signal("go", 1).status == "consumed"
    assert play.status("a") == "suspended"
    play.resume()
    assert play.running == {("a", "."): {}}


def test_a_sleep_that_ends_during_a_pause_stays_until_it_ends() -> None:
    play = Play(call("a"))
    play.wait("a", until=HOUR)
    play.suspend("a")
    play.pause()
    play.due()
    assert (play.status("a"), play.state.status, play.state.timers) == ("suspended", "suspended", {})
    play.resume()
    assert play.running == {("a", "."): {}}


def test_a_retry_that_is_due_during_a_pause_waits_for_its_end() -> None:
    play = Play(call("a", retry=Retry(attempts=3, backoff=60, jitter=0)))
    play.fail("a")
    play.pause()
    play.due()
    assert (play.running, play.state.status) == ({}, "suspended")
    assert play.types() == ["TimerFired"], "the run is not woken for it"
    play.resume()
    assert play.running == {("a", "."): {}}
    assert play.state.nodes["a", "."].attempt == 2


def test_a_retry_that_is_not_due_yet_when_the_pause_ends_still_waits_for_its_time() -> None:
    play = Play(call("a", retry=Retry(attempts=3, backoff=60, jitter=0)))
    play.fail("a")
    play.pause()
    play.resume()
    assert play.running == {}
    play.due()
    assert play.running == {("a", "."): {}}


def test_a_body_that_fails_during_a_pause_is_tried_again_when_it_ends() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE))
    play.pause()
    play.fail("a")
    assert (play.status("a"), play.running) == ("scheduled", {})
    assert play.state.status == "suspended"
    play.resume()
    assert play.running == {("a", "."): {}}


def test_a_node_that_pends_during_a_pause_lies_in_its_basket_and_resume_ends_the_pause_first() -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    play.pause()
    basket = play.pend("a", output=1)
    (pause,) = play.waits("pause")
    assert play.resume().detail["resumed"] == [pause]
    assert play.waits() == [basket]
    assert play.resume().detail["resumed"] == [basket]
    assert play.running == {("b", "."): {"x": 1}}


@pytest.mark.parametrize("way", ["next", "same", "error"])
def test_a_node_that_is_taken_out_of_its_basket_during_a_pause_goes_on_when_the_pause_ends(way: str) -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    basket = play.pend("a", output=1, rerun=way == "same", error=error() if way == "error" else None)
    play.pause()
    assert play.resume(wait=basket).detail["resumed"] == [basket]
    assert play.running == {}
    assert play.state.status == "suspended"
    play.crash()
    play.resume()
    assert set(play.running) == {("b" if way == "next" else "a", ".")}


def test_a_ticket_that_is_raised_during_a_pause_is_redeemed_when_it_ends() -> None:
    play = Play(call("a"), call("b"), call("c", after=("a", "b")))
    play.pause()
    play.complete("b", goto="c")
    play.complete("a")
    assert (play.running, play.events(ev.TargetEntered)) == ({}, [])
    play.crash()
    play.resume()
    assert play.running == {("c", "."): {}}


def test_a_child_that_ends_during_a_pause_is_heard() -> None:
    play = Play(call("a"))
    new = cmd.NewChild(2, "kid", 1, b"{}", "", {}, {}, None, {}, run_id="kid-1")
    play.wait("a", "child", child=new)
    play.suspend("a")
    play.pause()
    assert play.send("child_ended", child="kid-1", status="completed", result=1).status == "consumed"
    assert play.status("a") == "suspended"
    play.resume()
    assert play.running == {("a", "."): {}}


# --- maps and loops -------------------------------------------------------------------------------------------------


def test_no_further_item_of_a_map_begins_and_all_of_them_run_in_the_end() -> None:
    play = Play(mapped("m", ["const", [1, 2, 3]], call("f", x=["param", "m", "item"]), limit=1), result=ref("m"))
    play.pause()
    play.complete("f", "one", ".m.0.")
    assert play.running == {}
    assert play.state.status == "suspended"
    play.crash()
    play.resume()
    assert play.running == {("f", ".m.1."): {"x": 2}}
    play.complete("f", "two", ".m.1.")
    play.complete("f", "three", ".m.2.")
    assert play.result == ["one", "two", "three"]


def test_the_last_item_may_end_during_a_pause() -> None:
    play = Play(mapped("m", ["const", [1]], call("f")), call("end", x=ref("m")), result=ref("end"))
    play.pause()
    play.complete("f", "one", ".m.0.")
    assert play.running == {}
    play.resume()
    assert play.running == {("end", "."): {"x": ["one"]}}


def test_the_next_node_of_an_item_waits_too() -> None:
    play = Play(mapped("m", ["const", [1]], call("f"), call("g", x=ref("f"))), result=ref("m"))
    play.pause()
    play.complete("f", "one", ".m.0.")
    assert play.running == {}
    play.crash()
    play.resume()
    assert play.running == {("g", ".m.0."): {"x": "one"}}


def test_no_further_round_of_a_loop_begins() -> None:
    for crashes in (False, True):
        loop = looped("l", 0, ["gt", ["node", "f"], 2], call("f", x=["param", "l", "item"]))
        play = Play(loop, result=ref("l"))
        play.pause()
        play.complete("f", 1, ".l.0.")
        assert play.running == {}
        if crashes:
            play.crash()
        play.resume()
        assert play.running == {("f", ".l.1."): {"x": 1}}
        play.pause()
        play.complete("f", 3, ".l.1.")
        assert play.running == {}
        if crashes:
            play.crash()
        play.resume()
        assert play.result == 3, "`until` was true when the pause began"


# --- beginnings and ends --------------------------------------------------------------------------------------------


def test_a_run_that_is_paused_before_it_begins_begins_with_resume() -> None:
    play = Play(call("a"), begin=False)
    play.pause()
    assert play.state.status == "suspended"
    play.resume()
    assert play.running == {("a", "."): {}}


def test_a_run_that_is_told_to_begin_while_it_is_paused_begins_with_resume() -> None:
    play = Play(call("a"), begin=False)
    play.pause()
    play.tell(cmd.Begin())
    assert play.running == {}
    play.resume()
    assert play.running == {("a", "."): {}}


def test_a_run_whose_last_body_ends_during_a_pause_has_nothing_left_to_hold_back() -> None:
    play = Play(call("a"), result=ref("a"))
    play.pause()
    play.complete("a", 1)
    assert play.result == 1


@pytest.mark.parametrize("at_work", [True, False])
def test_a_paused_run_can_be_cancelled_and_is_compensated(at_work: bool) -> None:
    play = Play(call("pay", compensate="refund"), call("ship", x=ref("pay")), on_failure="compensate")
    play.complete("pay", 1)
    play.pause()
    if not at_work:
        play.leave("ship")
    play.cancel()
    if at_work:
        play.drop("ship")
    assert list(play.running) == [("pay~undo", ".")]
    play.complete("pay~undo")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_run_that_is_ending_cannot_be_paused_or_resumed() -> None:
    play = Play(call("a"))
    play.cancel()
    assert play.pause().code == "closing"
    assert play.resume().code == "closing"


def test_a_runs_timeout_ends_it_also_while_it_is_paused() -> None:
    play = Play(call("a"), timeout=60.0)
    play.pause()
    play.leave("a")
    play.due()
    assert play.failure.error.code == "run_timeout"


def test_a_failure_during_a_pause_ends_the_run() -> None:
    play = Play(call("a"), call("b"))
    play.pause()
    play.fail("a")
    assert play.told_to_stop == [("b", ".")]
    play.drop("b")
    assert play.failure.error.node == "a"


def test_a_paused_run_survives_crashes_and_stays_paused() -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    play.pause()
    play.complete("a", 1)
    play.crash()
    play.crash()
    assert play.running == {}
    assert len(play.waits("pause")) == 1
    play.resume()
    assert play.running == {("b", "."): {"x": 1}}


def test_a_body_that_is_cut_off_during_a_pause_runs_again_when_it_ends() -> None:
    play = Play(call("a"))
    play.pause()
    play.crash()
    assert play.running == {}
    assert play.state.status == "suspended"
    play.resume()
    assert play.running == {("a", "."): {}}
    assert play.state.nodes["a", "."].attempt == 2, "the attempt that was cut off counts"


def test_a_pause_holds_also_when_it_arrives_with_the_takeover() -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    play.crash(first=[cmd.Message("m1", "pause", b"{}")])
    assert play.running == {}
    play.resume()
    assert play.running == {("a", "."): {}}


def test_variables_may_come_with_the_end_of_a_pause() -> None:
    play = Play(call("a"), call("b", x=["var", "n"], after=("a",)), variables={"n": {"type": "integer"}})
    play.pause()
    play.complete("a")
    play.resume(vars={"n": 4})
    assert play.running == {("b", "."): {"x": 4}}


def test_a_body_for_which_a_place_became_free_just_before_the_pause_does_not_start() -> None:
    play = Play(call("a"), call("b"), slots=1)
    assert play.running == {("a", "."): {}}
    play.pause()
    with pytest.raises(Refusal, match="while the run is paused"):
        decide.decide(play.state, cmd.StartNode("b", "."), play.now)
    play.complete("a")
    play.resume()
    assert play.running == {("b", "."): {}}
