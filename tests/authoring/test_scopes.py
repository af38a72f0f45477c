"""Maps and loops: bodies, their parameters, and what may cross their border."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.authoring import control_flow as hf
from holdfast.authoring import maps_and_loops
from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import workflow
from holdfast.model.current import BodyContext
from holdfast.model.definition import Definition, NodeDef, decode
from holdfast.model.errors import DefinitionError, TraceError, UsageError
from holdfast.model.policies import Retry


@dataclass
class Verdict:
    score: int
    text: str


@node(retry=Retry(attempts=3), timeout=5)
def pick(item: str, shelf: int = 1) -> str: ...


@node
def shelf_of(name: str) -> int: ...


@node
def improve(text: str) -> str: ...


@node
def judge(text: str) -> Verdict: ...


@node
def step(value: int) -> int: ...


@node
def total(values: list[str]) -> int: ...


@workflow
def publish(text: str, loud: bool = False) -> str:
    return improve(text)


_numbers = itertools.count()


def graph_of(build: Any) -> Definition:
    return workflow(name=f"under_test_{next(_numbers)}")(build).definition


def node_of(definition: Definition, node_id: str) -> NodeDef:
    return next(n for n in definition.nodes if n.id == node_id)


# --- maps ---


def test_a_map_over_a_node_has_one_inner_node_of_the_same_id() -> None:
    def build(items: list[str], name: str) -> Any:
        return maps_and_loops.map(pick, items, limit=8, errors="collect", shelf=shelf_of(name))

    definition = graph_of(build)
    found = node_of(definition, "pick")
    assert (found.kind, found.item, found.limit, found.errors) == ("map", "item", 8, "collect")
    assert found.over == ["input", "items"]
    assert found.args == {"shelf": ["node", "shelf_of"]}
    assert found.retry is None
    assert found.body is not None
    (inner,) = found.body.nodes
    assert (inner.id, inner.kind, inner.uses) == ("pick", "call", f"{__name__}.pick")
    assert inner.args == {"item": ["param", "pick", "item"], "shelf": ["param", "pick", "shelf"]}
    assert (inner.retry, inner.timeout) == (Retry(attempts=3), 5.0)
    assert found.body.result == ["node", "pick"]
    assert definition.result == ["node", "pick"]
    assert decode(definition.encode()) == definition


def test_a_default_of_the_mapped_node_is_stored_in_the_inner_node() -> None:
    found = node_of(graph_of(lambda items: maps_and_loops.map(pick.named("picked"), items)), "picked")
    assert found.args == {}
    assert found.body is not None
    assert found.body.nodes[0].args == {"item": ["param", "picked", "item"], "shelf": 1}


def test_the_result_of_a_map_is_a_list() -> None:
    def build(items: list[str]) -> Any:
        picked = maps_and_loops.map(pick, items)
        return total(picked), picked[0]

    definition = graph_of(build)
    assert node_of(definition, "total").args == {"values": ["node", "pick"]}
    assert definition.result == ["list", ["node", "total"], ["get", ["node", "pick"], 0]]


def test_conditions_and_phases_stand_on_the_map_and_not_inside() -> None:
    def build(items: list[str]) -> Any:
        with hf.phase("p"), hf.when(hf.size(items) > 1):
            maps_and_loops.map(pick, items)

    found = node_of(graph_of(build), "pick")
    assert found.body is not None
    assert (found.phase, found.when) == ("p", ["gt", ["size", ["input", "items"]], 1])
    assert (found.body.nodes[0].phase, found.body.nodes[0].when) == (None, None)


def test_a_traced_body_names_its_scope_and_numbers_its_nodes_with_all_others() -> None:
    def polish(text: str, shelf: int) -> Any:
        better = improve(text)
        with hf.when(shelf > 3):
            judge(better)
        return {"text": better, "verdict": judge(better)}

    def build(items: list[str], name: str) -> Any:
        improve(name)
        return maps_and_loops.map(polish, items, shelf=shelf_of(name))

    found = node_of(graph_of(build), "polish")
    assert found.body is not None
    assert [n.id for n in found.body.nodes] == ["improve_2", "judge", "judge_2"]
    assert found.body.nodes[0].args == {"text": ["param", "polish", "text"]}
    assert found.body.nodes[1].when == ["gt", ["param", "polish", "shelf"], 3]
    assert found.body.result == ["dict", "text", ["node", "improve_2"], "verdict", ["node", "judge_2"]]


def test_a_body_may_read_what_encloses_it() -> None:
    def build(items: list[str], name: str) -> Any:
        shelf = shelf_of(name)
        return maps_and_loops.map(lambda item: pick(item, shelf), items)

    found = node_of(graph_of(build), "map")
    assert found.body is not None
    assert found.body.nodes[0].args == {"item": ["param", "map", "item"], "shelf": ["node", "shelf_of"]}


def test_maps_nest() -> None:
    def row(cells: list[str]) -> Any:
        return maps_and_loops.map(lambda cell: pick(cell), cells)

    found = node_of(graph_of(lambda rows: maps_and_loops.map(row, rows)), "row")
    assert found.body is not None
    (inner,) = found.body.nodes
    assert (inner.id, inner.kind, inner.over) == ("map", "map", ["param", "row", "cells"])


def test_a_map_over_a_workflow_makes_children() -> None:
    found = node_of(graph_of(lambda texts: maps_and_loops.map(publish, texts, loud=True)), "publish")
    assert found.body is not None
    (inner,) = found.body.nodes
    assert (inner.id, inner.uses) == ("publish", "holdfast.child")
    inputs = ["dict", "text", ["param", "publish", "text"], "loud", ["param", "publish", "loud"]]
    assert inner.args == {"workflow": "publish", "inputs": inputs}


@pytest.mark.parametrize(
    ("over", "expected"), [(["a", "b"], ["const", ["a", "b"]]), (("a",), ["const", ["a"]]), ([], ["const", []])]
)
def test_a_map_may_go_over_a_constant(over: Any, expected: Any) -> None:
    assert node_of(graph_of(lambda: maps_and_loops.map(pick, over)), "pick").over == expected


def test_a_map_may_go_over_references_and_a_range() -> None:
    assert node_of(graph_of(lambda a: maps_and_loops.map(pick, [a, "b"])), "pick").over == ["list", ["input", "a"], "b"]
    assert node_of(graph_of(lambda: maps_and_loops.map(step, range(3))), "step").over == ["const", [0, 1, 2]]


def test_a_reference_from_inside_a_body_cannot_be_used_outside() -> None:
    leaked: list[Any] = []

    def body(item: str) -> Any:
        leaked.append(improve(item))
        return leaked[0]

    def build(items: list[str]) -> Any:
        maps_and_loops.map(body, items)
        return judge(leaked[0])

    with pytest.raises(TraceError, match="is inside the body of 'body'"):
        graph_of(build)


def test_after_on_a_mapped_node_stands_on_the_map() -> None:
    def build(items: list[str], name: str) -> Any:
        shelf = shelf_of(name)
        return maps_and_loops.map(pick.after(shelf), items)

    found = node_of(graph_of(build), "pick")
    assert found.after == ("shelf_of",)
    assert found.body is not None
    assert found.body.nodes[0].after == ()


class Context(BodyContext):
    """Stands for the worker's."""


