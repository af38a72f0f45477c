"""Runs that wait for people and for others, in real processes: answers without an engine, several at once, and kills.

What the processes that ask (CRASH_CLIENT) were told as a success must have happened, once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli.main import main
from holdfast.engine.crash_points import PLACES
from tests.crash.nursery import Life
from tests.crash.supervisor import REFUSED, Arena

CLIENT = {"CRASH_CLIENT": "1"}
EVERYWHERE = (*PLACES, "transaction.end")


@pytest.fixture(autouse=True)
def examined(arena: Arena) -> Iterator[None]:
    """Whatever happened in a test, the doctor finds nothing at its end."""
    yield
    assert main(["doctor", "--deep", "--db", arena.address, "--quiet"]) == 0


def told(arena: Arena, *requests: str, **environment: str) -> tuple[list[str], str]:
    """The requests that were acknowledged, and the error with which the process ended that made them."""
    return heard(arena.start(*requests, **CLIENT, **environment))


def heard(life: Life) -> tuple[list[str], str]:
    output = life.wait()
    acknowledged = [line.removeprefix("told ") for line in output.splitlines() if line.startswith("told ")]
    return acknowledged, output.rstrip().rpartition("\n")[2] if life.returncode == REFUSED else ""


def answer(arena: Arena, run_id: str = "r", value: str = "yes") -> str:
    """The request that answers the question of a run, which may have been answered already."""
    ((wait_id,),) = arena.query("SELECT wait_id FROM run_waits JOIN run_state USING (run_no) WHERE run_id = ?", run_id)
    return f'answer:{run_id}:{wait_id}="{value}"'


def answers(arena: Arena, run_id: str) -> list[tuple[str, str]]:
    """(value, actor) of the answers in a journal."""
    return [
        (data["value"], data["actor"])
        for kind, _, _, data in arena.events(run_id)
        if kind == "WaitClosed" and data["outcome"] == "answered"
    ]


# --- K-14, B1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", ["approval", "sync_approval"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_k14_an_answer_that_comes_when_no_engine_lives_lets_the_run_go_on_from_what_is_stored(
    arena: Arena, workflow: str, killed: bool
) -> None:
    if killed:
        arena.crash(f"{workflow}:r", stay="quiet")
    else:
        arena.finish(f"{workflow}:r")
    before = arena.acted("r")
    assert arena.status("r") == "suspended"
    asyncio.run(_answered_by_a_program_without_the_code(arena))
    assert arena.acted("r") == before
    arena.finish()
    assert arena.result("r") == ["r/step 1", "yes", "r/step 2"]
    assert arena.acted("r") == [*before, "step 2"], "nothing that was done is done again"
    assert set(map(tuple, arena.started_attempts("r").values())) == {(1,)}, "going on is no attempt"


async def _answered_by_a_program_without_the_code(arena: Arena) -> None:
    async with hf.open(arena.address, recover=False) as engine:
        (wait,) = await engine.asked()
        await engine.get("r").respond(wait.wait_id, "yes", actor="ann")


def test_b1_a_question_without_an_answer_stays_whatever_is_restarted_and_is_nothing_to_recover(arena: Arena) -> None:
    arena.finish("approval:r", "sync_approval:s")
    before = [arena.events("r"), arena.events("s")]
    for _ in range(3):
        arena.finish()
        life = arena.start(HOLDFAST_DIE_AT="write.after:1")
        assert arena.died(life)
    assert [arena.events("r"), arena.events("s")] == before
    assert arena.query("SELECT count(*) FROM run_branches") == [(0,)]
    assert told(arena, answer(arena, "r", "late"), answer(arena, "s", "late"))[1] == ""
    arena.finish()
    assert [arena.result(run_id)[1] for run_id in "rs"] == ["late", "late"]


# --- who is first --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", [False, True], ids=["nobody drives it", "an engine drives it"])
def test_of_several_answers_at_once_one_wins_and_the_others_are_told_who_did(arena: Arena, owned: bool) -> None:
    engine = arena.start("approval:r", CRASH_STAY="quiet")
    engine.read_until("quiet")
    if not owned:
        arena.kill(engine)
    lives = [arena.start(answer(arena, "r", who), **CLIENT) for who in ("ann", "bob", "cid")]
    ends = [(life.pid, *heard(life)) for life in lives]
    if owned:
        arena.kill(engine)
    ((value, actor),) = answers(arena, "r")
    for (pid, acknowledged, error), who in zip(ends, ("ann", "bob", "cid"), strict=True):
        if acknowledged:
            assert (value, actor) == (who, f"process {pid}")
        else:
            assert f"was answered by {actor}" in error or "is already completed" in error or "ended before" in error
    assert sum(bool(acknowledged) for _, acknowledged, _ in ends) == 1
    arena.finish()
    assert arena.result("r")[1] == value


def test_an_answer_that_was_given_after_the_deadline_loses_also_when_nobody_lived_to_see_it_pass(arena: Arena) -> None:
    arena.crash("deadline:r", stay="quiet", CRASH_DEADLINE="3")
    ((due_at,),) = arena.query("SELECT until FROM run_waits WHERE status = 'open'")
    arena.wait_for(lambda: arena.query("SELECT 1 WHERE unixepoch('subsec') * 1e6 > ?", due_at + 50_000))
    acknowledged, error = told(arena, answer(arena, "r", "late"), CRASH_DEADLINE="3")
    assert (acknowledged, "has passed its deadline" in error) == ([], True)
    arena.finish(CRASH_DEADLINE="3")
    assert arena.result("r") == "nobody"


def test_an_answer_against_its_deadline_either_counts_or_is_refused(arena: Arena) -> None:
    passes = {"CRASH_DEADLINE": "0.4"}
    engine = arena.start("deadline:r*6", CRASH_STAY="quiet", **passes)
    engine.read_until("quiet")
    ends = {f"r{n}": told(arena, answer(arena, f"r{n}", "in time"), **passes) for n in range(6)}
    arena.wait_for(lambda: not arena.query(UNFINISHED))
    arena.kill(engine)
    for run_id, (acknowledged, error) in ends.items():
        assert arena.result(run_id) == ("in time" if acknowledged else "nobody")
        assert bool(acknowledged) != bool(error)


UNFINISHED = "SELECT 1 FROM run_state WHERE status NOT IN ('completed', 'failed', 'cancelled')"


def test_an_answer_against_a_cancel_either_counts_or_is_refused(arena: Arena) -> None:
    arena.finish("approval:r*4")
    for n in range(4):
        racers = [arena.start(request, **CLIENT) for request in (answer(arena, f"r{n}"), f"cancel:r{n}")][
            :: 1 - 2 * (n % 2)
        ]
        ends = [heard(racer) for racer in racers][:: 1 - 2 * (n % 2)]
        arena.finish()
        (acknowledged, error), (cancelled, _) = ends
        assert bool(answers(arena, f"r{n}")) == bool(acknowledged)
        assert bool(acknowledged) != bool(error)
        if cancelled:
            assert arena.status(f"r{n}") == "cancelled"
        else:
            assert arena.result(f"r{n}")[1] == "yes"


# --- kills around each write ---------------------------------------------------------------------------------------


def _resume(arena: Arena, run_id: str) -> str:
    return f"release:{run_id}"


def _signal(arena: Arena, run_id: str) -> str:
    return f"signal:{run_id}:number:first=7"


def _pause(arena: Arena, run_id: str) -> str:
    return f"pause:{run_id}"


Asking = Callable[[Arena, str], str]
KINDS: dict[str, tuple[str, Asking]] = {
    "answer": ("approval", answer),
    "signal": ("collector", _signal),
    "resume": ("pended", _resume),
    "pause": ("approval", _pause),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["who asks", "who drives"])
def test_a_kill_at_any_write_neither_loses_nor_repeats_what_was_asked(arena: Arena, kind: str, who: str) -> None:
    """The process that asks dies, whether it drives the run or not; the request is made again until it is answered."""
    workflow, asking = KINDS[kind]
    arena.finish(f"{workflow}:r*{len(EVERYWHERE) * DEATHS_MAX}")
    used = _killed_everywhere(arena, asking, CLIENT if who == "who asks" else {})
    assert used > (8 if who == "who asks" else 12)
    check = {"answer": _was_answered, "signal": _was_signalled, "resume": _was_resumed, "pause": _was_paused}[kind]
    for n in range(used):
        check(arena, f"r{n}")


def _killed_everywhere(arena: Arena, asking: Asking, environment: dict[str, str]) -> int:
    """Kill at the first write, the second, and so on, at each kind of place; how many runs were asked."""
    used = 0
    for place in EVERYWHERE:
        for n in range(1, DEATHS_MAX + 1):
            request = asking(arena, f"r{used}")
            died = arena.died(arena.start(request, HOLDFAST_DIE_AT=f"{place}:{n}", **environment), look=False)
            acknowledged, error = told(arena, request)  # its answer was lost: it is done now, or was done before
            assert acknowledged or any(words in error for words in DONE_BEFORE), error
            used += 1
            if not died:
                break
    arena.finish()
    return used


DONE_BEFORE = ("was answered by", "was resumed", "is already completed")
DEATHS_MAX = 4
"""At one place; whoever only asks has no more writes than these."""


def _was_answered(arena: Arena, run_id: str) -> None:
    assert arena.result(run_id) == [f"{run_id}/step 1", "yes", f"{run_id}/step 2"]
    assert len(answers(arena, run_id)) == 1


def _was_signalled(arena: Arena, run_id: str) -> None:
    assert arena.types(run_id).count("MessageConsumed") == 1
    assert arena.status(run_id) == "suspended"
    assert "step 7" in arena.acted(run_id)


def _was_resumed(arena: Arena, run_id: str) -> None:
    assert arena.result(run_id) == f"{run_id}/three"
    assert arena.acted(run_id).count("doubtful") == 1, "its output was stored when it pended"


def _was_paused(arena: Arena, run_id: str) -> None:
    assert arena.status(run_id) == "suspended"
    assert [data["kind"] for kind, _, _, data in arena.events(run_id) if kind == "WaitOpened"] == ["input", "pause"]


@pytest.mark.parametrize("place", ["commit.before", "commit.after", "transaction.end", "body.after"])
def test_a_kill_while_a_node_pends_leaves_it_in_its_basket_once(arena: Arena, place: str) -> None:
    for n in range(1, 6):
        arena.crash("pended:r", die_at=f"{place}:{n}")
    arena.finish("pended:r")
    opened = [data for kind, _, _, data in arena.events("r") if kind == "WaitOpened"]
    assert [wait["kind"] for wait in opened] == ["basket"]
    assert told(arena, "release:r") == (["release:r"], "")
    arena.finish()
    _was_resumed_after_a_crash(arena)


def _was_resumed_after_a_crash(arena: Arena) -> None:
    assert arena.result("r") == "r/three"
    assert arena.types("r").count("NodeCompleted") == 3


# --- signals under fire --------------------------------------------------------------------------------------------


def test_every_acknowledged_signal_is_received_once_and_in_order_while_engines_are_killed(arena: Arena) -> None:
    chance = random.Random(27)
    arena.finish("collector:r")
    waiting = [f"signal:r:number:{n}={n}" for n in range(24)]
    while waiting:
        engine = arena.start(HOLDFAST_DIE_AT=f"{chance.choice(EVERYWHERE)}:{chance.randint(1, 9)}")
        place = f"{chance.choice(EVERYWHERE)}:{chance.randint(2, 12)}"
        acknowledged, _ = told(arena, *waiting, HOLDFAST_DIE_AT=place)
        waiting = waiting[len(acknowledged) :]
        arena.died(engine)
    assert told(arena, "signal:r:number:end=-1")[0]
    arena.finish()
    assert arena.result("r") == list(range(24))
    assert [name for name in arena.acted("r") if name.startswith("step")] == [
        name for n in range(24) for name in [f"step {n}"] * arena.acted("r").count(f"step {n}")
    ]
    consumed: list[Any] = [data["message_id"] for kind, _, _, data in arena.events("r") if kind == "MessageConsumed"]
    assert len(consumed) == len(set(consumed)) == 25


# --- the delay before a step is tried again ------------------------------------------------------------------------

DELAYS = "SELECT wait_id, until FROM run_waits WHERE status = 'open' AND kind = 'retry'"


def test_a_kill_during_the_delay_of_a_step_costs_no_try_and_brings_none_forward(arena: Arena) -> None:
    due: dict[str, int] = {}

    def new_delays() -> list[tuple[str, int]]:
        return [(wait_id, until) for wait_id, until in arena.query(DELAYS) if wait_id not in due]

    for tries in ([1], [1, 2], [1, 2, 3]):
        life = arena.start("retried_steps:r")
        life.read_until("started")
        found = arena.wait_for(new_delays)
        arena.kill(life)
        due |= dict(found)
        assert arena.attempts_of("r", "flaky step") == tries
    arena.finish()
    assert arena.result("r") == ["r/step 1", "r/flaky step", "r/item a", "r/item b"]
    assert arena.attempts_of("r", "flaky step") == [1, 2, 3]
    assert (arena.attempts_of("r", "item a"), arena.attempts_of("r", "item b")) == ([1, 2], [1, 2])
    rows = arena.query("SELECT data, at FROM run_events WHERE type = 'TimerFired'")
    fired = {json.loads(data)["timer"]: at for data, at in rows}
    assert all(fired[wait_id] >= until for wait_id, until in due.items())


@pytest.mark.parametrize("place", ["commit.after", "write.after", "transaction.end"])
def test_a_death_anywhere_around_the_delay_of_a_step_repeats_no_try_that_was_recorded(arena: Arena, place: str) -> None:
    for number in (4, 8, 12):
        arena.crash("retried_steps:r", die_at=f"{place}:{number}")
    arena.finish("retried_steps:r")
    assert arena.result("r") == ["r/step 1", "r/flaky step", "r/item a", "r/item b"]
    failed = [data.get("attempt", 1) for kind, _, _, data in arena.events("r") if kind == "StepFailed"]
    assert sorted(failed) == [1, 1, 1, 2], "two of the step, one of each item"
