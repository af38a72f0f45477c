"""Conditions, routes, phases and choices: the data that they become."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from holdfast.authoring import control_flow as hf
from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import workflow
from holdfast.model.definition import Definition, Phase
from holdfast.model.errors import DefinitionError, TraceError, UsageError


@dataclass
class Text:
    kind: Literal["article", "tweet", "poem"]
    score: int
    regions: list[str]


@node
def draft(topic: str) -> Text: ...


@node
def typeset(text: Text) -> str: ...


@node
def shorten(text: Text) -> str: ...


@node
def archive(text: Text) -> str: ...


_numbers = itertools.count()


def graph_of(build: Any, **options: Any) -> Definition:
    return workflow(name=f"under_test_{next(_numbers)}", **options)(build).definition


def by_id(definition: Definition) -> dict[str, Any]:
    return {n.id: n for n in definition.nodes}


D = ["node", "draft"]
SCORE = ["get", D, "score"]
KIND = ["get", D, "kind"]


# --- when ---


def test_nested_conditions_are_anded_and_end_with_their_block() -> None:
    def build(topic: str) -> Any:
        text = draft(topic)
        with hf.when(text.score > 3):
            typeset(text)
            with hf.when(text.score < 9):
                shorten(text)
        return archive(text)

    nodes = by_id(graph_of(build))
    assert nodes["typeset"].when == ["gt", SCORE, 3]
    assert nodes["shorten"].when == ["and", ["gt", SCORE, 3], ["lt", SCORE, 9]]
    assert nodes["archive"].when is None


def test_a_condition_ends_with_its_block_also_when_the_block_raises() -> None:
    def build(topic: str) -> Any:
        text = draft(topic)
        try:
            with hf.when(text.score > 3):
                raise KeyError
        except KeyError:
            pass
        return typeset(text)

    assert by_id(graph_of(build))["typeset"].when is None


@pytest.mark.parametrize("plain", [True, False, None, 1])
def test_when_of_a_plain_value_is_refused(plain: Any) -> None:
    def build(topic: str) -> Any:
        with hf.when(plain):
            return draft(topic)

    with pytest.raises(TraceError, match=r"test_graph.py:\d+: hf.when takes a condition on references"):
        graph_of(build)


# --- exclusive routes ---


def refine(topic: str) -> Any:
    text = draft(topic)
    with hf.route(text.kind) as kind:
        with kind("article"):
            a = typeset(text)
        with kind("tweet"):
            b = shorten(text)
        with kind.otherwise():
            c = archive(text)
    return hf.first(a, b, c)


def test_branches_of_a_route_exclude_each_other_and_otherwise_is_none_of_them() -> None:
    definition = graph_of(refine)
    nodes = by_id(definition)
    article, tweet = ["eq", KIND, "article"], ["eq", KIND, "tweet"]
    assert nodes["typeset"].when == article
    assert nodes["shorten"].when == tweet
    assert nodes["archive"].when == ["not", ["contains", ["const", ["article", "tweet"]], KIND]]
    assert [nodes[n].route for n in ("typeset", "shorten", "archive")] == [
        "kind=article",
        "kind=tweet",
        "kind=otherwise",
    ]
    assert definition.result == ["first", ["node", "typeset"], ["node", "shorten"], ["node", "archive"]]


def test_a_route_inside_a_condition_keeps_the_condition() -> None:
    def build(topic: str) -> Any:
        text = draft(topic)
        with hf.when(text.score > 3), hf.route(text.kind) as kind:
            with kind("poem"):
                typeset(text)
            with kind.otherwise():
                shorten(text)

    nodes = by_id(graph_of(build))
    assert nodes["typeset"].when == ["and", ["gt", SCORE, 3], ["eq", KIND, "poem"]]
    assert nodes["shorten"].when == ["and", ["gt", SCORE, 3], ["ne", KIND, "poem"]]


def test_a_branch_behind_otherwise_and_a_second_branch_of_one_value_are_refused() -> None:
    def late(topic: str) -> Any:
        text = draft(topic)
        with hf.route(text.kind) as kind:
            with kind.otherwise():
                archive(text)
            with kind("tweet"):
                shorten(text)

    def twice(topic: str) -> Any:
        text = draft(topic)
        with hf.route(text.kind) as kind:
            with kind("tweet"):
                shorten(text)
            with kind("tweet"):
                archive(text)

    with pytest.raises(TraceError, match=r"otherwise.. is the last branch"):
        graph_of(late)
    with pytest.raises(TraceError, match="two branches for 'tweet'"):
        graph_of(twice)


def test_true_and_one_are_different_branches() -> None:
    def build(flag: Any) -> Any:
        with hf.route(flag) as value:
            with value(True):
                draft.named("yes")("a")
            with value(1):
                draft.named("one")("b")

    assert [n.when for n in graph_of(build).nodes] == [["eq", ["input", "flag"], True], ["eq", ["input", "flag"], 1]]


def test_a_result_bound_once_in_each_branch_is_refused() -> None:
    def build(topic: str) -> Any:
        text = draft(topic)
        with hf.route(text.kind) as kind:
            with kind("article"):
                out = typeset(text)
            with kind("tweet"):
                out = shorten(text)
        return {"out": out}

    with pytest.raises(TraceError, match=r"'shorten', which runs only in the branch 'tweet'.*hf.first"):
        graph_of(build)


def test_a_result_that_names_each_branch_is_fine_and_so_is_a_route_with_one_branch() -> None:
    def named(topic: str) -> Any:
        text = draft(topic)
        with hf.route(text.kind) as kind:
            with kind("article"):
                a = typeset(text)
            with kind("tweet"):
                b = shorten(text)
        return {"a": a, "b": b}

    def single(topic: str) -> Any:
        text = draft(topic)
        with hf.route(text.kind) as kind, kind("article"):
            return typeset(text)

    assert graph_of(named).result == ["dict", "a", ["node", "typeset"], "b", ["node", "shorten"]]
    assert graph_of(single).result == ["node", "typeset"]


# --- parallel routes ---


def test_parallel_branches_have_lanes_that_nest() -> None:
    def build(topic: str) -> Any:
        text = draft(topic)
        with hf.routes(text.regions) as region:
            with region("eu"):
                typeset(text)
                with hf.routes(text.regions) as inner, inner("de"):
                    shorten(text)
            with region("us"):
                archive(text)

    nodes = by_id(graph_of(build))
    regions = ["get", D, "regions"]
    assert (nodes["typeset"].lane, nodes["typeset"].when) == ("route_1.eu.", ["contains", regions, "eu"])
    assert nodes["shorten"].lane == "route_1.eu.route_2.de."
    assert nodes["shorten"].when == ["and", ["contains", regions, "eu"], ["contains", regions, "de"]]
    assert (nodes["archive"].lane, nodes["archive"].route) == ("route_1.us.", "route_1=us")


@pytest.mark.parametrize("name", ["e.u", "", "a@b", "a#1", "x~y", 3])
def test_a_branch_name_that_could_not_stand_in_a_path_is_refused(name: Any) -> None:
    def build(topic: str) -> Any:
        text = draft(topic)
        with hf.routes(text.regions) as region, region(name):
            typeset(text)

    with pytest.raises(TraceError, match="the name of a branch"):
        graph_of(build)


# --- phases ---


def test_a_phase_is_a_label_and_orders_only_where_asked() -> None:
    def build(topic: str) -> Any:
        with hf.phase("write"):
            text = draft(topic)
            typeset(text)
        with hf.phase("free"):
            shorten(text)
        with hf.phase("end", after="write"):
            archive.after(text)(text)
        draft.named("outside")(topic)

    definition = graph_of(build)
    assert definition.phases == (Phase(name="write"), Phase(name="free"), Phase(name="end", after="write"))
    assert [(n.id, n.phase, n.after) for n in definition.nodes] == [
        ("draft", "write", ()),
        ("typeset", "write", ()),
        ("shorten", "free", ()),
        ("archive", "end", ("draft", "typeset")),
        ("outside", None, ()),
    ]


def test_phases_do_not_nest_and_unknown_ones_are_found() -> None:
    def nested(topic: str) -> Any:
        with hf.phase("a"), hf.phase("b"):
            draft(topic)

    def unknown(topic: str) -> Any:
        with hf.phase("end", after="wirte"):
            draft(topic)

    with pytest.raises(TraceError, match="phases do not nest"):
        graph_of(nested)
    with pytest.raises(DefinitionError, match="'wirte', which is none"):
        graph_of(unknown)


def test_phases_that_wait_for_each_other_are_found() -> None:
    def build(topic: str) -> Any:
        with hf.phase("a", after="b"):
            draft(topic)
        with hf.phase("b", after="a"):
            draft(topic)

    with pytest.raises(DefinitionError, match="phase_cycle"):
        graph_of(build)


# --- choices and functions ---


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda t: hf.first(t, None), ["first", D, None]),
        (lambda t: hf.first(t.score, 0), ["first", SCORE, 0]),
        (lambda t: hf.some(t, t.score, n=2), ["some", 2, D, SCORE]),
        (lambda t: hf.any_of(t, t), ["get", ["some", 1, D, D], 0]),
        (lambda t: hf.skipped(t) | hf.failed(t.score), ["or", ["skipped", D], ["failed", D]]),
        (lambda t: hf.size(t.regions) > 1, ["gt", ["size", ["get", D, "regions"]], 1]),
        (lambda t: hf.contains(t.regions, "eu"), ["contains", ["get", D, "regions"], "eu"]),
        (lambda t: hf.contains(["a", "b"], t.kind), ["contains", ["const", ["a", "b"]], KIND]),
        (lambda t: hf.is_none(t.kind), ["is_none", KIND]),
        (lambda t: hf.text("{}: {}", t.kind, 1), ["text", "{}: {}", KIND, 1]),
    ],
)
def test_choices_and_functions_become_expressions(build: Any, expected: Any) -> None:
    assert graph_of(lambda topic: build(draft(topic))).result == expected


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: hf.first(), "at least one reference"),
        (lambda t: hf.first(None), "at least one reference"),
        (lambda t: hf.first(None, t), "only the last argument"),
        (lambda t: hf.some(t, n=2), "n=2 is not between 1"),
        (lambda t: hf.some(t, 3, n=1), "takes references"),
        (lambda t: hf.skipped(True), "takes what a node call returned"),
        (lambda t: hf.skipped(t.score > 1), "takes what a node call returned"),
        (lambda t: hf.size([1]), "use Python itself"),
        (lambda t: hf.text("{}", t, t), "1 places"),
        (lambda t: hf.var("seen"), "declares no variable 'seen'"),
        (lambda t: hf.route("x").__enter__(), "hf.route takes a reference"),
    ],
)
def test_wrong_uses_are_refused_with_the_line(build: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"^[\w.]+:\d+: .*{message}"):
        graph_of(lambda topic: build(draft(topic)))


def test_a_declared_variable_can_be_read() -> None:
    def build(topic: str) -> Any:
        with hf.when(hf.var("seen") > 3):
            draft(topic)

    definition = graph_of(build, variables={"seen": int})
    assert definition.nodes[0].when == ["gt", ["var", "seen"], 3]
    assert definition.variables == {"seen": {"type": "integer"}}


@pytest.mark.parametrize("use", [lambda: hf.size([1]), lambda: hf.var("x"), lambda: hf.first(1)])
def test_outside_a_graph_these_functions_say_where_they_belong(use: Any) -> None:
    with pytest.raises(UsageError, match="belongs in the function of a workflow graph"):
        use()


def test_first_keeps_the_type_for_field_checks() -> None:
    def build(topic: str) -> Any:
        return hf.first(draft(topic), draft(topic)).scroe

    with pytest.raises(TraceError, match="did you mean 'score'"):
        graph_of(build)
