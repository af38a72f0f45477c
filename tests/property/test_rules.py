"""Random graphs through the rules alone: any order of completion, any crash, the same run (SEMANTICS 1, 9, 10)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import events as ev
from holdfast.model.definition import Definition
from holdfast.model.statuses import RUN_TERMINAL
from tests.budget import examples
from tests.property.graphs import Expected, definitions, work
from tests.rules.play import Play

HANDLERS = {f"tests.property.graphs.{name}": work for name in ("quick", "slow")}
INPUTS = st.fixed_dictionaries({"n": st.integers(0, 99)})


def play(definition: Definition, seed: Any, slots: int | None = None) -> Play:
    return Play(*definition.nodes, result=definition.result, inputs={"seed": seed}, slots=slots)


@settings(max_examples=examples(200))
@given(definitions(), INPUTS, st.randoms(use_true_random=False), st.sampled_from([None, 1, 2]))
def test_every_body_runs_once_after_what_it_needs_with_the_right_arguments(
    definition: Definition, seed: Any, chance: Any, slots: int | None
) -> None:
    expected = Expected(definition, {"seed": seed})
    run = play(definition, seed, slots)
    given_to: dict[tuple[str, str], Any] = {}
    while run.running and run.state.status not in RUN_TERMINAL:
        key = chance.choice(list(run.running))
        assert key not in given_to, "each instance exactly once"
        given_to[key] = run.running[key]["x"]
        run.complete(key[0], work(given_to[key]), key[1])
        run.start_due()
    assert run.result == expected.result
    assert given_to == expected.bodies, "joins see all their inputs, and nothing else ran"
    check_order(run)


@settings(max_examples=examples(200))
@given(definitions(), INPUTS, st.randoms(use_true_random=False), st.data())
def test_crashes_at_any_turn_change_nothing_that_anybody_sees(
    definition: Definition, seed: Any, chance: Any, data: st.DataObject
) -> None:
    expected = Expected(definition, {"seed": seed})
    run = play(definition, seed, data.draw(st.sampled_from([None, 2])))
    crashes = data.draw(st.sets(st.integers(0, 2 * len(expected.bodies)), max_size=3))
    completed: set[tuple[str, str]] = set()
    step = 0
    while run.state.status not in RUN_TERMINAL:
        if step in crashes:
            before = {k: (ns.status, ns.attempt) for k, ns in run.state.nodes.items() if ns.plan.body is None}
            run.crash(graceful=data.draw(st.booleans()))
            for key, (status, attempt) in before.items():
                now = run.state.nodes.get(key)
                if now is not None and status in ("scheduled", "completed", "skipped"):
                    assert now.attempt == attempt
            if run.state.status in RUN_TERMINAL:
                break
        run.start_due()
        key = chance.choice(list(run.running))
        assert key not in completed, "nothing completed runs again"
        x = run.running[key]["x"]
        assert x == expected.bodies[key]
        run.complete(key[0], work(x), key[1])
        completed.add(key)
        step += 1
    assert run.result == expected.result
    assert completed == expected.bodies.keys()
    check_order(run)


@settings(max_examples=examples(200))
@given(
    definitions(size=4, depth=3),
    INPUTS,
    st.integers(0, 20),
    st.sampled_from(["fail", "continue", "cancel"]),
    st.randoms(use_true_random=False),
    st.none() | st.integers(0, 3),
)
def test_a_run_that_fails_or_is_cancelled_anywhere_ends_with_everything_closed(
    definition: Definition, seed: Any, when: int, how: str, chance: Any, crash_after: int | None
) -> None:
    """With a crash some steps after the failure: what was being stopped is not begun again."""
    run = Play(
        *definition.nodes,
        result=definition.result,
        inputs={"seed": seed},
        on_failure="continue" if how == "continue" else "fail",
    )
    step, collected = 0, False
    while run.state.status not in RUN_TERMINAL:
        if crash_after is not None and step == when + crash_after:
            run.crash()
        elif run.told_to_stop and chance.random() < 0.5:
            node, path = run.told_to_stop.pop(chance.randrange(len(run.told_to_stop)))
            if (node, path) in run.running:
                run.drop(node, path)
        else:
            assert run.running, f"the run is {run.state.status} and nothing moves it"
            node, path = chance.choice(list(run.running))
            if step == when and how == "cancel":
                run.cancel()
            elif step == when:
                collected = "collect" in errors_around(definition, path)
                run.fail(node, path=path)
            else:
                run.complete(node, work(run.running[node, path]["x"]), path)
        step += 1
    assert all(ns.settled for ns in run.state.nodes.values())
    if step <= when or collected:
        assert run.state.status == "completed"
    elif how == "cancel":
        assert run.state.status in ("cancelled", "completed")
    else:
        assert run.state.status in ("failed", "completed")
    if run.state.status == "completed":
        assert all(row.status != "failed" or collected for row in run.rows().values())


def errors_around(definition: Definition, path: str) -> list[str]:
    """What the maps around a path do about errors."""
    nodes, found = {n.id: n for n in definition.nodes}, []
    for name in path.strip(".").split(".")[::2]:
        node = nodes.get(name)
        if node is not None and node.body is not None:
            found.append(node.errors)
            nodes = {n.id: n for n in node.body.nodes}
    return found


def check_order(run: Play) -> None:
    """What a body was given was there before it started: the executed order is a topological order."""
    held: dict[int, Any] = {1: run.entries[0].event}
    for entry in run.entries:
        if isinstance(entry.event, ev.NodeCompleted):
            held[entry.seq] = entry.event
        if isinstance(entry.event, ev.NodeStarted):
            assert all(seq in held for _, seq, _ in entry.event.inputs)
