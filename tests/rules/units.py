"""Units of journeys, in few words."""

from __future__ import annotations

from typing import Any

from holdfast.model.definition import NodeDef


def step(unit: str, following: str, **options: Any) -> NodeDef:
    return NodeDef(id=unit, uses=unit, unit="step", next=following, **options)


def route(unit: str, **branches: str) -> NodeDef:
    return NodeDef(id=unit, uses=unit, unit="route", branches=branches)


def parallel(unit: str, join: str, **branches: str) -> NodeDef:
    return NodeDef(id=unit, uses=unit, unit="parallel", join=join, branches=branches)


def dynamic(unit: str, join: str, following: str) -> NodeDef:
    return NodeDef(id=unit, uses=unit, unit="parallel", join=join, next=following)


def join(unit: str, following: str) -> NodeDef:
    return NodeDef(id=unit, unit="join", next=following)


TWO_BRANCHES = (
    step("a", "split"),
    parallel("split", "meet", eu="e1", us="u1"),
    step("e1", "e2"),
    step("e2", "meet"),
    step("u1", "meet"),
    join("meet", "z"),
    step("z", "end"),
)
