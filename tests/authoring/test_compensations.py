"""Compensations as they are declared: what they are given, and which of them could never be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import workflow
from holdfast.model.current import BodyContext
from holdfast.model.errors import DefinitionError


class Context(BodyContext):
    """Stands for the worker's."""


@dataclass
class Order:
    id: str
    amount: int = 1


def top_level(x: int) -> int:
    return x


def test_a_compensation_takes_the_output_and_inputs_by_name() -> None:
    @node
    def release(ctx: Context, seat: str, order: Order, reason: str = "") -> None: ...

    @node(compensate=release)
    def reserve(order: Order, times: int = 1) -> str: ...

    @workflow
    def reserves(order: Order) -> str:
        return reserve(order)

    (found,) = reserves.definition.nodes
    assert found.compensate_inputs == ("order",)


def test_a_compensation_that_cannot_be_called_is_a_problem_of_the_definition() -> None:
    @node
    def release(seat: str, order: Order) -> None: ...

    @node
    def takes_nothing() -> None: ...

    for undo, wrong, hint in [
        (release, "nothing gives it a value for order", "name them like parameters of the node (x), or give them"),
        (takes_nothing, "has no parameter for the output", "give it a first parameter"),
    ]:
        with pytest.raises(DefinitionError, match=wrong) as refused:
            node(compensate=undo)(top_level)
        (problem,) = refused.value.problems
        assert problem.code == "bad_compensation"
        assert hint in problem.hint


def test_a_compensation_that_takes_values_of_other_types_is_a_problem_of_the_definition() -> None:
    @node
    def release(number: int) -> None: ...

    @node
    def release_in(seat: str | None, order: list[str]) -> None: ...

    @node
    def release_any(seat, order: Order | None) -> None: ...  # type: ignore[no-untyped-def]

    def problems(undo: Any) -> list[str]:
        @node(name="shop.typed_seat", compensate=undo)
        def seat(order: Order) -> str:
            return order.id

        @workflow(name="typed_seats")
        def seats(order: Order) -> str:
            return seat(order)

        try:
            assert seats.definition
        except DefinitionError as refused:
            return [f"{p.code}: {p.message}" for p in refused.problems]
        return []

    for undo, wrong in [
        (release, "its parameter number takes integer, and gets string"),
        (release_in, "its parameter order takes array, and gets object"),
    ]:
        (problem,) = problems(undo)
        assert problem.startswith("bad_compensation: ")
        assert wrong in problem
    assert problems(release_any) == []
