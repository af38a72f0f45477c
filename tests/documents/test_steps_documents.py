"""Documents of kind steps: modules in order, the state by name, and what is wrong with them."""

from __future__ import annotations

from tests.documents.kit import definition_of, problems_of, result_of

HEAD = """
kind: steps
name: s
input: {n: {type: integer}}
"""
TWO = (
    HEAD
    + """
steps:
  - name: one
    modules:
      - {id: first, handler: double, input: {x: "{{ input.n }}"}, outputs_to_state: {x: output}}
      - {id: side, handler: double, input: {x: 1}}
  - name: two
    modules:
      - {id: second, handler: double, input: {x: "{{ state.x }}"}, outputs_to_state: {x: output, y: output + 1}}
"""
)


def test_steps_are_phases_in_order_and_modules_run_one_after_the_other() -> None:
    definition = definition_of(TWO)
    assert [(p.name, p.after) for p in definition.phases] == [("one", None), ("two", "one")]
    assert [(n.id, n.phase, n.after) for n in definition.nodes] == [
        ("first", "one", ()), ("side", "one", ("first",)), ("second", "two", ("side",)),
    ]  # fmt: skip
    assert definition.nodes[2].args["x"] == ["node", "first"]


async def test_the_result_is_the_state_and_the_last_module_that_sets_a_name_counts() -> None:
    assert await result_of(TWO, n=5) == {"x": 20, "y": 21}


async def test_a_module_that_is_skipped_leaves_what_was_in_the_state() -> None:
    text = (
        HEAD
        + """
steps:
  - name: one
    modules:
      - {id: a, handler: double, input: {x: "{{ input.n }}"}, outputs_to_state: {x: output}}
      - {id: b, handler: double, input: {x: "{{ state.x }}"}, when: state.x > 5, outputs_to_state: {x: output}}
      - {id: c, handler: double, input: {x: "{{ state.x }}"}, outputs_to_state: {z: output}}
result: "{{ state.z }}"
"""
    )
    assert await result_of(text, n=1) == 4
    assert await result_of(text, n=10) == 80


def test_a_name_that_no_earlier_module_sets_is_refused_with_its_place() -> None:
    text = HEAD + 'steps: [{name: one, modules: [{id: a, handler: double, input: {x: "{{ state.x }}"}}]}]\n'
    (problem,) = problems_of(text)
    assert "no module before puts 'x' into the state" in problem
    assert problem[0].isdigit()


def test_steps_and_modules_have_names_of_their_own() -> None:
    text = HEAD + (
        "steps: [{name: one, modules: [{id: a, handler: double, input: {x: 1}}]}, "
        "{name: one, modules: [{id: a, handler: double, input: {x: 1}}]}]\n"
    )
    problems = problems_of(text)
    assert any("two steps are called 'one'" in p for p in problems)
    assert any("two nodes are called 'a'" in p for p in problems)
