"""Maps and loops (SEMANTICS 10): items and rounds are paths, counters and not lists."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from tests.rules.play import Play, call, looped, mapped, ref

ITEM = ["param", "m", "item"]
VALUE = ["param", "l", "item"]


def one(**options: Any) -> Any:
    return mapped("m", ["input", "xs"], call("f", x=ITEM), **options)


# --- maps --------------------------------------------------------------------------------------------------------


def test_a_map_runs_its_body_once_per_item_and_its_output_is_the_list() -> None:
    play = Play(one(), call("j", x=ref("m")), inputs={"xs": [1, 2, 3]}, result=ref("j"))
    assert play.events(ev.ScopeOpened) == [ev.ScopeOpened(3)]
    assert {k: v["x"] for k, v in play.running.items()} == {("f", ".m.0."): 1, ("f", ".m.1."): 2, ("f", ".m.2."): 3}
    for key in (2, 0, 1):
        play.complete("f", f"out {key}", f".m.{key}.")
    assert play.running["j", "."] == {"x": ["out 0", "out 1", "out 2"]}
    assert play.events(ev.NodeCompleted, node="m")[0].virtual


def test_at_most_limit_items_are_begun() -> None:
    play = Play(one(limit=2), inputs={"xs": list(range(5))}, result=ref("m"))
    assert len(play.running) == 2
    assert play.status("f", ".m.2.") == "pending"
    play.complete("f", 0, ".m.1.")
    assert set(play.running) == {("f", ".m.0."), ("f", ".m.2.")}
    play.run({"f": lambda x: x * 10})
    assert play.result == [0, 0, 20, 30, 40]
    assert play.most_open == 3  # the workflow and two items


def test_ended_items_are_forgotten_and_stay_in_the_table() -> None:
    play = Play(one(limit=3), inputs={"xs": list(range(50))}, result=["size", ref("m")])
    while play.running:
        assert len(play.state.nodes) <= 4
        node, path = next(iter(play.running))
        play.complete(node, 1, path)
    assert play.result == 50
    assert sum(row.status == "completed" and not row.is_open for row in play.rows().values()) == 50


def test_an_empty_list_completes_at_once_with_an_empty_list() -> None:
    play = Play(one(), inputs={"xs": []}, result=ref("m"))
    assert play.result == []
    assert play.log == []


@pytest.mark.parametrize("over", [3, None, True])
def test_a_map_over_something_else_than_a_list_fails(over: Any) -> None:
    play = Play(one(), inputs={"xs": over})
    assert (play.failure.error.code, play.failure.error.node) == ("invalid_input", "m")
    assert "needs a list" in play.failure.error.message


@pytest.mark.parametrize("over", ["abc", {"a": 1}])
def test_a_map_over_a_text_or_an_object_fails_too(over: Any) -> None:
    assert Play(one(), inputs={"xs": over}).failure.error.code == "invalid_input"


OVERS: list[tuple[Any, list[Any]]] = [
    (["const", [1, 2]], [1, 2]),
    (["list", ref("a", "n"), 5, ["input", "xs"]], [7, 5, [3, 4]]),
    (["input", "xs"], [3, 4]),
    (ref("a", "deep", 0), [8, 9]),
    (["first", ref("no"), ref("a", "deep", 0)], [8, 9]),
    (["first", ["first", ref("no"), ref("no")], ["first", ref("a", "deep", 0), ref("no")]], [8, 9]),
    (["get", ["first", ref("no"), ref("a")], "list"], [1]),
    (["first", ref("no"), ["const", [0]]], [0]),
    (["some", 2, ref("no"), ref("a", "n"), ref("a", "deep")], [7, [[8, 9]]]),
    (["if", ["gt", ref("a", "n"), 5], ref("a", "deep", 0), ["input", "xs"]], [8, 9]),
    (["if", ["gt", ref("a", "n"), 9], ref("a", "deep", 0), ["input", "xs"]], [3, 4]),
    (["add", ref("a", "list"), ["input", "xs"]], [1, 3, 4]),
]


@pytest.mark.parametrize(("over", "items"), OVERS)
def test_what_a_map_may_run_over(over: Any, items: list[Any]) -> None:
    play = Play(
        call("a"),
        call("no", when=False),
        mapped("m", over, call("f", x=ITEM), after=("a",)),
        inputs={"xs": [3, 4]},
        result=ref("m"),
    )
    play.complete("a", {"n": 7, "deep": [[8, 9]], "list": [1]})
    play.run({"f": lambda x: [x]})
    assert play.result == [[x] for x in items]


def test_further_arguments_are_the_same_for_all_items_and_outer_names_are_seen() -> None:
    play = Play(
        call("a"),
        mapped("m", ["const", [1, 2]], call("f", x=ITEM, y=["param", "m", "extra"], z=ref("a")), extra=ref("a", "n")),
        result=ref("m"),
    )
    play.complete("a", {"n": 5})
    play.run({"f": lambda x, y, z: [x, y, z["n"]]})
    assert play.result == [[1, 5, 5], [2, 5, 5]]


def test_conditions_inside_an_item_read_the_item() -> None:
    body = (
        call("big", x=ITEM, when=["gt", ["get", ITEM, "n"], 5]),
        call("small", x=ITEM, when=["le", ["get", ITEM, "n"], 5]),
    )
    play = Play(
        mapped("m", ["input", "xs"], *body, result=["first", ref("big"), ref("small")], limit=1),
        inputs={"xs": [{"n": 9}, {"n": 1}, {"n": 7}]},
        result=ref("m"),
    )
    play.run({"big": lambda x: "big", "small": lambda x: "small"})
    assert play.result == ["big", "small", "big"]


def test_an_item_whose_nodes_are_all_skipped_ends_with_null() -> None:
    play = Play(mapped("m", ["const", [1, 2]], call("f", when=["eq", ITEM, 2], x=ITEM)), result=ref("m"))
    play.run({"f": lambda x: x})
    assert play.result == [None, 2]


def test_an_item_may_have_several_nodes_and_joins_of_its_own() -> None:
    body = (call("a", x=ITEM), call("b", x=ITEM), call("j", x=ref("a"), y=ref("b")))
    play = Play(mapped("m", ["const", [1, 2]], *body), result=ref("m"))
    play.complete("a", "a1", ".m.1.")
    play.complete("a", "a0", ".m.0.")
    play.complete("b", "b1", ".m.1.")
    assert ("j", ".m.1.") in play.running
    assert ("j", ".m.0.") not in play.running, "a join never mixes items"
    play.run()
    assert [r["x"] for r in play.result] == ["a0", "a1"]


def test_the_first_item_out_of_retries_fails_the_map_and_cancels_its_siblings() -> None:
    play = Play(one(limit=3), call("other"), inputs={"xs": [0, 1, 2, 3]})
    play.fail("f", path=".m.1.")
    assert set(play.told_to_stop) == {("f", ".m.0."), ("f", ".m.2."), ("other", ".")}
    play.drop("other")
    play.drop("f", ".m.0.")
    play.complete("f", "still made it", ".m.2.")
    assert play.failure.error.node == "f"
    assert play.failure.error.path == ".m.1."
    assert (play.status("f", ".m.2."), play.status("f", ".m.0.")) == ("completed", "cancelled")
    assert play.status("f", ".m.3.") == "pending", "nothing new begins"


def test_collect_gives_values_and_failures_in_order_and_the_run_completes() -> None:
    play = Play(one(errors="collect"), inputs={"xs": [0, 1, 2]}, result=ref("m"))
    play.fail("f", path=".m.1.")
    assert play.told_to_stop == []
    play.complete("f", "two", ".m.2.")
    play.complete("f", "zero", ".m.0.")
    assert play.result == ["zero", {"$failed": "it went wrong"}, "two"]


def test_in_a_collecting_map_the_dependents_of_a_failed_node_are_skipped() -> None:
    play = Play(
        mapped("m", ["const", [1, 2]], call("a", x=ITEM), call("b", x=ref("a")), errors="collect"), result=ref("m")
    )
    play.fail("a", path=".m.0.")
    assert play.status("b", ".m.0.") == "skipped"
    play.run({"a": lambda x: x, "b": lambda x: x})
    assert play.result == [{"$failed": "it went wrong"}, 2]


def nested(**options: Any) -> Any:
    inner = mapped("inner", ["param", "m", "item"], call("f", x=["param", "inner", "item"], y=["param", "m", "item"]))
    return mapped("m", ["input", "xs"], inner, **options)


def test_maps_nest_and_inner_bodies_see_outer_items() -> None:
    play = Play(nested(limit=2), inputs={"xs": [[1, 2], [], [3]]}, result=ref("m"))
    assert sorted(play.running) == [("f", ".m.0.inner.0."), ("f", ".m.0.inner.1."), ("f", ".m.2.inner.0.")]
    play.run({"f": lambda x, y: [x, len(y)]})
    assert play.result == [[[1, 2], [2, 2]], [], [[3, 1]]]


def test_nested_maps_survive_a_crash_after_every_turn() -> None:
    for crash_after in range(8):
        play = Play(nested(limit=2), inputs={"xs": [[1, 2], [], [3], [4, 5]]}, result=ref("m"))
        for _ in range(crash_after):
            if play.running:
                node, path = next(iter(play.running))
                play.complete(node, play.running[node, path]["x"], path)
        if play.running:
            play.crash()
        play.run({"f": lambda x, y: x})
        assert play.result == [[1, 2], [], [3], [4, 5]]


def test_an_inner_map_that_fails_ends_only_when_its_siblings_are_stopped_and_only_its_item_fails() -> None:
    play = Play(nested(errors="collect", limit=1), inputs={"xs": [[1, 2], [3]]}, result=ref("m"))
    play.fail("f", path=".m.0.inner.0.")
    assert play.status("inner", ".m.0.") == "failed"
    assert play.told_to_stop == [("f", ".m.0.inner.1.")]
    assert play.status("f", ".m.1.inner.0.") == "pending", "the item is not over while a body in it runs"
    play.crash()  # the tables must still tell where the running body belongs
    assert play.status("f", ".m.0.inner.1.") == "cancelled", "what was being stopped is not tried again"
    play.run({"f": lambda x, y: x})
    assert play.result == [{"$failed": "it went wrong"}, [3]]
    assert not [row for row in play.rows().values() if row.is_open and row.path != "."]


def test_an_abandoned_item_leaves_nothing_behind_that_a_new_owner_would_run() -> None:
    inner = mapped("inner", ITEM, call("a", x=["param", "inner", "item"]), call("b", x=ref("a")), result=ref("b"))
    play = Play(
        mapped("m", ["const", [[1, 2]]], inner, call("after", x=ref("inner"), when=["failed", ref("inner")])),
        call("last", after=("m",)),
        on_failure="continue",
    )
    play.complete("a", 1, ".m.0.inner.1.")
    assert ("b", ".m.0.inner.1.") in play.running
    play.fail("a", path=".m.0.inner.0.")
    assert play.told_to_stop == [("b", ".m.0.inner.1.")]
    play.crash()
    assert set(play.running) == {("last", ".")}
    play.complete("last")
    assert play.failure.error.node == "a"
    assert play.log.count("b@.m.0.inner.1.") == 1


def test_parameters_that_arrive_after_the_map_has_failed_start_nothing() -> None:
    item = ["param", "m", "item"]
    play = Play(
        mapped("m", ["const", [1, 2]], call("f", x=item, when=["gt", item, 0])),
        call("last", after=("m",)),
        on_failure="continue",
        begin=False,
    )
    provide = play._provide_params
    late: list[Any] = []
    play._provide_params = late.append  # type: ignore[method-assign]
    play.tell(cmd.Begin())
    provide(late[0])
    play.fail("f", path=".m.0.")
    provide(late[1])
    assert set(play.running) == {("last", ".")}


# --- loops -------------------------------------------------------------------------------------------------------


def counting(**options: Any) -> Any:
    return looped("l", ["input", "n"], ["ge", ref("f", "n"), 3], call("f", x=["get", VALUE, "n"]), **options)


def test_rounds_are_paths_and_each_gets_what_the_last_one_returned() -> None:
    play = Play(counting(), inputs={"n": {"n": 0}}, result=ref("l"))
    play.run({"f": lambda x: {"n": x + 1}})
    assert play.log == ["f@.l.0.", "f@.l.1.", "f@.l.2."]
    assert play.result == {"n": 3}
    assert play.events(ev.ScopeOpened) == [ev.ScopeOpened()]
    assert [row.is_open for (node, _, _), row in play.rows().items() if node == "f"] == [0, 0, 0]


def test_at_the_limit_a_loop_fails() -> None:
    play = Play(counting(max_visits=2), inputs={"n": {"n": 0}})
    play.run({"f": lambda x: {"n": x + 1}})
    assert (play.failure.error.code, play.failure.error.node) == ("loop_limit", "l")
    assert "2 rounds" in play.failure.error.message


def test_at_the_limit_a_loop_may_take_the_last_value() -> None:
    play = Play(counting(max_visits=2, at_limit="take"), inputs={"n": {"n": 0}}, result=ref("l"))
    play.run({"f": lambda x: {"n": x + 1}})
    assert play.result == {"n": 2}


def test_until_that_cannot_be_evaluated_fails_the_loop() -> None:
    play = Play(counting(), inputs={"n": {"n": 0}})
    play.complete("f", {"n": "text"}, ".l.0.")
    assert (play.failure.error.code, play.failure.error.node) == ("invalid_input", "l")
    assert "until" in play.failure.error.message


def test_what_conditions_read_of_a_loop_is_captured_from_its_last_round() -> None:
    play = Play(
        counting(),
        call("big", when=["ge", ref("l", "n"), 3], x=ref("l", "n")),
        call("small", when=["lt", ref("l", "n"), 3]),
        inputs={"n": {"n": 0}},
    )
    play.run({"f": lambda x: {"n": x + 1, "noise": "." * 100}, "big": lambda x: x})
    assert play.status("big") == "completed"
    assert play.status("small") == "skipped"
    assert play.events(ev.NodeCompleted, node="l")[0].captured == {"/n": 3}


def test_until_may_read_parameters_and_outer_nodes() -> None:
    until = ["or", ["ge", ref("f"), ["param", "l", "high"]], ["ge", ref("f"), ref("a")]]
    for high, outer, expected in ((4, 100, 4), (100, 3, 3)):
        play = Play(
            call("a"),
            looped("l", 0, until, call("f", x=VALUE), high=["input", "high"]),
            inputs={"high": high},
            result=ref("l"),
        )
        assert play.status("l") == "pending", "its condition reads a"
        play.complete("a", outer)
        play.run({"f": lambda x: x + 1})
        assert play.result == expected


@pytest.mark.parametrize("crash_after", range(6))
def test_a_loop_goes_on_after_a_crash_in_any_round(crash_after: int) -> None:
    until = ["ge", ref("g"), ["param", "l", "high"]]
    play = Play(
        looped("l", 0, until, call("f", x=VALUE), call("g", x=ref("f")), high=["input", "high"]),
        inputs={"high": 3},
        result=ref("l"),
    )
    handlers: dict[str, Any] = {"f": lambda x: x + 1, "g": lambda x: x}
    for _ in range(crash_after):
        if play.running:
            node, path = next(iter(play.running))
            play.complete(node, handlers[node](**play.running[node, path]), path)
    if play.running:
        play.crash()
    play.run(handlers)
    assert play.result == 3
    assert len(play.log) == 7 if crash_after < 6 else 6, "six bodies, and the one that was cut off once more"


def test_a_round_that_hands_a_field_on_does_not_carry_all_rounds_before_it() -> None:
    result = ["dict", "n", ref("f"), "config", ["get", VALUE, "config"]]
    play = Play(
        looped("l", ["input", "s"], ["ge", ref("f"), 40], call("f", x=["get", VALUE, "n"]), result=result),
        inputs={"s": {"n": 0, "config": {"deep": [1]}}},
        result=ref("l"),
    )
    play.run({"f": lambda x: x + 1})
    assert play.result == {"n": 40, "config": {"deep": [1]}}
    assert len(play.rows()["l", ".", 1].scope) < 200


def test_a_loop_whose_body_is_skipped_hands_on_null() -> None:
    play = Play(
        looped("l", 1, ["is_none", ref("f")], call("f", x=VALUE, when=["lt", VALUE, 3])), result=["list", ref("l")]
    )
    play.run({"f": lambda x: x + 1})
    assert play.result == [None]
    assert play.log == ["f@.l.0.", "f@.l.1."]


def test_a_failed_round_fails_the_loop_and_the_run_goes_on_with_the_rest_under_continue() -> None:
    play = Play(
        looped("l", 0, ["ge", ref("f"), 3], call("f", x=VALUE), call("g", x=VALUE)),
        call("after", x=ref("l")),
        call("other"),
        on_failure="continue",
    )
    play.complete("f", 1, ".l.0.")
    play.fail("g", path=".l.0.")
    assert (play.status("l"), play.status("after")) == ("failed", "skipped")
    play.complete("other")
    assert play.failure.error.node == "g"


def test_loops_in_maps_and_maps_in_loops() -> None:
    rounds = looped("l", ITEM, ["ge", ref("f"), 10], call("f", x=VALUE))
    play = Play(mapped("m", ["const", [8, 3, 9]], rounds, limit=2), result=ref("m"))
    play.run({"f": lambda x: x + 1}, pick=lambda n: n - 1)
    assert play.result == [10, 10, 10]

    items = mapped("m", VALUE, call("f", x=ITEM))
    play = Play(looped("l", ["const", [1, 2]], ["gt", ["size", ref("m")], 1], items), result=ref("l"))
    play.run({"f": lambda x: x * 2})
    assert play.result == [2, 4]


@pytest.mark.parametrize("crash", [False, True])
def test_a_map_inside_an_item_that_failed_ends_with_the_last_body_in_it(crash: bool) -> None:
    inner = mapped("inner", ["const", [1, 2]], call("f", x=["param", "inner", "item"]), limit=1)
    play = Play(mapped("m", ["const", [1]], inner, call("g"), limit=1), call("other"), on_failure="continue")
    play.complete("other")
    play.fail("g", path=".m.0.")
    assert play.told_to_stop == [("f", ".m.0.inner.0.")]
    assert play.status("inner", ".m.0.") == "running"
    if crash:
        play.crash()
    else:
        play.drop("f", ".m.0.inner.0.")
    assert play.status("inner", ".m.0.") == "cancelled"
    assert play.log.count("f@.m.0.inner.1.") == 0, "nothing new begins in it"
    assert play.failure.error.node == "g"
