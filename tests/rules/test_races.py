"""Races: the commit that answers a call decides the race, and closes what the others wait for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from tests.rules.play import RETRY_AT_ONCE, SECOND, START, Play, call, error

HOUR = START + 3600 * SECOND
ALONE = 100
"""A wait that decides all the races it is in."""


def lane(*races: tuple[str, int], decides: int = ALONE, key: str = "k") -> dict[str, Any]:
    """A call in these races, innermost first."""
    return {"step_key": f"{key}{races}", "races": [list(race) for race in races], "decides": min(decides, len(races))}


def receive(play: Play, name: str, *races: tuple[str, int], decides: int = ALONE) -> str:
    return play.wait("a", "signal", about={"name": name}, call=lane(*races, decides=decides))


def ask(play: Play, question: str, *races: tuple[str, int], **about: Any) -> str:
    return play.wait("a", "input", about={"question": question, **about}, call=lane(*races))


def sleep(play: Play, *races: tuple[str, int], decides: int = ALONE) -> str:
    return play.wait("a", until=HOUR, call=lane(*races, decides=decides))


def record(play: Play, kind: str, *races: tuple[str, int]) -> Any:
    """A body remembers the end of a step or of a race; what it is told."""
    return play.record("a", ev.StepCompleted("", 0, kind, kind, "", msgspec.Raw(b"null")), *races)


def test_the_answer_of_one_call_closes_what_the_others_wait_for_with_their_timers() -> None:
    play = Play(call("a"))
    question = ask(play, "Go?", ("r0", 0), remind=60, escalate=[{"after": 120, "assignee": "boss"}])
    sleep(play, ("r0", 1))
    receive(play, "go", ("r0", 2))
    play.suspend("a")
    assert play.signal("go", 1).status == "consumed"
    assert play.waits() == []
    assert play.state.timers == {}
    assert [e.outcome for e in play.events(ev.WaitClosed)] == ["received", "superseded", "superseded"]
    late = play.answer(question, True)
    assert (late.code, late.why) == (
        "closed",
        f"{question} is no longer open: another call of the same ctx.race has won",
    )


def test_the_second_of_two_signals_is_kept_whether_they_come_early_or_not() -> None:
    play = Play(call("a"))
    receive(play, "x", ("r0", 0))
    receive(play, "y", ("r0", 1))
    play.suspend("a")
    assert play.signal("x", 1).status == "consumed"
    assert play.signal("y", 2).status == "held"
    assert play.signal("x", 3).status == "held"
    assert record(play, "race", ("r0", 0)) is None
    receive(play, "x", ("r1", 0))  # both are there: the first call that asks has its signal, the other one nothing
    receive(play, "y", ("r1", 1))
    assert play.waits() == []
    assert [answer[2] for answer in play.answers] == [1, 3]
    receive(play, "y")
    assert [answer[2] for answer in play.answers] == [1, 3, 2]


def test_a_lost_child_that_was_to_be_started_is_not() -> None:
    play = Play(call("a"))
    play.signal("x", 1)
    receive(play, "x", ("r0", 0))
    order = cmd.NewChild(7, "sub", 1, b"{}", "hash", {}, {}, None, {})
    play.wait("a", "child", child=order, call=lane(("r0", 1)))
    assert play.events(ev.ChildStarted) == []
    assert play.waits() == []


def test_races_in_races_are_decided_from_the_inside_out() -> None:
    play = Play(call("a"))
    sleep(play, ("in", 0), ("out", 0))
    receive(play, "x", ("in", 1), ("out", 0))
    receive(play, "y", ("out", 1))
    stays = receive(play, "z", ("other", 0))
    play.signal("x", 1)
    assert play.waits() == [stays]
    assert record(play, "race", ("in", 1), ("out", 0)) is None
    assert record(play, "race", ("out", 0)) is None


def test_a_wait_that_is_not_all_that_its_call_does_decides_nothing() -> None:
    play = Play(call("a"))
    receive(play, "x", ("r0", 0), decides=0)
    other = receive(play, "y", ("r0", 1))
    play.signal("x", 1)
    assert play.waits() == [other]
    first_of_it = receive(play, "z", ("r0", 0), decides=0)
    assert record(play, "race", ("r0", 1)) is None, "the end of the race decides it"
    assert first_of_it not in play.waits()


def test_an_inner_race_in_a_coroutine_of_several_calls_decides_only_itself() -> None:
    play = Play(call("a"))
    receive(play, "x", ("in", 0), ("out", 0), decides=1)
    receive(play, "y", ("in", 1), ("out", 0), decides=1)
    other = receive(play, "z", ("out", 1))
    play.signal("x", 1)
    assert play.waits() == [other]


def test_a_step_that_ends_wins_and_one_that_ends_later_does_not() -> None:
    play = Play(call("a"))
    receive(play, "x", ("r0", 0))
    assert record(play, "step", ("r0", 1)) is None
    assert play.waits() == []
    assert play.signal("x", 1).status == "held"
    receive(play, "x", ("r1", 0))
    assert record(play, "step", ("r1", 1)) is None
    assert record(play, "race", ("r1", 1)) == 0, "the signal was taken before: its call has won"


def test_the_end_of_a_race_with_another_winner_is_not_remembered() -> None:
    play = Play(call("a"))
    receive(play, "x", ("r0", 1))
    play.signal("x", 1)
    before = len(play.events(ev.StepCompleted))
    assert record(play, "race", ("r0", 0)) == 1
    assert len(play.events(ev.StepCompleted)) == before
    assert record(play, "race", ("r0", 1)) is None


def test_another_instance_with_a_race_of_the_same_name_is_not_concerned() -> None:
    play = Play(call("a"), call("b"))
    receive(play, "x", ("r0", 0))
    other = play.wait("b", "signal", about={"name": "y"}, call=lane(("r0", 1)))
    play.signal("x", 1)
    assert play.waits() == [other]


def test_the_next_attempt_runs_its_races_again() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE))
    play.signal("x", 1)
    receive(play, "x", ("r0", 0))
    play.fail("a", error())
    assert play.state.nodes["a", "."].attempt == 2
    second = receive(play, "y", ("r0", 1))
    assert play.waits() == [second]


def test_a_checkpoint_forgets_what_was_decided() -> None:
    play = Play(call("a"))
    play.signal("x", 1)
    receive(play, "x", ("r0", 0))
    play.tell(cmd.Checkpoint("a", ".", 1, b"1", 1))
    assert play.state.nodes["a", "."].races is None


@pytest.mark.parametrize("paused", [False, True])
def test_who_was_answered_while_nobody_ran_has_won(paused: bool) -> None:
    play = Play(call("a"))
    receive(play, "x", ("r0", 0))
    sleep(play, ("r0", 1))
    play.suspend("a")
    play.crash()
    if paused:
        play.pause()
    play.signal("x", 1)
    assert [wait for wait in play.waits() if wait != play.state.fold.paused] == []
    assert play.state.timers == {}
    if paused:
        play.resume()
    assert play.running == {("a", "."): {}}
