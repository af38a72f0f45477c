"""The life of a live run: every pair of its table is allowed or refused, and what moves it along the table."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest

from holdfast.engine.run.actor import LIFE_TRANSITIONS, Life, RunActor
from holdfast.model.errors import IllegalTransition, LeaseLost
from holdfast.model.state import RunState
from tests.rules.play import Play, call

COMMAND = object()


def actor(life: Life = Life.IDLE) -> RunActor:
    """A run in an engine that only notes what is asked of it."""
    plan = Play(call("a"), begin=False).plan
    made = RunActor(mock.MagicMock(), plan, RunState.new(plan, 1, "r", 0), 1, None)
    made.life = life
    return made


def queued(run: RunActor) -> int:
    turns: Any = run._turns
    return int(turns.queue.call_count)


@pytest.mark.parametrize(("now", "to"), [*itertools.product(Life, Life)])
def test_every_pair_of_the_life_of_a_run_is_allowed_or_refused(now: Life, to: Life) -> None:
    run = actor(now)
    if to in LIFE_TRANSITIONS[now]:
        run.move(to)
        assert run.life is to
    else:
        with pytest.raises(IllegalTransition, match=f"run r: {now} -> {to}"):
            run.move(to)
        assert run.life is now


def test_the_table_has_every_state_and_one_end() -> None:
    assert set(LIFE_TRANSITIONS) == set(Life)
    assert {life for life in Life if not LIFE_TRANSITIONS[life]} == {Life.DETACHED}


@pytest.mark.parametrize("life", Life)
def test_a_command_queues_a_run_unless_it_takes_its_next_turn_by_itself(life: Life) -> None:
    run = actor(life)
    told: list[Any] = []
    run.submit(COMMAND, lambda answer, error: told.append(error))
    if life in (Life.DETACHING, Life.DETACHED):
        assert run.mailbox == []
        assert isinstance(told[0], LeaseLost)
    else:
        assert [command for command, _ in run.mailbox] == [COMMAND]
        assert told == []
    wakes = life in (Life.IDLE, Life.DECIDING)
    assert (run.life, queued(run)) == (Life.QUEUED if wakes else life, int(wakes))


@pytest.mark.parametrize("life", [Life.IDLE, Life.QUEUED, Life.DECIDING, Life.APPLYING])
def test_a_run_stays_paused_until_every_request_that_paused_it_is_over(life: Life) -> None:
    run = actor(life)
    run.pause_now()
    run.pause_now()
    run.submit(COMMAND)
    run.unpause()
    assert (run.life, queued(run)) == (Life.PAUSED, 0)
    run.unpause()
    assert (run.life, queued(run)) == (Life.QUEUED, 1)


def test_a_run_without_mail_is_idle_after_a_pause() -> None:
    run = actor()
    run.pause_now()
    run.unpause()
    assert (run.life, queued(run)) == (Life.IDLE, 0)


def test_a_pause_is_kept_while_a_buffered_commit_is_in_flight() -> None:
    run = actor()
    run.pause_now()
    run.move(Life.COMMITTING)
    assert run.pausers == 1
    run.unpause()
    assert not run.pausers
    assert run.life is Life.COMMITTING


def test_a_run_is_paused_after_its_commit_in_flight_is_applied() -> None:
    run = actor(Life.COMMITTING)
    run.pause_now()
    assert (run.life, run.pausers) == (Life.COMMITTING, 1)


@pytest.mark.parametrize("life", [life for life in Life if life not in (Life.DETACHING, Life.DETACHED)])
def test_a_detached_run_is_told_once_and_waits_for_its_commit_in_flight(life: Life) -> None:
    run = actor(life)
    run.mailbox.append((COMMAND, None))
    run.detach(None)
    run.detach(None)
    assert run.life is (Life.DETACHING if life is Life.COMMITTING else Life.DETACHED)
    assert run.mailbox == []
    keeper: Any = run._keeper
    keeper.detached.assert_called_once_with(run)
