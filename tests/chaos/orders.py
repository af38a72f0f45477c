"""Orders: which runs are asked for, and what must come of each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import holdfast as hf
from tests.chaos import flows

LETTERS = 3
"""Signals to each run that waits for some."""
SLEEP_SECONDS_MAX = 3.0
ANSWER = "<the answer>"


def _names_of_all(shape: Shape, run_id: str) -> Any:
    return [f"{run_id}/{what}" for what in shape.acts]


@dataclass(frozen=True)
class Shape:
    """What runs of one workflow do, if nothing gets lost and nothing happens twice."""

    workflow: hf.Workflow[..., Any]
    acts: tuple[str, ...]
    """Its effects, by what they are called in a run."""
    result: Callable[[Shape, str], Any] = _names_of_all
    """What the run of an id gives; ANSWER stands for what it was told."""
    status: str = "completed"
    inputs: Callable[[random.Random], dict[str, Any]] = lambda chance: {}
    children: tuple[str, ...] = ()
    """Its children, by what they are called behind its id; each does what it is called."""


SHAPES = (
    Shape(flows.chaos_graph, ("a", "b", "c", "join", "flaky"), lambda _, run_id: [f"{run_id}/{x}" for x in "abc"]),
    Shape(flows.chaos_code, ("first", "item 0", "item 1", "item 2", "left", "right")),
    Shape(flows.chaos_lazy, tuple(f"step {n}" for n in range(6))),
    Shape(
        flows.chaos_family,
        ("home",),
        lambda _, run_id: [f"{run_id}-near/near", f"{run_id}-far/far", f"{run_id}/home"],
        children=("near", "far"),
    ),
    Shape(flows.chaos_question, ("before", "after"), lambda _, run_id: [f"{run_id}/before", ANSWER, f"{run_id}/after"]),
    Shape(
        flows.chaos_letters,
        tuple(f"letter {n}" for n in range(LETTERS)),
        lambda *_: list(range(LETTERS)),
        inputs=lambda chance: {"count": LETTERS},
    ),
    Shape(
        flows.chaos_sleeper,
        ("awake",),
        lambda _, run_id: f"{run_id}/awake",
        inputs=lambda chance: {"seconds": round(chance.uniform(0.1, SLEEP_SECONDS_MAX), 2)},
    ),
    Shape(flows.chaos_abandoned, ("begun",), status="cancelled"),
    Shape(flows.chaos_crowd, ("alone enough",), lambda _, run_id: f"{run_id}/alone enough"),
    Shape(flows.chaos_narrow, ("narrow 0", "narrow 1", "narrow 2")),
    Shape(flows.chaos_trip, ("flight", "hotel", "refused", "undo hotel", "undo flight"), status="failed"),
)


class Order(NamedTuple):
    """A run that is asked for."""

    run_id: str
    shape: Shape
    inputs: dict[str, Any]

    def children(self) -> list[str]:
        return [f"{self.run_id}-{name}" for name in self.shape.children]

    def effects(self) -> set[str]:
        """Everything that acts because of it, also in its children."""
        own = {f"{self.run_id}/{what}" for what in self.shape.acts}
        return own | {f"{self.run_id}-{name}/{name}" for name in self.shape.children}


def mixed(count: int, chance: random.Random) -> list[Order]:
    """Orders of all shapes, in no order, as many of each."""
    shapes = [SHAPES[n % len(SHAPES)] for n in range(count)]
    chance.shuffle(shapes)
    return [Order(f"{shape.workflow.name}-{n}", shape, shape.inputs(chance)) for n, shape in enumerate(shapes)]
