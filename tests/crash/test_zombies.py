"""Engines that stand still past their lease and come back, and several that want the same runs."""

from __future__ import annotations

import signal
import time

import pytest

from tests.crash.nursery import Life
from tests.crash.supervisor import Arena
from tests.crash.test_kill_points import check_chain

SHORT_LEASE = {"HOLDFAST_LEASE_SECONDS": "0.3"}


def tokens(arena: Arena, run_id: str) -> list[int]:
    """The tokens of a run's events, in the order of its journal."""
    return [
        token
        for (token,) in arena.query(
            "SELECT e.token FROM run_events AS e JOIN run_state USING (run_no) WHERE run_id = ? ORDER BY seq", run_id
        )
    ]


def come_back(arena: Arena, zombie: Life) -> None:
    """Let it go on after somebody else has finished its run; it finds that there is nothing left to do."""
    before = [arena.events("r"), tokens(arena, "r")]
    zombie.send_signal(signal.SIGCONT)
    arena.finished(zombie, came_back=True)
    assert [arena.events("r"), tokens(arena, "r")] == before, "the zombie has written"
    assert before[1] == sorted(before[1])


def test_k13_an_engine_that_was_paused_past_its_lease_writes_nothing_when_it_comes_back(arena: Arena) -> None:
    zombie = arena.start("slowly:r", **SHORT_LEASE)
    arena.wait_for(lambda: arena.acted("r") == ["slow"])
    arena.stand_still(zombie)
    arena.finish()  # its lock is held, so its lease decides
    assert arena.result("r") == "r/three"
    (arena.folder / "effects.gate").touch()  # the zombie's body may return now
    come_back(arena, zombie)
    assert arena.attempts_of("r", "slow") == [1, 2]
    assert arena.acted("r") == ["slow", "slow", "two", "three"]


@pytest.mark.parametrize(
    "place",
    [
        *(f"commit.before:{n}" for n in (2, 3, 4)),
        *(f"commit.after:{n}" for n in (1, 2, 3)),
        *(f"body.before:{n}" for n in (1, 2)),
        *(f"body.after:{n}" for n in (1, 2, 3)),
    ],
)
def test_f69_an_engine_that_stands_still_at_any_boundary_is_fenced(arena: Arena, place: str) -> None:
    """Whatever it was about to do when it stopped, it does it too late: the write is refused."""
    zombie = arena.start("chain:r", CRASH_STOP_AT=place, **SHORT_LEASE)
    arena.wait_for(zombie.is_stopped)
    arena.finish()
    check_chain(arena)
    come_back(arena, zombie)
    check_chain(arena)
    assert len(arena.acted("r")) <= 4, "it may have begun the body that it was about to, and nothing after it"


def test_f69_a_zombie_repeats_no_effect_that_a_receiver_has_seen_under_its_key(arena: Arena) -> None:
    zombie = arena.start("mixed:r", CRASH_STOP_AT="body.before:5", **SHORT_LEASE)
    arena.wait_for(zombie.is_stopped)
    arena.finish()
    came_first = {effect["key"] for effect in arena.effects()}
    come_back(arena, zombie)
    assert {effect["key"] for effect in arena.effects()} == came_first


def test_a_lease_of_another_host_is_waited_for(arena: Arena) -> None:
    """Only on this host can a lock tell that an engine is dead."""
    arena.crash("chain:r", stay="inside two")
    expires_at = time.time_ns() // 1000 + 700_000
    arena.write("UPDATE engines SET boot = 'elsewhere', expires_at = ?", expires_at)
    arena.finish()
    check_chain(arena)
    ((taken_at,),) = arena.query("SELECT at FROM run_events WHERE type = 'RunTakenOver'")
    assert taken_at >= expires_at


def test_engines_that_were_frozen_together_past_their_leases_do_not_bury_each_other(arena: Arena) -> None:
    """A container that is paused, or a machine that stalls: the first engine that runs again must not take the silence
    of the others for their death."""
    lease = {"HOLDFAST_LEASE_SECONDS": "2"}  # a loaded machine gives both a turn within it
    busy = arena.start("slowly:r", **lease)
    arena.wait_for(lambda: arena.acted("r") == ["slow"])
    idle = arena.start(**lease)
    arena.wait_for(lambda: len(arena.query("SELECT engine FROM engines")) == 2)
    for life in (busy, idle):
        arena.stand_still(life)
    ((last,),) = arena.query("SELECT max(awake_until) FROM engines")
    arena.wait_for(lambda: time.monotonic_ns() // 1000 > last)
    for life in (idle, busy):
        life.send_signal(signal.SIGCONT)
    arena.wait_for(lambda: arena.query("SELECT min(awake_until) FROM engines")[0][0] > last + 1_000_000)
    (arena.folder / "effects.gate").touch()
    for life in (busy, idle):
        arena.finished(life)
    assert arena.acted("r") == ["slow", "two", "three"]
    assert arena.attempts_of("r", "slow") == [1]


def test_a_free_lock_is_enough_on_this_host_however_long_the_lease(arena: Arena) -> None:
    arena.crash("chain:r", stay="inside two", HOLDFAST_LEASE_SECONDS="3600")
    arena.finish()
    check_chain(arena)


def test_a_lock_file_that_is_gone_means_a_dead_engine(arena: Arena) -> None:
    arena.crash("chain:r", stay="inside two", HOLDFAST_LEASE_SECONDS="3600")
    for lock in arena.folder.glob("runs.db-engines/*"):
        lock.unlink()
    arena.finish()
    check_chain(arena)


def test_f73_of_eight_engines_that_race_to_recover_thirty_runs_each_run_has_one(arena: Arena) -> None:
    cut_off = arena.start("innocent:r*30", CRASH_STAY="all inside")
    cut_off.read_until("started")
    arena.kill(cut_off)
    for racer in [arena.start() for _ in range(8)]:
        arena.finished(racer)
    assert arena.query("SELECT count(*) FROM run_state WHERE status = 'completed'") == [(30,)]
    took_over = arena.query(
        "SELECT run_no, count(*) FROM run_events WHERE type = 'RunTakenOver' GROUP BY run_no HAVING count(*) <> 1"
    )
    assert took_over == []
    assert arena.query("SELECT DISTINCT attempt FROM run_node_state") == [(2,)]


def test_f10_recovery_itself_can_be_killed_again_and_again(arena: Arena) -> None:
    """At every write of taking over, and at the first commit after it."""
    arena.crash("mixed:m", "chain:r", stay="inside two")
    for n in range(1, 7):
        for place in ("write.before", "write.after", "transaction.end"):
            arena.crash(die_at=f"{place}:{n}")
        arena.crash(die_at="commit.before:1")
    arena.finish()
    check_chain(arena)
