"""A run that kills its process is found, put on hold, and keeps no other run waiting."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.model.limits import SUSPECT_RECOVERIES
from tests.crash.nursery import Life
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


def processes_inside(arena: Arena, attempt: int) -> dict[str, int]:
    """The processes in which bodies of this attempt are, by run."""
    path = Path(f"{arena.effects_file}.inside")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [line.split() for line in lines]
    return {run_id: int(pid) for run_id, n, pid in found if int(n) == attempt}


def cut_off_until_suspect(arena: Arena, count: int) -> None:
    """Engines die, each while these runs are inside their bodies, until the next one suspects them."""
    for attempt in range(1, SUSPECT_RECOVERIES + 1):
        life = arena.start(f"waits_for_gate:s*{count}")
        arena.wait_for(lambda attempt=attempt: len(processes_inside(arena, attempt)) == count)
        assert arena.kill(life)
    assert set(recoveries(arena).values()) == {SUSPECT_RECOVERIES - 1}


def inside_processes_of_their_own(arena: Arena, life: Life, attempt: int, count: int) -> set[int]:
    """Wait until every suspect is inside a process that is not the engine's, all at the same time."""
    arena.wait_for(lambda: len(processes_inside(arena, attempt)) == count)
    found = set(processes_inside(arena, attempt).values())
    assert len(found) == count
    assert life.pid not in found
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_of_a_thousand_runs_kills_its_engine_and_the_999_others_finish(arena: Arena) -> None:
    start_and_cut_off(arena, "innocent:a*499", "guilty:g", "innocent:b*500")
    # twice with the engine; then twice in a process of its own, which no engine dies of
    assert restart_until_done(arena, limit=4, deaths_max=8) == 2
    assert arena.attempts_of("g", "kill") == [2, 3, 4, 5]
    why = held(arena).pop("g")
    assert why.startswith("crash_loop: attempt 5 of killer brought its process down, after 4 recoveries")
    assert "SIGKILL" in why
    assert arena.query("SELECT status, count(*) FROM run_state GROUP BY status ORDER BY 1") == [
        ("completed", 999),
        ("running", 1),
    ]


def test_several_runs_that_kill_their_engine_are_found_in_one_life(arena: Arena) -> None:
    guilty = {f"g{i}" for i in range(3)} | {"exit"}
    start_and_cut_off(arena, "innocent:a*4", "guilty:g*3", "guilty_by_exit:exit", "innocent:b*4")
    assert restart_until_done(arena, limit=3, deaths_max=10) == 2  # which any of them may have caused
    assert held(arena).keys() == guilty
    assert "exit status 9" in held(arena)["exit"]
    assert arena.query("SELECT count(*) FROM run_state WHERE status = 'completed'") == [(8,)]


@pytest.mark.parametrize(("limit", "deaths"), [(1, 0), (2, 1), (5, 2)])
def test_only_the_run_whose_process_died_reaches_the_limit(arena: Arena, limit: int, deaths: int) -> None:
    start_and_cut_off(arena, "innocent:a*3", "guilty:g", "innocent:b*3")
    assert restart_until_done(arena, limit, deaths_max=8) == deaths
    assert held(arena).keys() == {"g"}
    assert recoveries(arena) == {"g": limit}


def test_a_run_on_hold_goes_on_when_a_person_resumes_it_and_holds_again_unless_it_was_mended(arena: Arena) -> None:
    start_and_cut_off(arena, "guilty:g")
    for begin in ((), ("resume:g",)):
        arena.finish(*begin, HOLDFAST_MAX_RECOVERIES="1")
        assert arena.status("g") == "running"
        assert held(arena)["g"].startswith("crash_loop")
    assert arena.attempts_of("g", "kill") == [2, 3]
    (arena.folder / "effects.mended").touch()
    arena.finish("resume:g", HOLDFAST_MAX_RECOVERIES="1")
    assert arena.result("g") == "g/killer"


def test_a_run_on_hold_can_be_cancelled(arena: Arena) -> None:
    start_and_cut_off(arena, "guilty:g")
    arena.finish(HOLDFAST_MAX_RECOVERIES="1")
    arena.finish("cancel:g", HOLDFAST_MAX_RECOVERIES="1")
    assert arena.status("g") == "cancelled"
    assert arena.attempts_of("g", "kill") == [2]


def test_nothing_waits_for_suspects_and_they_do_not_wait_for_each_other(arena: Arena) -> None:
    cut_off_until_suspect(arena, 4)
    life = arena.start("innocent:new*20", "lazy_sleep:timer")
    done = "SELECT 1 FROM run_state WHERE status = 'completed' AND run_id = ?"
    arena.wait_for(lambda: arena.query(done, "timer") and arena.query(done, "new19"))
    inside_processes_of_their_own(arena, life, SUSPECT_RECOVERIES + 1, 4)
    assert not any(arena.query(done, f"s{i}") for i in range(4))
    (arena.folder / "effects.gate").touch()
    arena.finished(life)
    assert [arena.result(f"s{i}") for i in range(4)] == [f"s{i}/patient" for i in range(4)]


def test_engines_that_die_with_the_processes_of_suspects_are_no_evidence_and_leave_none_behind(arena: Arena) -> None:
    cut_off_until_suspect(arena, 2)
    for attempt in range(SUSPECT_RECOVERIES + 1, SUSPECT_RECOVERIES + 4):
        life = arena.start(HOLDFAST_MAX_RECOVERIES=str(SUSPECT_RECOVERIES))
        orphans = inside_processes_of_their_own(arena, life, attempt, 2)
        assert arena.kill(life)
        arena.wait_for(lambda orphans=orphans: not any(map(is_alive, orphans)))
        assert recoveries(arena) == {"s0": SUSPECT_RECOVERIES, "s1": SUSPECT_RECOVERIES}
        assert held(arena) == {}
    (arena.folder / "effects.gate").touch()
    arena.finish()


def test_a_suspect_whose_process_is_killed_runs_again_and_the_other_is_not_disturbed(arena: Arena) -> None:
    cut_off_until_suspect(arena, 2)
    attempt = SUSPECT_RECOVERIES + 1
    life = arena.start()
    inside_processes_of_their_own(arena, life, attempt, 2)
    os.kill(processes_inside(arena, attempt)["s0"], signal.SIGKILL)
    arena.wait_for(lambda: "s0" in processes_inside(arena, attempt + 1))
    assert recoveries(arena) == {"s0": SUSPECT_RECOVERIES + 1, "s1": SUSPECT_RECOVERIES}
    (arena.folder / "effects.gate").touch()
    arena.finished(life)
    assert processes_inside(arena, attempt + 1).keys() == {"s0"}
    assert arena.started_attempts("s1")["patient", "."] == [*range(1, attempt + 1)]


def test_an_orderly_stop_while_a_suspect_is_tried_counts_nothing(arena: Arena) -> None:
    start_and_cut_off(arena, "guilty:g")
    inside = Path(f"{arena.effects_file}.inside")
    for _ in range(3):
        inside.unlink(missing_ok=True)
        life = arena.start(HOLDFAST_MAX_RECOVERIES="1", HOLDFAST_GRACE_SECONDS="0", CRASH_STAY=CUT_OFF)
        arena.wait_for(lambda: processes_inside(arena, 2))
        life.send_signal(signal.SIGINT)
        assert not arena.died(life)
        assert recoveries(arena) == {"g": 1}
        assert held(arena) == {}
    (arena.folder / "effects.mended").touch()
    arena.finish(HOLDFAST_MAX_RECOVERIES="1")
    assert arena.result("g") == "g/killer"
