"""Tickets and goto: a body sends its run to another node (SEMANTICS 3, 4)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.definition import NodeDef, Phase
from holdfast.model.policies import Retry
from tests.rules.play import RETRY_AT_ONCE, SECOND, START, Play, call, error, looped, mapped, ref

HOUR = START + 3600 * SECOND


def chain(*, result: object = None, **settings: object) -> Play:
    """a -> b -> c"""
    nodes = (call("a"), call("b", x=ref("a")), call("c", x=ref("b")))
    return Play(*nodes, result=ref("c") if result is None else result, **settings)


def fork(**settings: object) -> Play:
    """a -> (b, side -> after_side), b -> c; b is the one that raises."""
    return Play(
        call("a"),
        call("b", x=ref("a")),
        call("side", x=ref("a"), retry=RETRY_AT_ONCE),
        call("after_side", x=ref("side")),
        call("c", x=ref("b")),
        result=["list", ref("c"), ref("after_side")],
        **settings,
    )


def visits(play: Play, node: str, path: str = ".") -> list[tuple[int, str, int]]:
    """(visit, status, is_open) of every row of a node on a path."""
    found = [r for r in play.rows().values() if (r.node, r.path) == (node, path)]
    return sorted((r.visit, str(r.status), r.is_open) for r in found)


# --- back ----------------------------------------------------------------------------------------------------------


def test_goto_back_enters_the_target_as_a_new_visit_in_the_commit_of_the_node_that_raised_it() -> None:
    play = chain()
    play.complete("a", 1)
    play.complete("b", "again", goto="a")
    assert play.types() == [
        "TicketRaised b",
        "NodeCompleted b",
        "TargetEntered",
        "NodeScheduled a",
        "NodeStarted a",
    ]
    assert play.events(ev.TicketRaised) == [ev.TicketRaised("a")]
    assert visits(play, "a") == [(1, "completed", 0), (2, "running", 1)]
    assert visits(play, "b") == [(1, "completed", 0)], "b is entered anew when it is reached, not before"
    assert play.state.fold.ticket is None


def test_everything_downstream_is_entered_anew_and_the_result_is_that_of_the_latest_visit() -> None:
    play = chain(result=["list", ref("a"), ref("b"), ref("c")])
    play.complete("a", 1)
    play.complete("b", 2, goto="a")
    play.complete("a", 10)
    assert play.running == {("b", "."): {"x": 10}}
    play.complete("b", 20)
    play.complete("c", 30)
    assert play.result == [10, 20, 30]
    assert [visit for visit, *_ in visits(play, "b")] == [1, 2]
    assert [visit for visit, *_ in visits(play, "c")] == [1], "c was never entered before"


def test_a_node_may_go_to_itself() -> None:
    play = chain()
    for n in range(3):
        play.complete("a", n, goto="a")
    play.complete("a", 3)
    assert play.running == {("b", "."): {"x": 3}}
    assert [visit for visit, *_ in visits(play, "a")] == [1, 2, 3, 4]


def test_what_is_not_downstream_of_the_target_stays_completed_and_joins_wait_for_the_new_visit() -> None:
    play = Play(call("a"), call("other"), call("b", x=ref("a")), call("join", x=["list", ref("b"), ref("other")]))
    play.complete("other", "kept")
    play.complete("a", 1)
    play.complete("b", 2)
    play.complete("join", goto="a")
    play.complete("a", 3)
    assert play.log.count("other") == 1
    play.complete("b", 4)
    assert play.running == {("join", "."): {"x": [4, "kept"]}}


def test_a_skipped_node_is_decided_anew_on_the_next_visit() -> None:
    play = Play(call("a"), call("b", when=["ge", ref("a", "n"), 5], x=ref("a")), call("c", after=("b",)))
    play.complete("a", {"n": 1})
    assert play.status("b") == "skipped"
    play.complete("c", goto="a")
    play.complete("a", {"n": 9})
    assert play.status("b") == "running"
    assert visits(play, "b") == [(1, "skipped", 0), (2, "running", 1)]


def test_phases_begin_and_end_again() -> None:
    play = Play(
        call("a", phase="one"),
        call("b", x=ref("a"), phase="two"),
        phases=(Phase(name="one"), Phase(name="two")),
    )
    play.complete("a", 1)
    play.complete("b", goto="a")
    play.complete("a", 2)
    play.complete("b")
    named = [(type(e).__name__, e.phase) for e in play.events(ev.PhaseStarted, ev.PhaseCompleted)]
    pass_through = [
        ("PhaseStarted", "one"),
        ("PhaseCompleted", "one"),
        ("PhaseStarted", "two"),
        ("PhaseCompleted", "two"),
    ]
    assert named == pass_through * 2


def test_too_many_visits_fail_the_run_and_say_so() -> None:
    play = chain(max_visits=3)
    play.complete("a")
    for _ in range(2):
        play.complete("b", goto="b")
    play.complete("b", goto="b")
    failure = play.failure.error
    assert failure.code == "too_many_visits"
    assert "3 visits" in failure.message
    assert failure.node == "b"


# --- forward -------------------------------------------------------------------------------------------------------


def test_a_ticket_forward_skips_what_it_passes_over_with_its_cause_and_enters_the_target_whatever_its_condition() -> (
    None
):
    play = Play(
        call("a"),
        call("b", x=ref("a")),
        call("c", x=ref("b")),
        call("reject", when=False, why=["first", ref("b"), "no"]),
        tickets={"no": "reject"},
        result=["list", ref("c"), ref("reject")],
    )
    play.complete("a", "bad", ticket="no")
    assert play.events(ev.TicketRaised) == [ev.TicketRaised("reject", "no")]
    assert play.events(ev.NodeSkipped, node="b") == [ev.NodeSkipped("ticket", "a")]
    assert play.events(ev.NodeSkipped, node="c") == [ev.NodeSkipped("ticket", "a")]
    assert play.running == {("reject", "."): {"why": "no"}}
    play.complete("reject", "sent")
    assert play.result == [None, "sent"]
    assert visits(play, "reject") == [(1, "completed", 1)]


def test_a_target_that_was_skipped_before_is_entered_as_its_second_visit() -> None:
    play = Play(call("reject", when=False), call("a"), tickets={"no": "reject"}, result=ref("reject"))
    assert play.status("reject") == "skipped"
    play.complete("a", ticket="no")
    assert visits(play, "reject") == [(1, "skipped", 0), (2, "running", 1)]


def test_the_data_of_the_target_must_be_there() -> None:
    play = chain()
    play.complete("a", goto="c")
    assert play.failure.error.code == "missing_data"
    assert play.failure.error.node == "c"
    assert "output of b, which is skipped" in play.failure.error.message


def test_a_map_may_be_a_target() -> None:
    play = Play(
        call("a"), mapped("m", ["const", [1, 2]], call("one", x=["param", "m", "item"]), after=("a",)), result=ref("m")
    )
    play.complete("a", goto="m")
    play.run({"one": lambda x: x * 10})
    assert play.result == [10, 20]


# --- while it is pending ---------------------------------------------------------------------------------------------


def test_running_siblings_finish_their_node_and_nothing_new_starts() -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="a")
    assert set(play.running) == {("side", ".")}
    assert play.state.fold.ticket is not None
    play.complete("side", "done")
    assert set(play.running) == {("a", ".")}
    assert visits(play, "side") == [(1, "completed", 0)]
    assert play.status("after_side") == "pending", "it is downstream of a"


def test_what_was_scheduled_and_not_started_is_withdrawn() -> None:
    play = fork(slots=1)
    play.complete("a", 1)
    play.start_due()
    assert play.statuses()["side"] == "scheduled"
    play.complete("b", goto="c")
    assert play.events(ev.NodeCancelled, node="side") == [ev.NodeCancelled("ticket", None, "b")]
    assert play.events(ev.NodeSkipped, node="after_side") == [ev.NodeSkipped("ticket", "b")]


def test_what_waits_is_cancelled_its_waits_are_superseded_and_its_timers_gone() -> None:
    play = fork()
    play.complete("a", 1)
    wait_id = play.wait("side", until=HOUR)
    play.suspend("side")
    play.complete("b", goto="a")
    assert [(e.wait_id, e.outcome) for e in play.events(ev.WaitClosed)] == [(wait_id, "superseded")]
    assert play.events(ev.NodeCancelled) == [ev.NodeCancelled("ticket", "unknown", "b")]
    assert set(play.running) == {("a", ".")}
    assert not play.state.timers


def test_a_sibling_that_begins_to_wait_meanwhile_is_cancelled_too() -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="a")
    play.wait("side", until=HOUR)
    play.suspend("side")
    assert play.status("side") == "pending"
    assert set(play.running) == {("a", ".")}


def test_a_child_that_a_cancelled_node_waited_for_is_cancelled() -> None:
    play = fork()
    play.complete("a", 1)
    child = cmd.NewChild(7, "sub", 1, b"{}", "hash", {}, {}, None, {}, run_id="kid")
    play.wait("side", "child", child=child)
    play.suspend("side")
    play.complete("b", goto="a")
    assert [(m.run_id, m.kind) for m in play.messages] == [("kid", "cancel")]
    assert play.state.fold.children == {}


def test_the_next_attempt_of_what_fails_meanwhile_is_withdrawn() -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="c")
    play.fail("side")
    assert play.types() == [
        "NodeFailed side",
        "NodeScheduled side",
        "NodeCancelled side",
        "NodeSkipped after_side",
        "TargetEntered",
        "NodeScheduled c",
        "NodeStarted c",
    ]
    play.complete("c", "end")
    assert play.result == ["end", None]


def test_a_failure_for_good_meanwhile_ends_the_run() -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="c")
    play.fail("side", error(retryable=False))
    assert play.failure.error.node == "side"
    assert not play.events(ev.TargetEntered)


def test_a_cancel_while_a_ticket_is_pending_just_ends_the_run() -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="c")
    play.cancel()
    play.drop("side")
    assert play.state.status == "cancelled"
    assert not play.events(ev.TargetEntered)


def test_the_first_ticket_wins_and_later_ones_are_recorded() -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="c")
    play.complete("side", goto="a")
    assert [e.target for e in play.events(ev.TicketRaised)] == ["c", "a"]
    assert [e.target for e in play.events(ev.TargetEntered)] == ["c"]


def test_a_body_that_was_told_to_stop_leads_nowhere() -> None:
    play = fork()
    play.complete("a", 1)
    play.fail("b")
    play.complete("side", goto="a")
    assert not play.events(ev.TicketRaised)
    assert play.state.status == "failed"


def test_an_item_of_a_map_that_has_failed_leads_nowhere() -> None:
    play = Play(mapped("m", ["const", [1, 2]], call("one")), call("a", x=ref("m")), on_failure="continue")
    play.fail("one", path=".m.0.")
    assert play.told_to_stop == [("one", ".m.1.")]
    play.complete("one", goto="m", path=".m.1.")
    assert not play.events(ev.TicketRaised)
    assert play.failure.error.path == ".m.0."


def test_a_late_word_of_an_earlier_visit_is_not_heard() -> None:
    play = chain()
    play.complete("a", goto="a")
    assert play.state.nodes["a", "."].attempt == 1
    assert play.refusal(cmd.CompleteNode("a", ".", 1, b"1", visit=1)) == "stale"
    assert play.refusal(cmd.RecordStep("a", ".", 1, ev.StepCompleted("", 0, "step", "f", "d", b"1"))) == "stale"
    assert play.refusal(cmd.DropNode("a", ".", 1)) == "stale"
    play.complete("a", 2)
    assert play.running == {("b", "."): {"x": 2}}


# --- where it may lead -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"goto": "nowhere"}, "there is no node 'nowhere'"),
        ({"goto": "bb"}, "there is no node 'bb' (did you mean 'b'?)"),
        ({"goto": "one"}, "'one' is inside the body of 'm' (go to 'm'"),
        ({"goto": "eu"}, "'eu' is in a branch of a parallel route"),
        ({"ticket": "stop"}, "the workflow has no ticket 'stop' (declare it: @hf.workflow(tickets={'stop': 'node'}))"),
        ({"ticket": "rejekt"}, "did you mean 'reject'?"),
    ],
)
def test_a_ticket_that_leads_nowhere_fails_its_node_at_once_and_says_why(asked: dict[str, str], message: str) -> None:
    play = Play(
        call("a", retry=Retry(attempts=5)),
        call("b", after=("a",)),
        mapped("m", ["const", [1]], call("one"), after=("a",)),
        call("eu", lane="route_1.eu.", after=("a",)),
        tickets={"reject": "b"},
    )
    play.complete("a", **asked)
    assert play.failure.error.code == "bad_target"
    assert message in play.failure.error.message
    assert play.state.nodes["a", "."].attempt == 1


def test_a_compensation_goes_nowhere() -> None:
    play = Play(call("a", compensate="undo"), call("b", after=("a",)), on_failure="compensate")
    play.complete("a", 1)
    play.fail("b")
    play.complete("a~undo", goto="b")
    assert [e.code for e in play.failure.others] == ["bad_target"]


# --- maps and loops --------------------------------------------------------------------------------------------------


def packing(**settings: object) -> Play:
    """a gives a list, pick runs for each item, ship takes what was picked."""
    return Play(
        call("a"),
        mapped("m", ref("a", "items"), call("pick", x=["param", "m", "item"]), call("wrap", x=ref("pick")), limit=2),
        call("ship", x=ref("m")),
        result=ref("ship"),
        **settings,
    )


def test_a_ticket_out_of_a_map_ends_it_and_bodies_beside_it_finish_their_node() -> None:
    play = packing()
    play.complete("a", {"items": [1, 2, 3]})
    play.complete("pick", goto="a", path=".m.0.")
    assert play.events(ev.NodeCancelled, node="m") == [ev.NodeCancelled("ticket", None, "pick")]
    assert set(play.running) == {("pick", ".m.1.")}
    play.complete("pick", 2, path=".m.1.")
    assert set(play.running) == {("a", ".")}, "neither wrap nor the third item began"
    assert set(play.state.scopes) == {"."}


def test_a_map_on_its_next_visit_has_items_of_its_own_and_only_their_values() -> None:
    play = packing()
    play.complete("a", {"items": [1, 2, 3]})
    for key in (0, 1, 2):
        play.complete("pick", key, path=f".m.{key}.")
        play.complete("wrap", f"old {key}", path=f".m.{key}.")
    assert play.running == {("ship", "."): {"x": ["old 0", "old 1", "old 2"]}}
    play.complete("ship", goto="a")
    play.complete("a", {"items": [7, 8]})
    assert [visit for visit, *_ in visits(play, "pick", ".m.0.")] == [1, 2]
    for key in (0, 1):
        play.complete("pick", key, path=f".m.{key}.")
        play.complete("wrap", f"new {key}", path=f".m.{key}.")
    assert play.running == {("ship", "."): {"x": ["new 0", "new 1"]}}


def test_items_of_a_map_that_wait_are_cancelled_with_it() -> None:
    play = packing()
    play.complete("a", {"items": [1, 2]})
    play.wait("pick", until=HOUR, path=".m.1.")
    play.suspend("pick", ".m.1.")
    play.complete("pick", goto="ship", path=".m.0.")
    assert play.failure.error.code == "missing_data", "the map did not complete"
    assert play.failure.error.node == "ship"


def test_a_second_ticket_out_of_the_same_map_is_recorded() -> None:
    play = packing()
    play.complete("a", {"items": [1, 2]})
    play.complete("pick", goto="a", path=".m.0.")
    play.complete("pick", goto="ship", path=".m.1.")
    assert [e.target for e in play.events(ev.TicketRaised)] == ["a", "ship"]
    assert set(play.running) == {("a", ".")}


def test_a_ticket_out_of_the_round_of_a_loop_and_a_fresh_loop_on_the_next_visit() -> None:
    inner = call("improve", x=["param", "l", "item"])
    play = Play(call("a"), looped("l", ref("a"), ["ge", ref("improve"), 9], inner), result=ref("l"))
    play.complete("a", 1)
    play.complete("improve", 2, path=".l.0.")
    play.complete("improve", goto="a", path=".l.1.")
    play.complete("a", 5)
    assert play.running == {("improve", ".l.0."): {"x": 5}}
    assert play.state.nodes["improve", ".l.0."].visit == 2
    play.complete("improve", 9, path=".l.0.")
    assert play.result == 9


def test_a_nested_map_that_is_left_halfway_is_whole_again_on_the_next_visit() -> None:
    inner = mapped("inner", ["param", "outer", "item"], call("one", x=["param", "inner", "item"]))
    play = Play(call("a"), mapped("outer", ref("a", "rows"), inner), result=ref("outer"))
    play.complete("a", {"rows": [[1, 2], [3]]})
    play.complete("one", 1, path=".outer.0.inner.0.")
    play.complete("one", goto="a", path=".outer.0.inner.1.")
    play.complete("one", 3, path=".outer.1.inner.0.")
    play.complete("a", {"rows": [[4], [5, 6]]})
    play.run({"one": lambda x: x * 10})
    assert play.result == [[40], [50, 60]]


def test_a_condition_inside_an_item_reads_the_parameters_of_this_visit() -> None:
    large = ["gt", ["param", "m", "item"], 10]
    play = Play(
        call("a"),
        mapped("m", ref("a", "items"), call("big", when=large, x=["param", "m", "item"])),
        call("end", x=ref("m")),
        result=ref("end"),
    )
    play.complete("a", {"items": [99]})
    play.complete("big", "big", path=".m.0.")
    play.complete("end", goto="a")
    play.complete("a", {"items": [1]})
    assert play.running == {("end", "."): {"x": [None]}}


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graceful", [False, True])
def test_the_next_owner_finishes_what_was_cut_off_and_then_enters_the_target(graceful: bool) -> None:
    play = fork()
    play.complete("a", 1)
    play.complete("b", goto="c")
    play.crash(graceful=graceful)
    assert set(play.running) == {("side", ".")}
    assert play.state.nodes["side", "."].attempt == (1 if graceful else 2)
    play.complete("side", "done")
    play.complete("c", "end")
    assert play.result == ["end", None]


def test_a_body_of_which_a_part_waited_goes_on_after_a_graceful_stop_and_is_then_cancelled() -> None:
    play = fork()
    play.complete("a", 1)
    play.wait("side", until=HOUR)
    play.complete("b", goto="c")
    play.crash(graceful=True)
    assert set(play.running) == {("side", ".")}
    play.suspend("side")
    assert set(play.running) == {("c", ".")}


def test_items_that_were_cut_off_with_their_map_are_not_begun_again() -> None:
    play = packing()
    play.complete("a", {"items": [1, 2]})
    play.complete("pick", goto="a", path=".m.0.")
    play.crash()
    assert set(play.running) == {("a", ".")}
    assert play.rows()["pick", ".m.1.", 1].status == "cancelled"


def test_the_question_whether_it_was_done_is_not_superseded_before_somebody_has_looked() -> None:
    play = Play(call("a"), call("b", after=("a",)), call("pay", after=("a",), on_crash="ask"), call("c", x=ref("b")))
    play.complete("a")
    play.complete("b", goto="a")
    play.crash()
    assert play.state.status == "suspended"
    assert play.status("pay") == "suspended"
    play.answer(play.waits("input")[0], {"done": False})
    assert set(play.running) == {("pay", ".")}
    play.complete("pay")
    assert set(play.running) == {("a", ".")}


@pytest.mark.parametrize("graceful", [False, True])
def test_a_crash_after_every_turn_changes_nothing(graceful: bool) -> None:
    play = packing()
    seen: dict[tuple[str, str, int], object] = {}
    while play.state.status == "running":
        play.crash(graceful=graceful)
        node, path = next(iter(play.running))
        args, visit = play.running[node, path], play.state.nodes[node, path].visit
        seen[node, path, visit] = args
        match node, visit:
            case "a", 1:
                play.complete("a", {"items": [1, 2]})
            case "a", _:
                play.complete("a", {"items": [3]})
            case "ship", 1:
                play.complete("ship", goto="a")
            case _:
                play.complete(node, args["x"], path)
    assert play.result == [3]
    assert seen["ship", ".", 1] == {"x": [1, 2]}
    assert seen["ship", ".", 2] == {"x": [3]}


# --- failure and compensation ----------------------------------------------------------------------------------------


def test_under_continue_the_failure_of_an_earlier_visit_does_not_count() -> None:
    play = Play(
        call("a"),
        call("b", x=ref("a")),
        call("repair", when=["failed", ref("b")], after=("b",)),
        result=ref("b"),
        on_failure="continue",
    )
    play.complete("a", 1)
    play.fail("b")
    play.complete("repair", goto="a")
    play.complete("a", 2)
    play.complete("b", "well")
    assert play.result == "well"


def test_under_continue_a_failure_beside_it_still_counts() -> None:
    play = Play(
        call("side"), mapped("m", ["const", [1]], call("one")), call("a"), call("b", x=ref("a")), on_failure="continue"
    )
    play.fail("side")
    play.fail("one", path=".m.0.")
    play.complete("a", goto="a")
    play.complete("a")
    play.complete("b")
    assert play.failure.error.node == "side"


def compensating() -> Play:
    undoable: list[NodeDef] = [call("a", compensate="undo"), call("b", x=ref("a"), compensate="undo")]
    return Play(*undoable, call("c", x=ref("b")), on_failure="compensate")


@pytest.mark.parametrize("crash", [False, True])
def test_every_completed_visit_is_undone_last_first(crash: bool) -> None:
    play = compensating()
    play.complete("a", "a1")
    play.complete("b", "b1", goto="a")
    play.complete("a", "a2")
    play.complete("b", "b2")
    play.fail("c")
    undone = []
    while play.state.status == "running":
        if crash:
            play.crash()
        ((key, args),) = play.running.items()
        undone.append((key[0], play.state.nodes[key].visit, *args.values()))
        play.complete(*key[:1])
    assert undone == [("b~undo", 2, "b2"), ("a~undo", 2, "a2"), ("b~undo", 1, "b1"), ("a~undo", 1, "a1")]
    assert play.state.status == "failed"


@pytest.mark.parametrize("crash", [False, True])
def test_an_attempt_of_an_earlier_visit_that_may_have_happened_is_undone_too(crash: bool) -> None:
    play = Play(
        call("a"),
        call("b", after=("a",)),
        call("pay", after=("a",), compensate="undo", compensate_accepts_none=True),
        on_failure="compensate",
    )
    play.complete("a")
    play.wait("pay", until=HOUR)
    play.suspend("pay")
    play.complete("b", goto="a")
    play.complete("a")
    play.complete("pay", "paid")
    play.fail("b")
    undone = []
    while play.state.status == "running":
        if crash:
            play.crash()
        ((key, args),) = play.running.items()
        undone.append((play.state.nodes[key].visit, *args.values()))
        play.complete(key[0])
    assert undone == [(1, None), (2, "paid")]


# --- definitions ---------------------------------------------------------------------------------------------------


def test_a_definition_without_tickets_is_the_version_it_was_before_there_were_any() -> None:
    data = msgspec.json.decode(chain().definition.encode())
    assert "tickets" not in data
    assert "max_visits" not in data.get("settings", {})