async def not_plain(item: str) -> str: ...


def takes_ctx(ctx: Context, item: str) -> str: ...


def endless(items: Any) -> Any:
    return maps_and_loops.map(endless, items)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: maps_and_loops.map(lambda item: item, x), "calls no node"),
        (lambda x: maps_and_loops.map(lambda: shelf_of("a"), x), "no parameter for the item"),
        (lambda x: maps_and_loops.map(3, x), "takes a node, a workflow or a function"),
        (lambda x: maps_and_loops.map(not_plain, x), "decorate it with @hf.node"),
        (lambda x: maps_and_loops.map(takes_ctx, x), "decorate it with @hf.node"),
        (lambda x: maps_and_loops.map(len, x), "decorate it with @hf.node"),
        (lambda x: maps_and_loops.map(pick, x, shlef=1), "no parameter 'shlef'"),
        (lambda x: maps_and_loops.map(pick, x, shelf="one"), r"pick\(shelf\): expected int, got str"),
        (lambda x: maps_and_loops.map(pick, {1, 2}), "runs over a reference or a list"),
        (lambda x: maps_and_loops.map(pick, "abc"), "runs over a reference or a list"),
        (lambda x: maps_and_loops.map(pick, x, limit=0), "limit=0 is not a whole number above 0"),
        (lambda x: maps_and_loops.map(pick, x, errors="ignore"), "not 'fail' or 'collect'"),
        (lambda x: maps_and_loops.map(pick.after(3), x), "takes what a node call returned"),
        (endless, "nested deeper"),
    ],
)
def test_wrong_maps_are_refused_with_the_line(build: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"^[\w.]+:\d+: .*{message}"):
        graph_of(build)


