"""Kill here, expect this: real processes, real SIGKILL, at the kill points K-01 to K-05, K-09, K-21 and K-24."""

from __future__ import annotations

import pytest

from tests.crash.supervisor import Arena

CHAIN = ["one", "two", "three"]


def check_chain(arena: Arena, run_id: str = "r") -> None:
    assert arena.result(run_id) == f"{run_id}/three"
    assert arena.types(run_id).count("RunCreated") == 1
    assert [arena.types(run_id).count("NodeCompleted")] == [3]


@pytest.mark.smoke
def test_k01_after_the_run_row_and_before_the_first_unit(arena: Arena) -> None:
    assert arena.crash("chain:r", die_at="commit.after:1")
    assert arena.types("r") == ["RunCreated", "NodeScheduled", "NodeStarted"]
    assert arena.effects() == []
    arena.finish()
    check_chain(arena)
    assert arena.acted("r") == CHAIN


def test_k01_before_the_run_row_the_run_does_not_exist_and_can_be_started_again(arena: Arena) -> None:
    assert arena.crash("chain:r", die_at="commit.before:1")
    assert arena.query("SELECT count(*) FROM run_state") == [(0,)]
    arena.finish("chain:r")
    check_chain(arena)
    assert arena.acted("r") == CHAIN
    assert arena.attempts_of("r", "one") == [1]


def test_k02_scheduled_and_not_started_keeps_its_attempt_and_runs_once(arena: Arena) -> None:
    arena.crash("queue:r", stay="inside first")
    assert arena.started_attempts("r") == {("first", "."): [1]}
    assert ("NodeScheduled", "second") in [event[:2] for event in arena.events("r")]
    arena.finish()
    assert arena.result("r") == ["r/first", "r/second"]
    assert arena.started_attempts("r") == {("first", "."): [1, 2], ("second", "."): [1]}
    assert arena.acted("r").count("second") == 1
    assert arena.attempts_of("r", "second") == [1]


@pytest.mark.smoke
@pytest.mark.parametrize("where", ["one", "two"])
def test_k03_inside_a_unit_it_runs_again_with_the_next_attempt_and_the_same_key(arena: Arena, where: str) -> None:
    arena.crash("chain:r", stay=f"inside {where}")
    arena.finish()
    check_chain(arena)
    assert arena.attempts_of("r", where) == [1, 2]
    others = [name for name in CHAIN if name != where]
    assert [arena.attempts_of("r", name) for name in others] == [[1], [1]]


def test_k03_before_a_body_that_is_already_recorded_as_started(arena: Arena) -> None:
    assert arena.crash("chain:r", die_at="body.before:2")
    arena.finish()
    check_chain(arena)
    assert arena.acted("r") == CHAIN
    assert arena.started_attempts("r")["two", "."] == [1, 2]


@pytest.mark.parametrize("die_at", ["body.after:1", "body.after:2", "body.after:3", "commit.before:2"])
def test_k04_a_result_that_was_computed_and_not_persisted_is_computed_again(arena: Arena, die_at: str) -> None:
    assert arena.crash("chain:r", die_at=die_at)
    before = arena.acted("r")
    arena.finish()
    check_chain(arena)
    assert arena.acted("r") == [*before, *CHAIN[len(before) - 1 :]]
    assert arena.attempts_of("r", before[-1]) == [1, 2]


@pytest.mark.parametrize(("die_at", "done"), [("commit.after:2", 1), ("commit.after:3", 2), ("commit.after:4", 3)])
def test_k05_a_completed_unit_is_not_run_again_and_its_downstream_is(arena: Arena, die_at: str, done: int) -> None:
    assert arena.crash("chain:r", die_at=die_at)
    assert arena.acted("r") == CHAIN[:done]
    assert arena.types("r").count("NodeCompleted") == done
    arena.finish()
    check_chain(arena)
    assert arena.acted("r") == CHAIN


def test_k05_a_run_that_has_ended_is_not_touched_again(arena: Arena) -> None:
    assert arena.crash("chain:r", die_at="commit.after:4")
    before = arena.events("r")
    arena.finish("chain:r")
    assert arena.events("r") == before


