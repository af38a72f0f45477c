"""Expressions: their meaning, their null rules, and their bounds."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import expressions as ex
from holdfast.model.errors import InvalidInput
from holdfast.model.limits import EXPRESSION_DEPTH_MAX, EXPRESSION_NODES_MAX

VALUES: dict[tuple[str, ...], Any] = {
    ("input", "order"): {"id": "a", "amount": 5, "items": [1, 2, 3], "none": None},
    ("node", "n"): [10, {"x": "y"}],
    ("var", "v"): None,
    ("param", "scope", "item"): "text",
}


def read(expr: Any) -> Any:
    match expr:
        case ["size", inner]:
            return ex.part_of(read(inner), "#")
        case [("skipped" | "failed"), _]:
            return expr[0] == "skipped"
        case ["first", *options]:
            return next((v for o in options if (v := ex.evaluate(o, read)) is not None), None)
        case ["some", n, *options]:
            return [ex.evaluate(o, read) for o in options[:n]]
    link = ex.chain(expr)
    assert link is not None
    return ex.follow(VALUES[link[0]], link[1])


ORDER = ["input", "order"]
AMOUNT = ["get", ORDER, "amount"]
MISSING = ["get", ["get", ORDER, "nothing"], "below"]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (None, None),
        ("text", "text"),
        (["const", ["list", 1]], ["list", 1]),
        (AMOUNT, 5),
        (["get", ["node", "n"], 1], {"x": "y"}),
        (["get", ["node", "n"], -1], {"x": "y"}),
        (["get", ["node", "n"], 7], None),
        (["get", ["const", {"1": "one"}], 1], "one"),
        (["param", "scope", "item"], "text"),
        (["list", AMOUNT, 1], [5, 1]),
        (["dict", "a", AMOUNT, "b", None], {"a": 5, "b": None}),
        (["eq", AMOUNT, 5], True),
        (["eq", AMOUNT, 5.0], True),
        (["eq", True, 1], False),
        (["ne", False, 0], True),
        (["lt", AMOUNT, 6], True),
        (["ge", "b", "a"], True),
        (["and", True, AMOUNT], 5),
        (["and", 0, ["div", 1, 0]], 0),
        (["or", AMOUNT, ["div", 1, 0]], 5),
        (["or", False, ""], ""),
        (["not", MISSING], True),
        (["add", "a", "b"], "ab"),
        (["sub", AMOUNT, 1], 4),
        (["mul", AMOUNT, 2], 10),
        (["div", AMOUNT, 2], 2.5),
        (["mod", AMOUNT, 3], 2),
        (["size", ["get", ORDER, "items"]], 3),
        (["size", ["list", 1, 2]], 2),
        (["size", 5], None),
        (["contains", ["get", ORDER, "items"], 2], True),
        (["contains", ["get", ORDER, "items"], True], False),
        (["contains", ORDER, "id"], True),
        (["contains", "text", "ex"], True),
        (["contains", None, "ex"], False),
        (["is_none", MISSING], True),
        (["text", "{}-{}!", AMOUNT, None], "5-!"),
        (["skipped", ["node", "n"]], True),
        (["first", ["var", "v"], AMOUNT], 5),
        (["get", ["some", 1, AMOUNT, 7], 0], 5),
    ],
)
def test_the_meaning_of_each_operator(expr: Any, expected: Any) -> None:
    assert ex.problem_of(expr) is None
    assert ex.evaluate(expr, read) == expected
    assert type(ex.evaluate(expr, read)) is type(expected)


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
def test_an_order_with_null_is_false_and_equality_compares(op: str) -> None:
    assert ex.evaluate([op, None, 1], read) is False
    assert ex.evaluate([op, 1, MISSING], read) is False
    assert ex.evaluate(["eq", MISSING, None], read) is True
    assert ex.evaluate(["ne", MISSING, 1], read) is True


@pytest.mark.parametrize("op", sorted(ex.ARITHMETIC))
def test_arithmetic_with_null_is_null(op: str) -> None:
    assert ex.evaluate([op, None, 1], read) is None


@pytest.mark.parametrize(
    "expr", [["lt", 1, "a"], ["div", 1, 0], ["mul", "x", 10], ["mod", "%s", 1], ["add", 1, "a"], ["text", "{}"]]
)
def test_an_operator_that_does_not_fit_its_operands_is_invalid_input(expr: Any) -> None:
    with pytest.raises(InvalidInput):
        ex.evaluate(expr, read)


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (["nope", 1], "unknown operator 'nope'"),
        ([], "is not an expression"),
        ([1, 2], "is not an expression"),
        ({"a": 1}, "is not an expression"),
        (["eq", 1], "takes 2 operand"),
        (["node", 1], "takes names"),
        (["get", ORDER, True], "a field name or an index"),
        (["get", ORDER, 1.5], "a field name or an index"),
        (["dict", "a"], "keys and values in turn"),
        (["dict", 1, 2], "keys and values in turn"),
        (["text", 1], "a template first"),
        (["some", 3, 1, 2], "a count between 1"),
        (["some", 0, 1], "a count between 1"),
        (["first"], "at least one operand"),
        (["skipped", AMOUNT], "takes a node"),
        (["and", ["or", ["nope"]]], "unknown operator"),
    ],
)
def test_what_is_no_expression_is_explained(expr: Any, message: str) -> None:
    found = ex.problem_of(expr)
    assert found is not None
    assert message in found


def test_size_and_depth_are_bounded() -> None:
    deep: Any = 1
    for _ in range(EXPRESSION_DEPTH_MAX):
        deep = ["not", deep]
    assert "nested deeper" in str(ex.problem_of(deep))
    assert ex.problem_of(deep[1]) is None
    assert "more than" in str(ex.problem_of(["list", *range(EXPRESSION_NODES_MAX)]))


def test_a_constant_is_not_read_as_an_expression() -> None:
    assert ex.nodes_of(["const", ["node", "x"]]) == []
    assert ex.problem_of(["const", ["nope", 1]]) is None


def test_nodes_and_chains_are_found_in_order_and_once() -> None:
    expr = [
        "and",
        ["gt", ["size", ["get", ["node", "b"], "x"]], 1],
        ["skipped", ["node", "c"]],
        ["node", "a"],
        ["node", "b"],
    ]
    assert ex.nodes_of(expr) == ["b", "c", "a"]
    assert ex.chains_of(expr) == [
        ((("node", "b"), ("x",)), "#"),
        ((("node", "a"), ()), ""),
        ((("node", "b"), ()), ""),
    ]


@given(st.lists(st.text() | st.integers()))
def test_pointers_name_each_chain_apart(keys: list[str | int]) -> None:
    pointer = ex.pointer(tuple(keys))
    assert pointer.count("/") == len(keys)
    back = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    assert back == [str(k) for k in keys]


scalars = st.none() | st.booleans() | st.integers(-100, 100) | st.text(max_size=5) | st.floats(allow_nan=False)
exprs = st.recursive(
    scalars | st.just(AMOUNT) | st.just(MISSING),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(ex.COMPARISONS | ex.ARITHMETIC | {"contains"})), inner, inner).map(list),
        st.tuples(st.sampled_from(["not", "size", "is_none"]), inner).map(list),
        st.lists(inner, min_size=1, max_size=4).map(lambda xs: ["and", *xs]),
        st.lists(inner, max_size=4).map(lambda xs: ["list", *xs]),
    ),
    max_leaves=20,
)


@given(exprs)
def test_evaluation_ends_with_a_value_or_invalid_input(expr: Any) -> None:
    assert ex.problem_of(expr) is None
    with contextlib.suppress(InvalidInput):
        ex.evaluate(expr, read)
