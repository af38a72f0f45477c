"""Journeys: units, routes, parallel paths, joins, ways back, tickets, baskets, crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.definition import NodeDef
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from tests.rules.play import Play, error
from tests.rules.units import TWO_BRANCHES, dynamic, join, parallel, route, step


def journey(*units: NodeDef, **options: Any) -> Play:
    return Play(*units, start=units[0].id, **options)


def running(play: Play) -> list[str]:
    return sorted(f"{node}@{path}" for node, path in play.running)


# --- one path ----------------------------------------------------------------------------------------------------


def test_a_journey_runs_its_units_one_after_the_other_and_ends() -> None:
    play = journey(step("a", "b"), step("b", "end"))
    assert running(play) == ["a@."]
    play.complete("a")
    assert running(play) == ["b@."]
    play.complete("b")
    assert play.state.status is RunStatus.COMPLETED
    assert play.log == ["a", "b"]


def test_a_route_enters_only_the_branch_that_it_names() -> None:
    play = journey(route("r", yes="b", no="c"), step("b", "end"), step("c", "end"))
    play.complete("r", "no")
    assert running(play) == ["c@."]
    play.complete("c")
    assert play.state.status is RunStatus.COMPLETED
    assert play.status("b") == "pending", "what was not reached has no events"


def test_of_several_names_a_singular_route_takes_the_first() -> None:
    play = journey(route("r", yes="b", no="c"), step("b", "end"), step("c", "end"))
    play.complete("r", ["yes", "no"])
    assert running(play) == ["b@."]


@pytest.mark.parametrize("answer", ["maybe", [], None, 3, ["maybe", "yes"]])
def test_an_answer_that_names_no_branch_fails_the_route(answer: Any) -> None:
    play = journey(route("r", yes="b"), step("b", "end"))
    play.complete("r", answer)
    assert play.state.status is RunStatus.FAILED
    assert play.failure.error.code == "bad_branch"


def test_a_route_cannot_pend_nor_raise_a_ticket_but_pends_with_an_error() -> None:
    units = (route("r", yes="b"), step("b", "end"))
    play = journey(*units, on_failure="pend:errors")
    play.pend("r", "desk")
    assert play.state.waits[play.waits("basket")[0]].basket == "errors"
    play.resume()
    play.pend("r", "retry_queue", error=error())
    assert play.state.waits[play.waits("basket")[0]].basket == "retry_queue"
    play.resume()
    play.complete("r", "yes", ticket="back")
    assert play.state.waits[play.waits("basket")[0]].basket == "errors"
    play.resume()
    play.complete("r", "yes")
    assert running(play) == ["b@."]


def test_a_way_back_enters_a_unit_again_as_its_next_visit() -> None:
    play = journey(step("a", "r"), route("r", again="a", done="b"), step("b", "end"))
    for _ in range(3):
        play.complete("a")
        play.complete("r", "again")
    play.complete("a")
    play.complete("r", "done")
    play.complete("b")
    assert play.state.status is RunStatus.COMPLETED
    visits = [entry.visit for entry in play.entries if entry.node == "a" and type(entry.event) is ev.NodeCompleted]
    assert visits == [1, 2, 3, 4]


def test_a_loop_that_never_ends_is_stopped_by_max_visits() -> None:
    play = journey(step("a", "b"), step("b", "a"), max_visits=3)
    for _ in range(3):
        play.complete("a")
        play.complete("b")
    assert play.failure.error.code == "too_many_visits"


# --- parallel paths ----------------------------------------------------------------------------------------------


def test_each_branch_has_a_path_of_its_own_and_the_join_waits_for_all() -> None:
    play = journey(*TWO_BRANCHES)
    play.complete("a")
    play.complete("split", ["eu", "us"])
    assert running(play) == ["e1@.split.eu.", "u1@.split.us."]
    play.complete("u1", path=".split.us.")
    assert play.state.fold.open_paths == {".split.": ["eu"]}
    play.complete("e1", path=".split.eu.")
    assert running(play) == ["e2@.split.eu."]
    play.complete("e2", path=".split.eu.")
    assert running(play) == ["z@."]
    assert play.state.fold.open_paths == {}
    play.complete("z")
    assert play.state.status is RunStatus.COMPLETED


def test_only_the_chosen_branches_run_and_none_at_all_leads_to_the_join() -> None:
    play = journey(*TWO_BRANCHES)
    play.complete("a")
    play.complete("split", ["us"])
    assert running(play) == ["u1@.split.us."]
    play = journey(*TWO_BRANCHES)
    play.complete("a")
    play.complete("split", [])
    assert running(play) == ["z@."]


def test_a_branch_may_lead_straight_to_the_join() -> None:
    play = journey(parallel("split", "meet", x="meet", y="meet"), join("meet", "z"), step("z", "end"))
    play.complete("split", ["x", "y"])
    assert running(play) == ["z@."]


def test_a_dynamic_route_runs_the_same_units_once_for_each_name() -> None:
    play = journey(
        dynamic("split", "meet", "work"),
        step("work", "check"),
        step("check", "meet"),
        join("meet", "z"),
        step("z", "end"),
    )
    play.complete("split", ["1", "2", "3"])
    assert running(play) == ["work@.split.1.", "work@.split.2.", "work@.split.3."]
    for name in "213":
        play.complete("work", path=f".split.{name}.")
        play.complete("check", path=f".split.{name}.")
    assert running(play) == ["z@."]


def nested() -> Play:
    return journey(
        parallel("outer", "out", l="inner", r="r1"),
        parallel("inner", "in", x="x1", y="y1"),
        step("x1", "in"),
        step("y1", "in"),
        join("in", "l1"),
        step("l1", "out"),
        step("r1", "out"),
        join("out", "z"),
        step("z", "end"),
        on_failure="pend:errors",
    )


def test_parallel_units_nest() -> None:
    play = nested()
    play.complete("outer", ["l", "r"])
    play.complete("inner", ["x", "y"], path=".outer.l.")
    assert running(play) == ["r1@.outer.r.", "x1@.outer.l.inner.x.", "y1@.outer.l.inner.y."]
    play.complete("x1", path=".outer.l.inner.x.")
    play.complete("r1", path=".outer.r.")
    play.complete("y1", path=".outer.l.inner.y.")
    assert running(play) == ["l1@.outer.l."]
    play.complete("l1", path=".outer.l.")
    assert running(play) == ["z@."]


def test_a_way_back_to_before_a_parallel_unit_opens_its_paths_again() -> None:
    play = journey(
        step("a", "split"),
        dynamic("split", "meet", "w"),
        step("w", "meet"),
        join("meet", "r"),
        route("r", again="a", done="z"),
        step("z", "end"),
    )
    for answer in ("again", "again", "done"):
        play.complete("a")
        play.complete("split", ["1", "2"])
        play.complete("w", path=".split.1.")
        play.complete("w", path=".split.2.")
        play.complete("r", answer)
    play.complete("z")
    assert play.state.status is RunStatus.COMPLETED
    assert ("w", ".split.2.", 3) in play.rows()


def test_a_way_back_inside_a_branch_leaves_the_other_branches_alone() -> None:
    play = journey(
        parallel("split", "meet", l="l1", r="r1"),
        step("l1", "l2"),
        route("l2", again="l1", done="meet"),
        step("r1", "meet"),
        join("meet", "z"),
        step("z", "end"),
    )
    play.complete("split", ["l", "r"])
    play.complete("l1", path=".split.l.")
    play.complete("l2", "again", path=".split.l.")
    assert running(play) == ["l1@.split.l.", "r1@.split.r."]
    play.complete("r1", path=".split.r.")
    play.complete("l1", path=".split.l.")
    play.complete("l2", "done", path=".split.l.")
    assert running(play) == ["z@."]


# --- baskets -----------------------------------------------------------------------------------------------------


def test_a_pended_branch_stays_in_its_basket_while_the_others_run_and_its_next_unit_runs_on_resume() -> None:
    play = journey(*TWO_BRANCHES)
    play.complete("a")
    play.complete("split", ["eu", "us"])
    play.pend("e1", "desk", path=".split.eu.")
    play.complete("u1", path=".split.us.")
    assert play.state.status is RunStatus.SUSPENDED
    play.resume()
    assert running(play) == ["e2@.split.eu."]


def test_two_pended_branches_are_resumed_in_either_order_by_path() -> None:
    for first, second in (("eu", "us"), ("us", "eu")):
        play = journey(*TWO_BRANCHES)
        play.complete("a")
        play.complete("split", ["eu", "us"])
        play.pend("e1", "desk", path=".split.eu.", rerun=True)
        play.pend("u1", "desk", path=".split.us.", rerun=True)
        units = {"eu": "e1", "us": "u1"}
        play.resume(path=f".split.{first}.")
        assert running(play) == [f"{units[first]}@.split.{first}."]
        play.resume(path=f".split.{second}.")
        assert len(play.running) == 2


def test_an_error_pends_in_the_error_basket_and_the_same_unit_runs_again() -> None:
    play = journey(step("a", "b"), step("b", "end"), on_failure="pend:workflow_error")
    play.fail("a")
    assert play.state.status is RunStatus.SUSPENDED
    play.resume()
    assert running(play) == ["a@."]
    play.complete("a")
    assert running(play) == ["b@."]


# --- tickets -----------------------------------------------------------------------------------------------------


TICKET = (*TWO_BRANCHES[:-1], step("z", "y"), step("y", "end"))


def test_a_ticket_on_the_root_path_is_redeemed_at_once() -> None:
    play = journey(*TICKET, tickets={"finish": "y"})
    play.complete("a", ticket="finish")
    assert running(play) == ["y@."]
    play.complete("y")
    assert play.state.status is RunStatus.COMPLETED


def test_a_ticket_in_a_branch_lets_siblings_finish_their_unit_and_then_the_run_continues_at_its_target() -> None:
    play = journey(*TICKET, tickets={"finish": "y"})
    play.complete("a")
    play.complete("split", ["eu", "us"])
    play.complete("u1", path=".split.us.", ticket="finish")
    assert running(play) == ["e1@.split.eu."]
    play.complete("e1", path=".split.eu.")
    assert running(play) == ["y@."]
    assert play.state.fold.tokens == {".": ("y", 1)}


def test_a_ticket_that_is_given_with_a_pend_is_redeemed_on_resume() -> None:
    play = journey(*TICKET, tickets={"again": "a"})
    play.complete("a")
    play.complete("split", ["eu", "us"])
    play.complete("e1", path=".split.eu.")
    play.complete("e2", path=".split.eu.")
    play.pend("u1", "desk", path=".split.us.", ticket="again")
    assert play.state.status is RunStatus.SUSPENDED
    play.resume()
    assert running(play) == ["a@."]
    play.complete("a")
    play.complete("split", ["us"])
    assert running(play) == ["u1@.split.us."]


# --- crashes -----------------------------------------------------------------------------------------------------


def test_a_unit_that_was_cut_off_runs_again_and_completed_siblings_do_not() -> None:
    play = journey(*TWO_BRANCHES)
    play.complete("a")
    play.complete("split", ["eu", "us"])
    play.complete("u1", path=".split.us.")
    play.crash()
    assert running(play) == ["e1@.split.eu."]
    assert play.state.nodes["e1", ".split.eu."].attempt == 2


def test_a_route_whose_branch_had_not_begun_is_evaluated_again_after_a_crash() -> None:
    play = journey(route("r", yes="b", no="c"), step("b", "end"), step("c", "end"), slots=1)
    play.slots = 0
    play.complete("r", "yes")
    assert running(play) == []
    play.slots = 1
    play.crash()
    assert running(play) == ["r@."]
    assert play.state.nodes["r", "."].visit == 2
    play.complete("r", "no")
    play.start_due()
    assert running(play) == ["c@."]


def test_a_route_whose_branch_had_begun_is_not_evaluated_again() -> None:
    play = journey(route("r", yes="b"), step("b", "end"))
    play.complete("r", "yes")
    play.crash()
    assert running(play) == ["b@."]


def test_a_route_is_not_evaluated_again_when_its_branch_pended_and_was_resumed() -> None:
    play = journey(route("r", yes="b"), step("b", "end"), slots=1)
    play.complete("r", "yes")
    play.start_due()
    play.pend("b", "desk", rerun=True)
    play.slots = 0
    play.resume()
    assert running(play) == []
    play.slots = 1
    play.crash()
    assert running(play) == ["b@."]


def test_a_pause_before_the_first_unit_and_between_units_holds_the_path() -> None:
    play = journey(step("a", "b"), step("b", "end"), begin=False)
    play.pause()
    play.tell(cmd.Begin())
    assert running(play) == []
    play.resume()
    assert running(play) == ["a@."]
    play.pause()
    play.complete("a")
    assert running(play) == []
    play.resume()
    assert running(play) == ["b@."]


@pytest.mark.parametrize("seed", range(40))
def test_journeys_with_crashes_pends_and_failures_come_to_the_same_end(seed: int) -> None:
    chance = random.Random(seed)
    play = nested()
    answers = {"outer": ["l", "r"], "inner": ["x", "y"]}
    done: list[str] = []
    while play.state.status not in RUN_TERMINAL:
        if not play.running:
            play.resume(path=chance.choice([w.path for w in play.state.waits.values()]))
            continue
        node, path = chance.choice(list(play.running))
        match chance.randrange(5):
            case 0:
                play.crash(graceful=chance.random() < 0.3)
            case 1:
                play.fail(node, path=path)
            case 2 if node not in answers:
                play.pend(node, "desk", path=path, rerun=True)
            case _:
                play.complete(node, answers.get(node), path=path)
                done.append(node)
    assert play.state.status is RunStatus.COMPLETED
    assert sorted(done) == ["inner", "l1", "outer", "r1", "x1", "y1", "z"]


def test_variables_with_a_default_are_set_when_the_run_begins() -> None:
    variables = {"status": {"type": "string", "default": "new"}, "note": {"type": "string"}}
    play = journey(step("a", "end"), variables=variables, result=["dict", "s", ["var", "status"], "n", ["var", "note"]])
    assert play.variable("status") == "new"
    play.complete("a", status="closed")
    assert play.result == {"s": "closed", "n": None}
