"""Kills at random moments, over and over, on one file: whatever the moment, everything ends right and acts once.

HOLDFAST_SOAK=1 makes it long; HOLDFAST_SEED=n repeats one.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.supervisor import Arena, read_until
from tests.crash.test_kill_points import check_chain, check_mixed

SOAK = bool(os.environ.get("HOLDFAST_SOAK"))
KILLS = 1000 if SOAK else 32
PLACES = ("commit.before", "commit.after", "body.before", "body.after")


@pytest.mark.timeout(7200 if SOAK else 300)
def test_whenever_it_is_killed_nothing_completed_runs_again_and_all_results_are_right(tmp_path: Path) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"HOLDFAST_SEED={seed}")
    chance = random.Random(seed)
    arena, rounds, kills = Arena(tmp_path / "0"), 0, 0
    arena.db.parent.mkdir()
    runs: list[str] = []
    while kills + arena.kills < KILLS:
        if arena.kills >= 16:  # a fresh file now and then: checking a long history again and again is slow
            kills += _settle(arena, runs)
            runs, rounds = [], rounds + 1
            arena = Arena(tmp_path / str(rounds))
            arena.db.parent.mkdir()
        if len(runs) < 8:
            workflow = chance.choice(["mixed", "mixed", "chain", "parallel", "steps", "trip"])
            runs.append(f"{workflow}:{workflow}-{len(runs)}")
        if chance.random() < 0.75:
            arena.crash(*runs, die_at=f"{chance.choice(PLACES)}:{chance.randint(1, 14)}", CRASH_MAX_RECOVERIES="100000")
        else:
            process = arena.start(*runs, CRASH_MAX_RECOVERIES="100000")
            read_until(process, "open")
            time.sleep(chance.uniform(0, 0.06))  # the moment itself is the point: nothing is waited for
            arena.kill(process)
    kills += _settle(arena, runs)
    assert kills >= KILLS


def _settle(arena: Arena, runs: list[str]) -> int:
    arena.finish(*runs, CRASH_MAX_RECOVERIES="100000")
    for entry in runs:
        workflow, _, run_id = entry.partition(":")
        match workflow:
            case "mixed":
                check_mixed(arena, run_id)
            case "chain":
                check_chain(arena, run_id)
            case "parallel":
                assert arena.result(run_id) == [f"{run_id}/{name}" for name in "abc"]
            case "steps":
                assert arena.result(run_id) == [f"{run_id}/step {i}" for i in range(5)]
            case "trip":
                assert arena.status(run_id) == "failed"
                for what in ("flight", "hotel"):
                    assert f"undo {what}" in arena.acted(run_id)
        for attempts in arena.started_attempts(run_id).values():
            assert attempts == list(range(1, len(attempts) + 1)), f"{run_id}: attempts are 1..n"
    return arena.kills
