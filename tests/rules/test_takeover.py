"""What a new owner does with a run that somebody else left (SEMANTICS 1, 11, 18; K-01 to K-05, K-09)."""

from __future__ import annotations

import pytest

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.policies import Retry
from tests.rules.play import SECOND, START, Play, call, mapped, ref


def test_a_run_that_was_written_down_and_never_begun_begins() -> None:
    play = Play(call("a"), call("b"), begin=False, timeout=9.0)
    play.crash()
    assert set(play.running) == {("a", "."), ("b", ".")}
    assert [e.attempt for e in play.events(ev.NodeScheduled)] == [1, 1]
    assert len(play.events(ev.TimerSet)) == 1


def test_nothing_completed_runs_again_started_runs_again_and_scheduled_keeps_its_attempt() -> None:
    play = Play(call("a"), call("b"), call("c"), call("d", x=ref("a")), slots=2, result=["list", ref("c"), ref("d")])
    play.complete("a", 1)
    assert play.statuses() == {"a": "completed", "b": "running", "c": "scheduled", "d": "scheduled"}
    before = {name: (play.status(name), play.state.nodes[name, "."].attempt) for name in "abcd"}
    play.slots = None
    play.crash()
    for name, (status, attempt) in before.items():
        after = play.state.nodes[name, "."]
        expected = {"completed": attempt, "running": attempt + 1, "scheduled": attempt}[status]
        assert after.attempt == expected, name
        assert after.status == ("completed" if status == "completed" else "running")
    play.run()
    assert play.log.count("a") == 1


def test_downstream_of_a_completed_node_is_not_lost() -> None:
    play = Play(call("a"), call("b", x=ref("a")), call("c", x=ref("b")), result=ref("c"))
    for name in "abc":
        play.crash()
        assert set(play.running) == {(name, ".")}
        play.complete(name, name)
    assert play.result == "c"


def test_a_graceful_stop_costs_no_attempt_and_counts_as_no_recovery() -> None:
    play = Play(call("a"), result=ref("a"))
    play.crash(graceful=True)
    assert play.events(ev.NodeSuspended)[0].mode == "stop"
    assert play.running == {("a", "."): {}}
    assert play.state.nodes["a", "."].attempt == 1
    assert play.state.recoveries == 0
    play.complete("a", 1)
    assert play.result == 1


def test_a_body_of_which_only_a_part_waited_goes_on_after_a_graceful_stop() -> None:
    """Suspended it would sleep until the timer, with the rest of its work undone."""
    play = Play(call("a"), result=ref("a"))
    wait_id = play.wait("a", until=START + 86_400 * SECOND)
    play.crash(graceful=True)
    assert play.running == {("a", "."): {}}
    assert play.state.nodes["a", "."].attempt == 1
    assert play.state.nodes["a", "."].waits == (wait_id,)


def test_recoveries_count_crashes_in_a_row_without_progress() -> None:
    play = Play(call("a"), call("b"))
    for n in (1, 2, 3):
        play.crash()
        assert play.state.recoveries == n
    play.tell(cmd.RecordStep("a", ".", 4, ev.StepCompleted("", 0, "step", "f", "d", b"1")))
    assert play.state.recoveries == 0
    play.crash()
    play.tell(cmd.Checkpoint("a", ".", 5, b"1", 1))
    assert play.state.recoveries == 0
    play.crash()
    play.complete("b")
    assert play.state.recoveries == 0


@pytest.mark.parametrize(("on_crash", "status"), [("rerun", "running"), ("fail", "failed"), ("ask", "suspended")])
def test_what_happens_to_an_attempt_that_was_cut_off(on_crash: str, status: str) -> None:
    play = Play(call("a", on_crash=on_crash, retry=Retry(attempts=3, backoff=0)))
    play.crash()
    assert play.status("a") == status
    if on_crash == "fail":
        assert play.failure.error.code == "outcome_unknown"
        assert play.failure.error.kinds == ("holdfast.model.errors.OutcomeUnknown",)
    if on_crash == "ask":
        assert play.state.status == "suspended"


