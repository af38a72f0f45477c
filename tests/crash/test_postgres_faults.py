"""PostgreSQL in bad weather, with real processes: wires that are cut, timeouts, locks, no space, no writes, clocks.

The engine is not to blame for any of it, and nobody dies: each effect is made once, in the first attempt.
What becomes of each single statement is in tests/store/postgres/test_lost_connections.py.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.crash.nursery import Nursery
from tests.crash.postgres_arena import PostgresArena
from tests.crash.test_kill_points import check_chain, check_mixed
from tests.pooler import Pooler
from tests.servers import PostgresServer, Proxy, Side
from tests.store.conformance.store import make_runs

RUNS = ("mixed:m", "steps:s", "chain:r")


@pytest.fixture
def arena(postgres: PostgresServer, tmp_path: Path, nursery: Nursery) -> Iterator[PostgresArena]:
    made = PostgresArena(postgres, tmp_path, nursery)
    yield made
    made.close()


def check_all_at_once(arena: PostgresArena) -> None:
    """Everything is right, and nothing was cut off: each body ran once."""
    check_chain(arena)
    check_mixed(arena, "m")
    assert arena.result("s") == [f"s/step {i}" for i in range(5)]
    names = [effect["name"] for effect in arena.effects()]
    assert sorted({name for name in names if names.count(name) > 1}) == ["m/flaky"], "which fails by itself, once"
    assert "RunTakenOver" not in [kind for run_id in "msr" for kind in arena.types(run_id)]


# --- the wire ------------------------------------------------------------------------------------------------------


def test_f41_f42_f44_wires_that_are_cut_all_the_time_on_the_way_there_and_back(arena: PostgresArena) -> None:
    """Any statement of an engine, or its answer, may be the one that is lost; the outcome is looked up each time."""
    cuts = 0
    for number in itertools.count():
        cuts += _with_wires_cut(arena.sibling(str(number)))
        if cuts > 20:
            return


def _with_wires_cut(arena: PostgresArena) -> int:
    """How often they were."""
    with closing(Proxy(arena.server)) as proxy, closing(arena):
        arena.way = proxy.leading
        life = arena.start(*RUNS, "innocent:i*100", HOLDFAST_LEASE_SECONDS="60")
        life.read_until("open")  # until then whatever goes wrong is told at once
        sides: Iterator[Side] = itertools.cycle(("there", "back"))
        while not life.has_ended():
            proxy.cut(next(sides))
            time.sleep(0.05)  # the moment is the point: whatever is under way then
            proxy.spare()  # or somebody who is alone, and tries again after a longer pause, would never get through
            time.sleep(0.05)
        arena.finished(life)
        check_all_at_once(arena)
    return proxy.cuts


def test_f48_behind_a_pooler_every_statement_of_an_engine_may_meet_another_session(arena: PostgresArena) -> None:
    with closing(Pooler(arena.server)) as pooler:
        arena.way = pooler.url
        arena.finish(*RUNS)
        check_all_at_once(arena)
        arena.crash("parallel:p", stay="inside b")
        for place in ("write.after:2", "commit.before:1", "transaction.end:4", "commit.after:1"):
            arena.crash(die_at=place)
        for racer in [arena.start() for _ in range(2)]:
            arena.finished(racer)
        assert arena.result("p") == ["p/a", "p/b", "p/c"]


# --- what a server says --------------------------------------------------------------------------------------------


def test_f43_whatever_is_asked_is_rolled_back_at_first(arena: PostgresArena) -> None:
    """Serialization failures, deadlocks and locks that are not to be had, at every single transaction."""
    arena.finish(*RUNS, CRASH_ROLLED_BACK="1")
    check_all_at_once(arena)


@pytest.mark.parametrize("timeout", ["lock_timeout=100ms", "statement_timeout=1s"])
def test_f46_a_timeout_of_the_server_ends_what_waits_for_somebody_elses_lock(
    arena: PostgresArena, timeout: str
) -> None:
    arena.way = lambda url: f"{url}&{timeout}"
    life = arena.start("slowly:r")
    arena.wait_for(lambda: arena.acted("r") == ["slow"])
    with arena.locked("run_state"):
        (arena.folder / "effects.gate").touch()  # its body returns, and its commit waits
        arena.rolls_back(3)
        assert arena.acted("r") == ["slow"]
    arena.finished(life)
    assert arena.acted("r") == ["slow", "two", "three"]


def test_f46_a_session_that_the_server_ends_in_the_middle_of_a_transaction_is_no_harm(arena: PostgresArena) -> None:
    ended = (arena.server.directory / "log").read_text().count("idle-in-transaction timeout")
    arena.way = lambda url: f"{url}&idle_in_transaction_session_timeout=20ms"
    arena.finish(*RUNS, CRASH_IDLE_SECONDS="0.1")
    check_all_at_once(arena)
    assert (arena.server.directory / "log").read_text().count("idle-in-transaction timeout") > ended + 1


def test_f55_a_server_that_takes_no_writes_for_a_while_is_waited_for(arena: PostgresArena) -> None:
    life = arena.start("slowly:r")
    arena.wait_for(lambda: arena.acted("r") == ["slow"])
    with arena.configured("default_transaction_read_only", "on"):
        (arena.folder / "effects.gate").touch()
        arena.rolls_back(3)
        assert arena.acted("r") == ["slow"]
    arena.finished(life)
    assert arena.acted("r") == ["slow", "two", "three"]


def test_f55_a_server_without_space_is_waited_for(arena: PostgresArena) -> None:
    """The server says what it would say (SQLSTATE 53100), in the middle of a group of commits."""
    life = arena.start("slowly:r")
    arena.wait_for(lambda: arena.acted("r") == ["slow"])
    with arena.refusing("run_events", "disk_full"):
        (arena.folder / "effects.gate").touch()
        life.read_until("disk full")
        assert arena.acted("r") == ["slow"]
    arena.finished(life)
    assert arena.acted("r") == ["slow", "two", "three"]


# --- order and ownership -------------------------------------------------------------------------------------------


def test_f49_a_signal_that_is_committed_after_a_later_one_is_received_too(arena: PostgresArena) -> None:
    """Its number is the lower one; whoever reads by numbers would have passed it by."""
    life = arena.start("collector:r", CRASH_STAY="quiet")
    life.read_until("quiet")
    ((run_no,),) = arena.query("SELECT run_no FROM run_state WHERE run_id = 'r'")
    insert = (
        "INSERT INTO run_inbox_messages (message_id, run_no, kind, payload, created_at, status) "
        "VALUES ('late', $1, 'signal', $2, 1, 'new')"
    )
    with arena.transaction() as late:
        late.wait(late.raw.execute(insert, run_no, b'{"name":"number","payload":1}'))
        asker = arena.start("signal:r:number:two=2", CRASH_CLIENT="1")
        assert "told" in asker.wait()
        arena.wait_for(lambda: arena.acted("r") == ["step 2"])
    arena.wait_for(lambda: arena.acted("r") == ["step 2", "step 1"])
    arena.kill(life)
    numbers = arena.query("SELECT message_id FROM run_inbox_messages WHERE kind = 'signal' ORDER BY no")
    assert numbers[0] == ("late",)


@pytest.mark.parametrize("lock", ["FOR UPDATE OF r SKIP LOCKED", "FOR KEY SHARE OF r SKIP LOCKED", ""])
def test_f54_whatever_lock_a_claim_takes_the_condition_of_its_update_leaves_one_owner(
    arena: PostgresArena, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    store = arena.store
    claim = store._sql["claim"]
    assert "FOR UPDATE OF r SKIP LOCKED" in claim
    monkeypatch.setitem(store._sql._named, "claim", claim.replace("FOR UPDATE OF r SKIP LOCKED", lock))
    for _ in range(5):
        numbers = make_runs(store, 100, engine=None)
        together = threading.Barrier(4)

        def race(engine: str, numbers: list[int] = numbers, together: threading.Barrier = together) -> list[int]:
            together.wait(30)
            return [row.run_no for row in store.claim(engine, numbers)]

        with ThreadPoolExecutor(4) as pool:
            won = [number for found in pool.map(race, "abcd") for number in found]
        assert sorted(won) == numbers


# --- clocks and names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [10, -10])
def test_f76_a_server_whose_clock_jumps_costs_takeovers_at_most(arena: PostgresArena, minutes: int) -> None:
    arena.with_own_clock()
    lives = [arena.start(f"slowly:{run_id}", HOLDFAST_LEASE_SECONDS="1") for run_id in "ab"]
    arena.wait_for(lambda: all(arena.acted(run_id) for run_id in "ab"))
    arena.write("UPDATE own_clock SET ahead = ahead + make_interval(mins => ?)", minutes)
    arena.wait_for(lambda: _all_know(arena, minutes))
    (arena.folder / "effects.gate").touch()
    for life in lives:
        arena.finished(life, came_back=True)
    for run_id in "ab":
        assert arena.result(run_id) == f"{run_id}/three"
        assert arena.types(run_id).count("NodeCompleted") == 3


def _all_know(arena: PostgresArena, minutes: int) -> bool:
    """Whether every lease is by the clock that jumped."""
    off = arena.query("SELECT expires_at - (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000) FROM engines")
    return len(off) == 2 and all(abs(by / 60_000_000 - minutes) < 1 for (by,) in off)


def test_f81_a_process_that_is_started_again_at_once_is_another_engine_and_waits_for_the_lease_of_the_first(
    arena: PostgresArena,
) -> None:
    first = arena.start("chain:r", CRASH_STAY="inside two", HOLDFAST_LEASE_SECONDS="1")
    first.read_until("inside two")
    first.kill()
    first.wait()
    ((name, expires_at),) = arena.query("SELECT engine, expires_at FROM engines")
    arena.finish()
    check_chain(arena)
    ((taken_at, data),) = arena.query("SELECT at, data FROM run_events WHERE type = 'RunTakenOver'")
    assert taken_at > expires_at
    taken = msgspec.json.decode(data)
    assert taken["previous"] == name
    assert taken["engine"] != name
    assert arena.acted("r") == ["one", "two", "two", "three"]
