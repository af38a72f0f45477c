"""CEL: which data a text compiles to, and how a text outside the subset is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.documents.cel import compile_expression
from holdfast.documents.names import ExpressionProblem, Names
from holdfast.model.definition import Definition
from holdfast.model.handlers import find_workflow
from holdfast.model.limits import EXPRESSION_CHARS_MAX, EXPRESSION_DEPTH_MAX

NODES = {"charge": "charge", "a b/c": "a_b_c-1f", "picks": "picks", "in": "in"}
NAMES = Names(["order", "kind"], ["verified"], NODES)
INSIDE = NAMES.inside(
    "picks", "picks", {"line": ["param", "picks", "line"], "shelf": ["param", "picks", "shelf"]}, {"pick": "pick"}
)
DEEPER = INSIDE.inside("tries", "tries", {"line": ["param", "tries", "line"]}, {"charge": "charge"})
ORDER = ["input", "order"]
LINES = ["get", ["node", "charge"], "lines"]


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("input.order", ORDER),
        ('input["order"].items[0]["a key"]', ["get", ["get", ["get", ORDER, "items"], 0], "a key"]),
        ("input", ["dict", "order", ORDER, "kind", ["input", "kind"]]),
        ("vars.verified", ["var", "verified"]),
        (" charge.output.id ", ["get", ["node", "charge"], "id"]),
        ('nodes["a b/c"].output', ["node", "a_b_c-1f"]),
        ('nodes["charge"].output', ["node", "charge"]),
        ('nodes["in"].output', ["node", "in"]),
        ("a.output", ExpressionProblem),
        ("!skipped(charge)", ["not", ["skipped", ["node", "charge"]]]),
        ('failed(nodes["a b/c"])', ["failed", ["node", "a_b_c-1f"]]),
        ("input.kind == 'x' && 1 < 2 || true", ["or", ["and", ["eq", ["input", "kind"], "x"], ["lt", 1, 2]], True]),
        ("true && false && null", ["and", True, False, None]),
        ("(true && false) && null", ["and", ["and", True, False], None]),
        ("true && (false && null)", ["and", True, ["and", False, None]]),
        ("1 - 2 - 3", ["sub", ["sub", 1, 2], 3]),
        ("1 - (2 - 3)", ["sub", 1, ["sub", 2, 3]]),
        ("1 + 2 * 3 % 4", ["add", 1, ["mod", ["mul", 2, 3], 4]]),
        ("-1 - -input.kind", ["sub", -1, ["sub", 0, ["input", "kind"]]]),
        ("!(input.kind)", ["not", ["input", "kind"]]),
        ("!!true", ["not", ["not", True]]),
        ("1 in [1, 2,]", ["contains", ["const", [1, 2]], 1]),
        ("[input.kind, [1], {}]", ["list", ["input", "kind"], ["const", [1]], ["const", {}]]),
        ("{'a': 1, 'b': [input.kind]}", ["dict", "a", 1, "b", ["list", ["input", "kind"]]]),
        ("true ? 1 : false ? 2 : 3", ["if", True, 1, ["if", False, 2, 3]]),
        ("(true ? 1 : 2).x", ["get", ["if", True, 1, 2], "x"]),
        ("input.order.name.startsWith('x')", ["starts_with", ["get", ORDER, "name"], "x"]),
        ('"abc".endsWith(input.kind)', ["ends_with", "abc", ["input", "kind"]]),
        ("input.kind.contains('x')", ["contains", ["input", "kind"], "x"]),
        ("charge.output.lines.size() + size('x')", ["add", ["size", LINES], ["size", "x"]]),
        ("has(charge.output.x)", ["not", ["is_none", ["get", ["node", "charge"], "x"]]]),
        ("first(charge.output, null)", ["first", ["node", "charge"], None]),
        ("some(1, charge.output, 2)[0]", ["get", ["some", 1, ["node", "charge"], 2], 0]),
        ("text('{} and {}', input.kind, 1)", ["text", "{} and {}", ["input", "kind"], 1]),
        (r"""'it''s'""", ExpressionProblem),
        (r'''"\x41\101\u00e9\U0001F600\n\\"''', "AAé😀\n\\"),
        ("'''a 'quoted'\nline'''", "a 'quoted'\nline"),
        (r"r'\d\'", "\\d\\"),
        ("0xff + 1.5e3 + .5", ["add", ["add", 255, 1500.0], 0.5]),
        ("-9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_text_compiles_to_the_data_that_a_graph_has(text: str, expr: Any) -> None:
    if expr is ExpressionProblem:
        with pytest.raises(ExpressionProblem):
            compile_expression(text, NAMES)
        return
    found = compile_expression(text, NAMES)
    assert found == expr
    assert type(found) is type(expr)


@pytest.mark.parametrize(
    ("names", "text", "expr"),
    [
        (INSIDE, "line.sku", ["get", ["param", "picks", "line"], "sku"]),
        (INSIDE, "picks.line", ["param", "picks", "line"]),
        (INSIDE, 'nodes["picks"].shelf', ["param", "picks", "shelf"]),
        (INSIDE, "pick.output", ["node", "pick"]),
        (INSIDE, "charge.output", ["node", "charge"]),
        (DEEPER, "line", ["param", "tries", "line"]),
        (DEEPER, "picks.line", ["param", "picks", "line"]),
        (DEEPER, "shelf", ["param", "picks", "shelf"]),
        (DEEPER.with_values({"result": ["node", "pick"]}), "result.score", ["get", ["node", "pick"], "score"]),
    ],
)  # fmt: skip
def test_inside_a_map_or_loop_the_innermost_name_is_meant(names: Names, text: str, expr: Any) -> None:
    assert compile_expression(text, names) == expr


@pytest.mark.parametrize(
    ("text", "offset", "message", "hint"),
    [
        ("input.oder", 0, "the workflow has no input 'oder'", "did you mean 'order'?"),
        ("1 + vars.verifed", 4, "the workflow has no variable 'verifed'", "did you mean 'verified'?"),
        ("true && chrge.output", 8, "there is nothing called 'chrge' here", "did you mean 'charge'?"),
        ("charge", 0, "'charge' is a node, which is not a value", "write `charge.output`"),
        ("charge.id", 0, "'charge' is a node, which is not a value", "write `charge.output.id`"),
        ("sku", 0, "there is nothing called 'sku' here", "the names here are 'charge'"),
        ("skipped(lable)", 8, "there is nothing called 'lable' here", "the names here are"),
        ("skipped(charge.output)", 8, "skipped(…) takes the id of a node alone", "write `skipped(charge)`"),
        ("vars", 0, "`vars` alone is not a value", "write `vars.NAME`"),
        ("nodes.output", 0, "there is nothing called 'output' here", "the names here are"),
        ("input.kind.matches('a.*')", 11, "`matches` is not supported in Holdfast's CEL", "use startsWith"),
        ("input.order.all(x, x > 1)", 12, "`all` is not supported in Holdfast's CEL", "let a node decide"),
        ("input.order.map(x, x + 1)", 12, "`map` is not supported in Holdfast's CEL", "use a `map` node"),
        ("timestamp('2026')", 0, "`timestamp` is not supported in Holdfast's CEL", "compare times in a node"),
        ("string(1)", 0, "`string` is not supported in Holdfast's CEL", 'write `text("{}", x)`'),
        ("len(input.kind)", 0, "`len` is not supported in Holdfast's CEL", "write `size(x)`"),
        ("frist(charge.output)", 0, "`frist` is not supported in Holdfast's CEL", "did you mean 'first'?"),
        ("google.type.Money{units: 1}", 0, "there is nothing called 'google' here", ""),
        ("Money{units: 1}", 0, "`Money{…}` is not supported in Holdfast's CEL", "write an object"),
        ("input.?kind", 6, "optional fields `.?` are not supported", "write `.`"),
        ("input[?'kind']", 6, "optional indices `[?` are not supported", "write `[`"),
        ("input.order[input.kind]", 12, "an index must be a constant text or whole number", "let a node read the item"),
        ("input.order[1.5]", 12, "an index must be a constant text or whole number", ""),
        ("1u", 1, "unexpected 'u'", "write the number without `u`"),
        ("b'x'", 0, "bytes literals are not supported", "without the `b`"),
        ("1 < 2 < 3", 6, "comparisons cannot be chained", "write `a < b && b < c`"),
        ("1 == 2 in [3]", 7, "comparisons cannot be chained", ""),
        ("input.kind = 'a'", 11, "unexpected '='", "write `==`"),
        ("true & false", 5, "unexpected '&'", "write `&&`"),
        ("true and false", 5, "unexpected 'and'", "write `&&`"),
        ("not true", 0, "there is nothing called 'not' here", "write `!`"),
        ("None", 0, "there is nothing called 'None' here", "write `null`"),
        ("7 // 2", 3, "unexpected '/'", "there are no comments in expressions"),
        ('"abc', 0, "unexpected '\"'", 'close the text with "'),
        (r'"a\q"', 2, r"\q is not an escape of CEL", "an `r` before the text"),
        (r'"\ud800"', 1, r"\ud800 is not an escape of CEL", ""),
        ("9223372036854775808", 0, "the number is too large", "write it as a text"),
        ("1e999", 0, "the number is too large", ""),
        ("{'a': 1, 'a': 2}", 0, "the object has a key twice", "remove one of them"),
        ("{a: 1}", 1, "there is nothing called 'a' here", ""),
        ("{1: 2}", 1, "the keys of an object are texts", "put the key in quotes"),
        ("text('{}')", 0, "the text has 1 place(s) `{}` for 0 value(s)", "one `{}` for each value"),
        ("text(input.kind)", 0, "takes a text with places `{}` first", ""),
        ("some(3, charge.output)", 0, "takes a number between 1 and the number of values", ""),
        ("size()", 0, "size(…) takes 1 argument(s), not 0", ""),
        ("input.kind.startsWith()", 11, "startsWith(…) takes 1 argument(s), not 0", ""),
        ("first()", 0, "first(a, b, …) takes at least one value", ""),
        ("", 0, "the expression ends where a value was expected", ""),
        ("(1 + 2", 6, "the expression ends where `)`", ""),
        ("[1, 2", 5, "the expression ends where `,` or `]`", ""),
        ("true ? 1", 8, "the expression ends where `:`", ""),
        ("1 2", 2, "unexpected '2': the end of the expression was expected", ""),
        ("$input", 0, "unexpected '$'", "without `$`"),
    ],
)  # fmt: skip
def test_text_outside_the_subset_is_refused_with_its_place_and_what_to_write(
    text: str, offset: int, message: str, hint: str
) -> None:
    with pytest.raises(ExpressionProblem) as raised:
        compile_expression(text, NAMES)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert raised.value.hint
    assert raised.value.offset == offset


def test_a_scope_is_read_inside_by_its_names_and_not_by_its_output() -> None:
    with pytest.raises(ExpressionProblem) as raised:
        compile_expression("picks.output", NAMES.inside("picks", "picks", {"line": ["param", "picks", "line"]}, {}))
    assert raised.value.message == "this is in the body of 'picks', whose output is not known yet"
    assert "'line'" in raised.value.hint


def test_only_visible_nodes_can_be_read() -> None:
    names = NAMES.only({"charge"}, "add it to `dependencies`")
    assert compile_expression("charge.output", names) == ["node", "charge"]
    for text in ("picks.output", "skipped(picks)"):
        with pytest.raises(ExpressionProblem) as raised:
            compile_expression(text, names)
        assert (raised.value.message, raised.value.hint) == (
            "'picks' cannot be read here",
            "add it to `dependencies`",
        )


def test_inputs_that_a_document_does_not_declare_are_collected() -> None:
    names = Names(None, [], {})
    assert compile_expression("input.b + input.a + input.b", names)[2] == ["input", "b"]
    assert list(names.used_inputs) == ["b", "a"]
    with pytest.raises(ExpressionProblem, match="does not declare its inputs"):
        compile_expression("size(input)", names)
    assert compile_expression("size(input)", names.with_values({"input": ["input", "all"]})) == [
        "size",
        ["input", "all"],
    ]


def test_size_and_nesting_of_a_text_are_bounded() -> None:
    inside = EXPRESSION_DEPTH_MAX - 1
    assert compile_expression("(" * inside + "1" + ")" * inside, NAMES) == 1
    for text in (
        "(" * 5000,
        "[" * 5000,
        "!" * 5000 + "true",
        "-" * 5000 + "x",
        "1 +" * 60 + "1",
        "a.b" + ".c" * 60 + "[0]",
    ):
        with pytest.raises(ExpressionProblem) as raised:
            compile_expression(text, Names(None, [], {"a": "a"}).with_values({"a": 1, "x": 1}))
        assert f"nested deeper than {EXPRESSION_DEPTH_MAX}" in raised.value.message
    with pytest.raises(ExpressionProblem, match="at most 1,000,000 are read"):
        compile_expression(" " * EXPRESSION_CHARS_MAX + "1", NAMES)
    with pytest.raises(ExpressionProblem, match="more than 20000 parts"):
        compile_expression("[" + "input.kind, " * 20_000 + "]", NAMES)
    assert len(compile_expression("true" + " && true" * 5_000, NAMES)) == 5_002, "a chain is flat"


WORDS = ("input", "kind", "order", "charge", ".output", " in ", "null", "text(", "first(", "&&", "||", "==")
ALPHABET = st.sampled_from([*"ab01.,:?!()[]{}<>=&|+-*/%'\"\\ \n", *WORDS])


@given(st.lists(ALPHABET, max_size=30).map("".join))
@settings(max_examples=400)
def test_every_text_compiles_or_is_refused_at_a_place_inside_it(text: str) -> None:
    problem: ExpressionProblem | None = None
    try:
        compile_expression(text, NAMES)
    except ExpressionProblem as e:
        problem = e
    if problem is not None:
        assert 0 <= problem.offset <= len(text)
        assert problem.length >= 1
        assert problem.message
        assert problem.hint


# --- the same as Python ----------------------------------------------------------------------------------------


@hf.node
def cel_work(n: Any) -> Any:
    return n


@hf.workflow
def cel_graph(amount: int, kind: str, tags: list[str]) -> Any:
    with hf.when((amount > 100) & (kind == "a") | hf.contains(tags, "now")):
        first = cel_work(hf.text("{} of {}", amount, kind))
    with hf.when(~hf.skipped(first) & (hf.size(tags) != 3)):
        second = cel_work(hf.if_else(hf.starts_with(kind, "x"), amount * 2 - 1, amount / 4 % 3))
    return {"both": [first, hf.first(second, None)], "fixed": [1, {"a": None}]}


def test_condition_in_cel_is_the_data_of_the_same_condition_written_with_references() -> None:
    """The same data is evaluated by the same function, so it costs the same."""
    traced = find_workflow(cel_graph.name)
    assert traced is not None
    definition: Definition = traced.definition
    one, two = definition.nodes
    names = Names(["amount", "kind", "tags"], [], {n.id: n.id for n in definition.nodes})

    def data(text: str) -> Any:
        return compile_expression(text, names)

    assert one.when == data('input.amount > 100 && input.kind == "a" || "now" in input.tags')
    assert one.args["n"] == data('text("{} of {}", input.amount, input.kind)')
    assert two.when == data("!skipped(cel_work) && size(input.tags) != 3")
    assert two.args["n"] == data('input.kind.startsWith("x") ? input.amount * 2 - 1 : input.amount / 4 % 3')
    assert definition.result == data(
        '{"both": [cel_work.output, first(cel_work_2.output, null)], "fixed": [1, {"a": null}]}'
    )
