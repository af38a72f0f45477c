"""Pends: a node that lies in a basket, in each of its three ways, and how it is taken out again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.policies import Retry
from tests.rules.play import RETRY_AT_ONCE, Play, call, error, looped, mapped, ref

BRANCHES = ["const", ["north", "middle", "south"]]


def chain(**settings: Any) -> Play:
    return Play(call("a"), call("b", x=ref("a")), result=ref("b"), **settings)


def branches() -> Play:
    """Three branches, each of which lies in a basket."""
    play = Play(
        mapped("m", BRANCHES, call("f", x=["param", "m", "item"]), call("g", x=ref("f"))), call("end", x=ref("m"))
    )
    for key in range(3):
        play.pend("f", "manager", key, f".m.{key}.")
    return play


# --- the three ways -------------------------------------------------------------------------------------------------


def test_a_pended_node_waits_in_its_basket_and_the_next_one_runs_on_resume_with_its_output() -> None:
    play = chain()
    wait_id = play.pend("a", "second_look", 7)
    assert (play.status("a"), play.status("b"), play.state.status) == ("suspended", "pending", "suspended")
    assert play.types() == ["WaitOpened a", "NodeSuspended a", "RunSuspended"]
    wait = play.state.waits[wait_id]
    assert (wait.kind, wait.basket, wait.about["mode"]) == ("basket", "second_look", "next")
    told = play.resume("ada")
    assert told.detail == {"resumed": [wait_id]}
    assert play.log == ["a", "b"], "the body that pended does not run again"
    assert play.running == {("b", "."): {"x": 7}}
    (closed,) = play.events(ev.WaitClosed)
    assert (closed.outcome, closed.actor) == ("resumed", "ada")


def test_rerun_runs_the_same_node_again_as_the_same_attempt_and_forgets() -> None:
    play = chain()
    play.wait("a", until=play.now + 1)
    play.due()
    memory = play.state.nodes["a", "."].memory_seq
    assert memory
    play.pend("a", "desk", rerun=True)
    assert play.state.nodes["a", "."].memory_seq == 0
    play.resume()
    assert play.log == ["a", "a"]
    ns = play.state.nodes["a", "."]
    assert (ns.attempt, ns.failures) == (1, 0), "nothing has failed"
    assert ns.memory_seq > memory, "what it remembered before is not read"
    play.complete("a", 1)
    assert play.running == {("b", "."): {"x": 1}}


def test_an_error_is_a_failed_attempt_and_the_same_node_runs_again_on_resume() -> None:
    play = chain()
    wait_id = play.pend("a", "retry_queue", error=error(code="registry_down"))
    (failed,) = play.events(ev.NodeFailed)
    assert (failed.error.code, failed.error.node, failed.retryable) == ("registry_down", "a", True)
    assert play.state.waits[wait_id].about["error"]["code"] == "registry_down"
    assert play.status("a") == "suspended"
    play.resume()
    ns = play.state.nodes["a", "."]
    assert (play.log, ns.attempt) == (["a", "a"], 2)
    assert ns.memory_seq, "a failure keeps what is remembered"
    play.complete("a", 1)
    assert play.status("a") == "completed"


def test_an_error_with_rerun_forgets_as_well() -> None:
    play = chain()
    play.pend("a", error=error(), rerun=True)
    assert play.state.nodes["a", "."].memory_seq == 0


def test_a_node_may_pend_again_and_again() -> None:
    play = chain()
    for number in range(1, 4):
        play.pend("a", "retry_queue", error=error())
        assert play.state.nodes["a", "."].attempt == number
        play.resume()
    play.pend("a", "second_look", 5)
    play.resume()
    assert play.running == {("b", "."): {"x": 5}}


def test_variables_that_a_body_set_are_committed_with_its_pend() -> None:
    for way in ({}, {"rerun": True}, {"error": error()}):
        play = Play(call("a"), call("b", x=["var", "seen"], after=("a",)), variables=["seen"])
        play.pend("a", seen=3, **way)
        assert play.variable("seen") == 3
        play.crash()
        play.resume()
        if way:
            play.complete("a")
        assert play.running == {("b", "."): {"x": 3}}


def test_what_conditions_read_of_a_pended_output_is_there_after_a_crash() -> None:
    play = Play(call("a"), call("b", when=["gt", ["get", ["node", "a"], "n"], 3]))
    play.pend("a", output={"n": 5})
    play.crash()
    play.resume()
    assert play.running == {("b", "."): {}}


def test_a_pended_node_survives_crashes_and_is_run_by_nobody_meanwhile() -> None:
    for way in ({}, {"rerun": True}, {"error": error()}):
        play = Play(call("a"), call("side"))
        play.pend("a", **way)
        play.crash()
        play.crash()
        assert ("a", ".") not in play.running
        assert play.status("a") == "suspended"
        assert len(play.waits("basket")) == 1


def test_siblings_go_on_while_a_node_lies_in_a_basket_and_the_run_counts_as_running() -> None:
    play = Play(call("a"), call("b"), call("c", x=ref("b")), result=["list", ref("a"), ref("c")])
    play.pend("a", output=1)
    assert play.state.status == "running"
    play.complete("b", 2)
    play.complete("c", 3)
    assert play.state.status == "suspended"
    play.resume()
    assert play.result == [1, 3]


# --- failures into a basket -----------------------------------------------------------------------------------------


def test_on_failure_pend_puts_what_is_out_of_tries_into_the_basket_and_resume_gives_all_tries_again() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE), call("b", x=ref("a")), on_failure="pend:errors")
    for _ in range(3):
        assert not play.waits()
        play.fail("a", error("ValueError", "Exception", code="bad"))
    (wait_id,) = play.waits("basket")
    wait = play.state.waits[wait_id]
    assert (wait.basket, wait.about["mode"], wait.about["error"]["code"]) == ("errors", "error", "bad")
    assert play.state.status == "suspended"
    play.resume()
    ns = play.state.nodes["a", "."]
    assert (ns.attempt, ns.failures) == (4, 0)
    play.fail("a")
    assert ("a", ".") in play.running, "its policy counts from 0 again"
    play.complete("a", 1)
    assert play.status("a") == "completed"


def test_on_failure_pend_takes_an_item_of_a_map_and_the_others_go_on() -> None:
    play = Play(mapped("m", BRANCHES, call("f", x=["param", "m", "item"])), result=ref("m"), on_failure="pend:errors")
    play.fail("f", path=".m.1.")
    play.complete("f", "n", ".m.0.")
    play.complete("f", "s", ".m.2.")
    assert play.state.status == "suspended"
    play.resume()
    play.complete("f", "m", ".m.1.")
    assert play.result == ["n", "m", "s"]


def test_a_map_that_collects_errors_collects_them_also_under_on_failure_pend() -> None:
    play = Play(mapped("m", BRANCHES, call("f"), errors="collect"), on_failure="pend:errors")
    play.fail("f", path=".m.0.")
    assert not play.waits()


def test_a_failure_that_no_body_had_still_fails_the_run() -> None:
    """A map over something that is no list has nothing that could run again."""
    play = Play(call("a"), mapped("m", ref("a"), call("f")), on_failure="pend:errors")
    play.complete("a", "no list")
    assert play.failure.error.node == "m"


def test_an_interrupted_attempt_that_must_not_be_repeated_lies_in_the_basket_too() -> None:
    play = Play(call("a", on_crash="fail"), on_failure="pend:errors")
    play.crash()
    (wait_id,) = play.waits("basket")
    assert play.state.waits[wait_id].about["error"]["code"] == "outcome_unknown"


# --- which one is resumed -------------------------------------------------------------------------------------------


def test_of_three_pended_branches_the_second_is_resumed_alone_by_its_path() -> None:
    play = branches()
    assert play.state.status == "suspended"
    play.resume(path=".m.1.")
    assert play.running == {("g", ".m.1."): {"x": 1}}
    assert [play.status("f", f".m.{key}.") for key in range(3)] == ["suspended", "completed", "suspended"]


def test_of_three_pended_branches_the_second_is_resumed_alone_by_its_wait() -> None:
    play = branches()
    second = play.waits()[1]
    assert play.resume(wait=second).detail == {"resumed": [second]}
    assert set(play.running) == {("g", ".m.1.")}


def test_two_managers_may_approve_in_any_order_and_the_branches_join() -> None:
    play = branches()
    for key in (2, 0, 1):
        play.resume(path=f".m.{key}.")
        play.complete("g", f"done {key}", f".m.{key}.")
    assert play.running == {("end", "."): {"x": ["done 0", "done 1", "done 2"]}}


def test_a_plain_resume_takes_the_deepest_path_and_of_several_the_oldest() -> None:
    play = Play(call("top"), mapped("m", ["const", [1, 2]], call("f")), call("z", after=("top", "m")))
    play.pend("top", "early")
    play.now += 1
    play.pend("f", path=".m.1.")
    play.now += 1
    play.pend("f", path=".m.0.")
    assert play.state.status == "suspended"
    taken = []
    while play.waits():
        before = {w: play.state.waits[w].path for w in play.waits()}
        (resumed,) = play.resume().detail["resumed"]
        taken.append(before[resumed])
    assert taken == [".m.1.", ".m.0.", "."]
    assert ("z", ".") in play.running


def test_a_path_on_which_nothing_lies_is_refused_and_the_others_are_named() -> None:
    play = branches()
    refused = play.resume(path=".m.7.")
    assert refused.code == "not_pended"
    assert ".m.0., .m.1., .m.2." in refused.why
    assert len(play.waits()) == 3


def test_a_wait_that_is_no_basket_cannot_be_resumed() -> None:
    play = Play(call("a"))
    play.receive("a", "go")
    refused = play.resume(wait=play.waits()[0])
    assert refused.code == "not_resumable"
    assert "signal" in refused.why
    assert play.resume(wait="w_none").code == "unknown_wait"


def test_who_resumes_second_is_told_who_was_first() -> None:
    play = branches()
    second = play.waits()[1]
    play.resume("ada", wait=second)
    refused = play.resume("bob", wait=second)
    assert refused.code == "closed"
    assert "was resumed by ada" in refused.why
    assert play.log.count("g@.m.1.") == 1


def test_a_pended_node_can_be_moved_to_another_basket_with_a_trace() -> None:
    play = chain()
    wait_id = play.pend("a", "desk", rerun=True)
    play.send("reassign", wait_id=wait_id, basket="night", actor="cy")
    (edited,) = play.events(ev.RunEdited)
    assert (edited.actor, edited.before["basket"], edited.after["basket"]) == ("cy", "desk", "night")
    play.crash()
    assert play.state.waits[wait_id].basket == "night"
    play.resume()
    assert play.log == ["a", "a"], "a change of basket does not change what runs on resume"


# --- variables on resume --------------------------------------------------------------------------------------------


def typed() -> Play:
    variables = {"seen": {"type": "boolean"}, "count": {"type": "integer"}}
    play = Play(
        call("a"), call("b", x=["var", "count"], when=["eq", ["var", "seen"], True], after=("a",)), variables=variables
    )
    play.pend("a", seen=False)
    return play


def test_variables_are_set_before_what_is_resumed_goes_on() -> None:
    play = typed()
    play.resume("ada", vars={"seen": True, "count": 4})
    assert play.running == {("b", "."): {"x": 4}}
    assert play.events(ev.VariablesSet)[0].actor == "ada"
    assert (play.variable("seen"), play.variable("count")) == (True, 4), "added and updated"


@pytest.mark.parametrize(
    ("vars", "what"),
    [
        ({"seen": "yes"}, "seen"),
        ({"count": 4, "seen": None}, "seen"),
        ({"count": 1.5}, "count"),
        ({"sen": True}, "did you mean"),
    ],
)
def test_a_variable_of_another_type_or_name_is_refused_and_nothing_is_changed(vars: dict[str, Any], what: str) -> None:
    play = typed()
    refused = play.resume(vars=vars)
    assert (refused.status, refused.code) == ("dead", "bad_variable")
    assert what in refused.why
    assert play.types() == ["MessageRefused"]
    assert (play.variable("seen"), play.waits("basket") != []) == (False, True)


# --- tickets, ends, and what cannot pend ----------------------------------------------------------------------------


def test_a_ticket_with_a_pend_leads_to_its_target_on_resume() -> None:
    play = Play(call("a"), call("b", x=ref("a")), call("letter"), tickets={"reject": "letter"})
    play.complete("letter")
    play.pend("a", output=1, ticket="reject")
    assert not play.events(ev.TicketRaised)
    play.crash()
    play.resume()
    assert play.events(ev.TicketRaised)[0].target == "letter"
    assert play.running == {("letter", "."): {}}
    assert (play.status("a"), play.status("b")) == ("completed", "skipped")


def test_a_ticket_that_is_redeemed_on_resume_ends_maps_that_are_under_way() -> None:
    body = call("f", x=["param", "m", "item"])
    play = Play(call("a"), mapped("m", BRANCHES, body, limit=1), call("letter"), tickets={"reject": "letter"})
    play.complete("letter")
    play.pend("a", ticket="reject")
    play.resume()
    assert play.running == {("f", ".m.0."): {"x": "north"}}, "what is at work finishes its node"
    play.complete("f", path=".m.0.")
    assert play.running == {("letter", "."): {}}
    assert play.log == ["a", "letter", "f@.m.0.", "letter"]


def test_a_ticket_that_is_not_declared_fails_the_node_at_once() -> None:
    play = Play(call("a"), call("b"), tickets={"reject": "b"})
    play.pend("a", ticket="rejct")
    assert play.events(ev.NodeFailed)[0].error.code == "bad_target"
    assert not play.waits()


def test_a_ticket_in_one_branch_and_a_pend_in_another_the_pended_one_is_superseded() -> None:
    play = Play(call("a"), call("b"), call("c", after=("a", "b")))
    wait_id = play.pend("a")
    play.complete("b", goto="c")
    assert play.running == {("c", "."): {}}
    assert play.status("a") == "cancelled"
    refused = play.resume(wait=wait_id)
    assert refused.code == "closed"


def test_a_pend_inside_a_map_inside_a_map() -> None:
    inner = mapped("n", ["const", [1, 2]], call("f"))
    play = Play(mapped("m", ["const", [1, 2]], inner), result=ref("m"))
    for outer in (0, 1):
        for key in (0, 1):
            play.pend("f", "desk", [outer, key], f".m.{outer}.n.{key}.")
    play.crash()
    for path in (".m.1.n.0.", ".m.0.n.1.", ".m.1.n.1.", ".m.0.n.0."):
        play.resume(path=path)
    assert play.result == [[[0, 0], [0, 1]], [[1, 0], [1, 1]]]


def test_a_pend_in_a_round_of_a_loop_holds_the_next_round_back() -> None:
    loop = looped("l", 0, ["gt", ["node", "f"], 1], call("f", x=["param", "l", "item"]))
    play = Play(loop, result=ref("l"))
    play.pend("f", output=1, path=".l.0.")
    assert play.state.status == "suspended"
    play.resume()
    assert play.running == {("f", ".l.1."): {"x": 1}}
    play.pend("f", output=2, path=".l.1.")
    play.resume()
    assert play.result == 2


def test_a_cancelled_run_takes_its_nodes_out_of_their_baskets() -> None:
    play = branches()
    play.cancel("enough")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)
    assert {e.outcome for e in play.events(ev.WaitClosed)} == {"cancelled"}


def test_what_completed_before_it_pended_is_compensated_and_what_was_to_run_again_is_not() -> None:
    graph = (call("pay", compensate="refund"), call("book", compensate="unbook"))
    play = Play(*graph, on_failure="compensate")
    play.pend("pay", output="receipt")
    play.pend("book", error=error())
    play.cancel()
    assert list(play.running) == [("pay~undo", ".")]
    play.complete("pay~undo")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_pend_while_the_run_ends_is_recorded_as_completed_or_dropped() -> None:
    for way, status in (({}, "completed"), ({"rerun": True}, "cancelled"), ({"error": error()}, "cancelled")):
        play = Play(call("a"), call("b"))
        play.cancel()
        play.pend("a", output=1, **way)
        assert (play.status("a"), play.waits()) == (status, [])
        play.drop("b")
        assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_compensation_cannot_pend() -> None:
    play = Play(call("pay", compensate="refund"), call("ship", x=ref("pay")), on_failure="compensate")
    play.complete("pay", 1)
    play.fail("ship")
    play.pend("pay~undo")
    assert play.failure.others[0].code == "bad_target"


def test_questions_that_a_pending_body_still_had_open_are_withdrawn() -> None:
    play = chain()
    wait_id = play.ask("a")
    play.pend("a", output=1)
    assert play.answer(wait_id, 1).code == "closed"
    assert len(play.waits()) == 1


def test_a_late_word_of_a_body_that_pended_is_not_heard() -> None:
    """A task that it left behind may still finish a step; that must not take the node out of its basket."""
    for way in ({}, {"rerun": True}, {"error": error()}):
        play = chain()
        play.pend("a", **way)
        step = ev.StepCompleted("t1/", 0, "step", "late", "d", msgspec.Raw(b"1"))
        assert play.refusal(cmd.RecordStep("a", ".", 1, step)) == "stale"
        assert play.refusal(cmd.CompleteNode("a", ".", 1, b"1")) == "stale"
        assert play.resume().status == "consumed"


def test_the_retry_delay_of_a_policy_does_not_run_in_a_basket() -> None:
    play = Play(call("a", retry=Retry(attempts=3, backoff=60)))
    play.pend("a", error=error())
    assert not play.state.timers, "it runs again when somebody resumes it, not by itself"
