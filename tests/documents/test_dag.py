"""Documents of kind `dag`: nodes with dependencies and config."""

from __future__ import annotations

import pytest

from holdfast.model.policies import Retry
from tests.documents.kit import definition_of, problems_of, result_of

DIAMOND = """\
kind: dag
name: diamond
nodes:
  - {id: join,  handler: add, dependencies: [left, right], config: {a: "{{ left.output }}", b: "{{ right.output }}"}}
  - {id: left,  handler: double, dependencies: [], config: {x: "{{ input.n }}"}}
  - {id: right, handler: double, config: {x: "{{ input.n }}", label: side}}
"""


async def test_nodes_in_any_order_run_after_what_they_depend_on() -> None:
    assert [node.id for node in definition_of(DIAMOND).nodes] == ["left", "right", "join"]
    assert await result_of(DIAMOND, n=5) == 20


async def test_the_result_is_the_outputs_of_the_leaves_by_id_and_flat_when_there_is_one() -> None:
    two = DIAMOND + "  - {id: alone/one, handler: double, config: {x: 1}}\n"
    assert await result_of(two, n=5) == {"join": 20, "alone/one": 2}


async def test_ids_are_any_text_and_the_internal_name_is_derived() -> None:
    text = """\
kind: dag
name: odd
nodes:
  - {id: "load: step 1.5 @home", handler: double, config: {x: 2}}
  - id: "#2"
    handler: double
    dependencies: ["load: step 1.5 @home"]
    config: {x: '{{ nodes["load: step 1.5 @home"].output }}'}
"""
    first, second = definition_of(text).nodes
    assert first.title == "load: step 1.5 @home"
    assert "." not in first.id
    assert first.id.startswith("load: step 1-5 -home-")
    assert second.title == "#2"
    assert await result_of(text) == 8


async def test_dependencies_and_the_input_go_to_parameters_of_their_names_only() -> None:
    text = """\
kind: dag
name: given
nodes:
  - {id: left, handler: double, config: {x: "{{ input.n }}"}}
  - {id: named, handler: takes_input, dependencies: [left]}
  - {id: all, handler: everything, dependencies: [left], config: {extra: true}}
  - {id: none, handler: double, dependencies: [left], config: {x: 1}}
"""
    assert await result_of(text, n=5) == {
        "named": [{"n": 5}, 10],
        "all": {"left": 10, "_input": {"n": 5}, "extra": True},
        "none": 2,
    }


def test_a_dependency_without_data_is_an_order() -> None:
    nodes = {node.id: node for node in definition_of(DIAMOND).nodes}
    assert nodes["join"].after == ()
    text = DIAMOND + "  - {id: last, handler: double, dependencies: [join, left], config: {x: '{{ left.output }}'}}\n"
    assert {node.id: node for node in definition_of(text).nodes}["last"].after == ("join",)


@pytest.mark.parametrize(
    ("config", "policy"),
    [
        ("{}", Retry(4, 1.0, 2, 60.0, 0.1)),
        ("{max_retries: 0}", Retry(1, 1.0, 2, 60.0, 0.1)),
        ("{max_retries: 2, initial_delay: 500ms, max_delay: 5, base: 3, jitter: false}", Retry(3, 0.5, 3, 5.0, 0.0)),
    ],
)
def test_retries_are_tries_after_the_first_one(config: str, policy: Retry) -> None:
    text = DIAMOND.replace("label: side}", f"label: side}}, retry_config: {config}")
    assert {node.id: node.retry for node in definition_of(text).nodes} == {"left": None, "join": None, "right": policy}
    text = DIAMOND.replace("nodes:", f"default_retry_config: {config}\nnodes:")
    assert {node.retry for node in definition_of(text).nodes} == {policy}


def test_a_node_has_options_of_its_own_and_those_of_its_handler() -> None:
    text = """\
kind: dag
name: options
input: {order: {type: object}}
default_retry_config: {max_retries: 1}
nodes:
  - {id: a, handler: charge, config: {order: "{{ input.order }}"}}
  - {id: b, handler: charge, config: {order: "{{ input.order }}"}, timeout: 5s, priority: 7, retry: {attempts: 2}}
  - {id: c, handler: double, config: {x: 1}, timeout: 1h}
"""
    a, b, c = definition_of(text).nodes
    assert (a.timeout, a.retry, a.priority, a.compensate) == (20.0, Retry(5), 0, "refund")
    assert (b.timeout, b.retry, b.priority, b.compensate) == (5.0, Retry(2), 7, "refund")
    assert (c.timeout, c.retry) == (3600.0, Retry(2, 1.0, 2, 60.0, 0.1))


