"""When a node may run: data, order, conditions, routes, choices, phases and variables (SEMANTICS 9)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.definition import Phase
from tests.rules.play import Play, call, error, looped, mapped, ref

# --- order and fan-in --------------------------------------------------------------------------------------------


def test_what_waits_for_nothing_starts_in_the_first_commit() -> None:
    play = Play(call("a"), call("b"), call("c", x=ref("a")))
    assert play.types() == ["NodeScheduled a", "NodeScheduled b", "NodeStarted a", "NodeStarted b"]


def test_a_node_starts_in_the_commit_that_completes_what_it_waits_for() -> None:
    play = Play(call("a"), call("b", x=ref("a", "n")), result=ref("b"))
    play.complete("a", {"n": 7})
    assert play.types() == ["NodeCompleted a", "NodeScheduled b", "NodeStarted b"]
    assert play.running == {("b", "."): {"x": 7}}
    assert play.events(ev.NodeStarted)[-1].inputs == (("x", 4, "/n"),)


def test_a_join_waits_for_all_its_inputs_and_sees_them() -> None:
    play = Play(call("a"), call("b"), call("c"), call("j", x=["list", ref("a"), ref("b"), ref("c")]))
    play.complete("b", 2)
    play.complete("a", 1)
    assert play.status("j") == "pending"
    play.complete("c", 3)
    assert play.running == {("j", "."): {"x": [1, 2, 3]}}
    assert len(play.events(ev.NodeScheduled, node="j")) == 1


def test_a_duplicate_completion_is_refused_as_stale_and_fires_no_join() -> None:
    play = Play(call("a"), call("b"), call("j", x=["list", ref("a"), ref("b")]))
    play.complete("a", 1)
    for _ in range(3):
        assert play.refusal(cmd.CompleteNode("a", ".", 1, b"9")) == "stale"
    assert play.refusal(cmd.FailNode("a", ".", 1, error())) == "stale"
    assert play.status("j") == "pending"
    play.complete("b", 2)
    assert play.running["j", "."] == {"x": [1, 2]}
    assert play.refusal(cmd.CompleteNode("b", ".", 1, b"9")) == "stale"
    assert len(play.events(ev.NodeScheduled, node="j")) == 1


@pytest.mark.parametrize(
    "command",
    [
        cmd.CompleteNode("nobody", ".", 1, b"1"),
        cmd.CompleteNode("a", ".elsewhere.0.", 1, b"1"),
        cmd.CompleteNode("a", ".", 2, b"1"),
        cmd.FailNode("a", ".", 0, error()),
        cmd.DropNode("a", ".", 2),
        cmd.StopNode("a", ".", 2),
        cmd.StartNode("a", "."),
        cmd.SuspendNode("a", ".", 2),
        cmd.Checkpoint("a", ".", 2, b"1", 1),
        cmd.RecordStep("a", ".", 2, ev.StepCompleted("", 0, "step", "f", "d", b"1")),
        cmd.OpenWait("a", ".", 2, "timer", {}),
        cmd.CloseWait("w_none", "cancelled"),
        cmd.FireTimer("none"),
        cmd.ProvideParams(".nowhere.0.", {}),
        cmd.FinishRun(b"1"),
    ],
    ids=lambda c: type(c).__name__,
)
def test_a_word_from_an_attempt_that_is_over_is_refused(command: Any) -> None:
    assert Play(call("a")).refusal(command) == "stale"


def test_order_without_data_waits_for_the_end_and_not_for_success() -> None:
    play = Play(call("a", when=False), call("b"), call("c", after=("a", "b")), result=ref("c"))
    assert play.statuses() == {"a": "skipped", "b": "running", "c": "pending"}
    play.complete("b")
    assert play.status("c") == "running"


def test_a_slot_that_is_not_free_leaves_a_node_scheduled_with_the_same_attempt() -> None:
    play = Play(call("a"), call("b"), result=ref("b"), slots=1)
    assert play.statuses() == {"a": "running", "b": "scheduled"}
    play.complete("a")
    play.start_due()
    assert play.status("b") == "running"
    assert [e.attempt for e in play.events(ev.NodeScheduled, ev.NodeStarted, node="b")] == [1, 1]


# --- conditions --------------------------------------------------------------------------------------------------

A = ref("a")
TRUTHS: list[tuple[Any, Any, bool]] = [
    (["eq", A, 3], 3, True),
    (["eq", A, 3], "3", False),
    (["eq", A, 1], True, False),  # JSON: true is not 1
    (["ne", A, 3], 4, True),
    (["lt", A, 3], 2, True),
    (["ge", A, 3], 2, False),
    (["and", ["gt", A, 1], ["lt", A, 5]], 3, True),
    (["or", ["eq", A, 1], ["eq", A, 5]], 3, False),
    (["not", A], False, True),
    (["not", A], None, True),
    (["get", A, "n"], {"n": True}, True),
    (["get", ["get", A, "x"], "y"], {"n": 1}, False),  # a field of null is null
    (["is_none", ["get", A, "x"]], {"n": 1}, True),
    (["lt", ["get", A, "x"], 3], {"n": 1}, False),  # every comparison with null is false
    (["ge", ["get", A, "x"], 3], {"n": 1}, False),
    (["eq", ["get", A, "x"], None], {"n": 1}, True),
    (["ne", ["get", A, "x"], 3], {}, True),
    (["gt", ["size", A], 1], [1, 2], True),
    (["size", A], 3, False),
    (["contains", A, "eu"], ["eu", "us"], True),
    (["contains", A, 1], [True], False),
    (["eq", ["add", ["get", A, "n"], 1], 3], {"n": 2}, True),
    (["is_none", ["add", ["get", A, "x"], 1]], {}, True),  # arithmetic with null is null
    (["eq", ["text", "{}-{}", ["get", A, "n"], "z"], "1-z"], {"n": 1}, True),
    (["eq", ["get", A, -1], 3], [1, 2, 3], True),
]


@pytest.mark.parametrize(("condition", "output", "expected"), TRUTHS)
def test_a_condition_is_judged_by_what_was_captured(condition: Any, output: Any, expected: bool) -> None:
    play = Play(call("a"), call("b", when=condition))
    play.complete("a", output)
    assert play.status("b") == ("running" if expected else "skipped")


def test_a_condition_on_the_input_is_judged_at_the_start() -> None:
    for express, status in ((True, "running"), (False, "skipped")):
        play = Play(call("a", when=["get", ["input", "order"], "express"]), inputs={"order": {"express": express}})
        assert play.status("a") == status


def test_a_condition_that_cannot_be_evaluated_fails_the_node() -> None:
    play = Play(call("a"), call("b", when=["lt", A, 3]))
    play.complete("a", "text")
    assert play.failure.error.code == "invalid_input"
    assert play.failure.error.node == "b"
    assert "its condition" in play.failure.error.message


def test_a_condition_may_look_at_skipped_nodes_and_finds_null() -> None:
    play = Play(
        call("a", when=False),
        call("null", when=["is_none", ["get", A, "x"]]),
        call("skipped", when=["skipped", A]),
        call("failed", when=["failed", A]),
        call("less", when=["lt", A, 3]),
    )
    assert play.statuses() == {
        "a": "skipped",
        "null": "running",
        "skipped": "running",
        "failed": "skipped",
        "less": "skipped",
    }


def test_a_condition_waits_for_everything_it_names_even_if_another_part_is_skipped() -> None:
    """The data could be chosen at once; the condition cannot be judged before b has settled."""
    play = Play(
        call("a", when=False),
        call("b"),
        call("d"),
        call("c", when=["or", ["get", A, "go"], ["get", ref("b"), "go"]], x=["first", ref("d"), 0]),
    )
    play.complete("d", 1)
    assert play.status("c") == "pending"
    play.complete("b", {"go": True})
    assert play.status("c") == "running"


# --- skips -------------------------------------------------------------------------------------------------------


def test_a_reference_to_a_skipped_node_skips_with_reason_and_cause() -> None:
    play = Play(call("a", when=False), call("b", x=A), call("c", x=ref("b")), result=["list", ref("c"), 1])
    assert [(e.reason, e.cause) for e in play.events(ev.NodeSkipped)] == [
        ("condition", None),
        ("absent", "a"),
        ("absent", "b"),
    ]
    assert play.result == [None, 1]  # a skipped reference in the result is null


def test_a_default_in_the_definition_is_for_arguments_that_are_not_wired() -> None:
    play = Play(call("a", when=False), call("b", x=A, y=5), call("c", y=5))
    assert (play.status("b"), play.status("c")) == ("skipped", "running")


def test_both_sides_of_an_if_must_have_completed_in_data_and_neither_in_a_condition() -> None:
    choice = ["if", ["input", "fast"], ref("a"), ref("b")]
    play = Play(
        call("a"), call("b", when=False), call("c", x=choice), call("d", when=["eq", choice, 1]), inputs={"fast": True}
    )
    play.complete("a", 1)
    assert play.statuses() == {"a": "completed", "b": "skipped", "c": "skipped", "d": "running"}
    assert play.events(ev.NodeSkipped, node="c")[0].cause == "b"


def test_a_condition_that_is_neither_true_false_nor_null_fails_the_node() -> None:
    play = Play(call("a"), call("b", when=ref("a")), on_failure="continue")
    play.complete("a", "yes")
    (failed,) = play.events(ev.NodeFailed, node="b")
    assert failed.error.message == (
        "its condition: a condition takes true, false or null, not 'yes'; compare the value, as in `x != null` or "
        "`size(x) > 0`"
    )


def test_map_over_one_of_two_lists_captures_their_sizes_only() -> None:
    play = Play(
        call("a"),
        mapped(
            "m",
            ["if", ["eq", ref("a", "n"), 7], ref("a", "long"), ref("a", "short")],
            call("f", x=["param", "m", "item"]),
            limit=1,
        ),
    )
    play.complete("a", {"n": 7, "long": ["x" * 5000] * 3, "short": []})
    (completed,) = play.events(ev.NodeCompleted, node="a")
    assert completed.captured == {"/n": 7, "@/long": 3, "@/short": 0}
    assert play.running["f", ".m.0."] == {"x": "x" * 5000}


def test_a_run_whose_nodes_are_all_skipped_completes() -> None:
    play = Play(call("a", when=False), result=["const", {"empty": True}])
    assert play.result == {"empty": True}


def test_a_map_over_a_skipped_list_is_skipped_and_so_is_a_loop_from_a_skipped_start() -> None:
    play = Play(
        call("a", when=False),
        mapped("m", A, call("f", x=["param", "m", "item"])),
        looped("l", A, True, call("g", x=["param", "l", "item"])),
        result=["list", ref("m"), ref("l")],
    )
    assert play.statuses() == {"a": "skipped", "m": "skipped", "l": "skipped"}
    assert play.result == [None, None]


# --- first, some, any_of -----------------------------------------------------------------------------------------


def test_first_takes_the_first_in_argument_order_and_waits_for_those_before_it() -> None:
    play = Play(call("a"), call("b"), call("c", x=["first", A, ref("b")]))
    play.complete("b", "b")
    assert play.status("c") == "pending"  # a may still complete, and stands before b
    play.complete("a", "a")
    assert play.running["c", "."] == {"x": "a"}


def test_first_is_decided_as_soon_as_all_before_it_are_settled() -> None:
    play = Play(call("a"), call("b"), call("c", x=["first", A, ref("b")]))
    play.complete("a", "a")
    assert play.running["c", "."] == {"x": "a"}  # b does not matter any more
    assert play.status("b") == "running"


@pytest.mark.parametrize(
    ("skip", "default", "expected"),
    [("", False, "a"), ("a", False, "b"), ("ab", False, None), ("ab", True, "none of them"), ("b", True, "a")],
)
def test_first_falls_back_to_the_next_then_to_its_default(skip: str, default: bool, expected: str | None) -> None:
    choice = ["first", A, ref("b"), *(["none of them"] if default else [])]
    play = Play(call("a", when="a" not in skip), call("b", when="b" not in skip), call("c", x=choice))
    for name in "ab":
        if name not in skip:
            play.complete(name, name)
    if expected is None:
        assert play.status("c") == "skipped"
        assert play.events(ev.NodeSkipped, node="c")[0].cause == "a"
    else:
        assert play.running["c", "."] == {"x": expected}


def test_a_null_default_is_a_choice() -> None:
    play = Play(call("a", when=False), call("c", x=["first", A, None]))
    assert play.running["c", "."] == {"x": None}


def test_first_of_an_expression_over_several_nodes_waits_for_each_of_them() -> None:
    both = ["list", A, ref("b")]
    play = Play(call("a", when=False), call("b"), call("c", x=["first", both, "other"]))
    assert play.status("c") == "pending"  # b stands before the default and has not settled
    play.complete("b", 1)
    assert play.running["c", "."] == {"x": "other"}


def test_some_fires_once_with_the_first_n_in_argument_order_and_ignores_later_ones() -> None:
    play = Play(
        call("a"), call("b"), call("c"), call("j", x=["some", 2, A, ref("b"), ref("c")]), result=ref("j"), slots=3
    )
    play.complete("c", "c")
    assert play.status("j") == "pending"
    play.complete("a", "a")
    assert play.running["j", "."] == {"x": ["a", "c"]}
    play.complete("b", "b")  # recorded, and ignored
    assert len(play.events(ev.NodeScheduled, node="j")) == 1
    play.crash()
    assert play.running["j", "."] == {"x": ["a", "c"]}, "the choice does not change when the node runs again"
    play.complete("j", "done")
    assert play.result == "done"


def test_some_of_composed_values_does_not_change_its_mind_when_more_complete() -> None:
    """A value made of two nodes arrives with the later of them."""
    pair = ["list", A, ref("b")]
    play = Play(call("a"), call("b"), call("c"), call("d"), call("j", x=["some", 2, pair, ref("c"), ref("d")]), slots=5)
    for name in "acd":
        play.complete(name, name)
    assert play.running["j", "."] == {"x": ["c", "d"]}
    play.complete("b", "b")
    play.crash()
    assert play.running["j", "."] == {"x": ["c", "d"]}


def test_some_is_skipped_when_too_few_are_left() -> None:
    play = Play(
        call("a", when=False),
        call("b", when=["input", "b"]),
        call("c"),
        call("j", x=["some", 2, A, ref("b"), ref("c")]),
        inputs={"b": False},
    )
    assert play.status("j") == "skipped"  # decided before c ends: two of three are gone
    assert play.status("c") == "running"


def test_any_of_is_the_one_that_completes_first() -> None:
    play = Play(call("a"), call("b"), call("j", x=["get", ["some", 1, A, ref("b")], 0]), result=ref("j"))
    play.complete("b", "b")
    assert play.running["j", "."] == {"x": "b"}
    play.complete("a", "a")
    play.complete("j", "end")
    assert play.result == "end"


def test_choices_wait_for_order_and_for_what_their_body_refers_to() -> None:
    play = Play(
        call("a"),
        call("slow"),
        call("c", x=["first", A, 0], after=("slow",)),
        mapped("m", ["first", A, ["const", []]], call("f", x=["param", "m", "item"], y=ref("slow"))),
        result=ref("m"),
    )
    play.complete("a", [1, 2])
    assert (play.status("c"), play.status("m")) == ("pending", "pending")
    play.complete("slow", "s")
    assert play.status("c") == "running"
    play.run({"f": lambda x, y: [x, y]})
    assert play.result == [[1, "s"], [2, "s"]]


# --- routes ------------------------------------------------------------------------------------------------------


def route(value: str) -> Play:
    """Two branches and an otherwise, joined: what hf.route makes."""
    kind = ref("a", "kind")
    article, video = ["eq", kind, "article"], ["eq", kind, "video"]
    play = Play(
        call("a"),
        call("text", x=A, when=article, route="kind=article"),
        call("film", x=A, when=video, route="kind=video"),
        call("other", x=A, when=["not", ["or", article, video]], route="kind=otherwise"),
        call("joined", x=["first", ref("text"), ref("film"), ref("other")]),
        result=ref("joined"),
    )
    play.complete("a", {"kind": value})
    return play


@pytest.mark.parametrize(("value", "taken"), [("article", "text"), ("video", "film"), ("song", "other"), ("", "other")])
def test_an_exclusive_route_takes_one_branch_and_skips_the_others(value: str, taken: str) -> None:
    play = route(value)
    assert [n for n in ("text", "film", "other") if play.status(n) == "running"] == [taken]
    assert [play.status(n) for n in ("text", "film", "other")].count("skipped") == 2
    play.complete(taken, taken)
    assert play.running["joined", "."] == {"x": taken}


def test_an_exclusive_route_without_a_match_skips_all_its_branches() -> None:
    play = Play(
        call("a"),
        call("b", when=["eq", A, 1]),
        call("c", when=["eq", A, 2]),
        call("d", x=ref("b")),
        result=["first", ref("d"), ref("c"), "neither"],
    )
    play.complete("a", 3)
    assert play.result == "neither"


def test_parallel_routes_live_on_paths_of_their_own_and_join_by_name() -> None:
    eu, us = "route_1.eu.", "route_1.us."
    play = Play(
        call("a"),
        call("tax", when=["contains", A, "eu"], lane=eu),
        call("ship", x=ref("tax"), lane=eu),
        call("post", when=["contains", A, "us"], lane=us),
        call("j", x=["first", ref("ship"), None], y=["first", ref("post"), None]),
        result=ref("j"),
    )
    play.complete("a", ["eu"])
    assert play.status("tax", ".route_1.eu.") == "running"
    assert play.status("post", ".route_1.us.") == "skipped"
    play.crash()
    assert play.state.nodes["tax", ".route_1.eu."].attempt == 2
    play.complete("tax", "t", ".route_1.eu.")
    assert play.running == {("ship", ".route_1.eu."): {"x": "t"}}
    play.complete("ship", "s", ".route_1.eu.")
    assert play.running == {("j", "."): {"x": "s", "y": None}}


def test_lanes_work_inside_the_items_of_a_map() -> None:
    item = ["param", "m", "item"]
    play = Play(
        mapped(
            "m",
            ["const", [["eu"], ["us"], []]],
            call("eu", x=item, when=["contains", item, "eu"], lane="route_1.eu."),
            call("us", x=item, when=["contains", item, "us"], lane="route_1.us."),
            result=["first", ref("eu"), ref("us"), "none"],
        ),
        result=ref("m"),
    )
    assert sorted(play.running) == [("eu", ".m.0.route_1.eu."), ("us", ".m.1.route_1.us.")]
    play.crash()
    play.run({"eu": lambda x: "EU", "us": lambda x: "US"})
    assert play.result == ["EU", "US", "none"]


# --- phases ------------------------------------------------------------------------------------------------------


def test_a_phase_starts_with_its_first_node_and_completes_in_the_commit_that_settles_its_last() -> None:
    play = Play(
        call("a", phase="one"),
        call("b", phase="one", x=A),
        call("c", phase="two"),
        phases=[Phase(name="one"), Phase(name="two")],
    )
    assert play.types()[:4] == ["PhaseStarted", "NodeScheduled a", "PhaseStarted", "NodeScheduled c"]
    play.complete("c")
    assert play.types() == ["NodeCompleted c", "PhaseCompleted"]
    play.complete("a")
    assert "PhaseCompleted" not in play.types()
    play.complete("b")
    assert play.types(-2) == ["NodeCompleted b", "PhaseCompleted"]
    assert play.state.fold.phases == {"one": "completed", "two": "completed"}


def test_a_phase_completes_with_a_skip_too_and_never_starts_when_all_of_it_is_skipped() -> None:
    phases = [Phase(name="one"), Phase(name="two")]
    play = Play(
        call("a", phase="one"),
        call("b", phase="one", when=["eq", A, 1]),
        call("c", phase="two", when=False),
        phases=phases,
    )
    play.complete("a", 2)
    assert [e.phase for e in play.events(ev.PhaseStarted, ev.PhaseCompleted)] == ["one", "one"]


def test_a_phase_orders_nothing_by_itself_and_everything_by_after() -> None:
    phases = [Phase(name="one"), Phase(name="two", after="one")]
    play = Play(
        call("a", phase="one"),
        mapped("m", ["const", [1, 2]], call("f", x=["param", "m", "item"]), phase="one"),
        call("b", phase="two", after=("a", "m")),  # what `after` of a phase compiles to
        call("free"),
        phases=phases,
    )
    assert play.status("free") == "running"
    play.complete("a")
    play.complete("f", 1, ".m.0.")
    assert (play.status("b"), play.state.fold.phases) == ("pending", {"one": "started"})
    play.complete("f", 1, ".m.1.")
    assert play.status("b") == "running"
    assert play.state.fold.phases == {"one": "completed", "two": "started"}


# --- variables ---------------------------------------------------------------------------------------------------


def test_the_later_commit_of_a_variable_wins_and_conditions_see_it() -> None:
    play = Play(
        call("a"),
        call("b"),
        call("c", when=["eq", ["get", ["var", "mood"], "level"], 2], x=["var", "mood"], after=("a", "b")),
        call("d", x=["var", "unset"], after=("a",)),
        variables=["mood", "unset"],
    )
    play.complete("b", mood={"level": 1})
    play.complete("a", mood={"level": 2})
    assert play.running["c", "."] == {"x": {"level": 2}}
    assert play.running["d", "."] == {"x": None}


def test_a_variable_read_by_a_condition_is_the_one_at_the_time_of_the_decision() -> None:
    condition = ["eq", ["var", "n"], 1]
    play = Play(
        call("a"),
        call("b"),
        call("c", when=condition, after=("a",)),
        call("d", when=condition, after=("b",)),
        variables=["n"],
    )
    play.complete("a", n=1)
    play.complete("b", n=2)
    assert (play.status("c"), play.status("d")) == ("running", "skipped")


def test_a_checkpoint_commits_variables_as_well() -> None:
    play = Play(call("a"), call("b", x=["var", "n"], after=("a",)), variables=["n"])
    play.tell(cmd.Checkpoint("a", ".", 1, b'{"at":3}', 1, {"n": b"5"}, {}))
    play._vars[play.state.seq, "n"] = 5
    play.complete("a")
    assert play.running["b", "."] == {"x": 5}