@pytest.mark.parametrize("which", ["a", "b", "c"])
def test_k09_one_parallel_branch_is_interrupted_and_only_it_runs_again(arena: Arena, which: str) -> None:
    process = arena.start("parallel:r", CRASH_STAY=f"inside {which}")
    process.read_until(f"inside {which}")
    arena.wait_for(lambda: arena.types("r").count("NodeCompleted") == 2)
    assert arena.kill(process)
    arena.finish()
    assert arena.result("r") == ["r/a", "r/b", "r/c"]
    for name in "abc":
        assert arena.attempts_of("r", name) == ([1, 2] if name == which else [1])
    assert arena.acted("r").count("join") == 1


def test_k09_all_parallel_branches_are_interrupted_and_all_run_again(arena: Arena) -> None:
    process = arena.start("parallel:r", CRASH_STAY="inside all")
    arena.wait_for(lambda: len(arena.effects()) == 3)
    assert arena.kill(process)
    arena.finish()
    assert arena.result("r") == ["r/a", "r/b", "r/c"]
    assert [arena.attempts_of("r", name) for name in "abc"] == [[1, 2]] * 3
    assert arena.acted("r").count("join") == 1


@pytest.mark.parametrize("die_at", ["body.before:4", "body.after:4", "commit.after:3"])
def test_k09_all_branches_joined_and_the_parent_did_not_end(arena: Arena, die_at: str) -> None:
    assert arena.crash("parallel:r", die_at=die_at)
    arena.finish()
    assert arena.result("r") == ["r/a", "r/b", "r/c"]


def check_mixed(arena: Arena, run_id: str) -> None:
    result = arena.result(run_id)
    assert result["items"] == [f"{run_id}/item {i}" for i in range(4)]
    assert result["threads"] == [f"{run_id}/sync {i}" for i in range(3)]
    assert (result["counted"], result["tried"], result["never"]) == (3, f"{run_id}/flaky", None)
    assert [name.rpartition("/")[2] for name in result["child"]] == [
        "step 0",
        "step 1",
        "step 10",
        "step 11",
        "step 12",
    ]
    for attempts in arena.started_attempts(run_id).values():
        assert attempts == list(range(1, len(attempts) + 1)), "attempts are 1..n"


def test_k21_a_lazy_run_repeats_its_fast_steps_with_the_same_keys_and_attempt(arena: Arena) -> None:
    arena.crash("lazy_steps:r", stay="after five steps")
    assert arena.types("r") == ["RunCreated", "NodeScheduled", "NodeStarted"]
    assert arena.acted("r") == ["body", *(f"step {i}" for i in range(5))]
    arena.finish()
    assert arena.result("r") == [f"r/step {i}" for i in range(5)]
    for i in range(5):
        assert len(arena.attempts_of("r", f"step {i}")) == 2


def test_k21_an_aggressive_run_repeats_none_of_its_steps(arena: Arena) -> None:
    arena.crash("steps:r", stay="after five steps")
    arena.finish()
    assert arena.result("r") == [f"r/step {i}" for i in range(5)]
    for i in range(5):
        assert arena.attempts_of("r", f"step {i}") == [1]
    assert arena.attempts_of("r", "body") == [1, 2]


def test_k21_a_lazy_run_resumes_at_the_last_place_where_it_had_to_commit(arena: Arena) -> None:
    arena.crash("lazy_sleep:r", stay="after the sleep")
    arena.finish()
    assert arena.result("r") == [f"r/step {i}" for i in range(6)]
    assert [len(arena.attempts_of("r", f"step {i}")) for i in range(6)] == [1, 1, 1, 2, 2, 2]


def test_k24_two_engines_that_resume_at_once_do_not_do_anything_twice(arena: Arena) -> None:
    arena.crash("mixed:m", "steps:s", "chain:r", stay="inside two")
    for racer in [arena.start() for _ in range(3)]:
        arena.finished(racer)
    check_chain(arena)
    check_mixed(arena, "m")
    assert arena.attempts_of("r", "two") == [1, 2]
    assert arena.attempts_of("r", "three") == [1]
    assert arena.types("r").count("RunTakenOver") == 1
    assert arena.query("SELECT count(*) FROM run_branches") == [(0,)]
    assert {event["branch"] for event in _branches(arena)} == {1}


def _branches(arena: Arena) -> list[dict[str, int]]:
    return [{"branch": branch} for (branch,) in arena.query("SELECT DISTINCT branch FROM run_events")]


