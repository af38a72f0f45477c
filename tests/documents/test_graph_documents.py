"""Documents of kind `graph`: the same definitions that Python graphs are traced to."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.model.definition import decode
from holdfast.model.policies import Retry
from tests.documents.flows import add, count_up, double
from tests.documents.kit import definition_of, problems_of, result_of

HEAD = """\
kind: graph
name: fulfil
input: {order: {type: object}, kind: {type: string, default: article}, regions: {type: array, default: []}}
variables: {verified: {type: boolean}}
"""


SAME = """\
kind: graph
name: same
input: {n: {type: integer}, lines: {type: array, items: {type: integer}}, kind: {type: string, default: a}}
retry: {attempts: 3}
settings: {on_failure: compensate, timeout: 2h}
phases: [{name: first}, {name: second, after: first}]
nodes:
  - {id: double, handler: double, input: {x: "{{ input.n }}"}, phase: first}
  - {id: add, handler: add, input: {a: "{{ double.output }}", b: 3}, phase: second, timeout: 30s}
  - id: double_2
    map: {over: input.lines, item: x, limit: 5, nodes: [{id: twice, handler: double, input: {x: "{{ x }}"}}]}
  - id: count_up
    loop:
      start: "{{ add.output }}"
      item: value
      until: result >= 3
      max_visits: 7
      at_limit: take
      nodes: [{id: up, handler: count_up, input: {value: "{{ value }}"}}]
  - route:
      on: input.kind
      choices:
        a: [{id: on_a, handler: double, input: {x: "{{ count_up.output }}"}}]
      otherwise: [{id: on_b, handler: double, input: {x: "{{ count_up.output }}"}}]
  - id: late
    handler: add
    when: double.output > 10
    after: [on_a, on_b]
    input: {a: "{{ double.output }}", b: "{{ add.output }}"}
result:
  many: "{{ double_2.output }}"
  one: "{{ first(on_a.output, on_b.output) }}"
  late: "{{ first(late.output, null) }}"
"""


def test_a_document_compiles_to_the_definition_of_the_same_python_graph() -> None:
    @hf.workflow(name="same", retry=hf.Retry(3), on_failure="compensate", timeout="2h")
    def same(n: int, lines: list[int], kind: str = "a"):  # type: ignore[no-untyped-def]
        with hf.phase("first"):
            one = double(n)
        with hf.phase("second", after="first"):
            two = add.options(timeout=30)(one, 3)
        many = hf.map(double, lines, limit=5)
        best = hf.loop(count_up, start=two, until=lambda r: r >= 3, max_visits=7, at_limit="take")
        with hf.route(kind) as route:
            with route("a"):
                a = double.named("on_a")(best)
            with route.otherwise():
                b = double.named("on_b")(best)
        with hf.when(one > 10):
            late = add.named("late").after(a, b)(one, two)
        return {"many": many, "one": hf.first(a, b), "late": hf.first(late, None)}

    traced = same.definition.encode().decode()
    for inner, named in (
        ("double_2", "twice"),
        ("count_up", "up"),
    ):  # a body of one node has its own name in a document
        traced = traced.replace(f'"nodes":[{{"id":"{inner}"', f'"nodes":[{{"id":"{named}"')
        traced = traced.replace(f'}}],"result":["node","{inner}"]', f'}}],"result":["node","{named}"]')
    traced = traced.replace('"until":["ge",["node","count_up"],3]', '"until":["ge",["node","up"],3]')
    traced = traced.replace(',"returns":{"type":"integer"},"body"', ',"body"')  # what a loop of Python gives is typed
    assert definition_of(SAME).encode().decode() == traced


NODES = """\
nodes:
  - {id: charge, handler: charge, input: {order: "{{ input.order }}"}, when: input.order.amount > 100}
  - id: picks
    map:
      over: input.order.items
      item: line
      nodes:
        - {id: p, handler: double, input: {x: "{{ line.amount }}"}}
        - {id: q, handler: add, input: {a: "{{ p.output }}", b: "{{ picks.line.amount }}"}}
      result: "{{ q.output }}"
  - routes:
      select: input.regions
      branches:
        eu: [{id: eu, handler: double, input: {x: 1}}]
        us: [{id: us, handler: double, input: {x: 2}}]
  - when: input.order.fast
    nodes:
      - {id: fast, handler: double, input: {x: 3}, when: input.order.amount > 5}
