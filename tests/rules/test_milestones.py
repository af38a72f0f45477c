"""Milestones: when they are set, cleared and reached, and what they request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.model import events as ev
from holdfast.model.definition import Further, Milestone
from tests.rules.play import SECOND, START, Play, call, error
from tests.rules.units import step

HOUR = 3600.0


def journey(*milestones: Milestone, **options: Any) -> Play:
    units = (step("a", "b"), step("b", "end"))
    return Play(*units, start="a", milestones=milestones, **options)


def entry(basket: str = "desk", **options: Any) -> Milestone:
    return Milestone(name=f"late_{basket}", set_on="entry", basket=basket, clears="exit", **{"after": HOUR, **options})


def timers(play: Play) -> dict[str, float]:
    return {name: (due - START) / SECOND for name, due in play.state.timers.items()}


def reached(play: Play) -> list[tuple[str, int]]:
    return [(e.milestone, e.count) for e in play.events(ev.MilestoneReached)]


def test_a_milestone_of_the_run_is_set_at_its_start_and_reached_after_its_time() -> None:
    play = journey(Milestone(name="slow", after=2 * HOUR, data={"to": "ops"}))
    assert timers(play) == {"milestone:slow::0": 2 * HOUR}
    play.due()
    assert reached(play) == [("slow", 1)]
    assert play.events(ev.MilestoneReached)[0].data == {"to": "ops"}


def test_the_end_of_the_run_clears_its_milestones() -> None:
    play = journey(Milestone(name="slow", after=HOUR))
    play.complete("a")
    play.complete("b")
    assert play.state.timers == {}
    assert reached(play) == []


def test_a_milestone_can_have_an_instant_or_count_from_the_next_midnight_of_a_zone() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    play = journey(
        Milestone(name="new_year", at="2030-01-01T00:00:00+00:00"),
        Milestone(name="utc", after=HOUR, from_next_day=True),
        Milestone(name="oslo", after=HOUR, from_next_day=True, zone="Europe/Oslo"),
    )
    due = {name.split(":")[1]: at for name, at in play.state.timers.items()}
    assert due["new_year"] == int(at.timestamp()) * SECOND
    midnight = datetime(2023, 11, 15, tzinfo=UTC)  # the run starts on the 14th at 22:13 UTC, 23:13 in Oslo
    assert due["utc"] == int(midnight.timestamp() + HOUR) * SECOND
    assert due["oslo"] == int(midnight.timestamp()) * SECOND


def test_further_milestones_repeat_after_an_offset_and_one_without_end_until_it_is_cleared() -> None:
    play = journey(
        Milestone(
            name="m",
            after=HOUR,
            further=(Further(after=60, repeat=2, offset=30), Further(after=10, repeat=-1)),
        )
    )
    moments = []
    for _ in range(6):
        play.due()
        moments.append((play.now - START) / SECOND - HOUR)
    assert moments == [0, 90, 150, 160, 170, 180]
    assert reached(play)[-1] == ("m", 6)


# --- baskets -----------------------------------------------------------------------------------------------------


def test_entering_a_basket_sets_its_milestones_and_leaving_it_clears_them_and_sets_those_of_the_exit() -> None:
    exit_of = Milestone(name="left", set_on="exit", basket="desk", after=60)
    play = journey(entry("desk"), entry("other"), exit_of)
    play.pend("a", "desk")
    assert timers(play) == {"milestone:late_desk:.:0": HOUR}
    play.resume()
    assert timers(play) == {"milestone:left:.:0": 60}
    assert [type(e).__name__ for e in play.events(ev.BasketEntered, ev.BasketLeft)] == ["BasketEntered", "BasketLeft"]


def test_a_basket_that_is_changed_by_hand_is_left_and_the_other_one_is_entered() -> None:
    exit_of = Milestone(name="left", set_on="exit", basket="desk", after=60)
    play = journey(entry("desk"), entry("other", after=2 * HOUR), exit_of)
    wait = play.pend("a", "desk", rerun=True)
    play.send("reassign", wait_id=wait, basket="other", actor="ann")
    assert timers(play) == {"milestone:late_other:.:0": 2 * HOUR, "milestone:left:.:0": 60}


def test_a_unit_that_runs_again_and_fails_has_made_no_progress_and_keeps_the_milestones_of_its_basket() -> None:
    play = journey(entry("desk"), entry("errors"))
    play.pend("a", "desk", rerun=True)
    play.resume()
    assert timers(play) == {"milestone:late_desk:.:0": HOUR}, "it runs again, and may come back"
    play.pend("a", "errors", error=error())
    assert timers(play) == {"milestone:late_desk:.:0": HOUR}
    play.resume()
    play.complete("a")
    assert timers(play) == {}


def test_a_unit_that_runs_again_and_pends_elsewhere_without_an_error_changes_the_basket() -> None:
    play = journey(entry("desk"), entry("other"))
    play.pend("a", "desk", rerun=True)
    play.resume()
    play.pend("a", "other")
    assert list(timers(play)) == ["milestone:late_other:.:0"]


def test_milestones_survive_a_crash_and_are_not_set_twice() -> None:
    play = journey(entry("desk"), Milestone(name="slow", after=3 * HOUR))
    play.pend("a", "desk")
    before = timers(play)
    play.crash()
    assert timers(play) == before
    play.resume()
    play.crash()
    assert list(timers(play)) == ["milestone:slow::0"]


# --- actions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "to", "kind", "expected"),
    [
        ("resume", "", "resume", {"actor": "milestone:late_desk"}),
        ("move", "boss", "reassign", {"basket": "boss"}),
        ("cancel", "", "cancel", {"reason": "the milestone late_desk was reached"}),
        ("signal", "late", "signal", {"name": "late", "payload": {"n": 1}}),
        ("retry", "", "retry", {"actor": "milestone:late_desk"}),
    ],
)
def test_an_action_is_a_message_to_the_run_itself(action: Any, to: str, kind: str, expected: dict[str, Any]) -> None:
    play = journey(entry("desk", action=action, to=to, data={"n": 1}))
    play.pend("a", "desk")
    play.due()
    (message,) = play.messages
    assert (message.run_id, message.kind) == ("run-1", kind)
    assert expected.items() <= message.payload.items()


def test_a_milestone_that_only_notifies_sends_nothing() -> None:
    play = journey(entry("desk"))
    play.pend("a", "desk")
    play.due()
    assert play.messages == []
    assert reached(play) == [("late_desk", 1)]


def test_milestones_work_in_graphs_too() -> None:
    play = Play(call("a"), call("b", after=("a",)), milestones=[entry("desk")])
    play.pend("a", "desk")
    assert list(timers(play)) == ["milestone:late_desk:.:0"]
    play.resume()
    assert play.state.timers == {}
