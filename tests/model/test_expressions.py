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
        (["eq", ["const", [True, {"a": 1}]], ["const", [1, {"a": 1}]]], False),
        (["eq", ["const", {"a": [1, None]}], ["const", {"a": [1.0, None]}]], True),
        (["eq", ["const", {"a": 1}], ["const", {"a": 1, "b": None}]], False),
        (["and", True, True, ["eq", AMOUNT, 5]], True),
        (["and", False, ["div", 1, 0]], False),
        (["and", True, MISSING], False),
        (["or", True, ["div", 1, 0]], True),
        (["or", MISSING, False], False),
        (["not", MISSING], True),
        (["if", ["eq", AMOUNT, 5], "five", ["div", 1, 0]], "five"),
        (["if", MISSING, ["div", 1, 0], "null counts as false"], "null counts as false"),
        (["size", ["if", True, ["get", ORDER, "items"], 5]], 3),
        (["starts_with", "text", "te"], True),
        (["starts_with", "text", "xt"], False),
        (["ends_with", "text", "xt"], True),
        (["ends_with", MISSING, "xt"], False),
        (["starts_with", "text", None], False),
        (["add", ["const", [1]], ["list", AMOUNT]], [1, 5]),
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
        (
            ["text", "{} {} {}", True, ["const", {"b": [1.5], "a": None}], "as it is"],
            'true {"a":null,"b":[1.5]} as it is',
        ),
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
    ("expr", "message"),
    [
        (["lt", 1, "a"], "< compares two numbers or two texts, not 1 and 'a'"),
        (["ge", True, 0], ">= compares two numbers or two texts, not True and 0"),
        (["gt", ["const", [2]], ["const", [1]]], "> compares two numbers or two texts"),
        (["div", 1, 0], "1 / 0 cannot be computed: division by zero"),
        (["mul", 1e308, 10], "cannot be computed: the result is too large"),
        (["mul", 2**1000, 2**1000], "cannot be computed: the result is too large"),
        (["mul", "x", 10], "* takes two numbers, not 'x' and 10"),
        (["mod", "%s", 1], "% takes two numbers"),
        (["add", 1, "a"], "+ takes two numbers, two texts or two lists, not 1 and 'a'"),
        (["add", True, 1], "+ takes two numbers, two texts or two lists, not True and 1"),
        (["and", True, AMOUNT], "&& takes true, false or null, not 5; compare the value"),
        (["or", False, ""], "|| takes true, false or null, not ''"),
        (["not", 0], "! takes true, false or null, not 0"),
        (["if", "yes", 1, 2], "?: takes true, false or null, not 'yes'"),
        (["starts_with", 5, "5"], "startsWith takes two texts, not 5 and '5'"),
        (["text", "{}"], "has 1 places for 0 value(s)"),
    ],
)
def test_an_operator_that_does_not_fit_its_operands_is_invalid_input(expr: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        ex.evaluate(expr, read)
    assert message in raised.value.message


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
        (["and", True, ["or", False, ["nope"]]], "unknown operator"),
        (["and", True], "at least two operands"),
        (["if", True, 1], "takes 3 operand"),
        (["starts_with", "a"], "takes 2 operand"),
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
        st.tuples(
            st.sampled_from(sorted(ex.COMPARISONS | ex.ARITHMETIC | ex.AFFIXES | {"contains"})), inner, inner
        ).map(list),
        st.tuples(st.just("if"), inner, inner, inner).map(list),
        st.tuples(st.sampled_from(["not", "size", "is_none"]), inner).map(list),
        st.lists(inner, min_size=2, max_size=4).map(lambda xs: ["and", *xs]),
        st.lists(inner, max_size=4).map(lambda xs: ["list", *xs]),
    ),
    max_leaves=20,
)


@given(exprs)
def test_evaluation_ends_with_a_value_or_invalid_input(expr: Any) -> None:
    assert ex.problem_of(expr) is None
    with contextlib.suppress(InvalidInput):
        ex.evaluate(expr, read)