async def test_the_nodes_may_stand_under_dag() -> None:
    nested = DIAMOND.replace("nodes:", "dag:\n  nodes:").replace("  - ", "    - ")
    assert await result_of(nested, n=5) == 20


async def test_the_built_in_input_and_output_pass_values_on() -> None:
    text = """\
kind: dag
name: passing
input: {n: {type: integer}, note: {type: string, default: none}}
nodes:
  - {id: start, handler: input}
  - {id: twice, handler: double, dependencies: [start], config: {x: "{{ start.output.n }}"}}
  - id: end
    handler: output
    dependencies: [twice, start]
    config: {value: "{{ start.output.note }}: {{ twice.output }}"}
"""
    assert await result_of(text, n=4) == "none: 8"


DEPENDS = "dependencies: [left, right]"
CONFIG = 'config: {x: "{{ input.n }}", label: side}'


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ((DEPENDS, "dependencies: [left]"), "4:93: 'right' cannot be read here"),
        ((DEPENDS, "dependencies: [left, rihgt]"), "4:52: there is no node 'rihgt'; did you mean 'right'?"),
        ((DEPENDS, "dependencies: [left, right, join]"), "4:59: 'join' depends on itself"),
        ((DEPENDS, "dependencies: [left, right, left]"), "4:59: 'left' is named twice"),
        (("id: right", "id: left"), "6:10: two nodes are called 'left'"),
        (("id: left", "id: nodes"), "5:10: 'nodes' is reserved"),
        (("double, config", "doubel, config"), "6:26: there is no handler 'doubel'; did you mean 'double'?"),
        (("label: side", "lable: side"), "6:63: double has no parameter 'lable'; did you mean 'label'?"),
        (("x: \"{{ input.n }}\", label", "x: two, label"), "6:46: double(x): expected int, got str"),
        ((CONFIG, "config: {label: side}"), "6:42: double needs the argument 'x'"),
        (("name: diamond", "nmae: diamond"), "2:1: unknown key 'nmae' in dag; did you mean 'name'?"),
        (("name: diamond", "name: a.b"), "2:7: the name 'a.b' contains a dot"),
        (("kind: dag", "kind: dga"), "1:7: 'dga' is not a kind of document; did you mean 'dag'?"),
        (("dependencies: []", "dependencies: right"), "5:48: 'right' is not a list; write [right]"),
        (("label: side}", "label: side}, timeout: soon"), "6:86: 'soon' is not a time; write seconds"),
        (("label: side}", "label: side}, retry: {attempts: 0}"), "6:95: 0 is not a whole number from 1 on"),
    ],
)  # fmt: skip
def test_each_problem_has_a_place_and_says_what_to_write(change: tuple[str, str], problem: str) -> None:
    found = problems_of(DIAMOND.replace(*change))
    assert any(line.startswith(problem) for line in found), "\n".join(found)


def test_an_empty_graph_and_a_cycle_are_refused() -> None:
    assert problems_of("kind: dag\nname: x\nnodes: []")[0].startswith("3:8: the list is empty")
    found = problems_of(DIAMOND.replace("dependencies: []", "dependencies: [join]"))
    assert any("the nodes wait for each other: join -> left -> join" in line for line in found), found


def test_all_problems_are_listed_at_once_in_the_order_of_the_file() -> None:
    text = (
        DIAMOND.replace("double", "doubel")
        .replace("right]", "rihgt]")
        .replace("name: diamond", "name: diamond\nretires: 3")
    )
    found = problems_of(text)
    assert [line.split(":")[0] for line in found] == sorted((line.split(":")[0] for line in found), key=int)
    assert [
        part for part in ("unknown key 'retires'", "no node 'rihgt'", "no handler 'doubel'") if part not in str(found)
    ] == []


def test_without_code_only_handlers_of_python_are_not_checked() -> None:
    assert definition_of(DIAMOND.replace("handler: add", "handler: shop.add"), has_code=False)
    (found,) = problems_of(DIAMOND.replace("handler: add", "handler: outptu"), has_code=False)
    assert "did you mean 'output'?" in found


def test_inputs_that_templates_read_are_required_where_none_is_declared() -> None:
    (param,) = definition_of(DIAMOND).params
    assert (param.name, param.required) == ("n", True)
    text = DIAMOND.replace("nodes:", "input: {n: {type: integer, default: 3}}\nnodes:")
    (param,) = definition_of(text).params
    assert (param.required, param.default, param.schema) == (False, 3, {"type": "integer"})
    found = problems_of(DIAMOND.replace("nodes:", "input: {m: {type: integer}}\nnodes:"))
    assert all("the workflow has no input 'n'" in line for line in found)
