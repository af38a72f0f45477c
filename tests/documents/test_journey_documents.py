"""Documents of kind journey: units, routes, variables, milestones, and what is wrong with them."""

from __future__ import annotations

import pytest

from holdfast.model.definition import Further
from tests.documents.kit import definition_of, problems_of, result_of

UNITS = """
kind: journey
name: j
input: {n: {type: integer}}
variables: {seen: {type: integer, default: 0}}
"""


def test_units_compile_to_nodes_with_ways() -> None:
    definition = definition_of(
        UNITS
        + """
tickets: {out: last}
units:
  - {id: first, handler: double, input: {x: "{{ input.n }}"}, next: choose}
  - {id: choose, type: s_route, choose: 'input.n > 3 ? "big" : "small"', branches: {big: split, small: last}}
  - {id: split, type: p_route_dynamic, choose: '["a", "b"]', next: work, join: meet}
  - {id: work, type: task, handler: double, input: {x: 1}, next: meet}
  - {id: meet, type: p_join, next: wait}
  - {id: wait, type: pause, basket: desk, next: first}
  - {id: last, handler: double, input: {x: 1}, next: end}
"""
    )
    units = {n.id: n for n in definition.nodes}
    assert definition.start == "first"
    assert {n.id: n.unit for n in definition.nodes} == {
        "first": "step", "choose": "route", "split": "parallel", "work": "step", "meet": "join", "wait": "step",
        "last": "step",
    }  # fmt: skip
    assert units["choose"].branches == {"big": "split", "small": "last"}
    assert (units["split"].next, units["split"].join) == ("work", "meet")
    assert (units["wait"].uses, units["wait"].args) == ("holdfast.pause", {"basket": "desk"})
    assert definition.settings.on_failure == "pend:workflow_error"
    assert definition.result == ["dict", "seen", ["var", "seen"]]
    assert definition.tickets == {"out": "last"}


async def test_a_journey_runs_to_its_result() -> None:
    text = (
        UNITS
        + """
units:
  - {id: split, type: p_route, choose: 'input.n > 3 ? ["a", "b"] : []', branches: {a: one, b: two}, join: meet}
  - {id: one, handler: transform, input: {value: 1}, next: meet}
  - {id: two, handler: transform, input: {value: 2}, next: meet}
  - {id: meet, type: p_join, next: end}
result: "{{ input.n }} {{ vars.seen }}"
"""
    )
    assert await result_of(text, n=7) == "7 0"
    assert await result_of(text, n=1) == "1 0"


def test_milestones_are_read_with_their_times() -> None:
    definition = definition_of(
        UNITS
        + """
units: [{id: a, handler: double, input: {x: 1}, next: end}]
milestones:
  - {name: slow, after: 2d3h}
  - {name: late, set_on: entry, basket: desk, after: 90m, clock: next_day, zone: Europe/Oslo, action: move, to: boss}
  - {name: year, at: "2030-01-01T00:00:00Z", further: [{after: 1d, repeat: -1, offset: 1h}]}
"""
    )
    slow, late, year = definition.milestones
    assert (slow.after, slow.clears) == (183_600.0, "end")
    assert (late.after, late.from_next_day, late.zone, late.clears) == (5_400.0, True, "Europe/Oslo", "exit")
    assert year.further == (Further(after=86_400.0, repeat=-1, offset=3_600.0),)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ("- {id: a, handler: double, input: {x: 1}, next: b}", "there is no node 'b'"),
        ("- {id: a, type: s_rout, next: end}", "'s_rout' is not a type of unit"),
        ("- {id: a, type: s_route, branches: {x: end}}", "has no 'handler'"),
        ("- {id: a, type: persist, next: end}", "on_persist"),
        ("- {id: a, type: pause, next: end}", "has no 'basket'"),
        ("- {id: a, handler: double, input: {x: '{{ b.output }}'}, next: end}", "b"),
        ("- {id: a, handler: double, input: {x: '{{ vars.sen }}'}, next: end}", "seen"),
        (
            "- {id: a, type: p_route, choose: 'true', branches: {x: a}, join: j}\n  - {id: j, type: p_join, next: end}",
            "a",
        ),
    ],
)
def test_a_wrong_unit_is_refused_with_its_place(units: str, expected: str) -> None:
    problems = problems_of(UNITS + f"\nunits:\n  {units}\n")
    assert any(expected in problem for problem in problems), problems
    assert all(problem[0].isdigit() for problem in problems), problems
