"""A run that kills its engine is found, put on hold, and costs the runs beside it nothing but time."""

from __future__ import annotations

import signal

import pytest

from tests.crash.supervisor import Arena

CUT_OFF = "all inside"
"""The first life: every body is running when the supervisor kills the engine."""


def restart_until_done(arena: Arena, limit: int, deaths_max: int) -> int:
    """What a service manager does; how often the engine died."""
    for deaths in range(deaths_max + 1):
        if not arena.died(arena.start(HOLDFAST_MAX_RECOVERIES=str(limit)), look=deaths % 4 == 0):
            arena.look()
            return deaths
    raise AssertionError(f"still not done after {deaths_max} deaths")


def held(arena: Arena) -> dict[str, str]:
    return dict(arena.query("SELECT run_id, hold FROM run_state WHERE hold IS NOT NULL"))


def recoveries(arena: Arena) -> dict[str, int]:
    return dict(arena.query("SELECT run_id, recoveries FROM run_state WHERE status = 'running'"))


def start_and_cut_off(arena: Arena, *runs: str) -> None:
    life = arena.start(*runs, CRASH_STAY=CUT_OFF)
    life.read_until("started")
    arena.wait_for(lambda: not arena.query("SELECT 1 FROM run_node_state WHERE status <> 'running' LIMIT 1"))
    assert arena.kill(life)


def test_one_of_a_thousand_runs_kills_its_engine_and_the_999_others_finish(arena: Arena) -> None:
    start_and_cut_off(arena, "innocent:a*499", "guilty:g", "innocent:b*500")
    # twice beside everybody, twice alone; the fourth time would be one more than it may
    assert restart_until_done(arena, limit=4, deaths_max=8) == 4
    assert held(arena) == {"g": "crash_loop: 4 engines died in a row while this run made no progress"}
    assert arena.attempts_of("g", "kill") == [2, 3, 4, 5]
    assert arena.query("SELECT status, count(*) FROM run_state GROUP BY status ORDER BY 1") == [
        ("completed", 999),
        ("running", 1),
    ]
    # nobody but the guilty one was cut off after the second recovery
    attempts = arena.query(
        "SELECT max(attempt) FROM run_node_state JOIN run_state USING (run_no) WHERE workflow = 'innocent'"
    )
    assert attempts == [(4,)]


def test_several_runs_that_kill_their_engine_are_found_one_after_the_other(arena: Arena) -> None:
    guilty = {f"g{i}" for i in range(3)} | {"exit"}
    start_and_cut_off(arena, "innocent:a*20", "guilty:g*3", "guilty_by_exit:exit", "innocent:b*20")
    deaths = restart_until_done(arena, limit=3, deaths_max=10)
    assert deaths == 2 + len(guilty)  # two that anybody may have caused, then each of them once alone
    assert held(arena).keys() == guilty
    assert all(why.startswith("crash_loop: 3 ") for why in held(arena).values())
    assert arena.query("SELECT count(*) FROM run_state WHERE status = 'completed'") == [(40,)]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_only_the_run_that_died_alone_reaches_the_limit(arena: Arena, limit: int) -> None:
    start_and_cut_off(arena, "innocent:a*10", "guilty:g", "innocent:b*10")
    assert restart_until_done(arena, limit, deaths_max=8) == limit
    assert held(arena).keys() == {"g"}
    assert recoveries(arena) == {"g": limit}


def test_a_run_on_hold_that_was_mended_goes_on_when_a_person_resumes_it(arena: Arena) -> None:
    start_and_cut_off(arena, "guilty:g")
    restart_until_done(arena, limit=1, deaths_max=2)
    (arena.folder / "effects.mended").touch()
    arena.finish("resume:g", HOLDFAST_MAX_RECOVERIES="1")
    assert arena.result("g") == "g/killer"


def test_new_runs_wait_while_a_suspect_is_tried_and_then_finish(arena: Arena) -> None:
    start_and_cut_off(arena, "guilty:g")
    life = arena.start("innocent:new*50", HOLDFAST_MAX_RECOVERIES="1")
    assert arena.died(life)
    restart_until_done(arena, limit=1, deaths_max=1)
    arena.finish("innocent:new*50", HOLDFAST_MAX_RECOVERIES="1")
    assert arena.query("SELECT count(*) FROM run_state WHERE status = 'completed'") == [(50,)]
    # whether or not they were there when it died: none of them was running
    assert arena.query("SELECT max(attempt) FROM run_node_state WHERE node = 'bystander'") == [(1,)]


def test_an_orderly_stop_while_a_suspect_is_tried_counts_nothing(arena: Arena) -> None:
    start_and_cut_off(arena, "guilty:g")
    for _ in range(3):
        life = arena.start(HOLDFAST_MAX_RECOVERIES="1", HOLDFAST_GRACE_SECONDS="0", CRASH_STAY=CUT_OFF)
        life.read_until("inside killer")
        life.send_signal(signal.SIGINT)
        assert not arena.died(life)
        assert recoveries(arena) == {"g": 1}
        assert held(arena) == {}
    (arena.folder / "effects.mended").touch()
    arena.finish(HOLDFAST_MAX_RECOVERIES="1")
    assert arena.result("g") == "g/killer"
