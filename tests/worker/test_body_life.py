"""The life of a body: every pair of its table is allowed or refused, and what moves it along the table."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from unittest import mock

import pytest

from holdfast.model import commands as cmd
from holdfast.model.errors import IllegalTransition, NodeTimeout, Suspended
from holdfast.worker import ending
from holdfast.worker.activation import Activation
from holdfast.worker.body_life import ALIVE, BODY_TRANSITIONS, BodyLife, LeaveReason


class Body:
    """An activation in a run that only notes what is reported."""

    def __init__(self, life: BodyLife = BodyLife.RUNNING, on_crash: str = "rerun") -> None:
        attempt: Any = mock.MagicMock(node="a", path=".", attempt=1, visit=1, captures=())
        attempt.handler.returns = int
        attempt.handler.takes_ctx = False
        attempt.definition.on_crash = on_crash
        attempt.definition.timeout = attempt.definition.heartbeat = None
        attempt.port.run_id = "r"
        self.said: list[Any] = []
        attempt.port.submit = self.said.append
        self.evicted: list[bool] = []
        self.activation = Activation(
            attempt, lambda _, left: self.evicted.append(left), mock.MagicMock(spec=asyncio.AbstractEventLoop)
        )
        self.activation.life = life

    @property
    def report(self) -> type[Any] | None:
        """What it reported, once; None: that it was evicted."""
        assert len(self.evicted) == 1
        assert self.activation.life is BodyLife.REPORTED
        return type(self.said[0]) if self.said else None


@pytest.mark.parametrize(("now", "to"), [*itertools.product(BodyLife, BodyLife)])
def test_every_pair_of_the_life_of_a_body_is_allowed_or_refused(now: BodyLife, to: BodyLife) -> None:
    activation = Body(now).activation
    if to in BODY_TRANSITIONS[now]:
        activation.move(to)
        assert activation.life is to
    else:
        with pytest.raises(IllegalTransition, match=f"a@. in run r: {now} -> {to}"):
            activation.move(to)
        assert activation.life is now


def test_the_table_has_every_state_and_every_other_one_leads_to_its_only_end() -> None:
    assert set(BODY_TRANSITIONS) == set(BodyLife)
    assert not BODY_TRANSITIONS[BodyLife.REPORTED]
    assert all(BodyLife.REPORTED in to for now, to in BODY_TRANSITIONS.items() if now is not BodyLife.REPORTED)


@pytest.mark.parametrize("life", BodyLife)
def test_a_call_on_ctx_raises_unless_the_body_is_alive(life: BodyLife) -> None:
    activation = Body(life).activation
    if life in ALIVE:
        activation.check()
    else:
        with pytest.raises(Suspended if life is BodyLife.LEAVING else asyncio.CancelledError):
            activation.check()


def test_a_call_on_ctx_after_an_eviction_was_reported_raises_suspended() -> None:
    body = Body()
    body.activation.leave(LeaveReason.EVICT)
    ending.left(body.activation)
    assert body.report is None
    assert body.activation.leaving
    with pytest.raises(Suspended):
        body.activation.check()


@pytest.mark.parametrize("life", BodyLife)
@pytest.mark.parametrize("reason", LeaveReason)
def test_only_a_body_that_is_alive_begins_to_leave(life: BodyLife, reason: LeaveReason) -> None:
    activation = Body(life).activation
    activation.leave(reason)
    assert activation.life is (BodyLife.LEAVING if life in ALIVE else life)
    assert activation.leave_reason is (None if life is BodyLife.REPORTED else reason)


@pytest.mark.parametrize("life", [life for life in BodyLife if life is not BodyLife.REPORTED])
def test_a_cancel_stops_a_body_that_has_not_ended(life: BodyLife) -> None:
    body = Body(life)
    body.activation.cancel(1.0)
    assert body.activation.life is (BodyLife.ENDING if life is BodyLife.ENDING else BodyLife.CANCELLING)
    ending.failed(body.activation, ValueError("while it was stopped"))
    assert body.report is cmd.DropNode


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_the_first_reason_to_stop_counts(cancelled_first: bool) -> None:
    body = Body()
    if cancelled_first:
        body.activation.cancel(1.0)
    body.activation._expire(NodeTimeout("too long"))
    body.activation.cancel(1.0)
    ending.interrupted(body.activation)
    assert body.report is (cmd.DropNode if cancelled_first else cmd.FailNode)


@pytest.mark.parametrize(
    ("reason", "on_crash", "report"),
    [
        (LeaveReason.EVICT, "rerun", None),
        (LeaveReason.STOP, "rerun", cmd.StopNode),
        (LeaveReason.PAUSE, "rerun", cmd.StopNode),
        (LeaveReason.STOP, "fail", None),
    ],
)
def test_an_orderly_stop_is_reported_where_the_body_may_be_repeated(
    reason: LeaveReason, on_crash: str, report: type[Any] | None
) -> None:
    body = Body(on_crash=on_crash)
    body.activation.leave(reason)
    ending.failed(body.activation, Suspended())
    assert body.report is report


@pytest.mark.parametrize("reason", LeaveReason)
def test_what_a_body_returns_while_it_leaves_counts_unless_it_is_evicted(reason: LeaveReason) -> None:
    body = Body()
    body.activation.leave(reason)
    assert body.activation.drops_result is (reason is LeaveReason.EVICT)
    if reason is not LeaveReason.EVICT:
        ending.completed(body.activation, 1)
        assert body.report is cmd.CompleteNode


def test_a_failure_counts_where_the_engine_stops_while_the_body_ends() -> None:
    body = Body(BodyLife.ENDING)
    body.activation.leave(LeaveReason.STOP)
    ending.failed(body.activation, ValueError("its own"))
    assert body.report is cmd.FailNode


def test_an_attempt_that_timed_out_has_failed_whatever_it_returns() -> None:
    body = Body()
    body.activation._expire(NodeTimeout("too long"))
    ending.completed(body.activation, 1)
    assert body.report is cmd.FailNode


def test_it_reports_once() -> None:
    body = Body()
    ending.completed(body.activation, 1)
    ending.failed(body.activation, ValueError("too late"))
    body.activation.give_up()
    body.activation.leave(LeaveReason.STOP)
    ending.left(body.activation)
    assert body.report is cmd.CompleteNode
    assert len(body.said) == 1
