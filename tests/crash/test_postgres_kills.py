"""Kill here, expect this, on PostgreSQL: the same tests as on a file, at the points where the store matters.

K-11 (whoever decides dies before or after a commit is acknowledged; several start at once), K-12 (whoever works dies in
the middle of it, or is so slow that another one takes over), K-13, K-20, K-24, F10, F69, F70, F73 in real processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from tests.crash import test_kill_points as points
from tests.crash import test_random_kills as random_kills
from tests.crash import test_waits as waits
from tests.crash import test_zombies as zombies
from tests.crash.nursery import Nursery
from tests.crash.postgres_arena import PostgresArena
from tests.crash.test_isolation import (  # noqa: F401 - they run here, too, in the arena below
    test_a_run_on_hold_goes_on_when_a_person_resumes_it_and_holds_again_unless_it_was_mended,
    test_engines_that_die_with_the_processes_of_suspects_are_no_evidence_and_leave_none_behind,
)
from tests.crash.test_kill_points import (  # noqa: F401 - they run here, too, in the arena below
    test_a_cancel_that_was_asked_for_before_the_death_is_carried_out_after_it,
    test_a_node_that_may_not_be_repeated_fails_after_a_crash,
    test_k01_after_the_run_row_and_before_the_first_unit,
    test_k01_before_the_run_row_the_run_does_not_exist_and_can_be_started_again,
    test_k02_scheduled_and_not_started_keeps_its_attempt_and_runs_once,
    test_k03_inside_a_unit_it_runs_again_with_the_next_attempt_and_the_same_key,
    test_k04_a_result_that_was_computed_and_not_persisted_is_computed_again,
    test_k05_a_completed_unit_is_not_run_again_and_its_downstream_is,
    test_k09_all_branches_joined_and_the_parent_did_not_end,
    test_k21_a_lazy_run_resumes_at_the_last_place_where_it_had_to_commit,
    test_k24_an_engine_that_opens_beside_a_living_one_leaves_its_runs_alone,
    test_k24_two_engines_that_resume_at_once_do_not_do_anything_twice,
)
from tests.crash.test_waits import (  # noqa: F401 - they run here, too, in the arena below
    test_k14_an_answer_that_comes_when_no_engine_lives_lets_the_run_go_on_from_what_is_stored,
    test_of_several_answers_at_once_one_wins_and_the_others_are_told_who_did,
)
from tests.crash.test_zombies import (  # noqa: F401 - they run here, too, in the arena below
    test_f10_recovery_itself_can_be_killed_again_and_again,
    test_f69_a_zombie_repeats_no_effect_that_a_receiver_has_seen_under_its_key,
    test_f73_of_eight_engines_that_race_to_recover_thirty_runs_each_run_has_one,
    test_k13_an_engine_that_was_paused_past_its_lease_writes_nothing_when_it_comes_back,
)
from tests.servers import PostgresServer


@pytest.fixture
def arena(postgres: PostgresServer, tmp_path: Path, nursery: Nursery) -> Iterator[PostgresArena]:
    """In place of the arena with a file. Whatever happened in a test, the doctor finds nothing at its end."""
    made = PostgresArena(postgres, tmp_path, nursery)
    yield made
    made.close()
    assert main(["doctor", "--deep", "--db", made.url, "--quiet"]) == 0


@pytest.mark.parametrize("place", ["commit.before:2", "commit.after:2", "body.before:2", "body.after:2"])
def test_f69_an_engine_that_stands_still_at_any_boundary_is_fenced(arena: PostgresArena, place: str) -> None:
    zombies.test_f69_an_engine_that_stands_still_at_any_boundary_is_fenced(arena, place)


def test_f69_an_engine_that_stands_still_in_the_middle_of_a_transaction_keeps_nobody_out(arena: PostgresArena) -> None:
    """The locks that it holds would last as long as it stands still."""
    zombie = arena.start("chain:r", CRASH_STOP_AT="transaction.open:1", HOLDFAST_LEASE_SECONDS="1")
    arena.wait_for(zombie.is_stopped)
    arena.finish()
    points.check_chain(arena)
    zombies.come_back(arena, zombie)


@pytest.mark.parametrize("number", range(2, 9))
def test_f69_whatever_it_has_sent_last_when_it_stands_still_in_a_transaction(arena: PostgresArena, number: int) -> None:
    """Also what only prepares a statement: a server does not count the time for which it waits for the rest."""
    arena.way = lambda url: f"{url}&idle_in_transaction_session_timeout=1s"
    zombie = arena.start("queue:r", CRASH_STOP_AT=f"transaction.packet:{number}", HOLDFAST_LEASE_SECONDS="1")
    arena.wait_for(zombie.is_stopped)
    arena.finish()
    assert arena.result("r") == ["r/first", "r/second"]
    zombies.come_back(arena, zombie)


@pytest.mark.parametrize("kind", ["answer", "signal"])
def test_a_kill_at_any_write_neither_loses_nor_repeats_what_was_asked(arena: PostgresArena, kind: str) -> None:
    waits.test_a_kill_at_any_write_neither_loses_nor_repeats_what_was_asked(arena, kind, "who drives")


@pytest.mark.parametrize("number", range(2, 21, 3))
def test_a_statement_that_is_under_way_when_its_engine_dies_happens_once_or_not_at_all(
    arena: PostgresArena, number: int
) -> None:
    assert arena.crash("mixed:m", die_at=f"transaction.end:{number}")
    arena.finish("mixed:m")
    points.check_mixed(arena, "m")


def test_whenever_it_is_killed_nothing_completed_runs_again_and_all_results_are_right(arena: PostgresArena) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    random_kills._one_file(arena, random.Random(seed), 25)