def test_k24_an_engine_that_opens_beside_a_living_one_leaves_its_runs_alone(arena: Arena) -> None:
    first = arena.start("chain:r", CRASH_STAY="inside two")
    first.read_until("inside two")
    second = arena.start("chain:other")
    second.read_until("started")
    arena.wait_for(lambda: arena.status("other") == "completed")
    assert arena.status("r") == "running"
    assert arena.attempts_of("r", "two") == [1]
    assert "RunTakenOver" not in arena.types("r")
    # the survivor, which waits for every unfinished run, takes over when the owner dies
    first.kill()
    first.wait()
    arena.gone(first)
    arena.finished(second)
    check_chain(arena)
    assert arena.attempts_of("r", "two") == [1, 2]


# --- what is not among the numbered points --------------------------------------------------------------------------


def test_a_node_that_may_not_be_repeated_fails_after_a_crash(arena: Arena) -> None:
    arena.crash("once:r", stay="inside careful")
    arena.finish()
    assert arena.status("r") == "failed"
    assert arena.acted("r") == ["careful"]
    assert arena.events("r")[-1][3]["error"]["code"] == "outcome_unknown"


def test_a_node_that_may_not_be_repeated_is_not_in_a_lazy_run_either(arena: Arena) -> None:
    arena.crash("once_lazily:r", stay="inside careful")
    arena.finish()
    assert arena.status("r") == "failed"
    assert arena.acted("r").count("careful") == 1
    assert arena.events("r")[-1][3]["error"]["code"] == "outcome_unknown"


def test_a_step_that_may_not_be_repeated_is_not_also_in_its_second_try(arena: Arena) -> None:
    arena.crash("once_in_code:r", stay="inside the second try")
    assert arena.acted("r") == ["careful step", "careful step"]
    arena.finish()
    assert arena.status("r") == "failed"
    assert arena.acted("r") == ["careful step", "careful step"]
    assert arena.events("r")[-1][3]["error"]["code"] == "outcome_unknown"


@pytest.mark.parametrize("where", ["hotel", "flight"])
def test_a_crash_inside_a_compensation_repeats_it_with_what_it_undoes(arena: Arena, where: str) -> None:
    arena.crash("trip:r", stay=f"inside undo {where}")
    arena.finish()
    assert arena.status("r") == "failed"
    expected = ["flight", "hotel", "refused", "undo hotel", "undo flight"]
    expected.insert(expected.index(f"undo {where}"), f"undo {where}")
    assert arena.acted("r") == expected
    assert "others" not in arena.events("r")[-1][3]


def test_progress_between_deaths_is_no_crash_loop(arena: Arena) -> None:
    for stay in ("inside one", "inside two"):
        arena.crash("chain:r", stay=stay, HOLDFAST_MAX_RECOVERIES="2")
        arena.crash("chain:r", stay=stay, HOLDFAST_MAX_RECOVERIES="2")
    arena.finish(HOLDFAST_MAX_RECOVERIES="2")
    check_chain(arena)


def test_a_cancel_that_was_asked_for_before_the_death_is_carried_out_after_it(arena: Arena) -> None:
    arena.crash("chain:r", stay="inside one")
    # who only asks: one that also recovers may die of the commit of its takeover, before it has asked for anything
    assert arena.crash("cancel:r", die_at="commit.before:1", CRASH_CLIENT="1")
    arena.finish()
    assert arena.status("r") == "cancelled"
    assert arena.acted("r") == ["one"]


def test_a_body_that_only_waits_beside_one_that_works_waits_again_after_each_crash(arena: Arena) -> None:
    """It is not taken for one that was cut off: its attempt stays, and it is no reason to suspect the run."""
    for _ in range(3):
        life = arena.start("beside:r", CRASH_STAY="inside works")
        life.read_until("inside works")
        arena.wait_for(lambda: dict(arena.query("SELECT node, status FROM run_node_state")) == ASLEEP)
        assert arena.kill(life)
    arena.finish("cancel:r", CRASH_CLIENT="1")  # who drives runs as well may have begun a fourth attempt before it asks
    assert arena.status("r") == "cancelled"
    assert arena.started_attempts("r") == {("sleeper", "."): [1], ("sync_sleeper", "."): [1], ("works", "."): [1, 2, 3]}
    assert len(arena.attempts_of("r", "falls asleep")) == 3, "the thread's body runs again once a life, not for ever"


ASLEEP = {"sleeper": "suspended", "sync_sleeper": "suspended", "works": "running"}
