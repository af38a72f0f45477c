"""The two status machines: every pair of the tables is allowed or refused, nothing in between."""

from __future__ import annotations

import itertools

import pytest

from holdfast.model import events as ev
from holdfast.model.errors import IllegalTransition
from holdfast.model.evolve import evolve
from holdfast.model.state import RunState
from holdfast.model.statuses import (
    NODE_SETTLED,
    NODE_TRANSITIONS,
    RUN_TERMINAL,
    RUN_TRANSITIONS,
    NodeStatus,
    RunStatus,
)
from tests.rules.play import Play, call, error

R, N = RunStatus, NodeStatus


EVENTS = {
    N.SCHEDULED: ev.NodeScheduled(1),
    N.RUNNING: ev.NodeStarted(1),
    N.SUSPENDED: ev.NodeSuspended(),
    N.COMPLETED: ev.NodeCompleted(1),
    N.FAILED: ev.NodeFailed(1, error()),
    N.SKIPPED: ev.NodeSkipped("condition"),
    N.CANCELLED: ev.NodeCancelled(),
}


@pytest.mark.parametrize(("now", "to"), [*itertools.product(N, EVENTS)])
def test_an_event_folds_only_along_the_table(now: NodeStatus, to: NodeStatus) -> None:
    """The fold uses the same table: an event that does not fit the status of its node is never applied."""
    plan = Play(call("a"), begin=False).plan
    state = RunState.new(plan, 1, "r", 0)
    state.instance("a", ".").status = now
    entry = ev.Entry(1, 0, EVENTS[to], "a", ".")
    if to in NODE_TRANSITIONS[now]:
        evolve(state, entry)
        assert state.nodes["a", "."].status is to
    else:
        with pytest.raises(IllegalTransition):
            evolve(state, entry)
        assert state.nodes["a", "."].status is now


RUN_EVENTS = {
    R.SUSPENDED: ev.RunSuspended(),
    R.RUNNING: ev.RunResumed(),
    R.COMPLETED: ev.RunCompleted(b"null"),
    R.FAILED: ev.RunFailed(error()),
    R.CANCELLED: ev.RunCancelled(),
}


@pytest.mark.parametrize(("now", "to"), [*itertools.product(R, RUN_EVENTS)])
def test_a_run_event_folds_only_along_the_table(now: RunStatus, to: RunStatus) -> None:
    state = RunState.new(Play(call("a"), begin=False).plan, 1, "r", 0)
    state.status = now
    entry = ev.Entry(1, 0, RUN_EVENTS[to])
    if to in RUN_TRANSITIONS[now]:
        evolve(state, entry)
        assert state.status is to
    else:
        with pytest.raises(IllegalTransition, match=f"run r: {now} -> {to}"):
            evolve(state, entry)
        assert state.status is now


def test_the_tables_name_every_status_and_terminal_ones_are_final() -> None:
    assert set(RUN_TRANSITIONS) == set(R)
    assert set(NODE_TRANSITIONS) == set(N)
    assert {s for s in R if not RUN_TRANSITIONS[s]} == RUN_TERMINAL
    # a failed node may be tried again or lie in a basket, in the same commit; everything else settled is final
    assert {s for s in N if not NODE_TRANSITIONS[s]} == NODE_SETTLED - {N.FAILED}
    assert NODE_TRANSITIONS[N.FAILED] == {N.SCHEDULED, N.SUSPENDED}


def test_the_fold_refuses_an_event_out_of_order() -> None:
    state = RunState.new(Play(call("a"), begin=False).plan, 1, "r", 0)
    evolve(state, ev.Entry(2, 0, ev.NodeScheduled(1), "a", "."))
    with pytest.raises(AssertionError, match="event 2 after 2"):
        evolve(state, ev.Entry(2, 0, ev.NodeStarted(1), "a", "."))


def test_run_table_is_exactly_this() -> None:
    assert {str(now): {str(to) for to in RUN_TRANSITIONS[now]} for now in R} == {
        "created": {"running", "suspended", "completed", "failed", "cancelled"},
        "running": {"suspended", "completed", "failed", "cancelled"},
        "suspended": {"running", "completed", "failed", "cancelled"},
        "completed": set(),
        "failed": set(),
        "cancelled": set(),
    }


def test_node_table_is_exactly_this() -> None:
    assert {str(now): {str(to) for to in NODE_TRANSITIONS[now]} for now in N} == {
        "pending": {"scheduled", "skipped", "failed", "cancelled"},
        "scheduled": {"scheduled", "running", "failed", "cancelled"},
        "running": {"scheduled", "suspended", "completed", "failed", "cancelled"},
        "suspended": {"running", "completed", "failed", "cancelled"},
        "completed": set(),
        "failed": {"scheduled", "suspended"},
        "skipped": set(),
        "cancelled": set(),
    }