result:
  picks: "{{ picks.output }}"
  eu: "{{ first(eu.output, null) }}"
  fast: "{{ first(fast.output, null) }}"
  paid: "{{ first(charge.output, null) }}"
"""


async def test_maps_routes_and_conditions_do_what_they_say() -> None:
    order = {"id": "7", "amount": 150, "items": [{"amount": 1}, {"amount": 2}], "fast": True}
    assert await result_of(HEAD + NODES, order=order, regions=["eu"]) == {
        "picks": [3, 6],
        "eu": 2,
        "fast": 6,
        "paid": "receipt-7",
    }
    small = {"id": "7", "amount": 5, "items": [], "fast": True}
    assert await result_of(HEAD + NODES, order=small) == {"picks": [], "eu": None, "fast": None, "paid": None}


def test_a_node_gets_the_conditions_lanes_and_labels_around_it() -> None:
    nodes = {node.id: node for node in definition_of(HEAD + NODES).nodes}
    amount = ["get", ["input", "order"], "amount"]
    assert nodes["fast"].when == ["and", ["get", ["input", "order"], "fast"], ["gt", amount, 5]]
    assert (nodes["eu"].lane, nodes["eu"].route) == ("route_1.eu.", "route_1=eu")
    assert (nodes["charge"].retry, nodes["charge"].compensate) == (Retry(5), "refund")


async def test_a_loop_repeats_its_nodes_until_its_result_is_good() -> None:
    text = """\
kind: graph
name: poll
nodes:
  - id: poll
    loop:
      start: {n: 0}
      item: state
      until: result.n >= 3
      nodes:
        - {id: up, handler: count_up, input: {value: "{{ state.n }}"}}
      result: {n: "{{ up.output }}"}
result: "{{ poll.output.n }}"
"""
    assert await result_of(text) == 3


async def test_values_that_are_the_same_for_all_items_are_read_by_name() -> None:
    text = """\
kind: graph
name: shared
input: {lines: {type: array}, plus: {type: integer}}
nodes:
  - id: sums
    map:
      over: input.lines
      item: line
      with: {extra: "{{ input.plus }}"}
      nodes: [{id: s, handler: add, input: {a: "{{ line }}", b: "{{ extra }}"}}]
result: "{{ sums.output }}"
"""
    assert await result_of(text, lines=[1, 2], plus=10) == [11, 12]


FIRST = "nodes:\n  - {id: c"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("handler: charge", "handler: chrage"), "6:27: there is no handler 'chrage'; did you mean 'charge'?"),
        (("when: input.order.amount > 100", "whem: true"), "6:72: unknown key 'whem' in node; did you mean 'when'?"),
        (("over: input.order.items", "ovr: input.order.items"), "9:7: unknown key 'ovr' in map; did you mean 'over'?"),
        (("item: line", "item: the line"), "10:13: 'the line' is not an identifier"),
        (('      result: "{{ q.output }}"\n', ""), "9:7: the map has several nodes and no 'result'"),
        (("id: eu,", "id: us,"), "19:19: two nodes are called 'us'"),
        (("{id: q, handler: add", "{id: q, phase: a, handler: add"), "13:26: phases belong to the workflow itself"),
        (("{id: charge,", "{id: charge, phase: pay,"), "6:25: there is no phase 'pay'; add it to `phases`"),
        (("{id: charge,", "{id: charge, after: [fats],"), "6:26: there is no node 'fats'; did you mean 'fast'?"),
        (("{id: charge,", "{id: charge, after: [charge],"), "6:5: the node refers to itself"),
        (("{id: charge,", "{id: charge, on_crash: never,"), "6:28: 'never' is not rerun, fail or ask"),
        (("{id: charge,", "{id: charge, compensate: refnud,"), "6:30: there is no handler 'refnud'; did you mean"),
        ((FIRST, f"settings: {{on_failure: hope}}\n{FIRST}"), "5:24: 'hope' is not 'fail'"),
        ((FIRST, f"tickets: {{redo: chrage}}\n{FIRST}"), "5:17: there is no node 'chrage'; did you mean"),
        (("when: input.order.fast\n", "whn: input.order.fast\n"), "20:5: unknown key 'whn' in group"),
        (("routes:\n", "ruotes:\n"), "15:5: this entry has none of the keys"),
    ],
)  # fmt: skip
def test_each_problem_has_a_place_and_says_what_to_write(change: tuple[str, str], problem: str) -> None:
    found = problems_of(HEAD + NODES.replace(*change))
    assert any(line.startswith(problem) for line in found), "\n".join(found)


def test_a_cycle_is_named_with_the_ids_of_the_document() -> None:
    text = """\
