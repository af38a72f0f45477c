"""Templates: values whose texts may hold expressions."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.authoring.refs import Ref, expression
from holdfast.authoring.tracing import Trace
from holdfast.documents.names import ExpressionProblem, Names
from holdfast.documents.templates import compile_template, compile_value
from holdfast.model.expressions import evaluate

NAMES = Names(["order", "kind"], [], {"charge": "charge"})
KIND, CHARGE = ["input", "kind"], ["node", "charge"]


@pytest.mark.parametrize(
    ("value", "expr"),
    [
        ("plain", "plain"),
        (5, 5),
        (None, None),
        ([], ["const", []]),
        ({"a": [1, {"b": None}]}, ["const", {"a": [1, {"b": None}]}]),
        ("{{ input.kind }}", KIND),
        ("{{input.kind}}", KIND),
        ("{{ charge.output.id }}", ["get", CHARGE, "id"]),
        ("{{ input.kind + 1 }}", ["add", KIND, 1]),
        ("{{ {'a': {'b': input.kind}} }}", ["dict", "a", ["dict", "b", KIND]]),
        ("{{ input.kind }} ", ["text", "{} ", KIND]),
        ("a {{ input.kind }} b {{ 1 }}", ["text", "a {} b {}", KIND, 1]),
        ("{{ input.kind }}{{ input.kind }}", ["text", "{}{}", KIND, KIND]),
        ("{} {{ input.kind }} {}", ["text", "{} {} {}", "{}", KIND, "{}"]),
        ('{{ "{{" }}', "{{"),
        ('a {{ "}}" }}', ["text", "a {}", "}}"]),
        ("a }} b", "a }} b"),
        ({"a": "{{ 1 }}", "b": [2]}, ["const", {"a": 1, "b": [2]}]),
        (
            {"a": [1, "{{ input.kind }}", [2]], "b": "x", "c": {"d": 1}},
            ["dict", "a", ["list", 1, KIND, ["const", [2]]], "b", "x", "c", ["const", {"d": 1}]],
        ),
        ({"{{ not a key }}": 1}, ["const", {"{{ not a key }}": 1}]),
    ],
)
def test_value_compiles_to_the_data_that_a_graph_has(value: Any, expr: Any) -> None:
    assert compile_value(value, NAMES) == expr


def test_value_with_references_is_the_data_of_the_same_python_argument() -> None:
    trace = Trace("w", {})
    kind = Ref(KIND, str, trace.top)
    written = {"a": [1, kind, [2, "x"], []], "b": {"c": {"d": kind, "e": {"f": 1.0}}}, "g": {"h": [True]}}
    value = {"a": [1, "{{ input.kind }}", [2, "x"], []], "b": {"c": {"d": "{{ input.kind }}", "e": {"f": 1.0}}}}
    assert compile_value(value | {"g": {"h": [True]}}, NAMES) == expression(written)


@pytest.mark.parametrize(
    ("value", "offset", "pointer", "message"),
    [
        ("{{ input.kind", 0, (), "`{{` is not closed"),
        ("a {{ input.kind }", 16, (), "unexpected '}': `}}` behind the expression was expected"),
        ("a {{ }}", 5, (), "unexpected '}': a value was expected"),
        ("ab {{ input.kimd }}", 6, (), "the workflow has no input 'kimd'"),
        ("{{ input.kimd }}", 3, (), "the workflow has no input 'kimd'"),
        ({"a": ["x", {"b c": "yy {{ nope }}"}]}, 6, ("a", 1, "b c"), "there is nothing called 'nope' here"),
    ],
)
def test_problem_of_a_template_has_the_place_in_the_value_and_in_the_text(
    value: Any, offset: int, pointer: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ExpressionProblem) as raised:
        compile_value(value, NAMES)
    assert message in raised.value.message
    assert (raised.value.offset, raised.value.pointer) == (offset, pointer)


@pytest.mark.parametrize(
    ("text", "value", "gives"),
    [
        ("{{ input.kind }}", [1, None], [1, None]),
        ("<{{ input.kind }}>", [1, None], "<[1,null]>"),
        ("<{{ input.kind }}>", None, "<>"),
        ("<{{ input.kind }}>", True, "<true>"),
        ("<{{ input.kind }}>", {"b": 1.5, "a": "x"}, '<{"a":"x","b":1.5}>'),
        ("<{{ input.kind }}>", "{{ input.order }} {}", "<{{ input.order }} {}>"),
        ("{} {{ input.kind }}", "{}", "{} {}"),
    ],
)
def test_what_a_template_gives_is_never_expanded_again(text: str, value: Any, gives: Any) -> None:
    assert evaluate(compile_template(text, NAMES), lambda leaf: value) == gives
