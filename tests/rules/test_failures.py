"""How attempts, nodes and runs fail, are cancelled and are undone (SEMANTICS 11)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.limits import RETRY_IN_MEMORY_SECONDS
from holdfast.model.policies import Retry
from holdfast.model.timers import RUN_TIMEOUT
from tests.rules.play import RETRY_AT_ONCE, SECOND, START, Play, call, error, mapped, ref

# --- retries -----------------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_tried_again_in_the_same_commit_and_attempts_have_no_gap() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE), result=ref("a"))
    play.fail("a")
    assert play.types() == ["NodeFailed a", "NodeScheduled a", "NodeStarted a"]
    play.fail("a")
    play.complete("a", "third time")
    assert play.result == "third time"
    assert [e.attempt for e in play.events(ev.NodeStarted)] == [1, 2, 3]
    assert [e.retryable for e in play.events(ev.NodeFailed)] == [True, True]


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_a_node_fails_for_good_after_its_last_attempt(attempts: int) -> None:
    play = Play(call("a", retry=Retry(attempts=attempts, backoff=0)))
    for _ in range(attempts):
        play.fail("a")
    assert play.failure.error.attempt == attempts
    assert len(play.events(ev.NodeStarted)) == attempts


def test_without_a_policy_a_node_is_tried_once() -> None:
    play = Play(call("a"))
    play.fail("a")
    assert play.failure.error.node == "a"


SUBCLASS = error("shop.Declined", "shop.PaymentError", "Exception")


@pytest.mark.parametrize(
    ("policy", "why", "again"),
    [
        ({}, error("ValueError", "Exception"), True),
        ({"on": (ConnectionError,)}, error("ValueError", "Exception"), False),
        ({"on": (ConnectionError,)}, error("ConnectionResetError", "ConnectionError", "OSError"), True),
        ({"on": ("shop.PaymentError",)}, SUBCLASS, True),
        ({"never": ("shop.PaymentError",)}, SUBCLASS, False),
        ({"never": (KeyError,)}, SUBCLASS, True),
        ({"on": ("Exception",), "never": ("shop.Declined",)}, SUBCLASS, False),
        ({}, error(retryable=False), False),  # Fail(retryable=False): the body's own word wins
        ({"on": (KeyError,)}, error(retryable=True), True),
    ],
)
def test_which_errors_are_tried_again(policy: dict[str, Any], why: ev.ErrorInfo, again: bool) -> None:
    play = Play(call("a", retry=Retry(attempts=2, backoff=0, **policy)))
    play.fail("a", why)
    assert play.state.status == ("running" if again else "failed")


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 2.0), (2, 6.0), (3, 18.0), (4, 20.0), (5, 20.0)], ids=lambda x: str(x)
)
def test_delays_grow_by_the_factor_up_to_their_maximum(failures: int, seconds: float) -> None:
    policy = Retry(attempts=9, backoff=2, factor=3, max_delay=20, jitter=0)
    play = Play(call("a", retry=policy))
    for _ in range(failures):
        before = play.now
        play.fail("a")
        delay = play.events(ev.NodeFailed)[-1].retry_at - before
        play.due()
    assert delay == seconds * SECOND


def test_jitter_is_derived_so_that_rules_stay_pure_and_spread_over_nodes_and_runs() -> None:
    def delay(run_id: str, node: str) -> int:
        play = Play(call(node, retry=Retry(attempts=2, backoff=100, max_delay=1000, jitter=0.5)), run_id=run_id)
        play.fail(node)
        return int(play.events(ev.NodeFailed)[0].retry_at - START)

    assert delay("r1", "a") == delay("r1", "a")
    assert len({delay("r1", "a"), delay("r2", "a"), delay("r1", "b")}) == 3
    assert all(50 * SECOND <= delay(f"r{i}", "a") <= 100 * SECOND for i in range(20))


def test_a_short_delay_keeps_the_run_running_and_a_long_one_suspends_it_on_a_timer() -> None:
    short = Play(call("a", retry=Retry(attempts=2, backoff=RETRY_IN_MEMORY_SECONDS, jitter=0)), result=ref("a"))
    short.fail("a")
    assert (short.state.status, short.state.timers) == ("running", {})
    assert short.state.nodes["a", "."].not_before == START + SECOND
    assert short.running == {}
    short.due()
    assert short.running == {("a", "."): {}}

    long = Play(call("a", retry=Retry(attempts=2, backoff=60, jitter=0)), result=ref("a"))
    long.fail("a")
    assert long.types() == ["NodeFailed a", "NodeScheduled a", "TimerSet", "RunSuspended"]
    assert long.state.timers == {"retry:a@.": START + 60 * SECOND}
    long.crash()
    assert long.running == {}
    long.due()
    assert long.types() == ["TimerFired", "RunResumed", "NodeStarted a"]
    long.complete("a", 1)
    assert long.result == 1


def test_retries_are_per_item_of_a_map() -> None:
    play = Play(
        mapped("m", ["const", [1, 2]], call("f", x=["param", "m", "item"], retry=RETRY_AT_ONCE)), result=ref("m")
    )
    play.fail("f", path=".m.0.")
    assert play.state.nodes["f", ".m.0."].attempt == 2
    assert play.state.nodes["f", ".m.1."].attempt == 1
    play.run({"f": lambda x: x})
    assert play.result == [1, 2]


def test_failures_alone_count_against_the_policy_and_not_attempts_that_were_cut_off() -> None:
    play = Play(call("a", retry=Retry(attempts=2, backoff=0)), result=ref("a"))
    for _ in range(3):
        play.crash()
    play.fail("a")
    assert play.state.nodes["a", "."].attempt == 5
    play.complete("a", 1)
    assert play.result == 1


# --- on_failure --------------------------------------------------------------------------------------------------


def diamond(**settings: Any) -> Play:
    return Play(
        call("a"),
        call("b"),
        call("c", x=ref("a")),
        call("d", x=ref("b")),
        call("e", x=["first", ref("c"), "default"]),
        call("f", after=("a",)),
        result=ref("e"),
        slots=2,
        **settings,
    )


def test_fail_cancels_what_runs_and_schedules_nothing_new() -> None:
    play = diamond()
    play.fail("a")
    assert play.told_to_stop == [("b", ".")]
    assert play.state.fold.closing == "failing"
    assert play.state.status == "running", "the run ends when its bodies have ended"
    play.complete("b", "made it")  # what they still return is recorded
    assert play.failure.error.node == "a"
    assert play.statuses() == dict.fromkeys("cdef", "pending") | {"a": "failed", "b": "completed"}


def test_continue_finishes_what_does_not_depend_on_it_and_then_fails() -> None:
    play = diamond(on_failure="continue")
    play.fail("a")
    assert play.told_to_stop == []
    assert play.status("c") == "skipped"
    assert play.events(ev.NodeSkipped)[0].cause == "a"
    play.run()
    assert play.statuses() == {
        "a": "failed",
        "b": "completed",
        "c": "skipped",
        "d": "completed",
        "e": "completed",
        "f": "completed",
    }
    assert play.failure.error.node == "a"


def test_under_continue_conditions_can_ask_for_the_failure() -> None:
    play = Play(
        call("a"),
        call("b", when=["failed", ref("a")]),
        call("c", when=["skipped", ref("a")]),
        call("d", when=["is_none", ref("a")]),
        on_failure="continue",
    )
    play.fail("a")
    assert (play.status("b"), play.status("c"), play.status("d")) == ("running", "skipped", "running")


def test_a_setting_of_the_run_overrides_the_workflows() -> None:
    play = Play(call("a"), call("b"), overrides={"on_failure": "continue", "timeout": 5.0})
    assert play.state.timers == {RUN_TIMEOUT: START + 5 * SECOND}
    play.fail("a")
    assert play.status("b") == "running"


def test_the_first_failure_is_the_runs_error_and_a_later_one_while_closing_is_not() -> None:
    play = Play(call("a"), call("b"), call("c"))
    play.fail("a", error("First"))
    play.fail("b", error("Second"))
    play.drop("c")
    assert play.failure.error.kinds == ("First",)
    assert play.status("b") == "cancelled", "it was being cancelled: how it ended does not matter"


def test_a_run_that_cannot_store_its_result_fails_without_a_node_to_blame() -> None:
    play = Play(call("a"))
    play.tell(cmd.FailRun(error(code="value_too_large")))
    play.drop("a")
    assert (play.failure.error.code, play.failure.error.node) == ("value_too_large", None)


# --- compensation ------------------------------------------------------------------------------------------------


def booking(*extra: Any, **options: Any) -> Play:
    return Play(
        call("flight", compensate="cancel_flight", **options),
        call("hotel", compensate="cancel_hotel", compensate_retry=RETRY_AT_ONCE, **options),
        call("plain", x=ref("flight")),
        *extra,
        call("pay", x=["list", ref("flight"), ref("hotel")], after=("plain",)),
        on_failure="compensate",
        result=ref("pay"),
    )


def test_compensations_run_one_at_a_time_in_reverse_order_of_completion_with_the_output() -> None:
    play = booking()
    play.complete("hotel", "room 5")
    play.complete("flight", "seat 1")
    play.complete("plain")
    play.fail("pay")
    assert play.state.fold.closing == "compensating"
    assert play.running == {("flight~undo", "."): {"~output": "seat 1"}}
    play.complete("flight~undo")
    assert play.running == {("hotel~undo", "."): {"~output": "room 5"}}
    play.complete("hotel~undo")
    assert play.failure.error.node == "pay"
    assert play.failure.others == ()


def test_a_compensation_has_retries_of_its_own_and_a_failing_one_does_not_stop_the_others() -> None:
    play = booking()
    play.complete("flight", "seat 1")
    play.complete("hotel", "room 5")
    play.complete("plain")
    play.fail("pay")
    for _ in range(3):
        assert play.running == {("hotel~undo", "."): {"~output": "room 5"}}
        play.fail("hotel~undo")
    assert play.running == {("flight~undo", "."): {"~output": "seat 1"}}
    play.complete("flight~undo")
    assert [(e.node, e.attempt) for e in play.failure.others] == [("hotel~undo", 3)]
    assert play.failure.error.node == "pay"


def test_only_what_completed_is_undone() -> None:
    play = booking()
    play.fail("flight")
    play.complete("hotel", "room 5")  # within the grace time
    assert play.running == {("hotel~undo", "."): {"~output": "room 5"}}
    play.complete("hotel~undo")
    assert play.failure.error.node == "flight"


def test_what_may_have_happened_is_undone_first_if_the_compensation_takes_none() -> None:
    play = booking(compensate_accepts_none=True)
    play.complete("hotel", "room 5")
    play.cancel()
    play.drop("flight")
    assert play.running == {("flight~undo", "."): {"~output": None}}
    play.complete("flight~undo")
    assert play.running == {("hotel~undo", "."): {"~output": "room 5"}}
    play.complete("hotel~undo")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_what_may_have_happened_is_named_in_the_error_if_nothing_can_undo_it() -> None:
    play = booking(call("other"))
    play.complete("hotel", "room 5")
    play.fail("other")
    play.drop("flight")
    assert play.running == {("hotel~undo", "."): {"~output": "room 5"}}
    play.complete("hotel~undo")
    assert [(e.code, e.node) for e in play.failure.others] == [("outcome_unknown", "flight")]


def test_an_attempt_that_was_cut_off_and_never_ran_again_may_have_happened() -> None:
    play = booking(compensate_accepts_none=True)
    play.slots = 0
    play.crash()
    assert play.status("flight") == "scheduled"
    play.slots = None
    play.cancel()
    assert play.running == {("flight~undo", "."): {"~output": None}} or play.running == {
        ("hotel~undo", "."): {"~output": None}
    }
    assert {e.outcome for e in play.events(ev.NodeCancelled)} == {"unknown"}


def test_an_attempt_that_may_not_be_repeated_after_a_crash_is_undone_like_any_of_unknown_outcome() -> None:
    play = booking(compensate_accepts_none=True, on_crash="fail")
    play.complete("hotel", "room 5")
    play.crash()
    assert play.running == {("flight~undo", "."): {"~output": None}}
    play.complete("flight~undo")
    assert play.running == {("hotel~undo", "."): {"~output": "room 5"}}


def test_compensations_run_on_cancel_too_and_items_of_a_map_are_undone_each() -> None:
    play = Play(
        mapped("m", ["const", [1, 2, 3]], call("f", x=["param", "m", "item"], compensate="undo_f"), limit=1),
        on_failure="compensate",
    )
    play.complete("f", "one", ".m.0.")
    play.complete("f", "two", ".m.1.")
    play.cancel("changed my mind")
    play.drop("f", ".m.2.")
    for key, output in ((1, "two"), (0, "one")):
        assert play.running == {("f~undo", f".m.{key}."): {"~output": output}}
        play.complete("f~undo", path=f".m.{key}.")
    cancelled = play.entries[-1].event
    assert isinstance(cancelled, ev.RunCancelled)
    assert cancelled.reason == "changed my mind"
    assert [(other.code, other.node, other.path) for other in cancelled.others] == [("outcome_unknown", "f", ".m.2.")]


@pytest.mark.parametrize("crash_at", ["running", "scheduled", "between", "retrying"])
def test_a_compensation_that_was_cut_off_runs_again_with_the_output_it_undoes(crash_at: str) -> None:
    play = booking()
    play.complete("flight", "seat 1")
    play.complete("hotel", "room 5")
    play.complete("plain")
    if crash_at == "scheduled":
        play.slots = 0
    play.fail("pay")
    if crash_at == "retrying":
        play.fail("hotel~undo")
    if crash_at == "between":
        play.complete("hotel~undo")
        expected = {("flight~undo", "."): {"~output": "seat 1"}}
    else:
        expected = {("hotel~undo", "."): {"~output": "room 5"}}
    play.crash()
    play.slots = None
    play.start_due()
    assert play.running == expected
    play.run()
    assert play.log.count("flight~undo") == (2 if crash_at == "between" else 1)
    assert play.failure.error.node == "pay"


def test_with_nothing_to_undo_the_run_just_fails() -> None:
    play = booking()
    play.fail("flight")
    play.drop("hotel")
    assert [e.node for e in play.failure.others] == ["hotel"]
    assert play.log == ["flight", "hotel"]


# --- cancellation ------------------------------------------------------------------------------------------------


def test_cancelling_asks_running_bodies_withdraws_the_rest_and_ends_with_one_terminal_event() -> None:
    play = Play(call("a"), call("b"), call("c", x=ref("a")), slots=1, timeout=100.0)
    play.cancel("enough")
    assert play.told_to_stop == [("a", ".")]
    assert (play.status("b"), play.status("c")) == ("cancelled", "pending")
    assert play.state.status == "running"
    assert play.refusal(cmd.StartNode("b", ".")) == "stale"
    play.drop("a")
    assert play.types() == ["NodeCancelled a", "TimerCancelled", "RunCancelled"]
    assert play.events(ev.NodeCancelled, node="a")[0].outcome == "unknown"
    assert play.events(ev.NodeCancelled, node="b")[0].outcome is None, "it never started"
    assert [outcome[:3] for outcome in play.outcomes] == [("m1", "consumed", None)]


def test_what_a_cancelled_body_still_returns_is_recorded_and_starts_nothing() -> None:
    play = Play(call("a"), call("b", x=ref("a")))
    play.cancel()
    play.complete("a", "late")
    assert play.status("a") == "completed"
    assert play.status("b") == "pending"
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_cancelled_body_that_fails_is_not_tried_again() -> None:
    play = Play(call("a", retry=RETRY_AT_ONCE))
    play.cancel()
    play.fail("a")
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_second_cancel_is_a_no_op_and_cancelling_a_finished_run_is_refused() -> None:
    play = Play(call("a"))
    play.cancel("first", "m1")
    play.cancel("second", "m2")
    assert play.types() == ["MessageConsumed"]
    assert play.told_to_stop == [("a", ".")], "the body is asked once"
    play.drop("a")
    assert play.entries[-1].event == ev.RunCancelled("first")
    play.cancel("third", "m3")
    assert play.outcomes[-1][:3] == ("m3", "dead", "finished")
    assert isinstance(play.entries[-1].event, ev.RunCancelled), "nothing is appended behind the end"


def test_a_run_that_has_not_begun_is_cancelled_at_once_and_begins_no_more() -> None:
    play = Play(call("a"), begin=False, timeout=10.0)
    play.cancel()
    assert play.types() == ["RunCancelRequested", "MessageConsumed", "RunCancelled"]
    assert play.refusal(cmd.Begin()) in ("stale", "finished")


def test_a_delayed_retry_is_withdrawn_by_a_cancel() -> None:
    play = Play(call("a", retry=Retry(attempts=2, backoff=60)))
    play.fail("a")
    play.cancel()
    assert play.types() == [
        "RunResumed",
        "RunCancelRequested",
        "MessageConsumed",
        "TimerCancelled",
        "NodeCancelled a",
        "RunCancelled",
    ]


def test_maps_are_withdrawn_after_their_items() -> None:
    play = Play(mapped("m", ["const", [1, 2, 3]], call("f", x=["param", "m", "item"]), limit=2))
    play.cancel()
    assert len(play.told_to_stop) == 2
    play.drop("f", ".m.0.")
    assert play.status("m") == "running"
    play.drop("f", ".m.1.")
    assert play.status("m") == "cancelled"
    assert isinstance(play.entries[-1].event, ev.RunCancelled)


def test_a_message_of_an_unknown_kind_is_refused_for_good_and_recorded() -> None:
    play = Play(call("a"))
    play.tell(cmd.Message("m9", "juggle", b"{}"))
    assert play.outcomes[-1][:3] == ("m9", "dead", "unknown_kind")
    assert play.events(ev.MessageRefused)[0].message_id == "m9"
    assert play.status("a") == "running"


@pytest.mark.parametrize("kind", ["cancel", "pause", "resume", "answer", "signal", "reassign", "child_ended"])
@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"\xff", b'{"reason": 5, "path": 5, "wait_id": 5, "name": 5, "child": 5}']
)
def test_a_message_that_cannot_be_read_is_refused_for_good_and_stops_nothing(kind: str, payload: bytes) -> None:
    play = Play(call("a"))
    play.tell(cmd.Message("m9", kind, payload))
    assert play.outcomes[-1][:3] == ("m9", "dead", "bad_request")
    assert play.status("a") == "running"


# --- time --------------------------------------------------------------------------------------------------------


def test_a_runs_timeout_is_a_timer_from_its_start_and_ends_it() -> None:
    play = Play(call("a"), call("b"), timeout=30.0, slots=1)
    assert play.state.timers == {RUN_TIMEOUT: START + 30 * SECOND}
    play.due()
    assert play.told_to_stop == [("a", ".")]
    play.drop("a")
    assert play.failure.error.code == "run_timeout"
    assert "30 s" in play.failure.error.message


def test_the_timeout_ends_a_suspended_run_and_is_cancelled_with_a_run_that_ends_in_time() -> None:
    play = Play(call("a"), timeout=30.0)
    play.wait("a", until=START + 1000 * SECOND)
    play.suspend("a")
    assert play.state.status == "suspended"
    play.due()
    assert play.failure.error.code == "run_timeout"

    play = Play(call("a"), timeout=30.0)
    play.complete("a")
    assert play.types() == ["TimerCancelled", "RunCompleted"]


def test_the_timeout_does_not_stop_compensations_and_a_cancelled_run_stays_cancelled() -> None:
    play = Play(call("a", compensate="undo"), call("b", x=ref("a")), on_failure="compensate", timeout=30.0)
    play.complete("a", 1)
    play.fail("b")
    play.due()
    assert play.running == {("a~undo", "."): {"~output": 1}}
    play.complete("a~undo")
    assert play.failure.error.node == "b"