def test_a_map_over_something_that_is_no_list_is_found() -> None:
    def build(name: str) -> Any:
        return maps_and_loops.map(pick, shelf_of(name))

    with pytest.raises(DefinitionError, match="goes over a list, and gets integer"):
        graph_of(build)


def test_a_condition_on_the_items_of_a_map_is_refused_and_its_size_is_fine() -> None:
    def items(xs: list[str]) -> Any:
        with hf.when(maps_and_loops.map(pick, xs)[0] == "a"):
            improve("x")

    def size(xs: list[str]) -> Any:
        with hf.when(hf.size(maps_and_loops.map(pick, xs)) > 2):
            improve("x")

    with pytest.raises(DefinitionError, match=r"map_condition.*the size only"):
        graph_of(items)
    assert node_of(graph_of(size), "improve").when == ["gt", ["size", ["node", "pick"]], 2]


# --- loops ---


def attempt(text):  # as in the examples
    return judge(improve(text))


def test_a_loop_traces_its_body_once_and_asks_until_about_the_result() -> None:
    asked: list[int] = []

    def until(r: Any) -> Any:
        asked.append(1)
        return (r.score >= 8) | (r.text == "")

    def build(topic: str) -> Any:
        best = maps_and_loops.loop(attempt, start=topic, until=until, max_visits=5, at_limit="take")
        return best.score

    definition = graph_of(build)
    found = node_of(definition, "attempt")
    assert asked == [1]
    assert (found.kind, found.item, found.max_visits, found.at_limit) == ("loop", "text", 5, "take")
    assert found.start == ["input", "topic"]
    assert found.body is not None
    assert [n.id for n in found.body.nodes] == ["improve", "judge"]
    verdict = ["node", "judge"]
    assert found.until == ["or", ["ge", ["get", verdict, "score"], 8], ["eq", ["get", verdict, "text"], ""]]
    assert definition.result == ["get", ["node", "attempt"], "score"]


def test_a_loop_over_a_node_reads_the_inner_node_in_until() -> None:
    found = node_of(graph_of(lambda n: maps_and_loops.loop(step, n, until=lambda r: r > 9)), "step")
    assert found.until == ["gt", ["node", "step"], 9]
    assert found.body is not None
    assert found.body.nodes[0].args == {"value": ["param", "step", "value"]}


def test_until_may_read_an_input_and_a_shared_argument() -> None:
    def build(n: int, enough: int) -> Any:
        return maps_and_loops.loop(step, n, until=lambda r: r > enough)

    assert node_of(graph_of(build), "step").until == ["gt", ["node", "step"], ["input", "enough"]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda n: maps_and_loops.loop(step, n, until=lambda r: True), "until must return a condition"),
        (lambda n: maps_and_loops.loop(step, n, until=lambda r: step(r) > 1), "until cannot call nodes"),
        (lambda n: maps_and_loops.loop(step, n, until=True), "until is a function"),
        (lambda n: maps_and_loops.loop(step, n, until=lambda r: r > 1, max_visits=0), "max_visits=0"),
        (lambda n: maps_and_loops.loop(step, n, until=lambda r: r > 1, at_limit="stop"), "not 'fail' or 'take'"),
        (lambda n: maps_and_loops.loop(attempt, n, until=lambda r: r.socre > 1), "did you mean 'score'"),
    ],
)
def test_wrong_loops_are_refused_with_the_line(build: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"^[\w.]+:\d+: .*{message}"):
        graph_of(build)


def test_outside_a_graph_a_map_says_where_it_belongs() -> None:
    with pytest.raises(UsageError, match=r"hf.map belongs in the function of a workflow graph"):
        maps_and_loops.map(pick, ["a"])
