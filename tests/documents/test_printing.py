"""Printing: what is printed compiles to the same data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.documents.cel import compile_expression
from holdfast.documents.names import Names
from holdfast.documents.printing import expression_text, value_text
from holdfast.documents.templates import compile_value
from holdfast.model.definition import Definition, NodeDef
from holdfast.model.expressions import ARITHMETIC, COMPARISONS, OPERATORS, problem_of, walk
from tests.documents.loaded import EXAMPLES, graphs_of

TITLES = {"a": "a", "some id/1": "some_id_1-3f", "in": "in", "input": "input-7", "tries": "tries"}
NAMES = (
    Names(["order", "any name"], ["v"], TITLES)
    .inside("tries", "tries", {"x": ["param", "tries", "x"], "output": ["param", "tries", "output"]}, {"b": "b"})
    .inside("all of it", "all_of_it-9", {"x": ["param", "all_of_it-9", "x"]}, {"c": "c", "a": "a_2"})
)
LEAVES: list[Any] = [
    ["input", "order"], ["input", "any name"], ["var", "v"],
    ["node", "some_id_1-3f"], ["node", "in"], ["node", "input-7"], ["node", "b"], ["node", "c"], ["node", "a_2"],
    ["param", "tries", "x"], ["param", "tries", "output"], ["param", "all_of_it-9", "x"],
]  # fmt: skip

texts = st.text(max_size=6) | st.sampled_from(["{{", "}}", "{}", "{{ x }}", '"', "\\", "\n", "in", "é😀", "\x00\x7f"])
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=6)
keys = texts | st.integers(-3, 3) | st.sampled_from(["name", "output", "in", "true"])
constants = values.map(lambda v: ["const", v] if isinstance(v, list | dict) else v)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An operator over other expressions, in the form that authoring and documents produce."""
    binary = sorted(COMPARISONS | ARITHMETIC | {"contains", "starts_with", "ends_with"})
    some = st.lists(inner, min_size=1, max_size=4)
    entries = st.dictionaries(texts, inner, min_size=1, max_size=3)
    several = st.lists(inner, min_size=2, max_size=4)
    return st.one_of(
        st.tuples(st.sampled_from(binary), inner, inner).map(list),
        st.tuples(st.sampled_from(["and", "or"]), several).map(lambda t: [t[0], *t[1]]),
        st.tuples(st.sampled_from(["not", "size", "is_none"]), inner).map(list),
        st.tuples(st.just("if"), inner, inner, inner).map(list),
        st.tuples(st.just("get"), inner, keys).map(list),
        some.map(lambda xs: ["first", *xs]),
        some.flatmap(lambda xs: st.integers(1, len(xs)).map(lambda n: ["some", n, *xs])),
        some.flatmap(lambda xs: _template(len(xs)).map(lambda t: ["text", t, *xs])),
        some.map(lambda xs: ["list", *xs] if _has_reference(xs) else ["const", [_plain(x) for x in xs]]),
        entries.map(
            lambda d: (
                ["dict", *(p for e in d.items() for p in e)]
                if _has_reference(list(d.values()))
                else ["const", {k: _plain(v) for k, v in d.items()}]
            )
        ),
    )


def _template(places: int) -> st.SearchStrategy[str]:
    pieces = st.lists(texts.filter(lambda t: "{" not in t and "}" not in t), min_size=places + 1, max_size=places + 1)
    return pieces.map("{}".join)


def _has_reference(parts: list[Any]) -> bool:
    return any(isinstance(x, list) and x[0] != "const" for x in parts)


def _plain(expr: Any) -> Any:
    return expr[1] if isinstance(expr, list) else expr


statuses = st.tuples(st.sampled_from(["skipped", "failed"]), st.sampled_from([x for x in LEAVES if x[0] == "node"]))
exprs = st.recursive(constants | st.sampled_from(LEAVES) | statuses.map(list), composed, max_leaves=12)


@given(exprs)
@settings(max_examples=500)
def test_printed_expression_compiles_to_the_same_data(expr: Any) -> None:
    assert problem_of(expr) is None
    text = expression_text(expr, NAMES)
    assert _exact(compile_expression(text, NAMES)) == _exact(expr), text


@given(exprs)
@settings(max_examples=500)
def test_printed_value_compiles_to_the_same_data(expr: Any) -> None:
    value = value_text(expr, NAMES)
    assert _exact(compile_value(value, NAMES)) == _exact(expr), value


def _exact(expr: Any) -> str:
    return repr(expr)  # 1, 1.0 and true are different constants


# --- what Python graphs produce --------------------------------------------------------------------------------------


def bodies(nodes: tuple[NodeDef, ...], names: Names) -> Iterator[tuple[NodeDef | None, Names, list[Any]]]:
    """Every node of a body and of those inside it, with the expressions in it and the names where they stand."""
    for node in nodes:
        yield node, names, [*node.args.values(), node.when, node.over, node.start]
        if node.body is not None:
            items = {name: ["param", node.id, name] for name in (node.item, *node.args)}
            inner = names.inside(node.id, node.id, items, {n.id: n.id for n in node.body.nodes})
            yield None, inner, [node.body.result, node.until]
            yield from bodies(node.body.nodes, inner)


def names_of(definition: Definition) -> Names:
    return Names([p.name for p in definition.params], definition.variables, {n.id: n.id for n in definition.nodes})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_expression_of_the_examples_is_printed_and_compiles_to_the_same_data(path: Path) -> None:
    for definition in graphs_of(path):
        top = names_of(definition)
        assert compile_value(value_text(definition.result, top), top) == definition.result
        for _, names, found in bodies(definition.nodes, top):
            for expr in found:
                assert compile_expression(expression_text(expr, names), names) == expr
                assert compile_value(value_text(expr, names), names) == expr


def test_a_parameter_with_the_name_of_a_result_is_printed_by_its_name() -> None:
    names = Names([], [], {"review": "review"}).inside(
        "review", "review", {"output": ["param", "review", "output"]}, {"review": "review"}
    )
    assert (
        expression_text(["list", ["param", "review", "output"], ["node", "review"]], names) == "[output, review.output]"
    )


def test_the_strategy_has_every_operator() -> None:
    found: set[str] = set()

    @given(exprs)
    @settings(max_examples=1_000, database=None, derandomize=True, deadline=None)
    def collect(expr: Any) -> None:
        found.update(e[0] for e in walk(expr) if isinstance(e, list))

    collect()
    assert OPERATORS - found == set()
