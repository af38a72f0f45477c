"""Random graphs with bodies that go back: whatever crashes, every visit gets the right arguments and the result is the
one of a run that never went back (its bodies are pure functions of what they are given)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.model import events as ev
from holdfast.model.definition import Body, Definition, NodeDef, Param
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.budget import examples
from tests.engine.kit import check_file
from tests.property import graphs
from tests.property.graphs import Expected, definitions, work
from tests.property.test_crashes import MortalStore, drive
from tests.rules.play import Play

INPUTS = st.fixed_dictionaries({"n": st.integers(0, 99)})
DETOURS = 4


def way_back(run: Play, node: str, path: str, chance: Any) -> str | None:
    """A target from which everything that is still to come is reached again, so that nothing is skipped."""
    root = run.plan.root
    home = path.split(".")[1] if path != "." and path.split(".")[1] in root.nodes else node
    found = []
    for name, plan in root.nodes.items():
        again = root.downstream(name)
        if home in again and run.state.scopes["."].unsettled <= again and not plan.lane and _has_data(run, name):
            found.append(name)
    return chance.choice(found) if found else None


def _has_data(run: Play, target: str) -> bool:
    """A target is entered whatever its condition says: one that was skipped would not be, in a run without tickets."""
    ns = run.state.nodes.get((target, "."))
    return ns is not None and ns.status != "skipped"


CRASHES = [False] * 9 + [True]
OUTCOMES = ["complete"] * 15 + ["go"] * 4 + ["fail"]
"""Hypothesis tries the first ones most: examples that only crash would never end."""


@settings(max_examples=examples(300))
@given(definitions(), INPUTS, st.randoms(use_true_random=False), st.sampled_from([None, 1, 2]), st.booleans())
def test_going_back_at_random_changes_no_argument_and_no_result(
    definition: Definition, seed: Any, chance: Any, slots: int | None, graceful: bool
) -> None:
    expected = Expected(definition, {"seed": seed})
    run = Play(*definition.nodes, result=definition.result, inputs={"seed": seed}, slots=slots)
    left = DETOURS
    while run.state.status not in RUN_TERMINAL:
        if chance.choice(CRASHES):
            run.crash(graceful=graceful)
            if run.state.status in RUN_TERMINAL:
                break
        run.start_due()
        node, path = chance.choice(list(run.running))
        x = run.running[node, path]["x"]
        assert x == expected.bodies[node, path]
        target = way_back(run, node, path, chance) if left and chance.random() < 0.3 else None
        if target is not None and run.state.fold.ticket is None:
            left -= 1
            run.complete(node, {"n": 0, "items": [], "even": True}, path, goto=target)
        else:
            run.complete(node, work(x), path)
    assert run.result == expected.result
    check_stillness(run)


@settings(max_examples=examples(600))
@given(
    definitions(size=4, depth=2),
    INPUTS,
    st.randoms(use_true_random=False),
    st.sampled_from(["fail", "continue"]),
    st.booleans(),
)
def test_tickets_from_anywhere_to_anywhere_with_failures_and_crashes_always_come_to_an_end(
    definition: Definition, seed: Any, chance: Any, on_failure: str, graceful: bool
) -> None:
    run = Play(*definition.nodes, result=definition.result, inputs={"seed": seed}, on_failure=on_failure)
    targets = [n.id for n in definition.nodes if not n.lane]
    steps = 0
    while run.state.status not in RUN_TERMINAL:
        steps += 1
        if chance.choice(CRASHES):
            run.crash(graceful=graceful)
            continue
        if run.told_to_stop:
            stopped = run.told_to_stop.pop()
            if stopped in run.running:
                run.drop(*stopped)
            continue
        assert run.running, f"the run is {run.state.status} and nothing moves it"
        node, path = chance.choice(list(run.running))
        outcome = chance.choice(OUTCOMES)
        if outcome == "go" and steps < 30:
            run.complete(node, None, path, goto=chance.choice(targets))
        elif outcome == "fail":
            run.fail(node, path=path)
        else:
            run.complete(node, work(run.running[node, path]["x"]), path)
    assert all(ns.settled for ns in run.state.nodes.values())
    check_stillness(run)


def check_stillness(run: Play) -> None:
    """Between a ticket and the entering of its target nothing begins but what was cut off."""
    pending = False
    for entry in run.entries:
        match entry.event:
            case ev.TicketRaised():
                pending = True
            case ev.TargetEntered() | ev.RunCancelRequested() | ev.NodeFailed(closes=True):
                pending = False
            case ev.NodeStarted(attempt=attempt):
                assert not pending or attempt > 1, f"{entry.node} began while a ticket was pending"


# --- the real engine -----------------------------------------------------------------------------------------------


@hf.node
async def wanders(ctx: hf.Context, x: Any) -> Any:
    """Goes back on its first two visits, from wherever it is; x names where to."""
    graphs.ran.append((ctx.node, ctx.path, ctx.attempt, x))
    if ctx.visit <= 2:
        hf.goto("first", output={"n": -1, "items": [], "even": False})
    return work(x)


def journey() -> Definition:
    """first -> a map and a loop beside it -> a node that sends the run back twice -> last; a sibling all the while."""
    here = "tests.property.graphs"
    item = NodeDef(id="item", uses=f"{here}.quick", args={"x": ["param", "each", "item"]})
    again = NodeDef(id="again", uses=f"{here}.slow", args={"x": ["param", "round", "item"]})
    nodes = (
        NodeDef(id="before", uses=f"{here}.quick", args={"x": ["get", ["input", "seed"], "n"]}),
        NodeDef(id="first", uses=f"{here}.slow", args={"x": ["node", "before"]}),
        NodeDef(
            id="each",
            kind="map",
            over=["const", [1, 2, 3]],
            item="item",
            body=Body(nodes=(item,), result=["node", "item"]),
            after=("first",),
            limit=2,
        ),
        NodeDef(
            id="round",
            kind="loop",
            start=["node", "first"],
            until=["ge", ["get", ["node", "again"], "n"], 50],
            item="item",
            body=Body(nodes=(again,), result=["node", "again"]),
            max_visits=3,
            at_limit="take",
        ),
        NodeDef(id="side", uses=f"{here}.slow", args={"x": ["node", "first"]}),
        NodeDef(id="turn", uses="tests.property.test_tickets.wanders", args={"x": ["list", ["node", "each"]]}),
        NodeDef(
            id="last",
            uses=f"{here}.quick",
            args={"x": ["list", ["node", "turn"], ["node", "round"], ["node", "side"], ["node", "each"]]},
        ),
    )
    return Definition(name="journey_of_tickets", params=(Param(name="seed"),), nodes=nodes, result=["node", "last"])


@pytest.mark.parametrize("persistence", ["aggressive", "lazy"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_journey_that_turns_back_twice_survives_a_crash_at_every_commit(persistence: str, applied: bool) -> None:
    seed = {"n": 5}
    definition = journey()
    expected = Expected(definition, {"seed": seed}).result
    dies_at = 0
    while True:
        dies_at += 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "runs.db"
            mortal = MortalStore(f"sqlite:///{path}", dies_at, applied)
            result = drive(path, mortal, definition, seed, persistence)
            if not mortal.dead:
                assert result == expected
                assert dies_at > 5
                break
            check_file(path)
            assert drive(path, SqliteStore(f"sqlite:///{path}"), definition, seed, persistence) == expected
            (state,) = check_file(path).values()
            assert state.fold.visits["turn"] == 3
