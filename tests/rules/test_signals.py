"""Signals: which wait gets which, those that come early, those that do not fit, and those that a body sends."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from tests.rules.play import SECOND, START, Play, call, ref

HOUR = START + 3600 * SECOND
NUMBER = {"type": "integer"}
SENT = ev.StepCompleted("", 0, "signal", "go", "d", msgspec.Raw(b"null"))


def test_a_signal_goes_to_the_body_that_waits_for_its_name() -> None:
    play = Play(call("a"), call("b"))
    play.receive("a", "stop")
    wait_id = play.receive("b", "go")
    play.suspend("a")
    play.suspend("b")
    assert play.signal("go", {"at": 5}).status == "consumed"
    assert play.types() == ["WaitClosed b", "RunResumed", "NodeResumed b", "MessageConsumed b"]
    assert play.answers == [(("b", "."), "received", {"at": 5})]
    assert wait_id not in play.waits()
    assert play.status("a") == "suspended"


def test_a_signal_that_comes_early_is_kept_and_leaves_no_event() -> None:
    play = Play(call("a"))
    before = len(play.entries)
    kept = play.signal("go", 1)
    assert (kept.status, kept.code, kept.detail) == ("held", None, {"held": True})
    assert len(play.entries) == before
    play.receive("a", "go")
    assert play.answers == [(("a", "."), "received", 1)]
    assert play.types() == ["WaitOpened a", "WaitClosed a", "MessageConsumed a"]
    assert play.outcome("sent-1").status == "consumed"
    assert not any(play.state.signals.values())


def test_early_signals_are_received_in_order_of_arrival_each_name_by_itself() -> None:
    play = Play(call("a"))
    for name, payload in (("x", 1), ("y", 10), ("x", 2), ("y", 20)):
        play.signal(name, payload)
    for name in ("y", "x", "x", "y"):
        play.receive("a", name)
    assert [a[2] for a in play.answers] == [10, 1, 2, 20]


def test_kept_signals_survive_a_crash_in_their_order() -> None:
    play = Play(call("a"))
    play.signal("go", 1)
    play.signal("go", 2)
    play.crash()
    play.receive("a", "go")
    play.crash()
    play.receive("a", "go")
    assert [a[2] for a in play.answers] == [1, 2]


def test_who_waits_longest_gets_the_first_signal() -> None:
    play = Play(call("a"), call("b"))
    play.receive("b", "go")
    play.receive("a", "go")
    play.suspend("a")
    play.suspend("b")
    play.crash()
    play.signal("go", 1)
    play.signal("go", 2)
    assert [(a[0][0], a[2]) for a in play.answers] == [("b", 1), ("a", 2)]


def test_a_signal_that_does_not_fit_who_waits_for_it_is_refused_and_the_wait_stays() -> None:
    play = Play(call("a"))
    wait_id = play.receive("a", "go", schema=NUMBER)
    refused = play.signal("go", "five")
    assert (refused.status, refused.code) == ("dead", "invalid_signal")
    assert "go" in refused.why
    assert play.waits() == [wait_id]
    play.signal("go", 5)
    assert play.answers == [(("a", "."), "received", 5)]


def test_a_kept_signal_that_does_not_fit_when_it_is_asked_for_is_refused_on_record_and_the_next_one_is_taken() -> None:
    play = Play(call("a"))
    play.signal("go", "five")
    play.signal("go", 5)
    play.receive("a", "go", schema=NUMBER)
    assert play.answers == [(("a", "."), "received", 5)]
    (refused,) = play.events(ev.MessageRefused)
    assert (refused.message_id, refused.code) == ("sent-1", "invalid_signal")
    assert [play.outcome(f"sent-{n}").status for n in (1, 2)] == ["dead", "consumed"]


def test_defaults_of_the_schema_are_part_of_what_is_received() -> None:
    play = Play(call("a"))
    play.receive("a", "go", schema={"type": "object", "properties": {"n": {"type": "integer", "default": 3}}})
    play.signal("go", {})
    assert play.answers[-1][2] == {"n": 3}


def test_past_its_deadline_the_default_is_received_and_a_late_signal_is_kept() -> None:
    play = Play(call("a"))
    play.receive("a", "go", until=HOUR, default=0)
    play.suspend("a")
    play.due()
    assert play.answers == [(("a", "."), "received", 0)]
    assert play.events(ev.WaitClosed)[0].actor == "deadline"
    assert play.signal("go", 1).status == "held"


def test_past_its_deadline_without_a_default_the_body_hears_that_nothing_came() -> None:
    play = Play(call("a"))
    play.receive("a", "go", until=HOUR)
    play.suspend("a")
    play.due()
    assert play.answers[-1][1] == "deadline"


def test_a_signal_in_time_cancels_the_deadline() -> None:
    play = Play(call("a"))
    play.receive("a", "go", until=HOUR)
    play.signal("go")
    assert not play.state.timers


def test_a_run_that_has_ended_refuses_signals() -> None:
    play = Play(call("a"))
    play.complete("a")
    refused = play.signal("go", 1)
    assert (refused.status, refused.code) == ("dead", "finished")


def test_a_signal_before_the_run_begins_is_kept() -> None:
    play = Play(call("a"), begin=False)
    assert play.signal("go", 1).status == "held"
    play.tell(cmd.Begin())
    play.receive("a", "go")
    assert play.answers[-1][2] == 1


def test_what_nobody_receives_holds_nobody_up() -> None:
    play = Play(call("a"), result=ref("a"))
    play.signal("never", 1)
    play.complete("a", 2)
    assert play.result == 2


# --- sent by a body ------------------------------------------------------------------------------------------------


def sends(play: Play) -> None:
    ns = play.state.nodes["a", "."]
    play.tell(cmd.SendSignal("a", ".", ns.attempt, SENT, "other", "m_7", "go", b'{"n":1}', visit=ns.visit))


def test_a_body_signals_another_run_in_the_commit_that_remembers_it() -> None:
    play = Play(call("a"))
    sends(play)
    assert play.types() == ["StepCompleted a"]
    (message,) = play.messages
    assert (message.run_id, message.message_id, message.kind) == ("other", "m_7", "signal")
    assert message.payload["name"] == "go"


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_an_attempt_that_is_over_sends_nothing(end: str) -> None:
    play = Play(call("a"), call("b"))
    if end == "complete":
        play.complete("a")
    else:
        play.cancel()
        play.drop("a")
    ns = play.state.nodes["a", "."]
    command = cmd.SendSignal("a", ".", ns.attempt, SENT, "other", "m_7", "go", b"1")
    assert play.refusal(command) == "stale"
    assert play.messages == []