def test_on_crash_does_not_matter_for_what_never_started() -> None:
    play = Play(call("a", on_crash="fail"), slots=0)
    play.slots = None
    play.crash()
    assert play.running == {("a", "."): {}}


def test_a_takeover_is_recorded_with_code_that_changed() -> None:
    play = Play(call("a"))
    play.state = play._from_tables()
    play.tell(cmd.TakeOver("eng", 7, "old", False, (("a", "was", "now"),)))
    assert play.types()[:2] == ["RunTakenOver", "CodeChanged"]
    assert play.events(ev.RunTakenOver)[0] == ev.RunTakenOver("eng", 7, "old", False)
    assert play.events(ev.CodeChanged)[0] == ev.CodeChanged("a", "was", "now")


def test_a_run_that_was_being_cancelled_goes_on_ending() -> None:
    play = Play(call("a"), call("b"), call("c", x=ref("a")))
    play.cancel()
    play.crash()
    assert play.events(ev.NodeCancelled, node="a")[0].outcome == "unknown"
    assert isinstance(play.entries[-1].event, ev.RunCancelled)
    assert play.log == ["a", "b"]


def test_a_cancel_that_waited_for_an_owner_is_heard_before_anything_runs_again() -> None:
    cancel = cmd.Message("m1", "cancel", b'{"reason":"late"}')
    play = Play(call("a"))
    play.crash(first=[cancel])
    assert play.entries[-1].event == ev.RunCancelled("late")
    assert play.log == ["a"], "the body did not run again"

    play = Play(call("a"), slots=0)  # nothing runs: it ends before the takeover, which then has nothing to say
    play.slots = None
    play.crash(first=[cancel])
    assert play.entries[-1].event == ev.RunCancelled("late")
    assert play.log == []


def test_an_interrupted_branch_runs_again_alone_and_the_join_completes() -> None:
    play = Play(call("a"), call("b"), call("j", x=["list", ref("a"), ref("b")]), result=ref("j"))
    play.complete("a", "A")
    play.crash()
    assert set(play.running) == {("b", ".")}
    play.complete("b", "B")
    play.crash()
    assert play.running == {("j", "."): {"x": ["A", "B"]}}
    play.complete("j", "done")
    assert play.result == "done"
    assert play.log == ["a", "b", "b", "j", "j"]


def test_a_map_goes_on_where_it_was_with_the_same_items_in_flight() -> None:
    play = Play(mapped("m", ["const", list(range(7))], call("f", x=["param", "m", "item"]), limit=2), result=ref("m"))
    play.complete("f", "f1", ".m.1.")
    play.complete("f", "f2", ".m.2.")
    play.crash()
    assert set(play.running) == {("f", ".m.0."), ("f", ".m.3.")}
    assert play.state.nodes["f", ".m.0."].attempt == 2
    play.run({"f": lambda x: f"f{x}"})
    assert play.result == [f"f{i}" for i in range(7)]
    assert play.log.count("f@.m.1.") == play.log.count("f@.m.2.") == 1


def test_items_whose_parameters_were_not_yet_provided_begin_after_a_crash() -> None:
    item = ["param", "m", "item"]
    play = Play(
        mapped("m", ["const", [1, 2, 3]], call("f", x=item, when=["gt", item, 1])), result=ref("m"), begin=False
    )
    play._provide_params = lambda scope: None  # type: ignore[method-assign]  # the engine dies before it provides them
    play.tell(cmd.Begin())
    del play._provide_params
    play.crash()
    play.run({"f": lambda x: x})
    assert play.result == [None, 2, 3]


def test_a_result_that_was_not_yet_written_is_asked_for_again() -> None:
    play = Play(call("a"), result=ref("a"))
    act, play._act = play._act, lambda draft: None  # type: ignore[method-assign]  # dies before FinishRun
    play.complete("a", 5)
    play._act = act  # type: ignore[method-assign]
    assert play.state.status == "running"
    play.crash()
    assert play.result == 5
