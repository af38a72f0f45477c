"""Kills at random moments, over and over, on one file: whatever the moment, everything ends right and acts once.

`make soak` has fifteen times as many; HOLDFAST_SEED=n repeats one.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from holdfast.engine.crash_points import PLACES
from tests.crash.supervisor import Arena
from tests.crash.test_kill_points import check_chain, check_mixed

LONG = pytest.mark.timeout(7200)
KILLS_ON_ONE_FILE = 20
"""Then a fresh one: proving a long history again and again is slow."""
EVERYWHERE = (*PLACES, "transaction.end")


@pytest.mark.parametrize(
    "kills_wanted",
    [
        pytest.param(130, marks=pytest.mark.timeout(900)),
        pytest.param(1000, marks=[pytest.mark.soak, LONG], id="1000 of one half"),  # so that two processors share them
        pytest.param(1000, marks=[pytest.mark.soak, LONG], id="1000 of the other"),
    ],
)
def test_whenever_it_is_killed_nothing_completed_runs_again_and_all_results_are_right(
    arena: Arena, kills_wanted: int
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"HOLDFAST_SEED={seed}")
    chance = random.Random(seed)
    kills = rounds = 0
    while kills < kills_wanted:
        rounds += 1
        kills += _one_file(arena.sibling(str(rounds)), chance, min(KILLS_ON_ONE_FILE, kills_wanted - kills))


def _one_file(arena: Arena, chance: random.Random, kills: int) -> int:
    """Kill engines on one file until there were enough deaths, then let one finish."""
    runs: list[str] = []
    while arena.kills < kills:
        if len(runs) < 8:
            workflow = chance.choice(["mixed", "mixed", "chain", "parallel", "steps", "trip", "lazy_steps"])
            runs.append(f"{workflow}:{workflow}-{len(runs)}")
        look = chance.random() < 0.5  # looking opens the file, and takes over work of the next engine's opening
        if chance.random() < 0.7:
            place = f"{chance.choice((*PLACES, 'transaction.end'))}:{chance.randint(1, 14)}"
            arena.died(arena.start(*runs, HOLDFAST_DIE_AT=place), look=look)
        else:
            life = arena.start(*runs)
            if chance.random() < 0.8:
                life.read_until("open")
            time.sleep(chance.uniform(0, 0.05))  # the moment itself is the point: nothing is waited for
            life.kill()
            arena.died(life, look=look)
    arena.finish(*runs)
    for entry in runs:
        _check_end(arena, *entry.split(":"))
    return arena.kills


def _check_end(arena: Arena, workflow: str, run_id: str) -> None:
    match workflow:
        case "mixed":
            check_mixed(arena, run_id)
        case "chain":
            check_chain(arena, run_id)
        case "parallel":
            assert arena.result(run_id) == [f"{run_id}/{name}" for name in "abc"]
        case "steps" | "lazy_steps":
            assert arena.result(run_id) == [f"{run_id}/step {i}" for i in range(5)]
        case "trip":
            assert arena.status(run_id) == "failed"
            for what in ("flight", "hotel"):
                assert f"undo {what}" in arena.acted(run_id)
    if workflow != "lazy_steps":
        for attempts in arena.started_attempts(run_id).values():
            assert attempts == list(range(1, len(attempts) + 1)), f"{run_id}: attempts are 1..n"
