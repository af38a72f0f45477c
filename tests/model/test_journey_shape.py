"""The shape of journeys: what is refused, and why."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import validation
from holdfast.model.definition import Definition, Further, Milestone, NodeDef, Settings
from tests.rules.units import TWO_BRANCHES, join, parallel, route, step


@pytest.mark.parametrize(
    ("units", "code"),
    [
        ((step("a", "nowhere"),), "unknown_unit"),
        ((step("a", "end"), step("b", "end")), "unreachable"),
        ((parallel("p", "", x="b"), step("b", "end")), "bad_join"),
        ((parallel("p", "j", x="b"), step("b", "end"), join("j", "end")), "bad_branch"),
        ((parallel("p", "j", x="b", y="c"), step("b", "j"), step("c", "b"), join("j", "end")), None),
        ((parallel("p", "j", x="b"), step("b", "j"), join("j", "b")), "bad_branch"),
        ((step("a", "j"), join("j", "end")), "bad_join"),
        ((route("r"),), "no_branches"),
        ((step("a", "end", when=["input", "x"]),), "not_in_journey"),
        ((step("a", "b", args={}), step("b", "end", args={"x": ["node", "a"]})), "not_in_journey"),
    ],
)
def test_a_journey_with_a_wrong_shape_is_refused(units: tuple[NodeDef, ...], code: str | None) -> None:
    definition = Definition(name="j", nodes=units, start=units[0].id)
    codes = {p.code for p in validation.check(definition)} - {"unknown_input"}
    assert codes == ({code} if code else set())


def test_no_unit_is_called_end() -> None:
    definition = Definition(name="j", nodes=(step("end", "end"),), start="end")
    assert "not_in_journey" in {p.code for p in validation.check(definition)}


def test_tickets_lead_outside_of_parallel_branches_only_and_failures_cannot_continue() -> None:
    definition = Definition(
        name="j",
        nodes=TWO_BRANCHES,
        start="a",
        tickets={"t": "e1", "u": "meet"},
        settings=Settings(on_failure="continue"),
    )
    assert {p.code for p in validation.check(definition)} == {"bad_target", "not_in_journey"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a:b"},
        {"after": None},
        {"at": "2030-01-01T00:00:00Z"},
        {"after": None, "at": "tomorrow"},
        {"after": None, "at": "2030-01-01T00:00:00"},
        {"after": -1},
        {"further": (Further(after=0.1),)},
        {"further": (Further(after=5, repeat=0),)},
        {"set_on": "entry"},
        {"basket": "desk"},
        {"clears": "exit"},
        {"action": "move"},
        {"to": "boss"},
        {"zone": "Mars/Olympus"},
    ],
)
def test_a_milestone_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    milestone = Milestone(**{"name": "m", "after": 60, **wrong})
    definition = Definition(name="j", nodes=TWO_BRANCHES, start="a", milestones=(milestone,))
    assert {p.code for p in validation.check(definition)} == {"bad_milestone"}


def test_two_milestones_of_one_name_are_refused() -> None:
    twice = (Milestone(name="m", after=60), Milestone(name="m", after=70))
    definition = Definition(name="j", nodes=TWO_BRANCHES, start="a", milestones=twice)
    assert {p.code for p in validation.check(definition)} == {"bad_milestone"}
