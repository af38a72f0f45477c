"""The explorer over everything the engine can do: at depth 1 no crash changes an outcome or breaks a promise."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import explore
from holdfast.testing.simulation.faults import Outcome
from tests.explorer import scenarios
from tests.explorer.ablations import all_isolated

STEPS = ["xp_step", "xp_sync_step", "xp_slow_step", "xp_fetch"]


@pytest.mark.parametrize("name", scenarios.ALWAYS_THE_SAME)
def test_no_crash_changes_the_outcome_of(name: str) -> None:
    report = explore(scenarios.ALWAYS_THE_SAME[name], idempotent=STEPS)
    assert report.safe, report.explain()
    assert report.schedules > 12 * (report.boundaries - 6)


@pytest.mark.parametrize("name", ["xp_chain", "xp_places", "xp_code", "xp_compensate", "xp_checkpoint"])
def test_no_death_of_a_suspects_process_changes_the_outcome_of(name: str) -> None:
    with all_isolated():
        report = explore(scenarios.ALWAYS_THE_SAME[name], idempotent=STEPS)
    assert report.safe, report.explain()


@pytest.mark.parametrize("name", ["xp_graph_parent", "xp_code", "xp_compensate", "xp_compensate_code"])
def test_no_crash_changes_the_outcome_whoever_goes_first(name: str) -> None:
    report = explore(scenarios.ALWAYS_THE_SAME[name], idempotent=STEPS, seed=7)
    assert report.safe, report.explain()


def test_what_must_not_be_repeated_runs_at_most_once() -> None:
    for workflow in (scenarios.once_only, scenarios.ask_first):
        report = explore(workflow)
        assert report.safe, report.explain()


@pytest.mark.parametrize(
    ("workflow", "node"),
    [(scenarios.chain, "xp_add_2"), (scenarios.compensated, "xp_book"), (scenarios.mapped, "xp_double")],
)
def test_a_cancel_survives_every_crash(workflow: Any, node: str) -> None:
    report = explore(workflow, cancel_after=node)
    assert report.safe, report.explain()


@pytest.mark.soak
def test_two_crashes_in_one_schedule_are_survived_too() -> None:
    report = explore(scenarios.routed, depth=2, schedules_max=1_500)
    assert report.safe, report.explain()
    assert report.schedules == 1_500


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", ["xp_graph_parent", "xp_retry", "xp_compensate", "xp_compensate_code", "xp_lazy_parent", "xp_sync_code"]
)
def test_two_crashes_in_one_schedule_of(name: str) -> None:
    report = explore(scenarios.ALWAYS_THE_SAME[name], idempotent=STEPS, depth=2, schedules_max=4_000)
    assert report.safe, report.explain()


def test_every_kind_of_write_meets_every_fault() -> None:
    """An exploration that never reached a boundary proves nothing about it."""
    met: set[tuple[str, Outcome]] = set()
    for name in ("xp_slow_parent", "xp_parent"):
        explorer = _explorer(scenarios.ALWAYS_THE_SAME[name])
        with explorer.surroundings():
            undisturbed, *schedules = explorer.schedules(depth=1)
        for schedule in schedules:  # tried, or known to be the same as another one
            met |= {(undisturbed.boundaries[number].label, Outcome(chosen)) for number, chosen in schedule.tape.faults}
            met |= {(b.label, b.outcome) for b in schedule.boundaries}
    verbs = {"register_engine", "renew_engine", "register_version", "reserve_run_numbers", "commit", "claim", "release"}
    assert {(verb, outcome) for verb in verbs for outcome in Outcome} <= met
    assert ("remove_engine", Outcome.OK) in met


def _explorer(workflow: Any) -> Any:
    from holdfast.testing.explorer.search import Explorer

    return Explorer(workflow, {}, None, set(STEPS), {})