kind: graph
name: circle
nodes:
  - {id: a.b, handler: double, input: {x: '{{ nodes["c.d"].output }}'}}
  - {id: c.d, handler: double, input: {x: '{{ nodes["a.b"].output }}'}}
"""
    assert any("the nodes wait for each other: a.b -> c.d -> a.b" in line for line in problems_of(text))


async def test_a_handler_may_be_another_document() -> None:
    text = """\
kind: graph
name: parent
nodes:
  - {id: a, handler: other, input: {n: 4}}
---
kind: graph
name: other
input: {n: {type: integer}}
nodes: [{id: d, handler: double, input: {x: "{{ input.n }}"}}]
"""
    (node,) = definition_of(text).nodes
    assert node.uses == "holdfast.child"
    assert node.args == {"workflow": "other", "inputs": ["dict", "n", 4]}
    assert "no input 'm'" in str(problems_of(text.replace("input: {n: 4}", "input: {m: 4}")))
    assert "needs the input 'n'" in problems_of(text.replace(", input: {n: 4}", ""))[0]


def test_inputs_may_not_have_the_names_of_options() -> None:
    text = "kind: graph\nname: x\ninput: {timeout: {type: integer}}\nnodes: [{id: a, handler: double, input: {x: 1}}]"
    assert problems_of(text)[0].startswith("3:9: 'timeout' cannot be an input")


def test_a_default_that_is_spelt_out_gives_the_same_version() -> None:
    plain = "kind: graph\nname: g\nnodes: [{id: a, handler: double, input: {x: 1}}]\n"
    spelt = plain.replace("input:", "on_crash: rerun, input:")
    assert definition_of(plain).content_hash() == definition_of(spelt).content_hash()
    stored = definition_of(spelt)
    assert decode(stored.encode()).content_hash() == stored.content_hash()


def test_a_secret_in_the_config_of_a_handler_is_named_beside_the_arguments() -> None:
    text = """
kind: graph
name: g
nodes:
  - id: get
    handler: http
    input: {url: "https://example.org", headers: {Authorization: {$secret: API_TOKEN}, X-List: [{$secret: OTHER}]}}
"""
    (node,) = definition_of(text).nodes
    assert node.secrets == {"/headers/Authorization": "API_TOKEN", "/headers/X-List/0": "OTHER"}
    assert node.args["headers"] == ["const", {"Authorization": None, "X-List": [None]}]


@pytest.mark.parametrize("wrong", ["{$secret: 'a b'}", "{$secret: 3}", "{$secret: A, more: 1}"])
def test_a_secret_without_a_good_name_is_refused_with_its_place(wrong: str) -> None:
    problems = problems_of(f"kind: graph\nname: g\nnodes: [{{id: a, handler: double, input: {{x: {wrong}}}}}]\n")
    assert any("is not the name of a secret" in problem for problem in problems), problems
