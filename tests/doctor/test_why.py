"""`why`: one paragraph about where a run stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.engine.versions import capabilities_here
from holdfast.inspect.why import Why, why
from holdfast.opening import open_engine
from holdfast.store.row_types import EngineRow
from tests.doctor.ward import harm, opened, ward_asleep, ward_parent
from tests.engine.kit import until_async, url

GATE: dict[str, asyncio.Event] = {}


def ask(path: Path, run_id: str, now: int | None = None) -> Why:
    with opened(path) as store:
        row = store.run(run_id)
        assert row is not None
        if now is None:
            now = max(row.created_at, row.finished_at or 0) + 3 * 60_000_000
        return why(store, row, now)


def test_a_finished_run_says_how_it_ended_and_when(ward: Path) -> None:
    done, failed, cancelled = (ask(ward, name) for name in ("done", "failed", "cancelled"))
    assert re.fullmatch(r"run done completed 3 minutes ago, after \d+ s\. There is nothing left to do\.", done.why)
    assert "run failed failed in ward_break 3 minutes ago" in failed.why
    assert "broken on purpose" in failed.why
    assert "was cancelled 3 minutes ago" in cancelled.why
    assert "enough" in cancelled.why
    assert done.moves


def test_a_sleeping_run_says_since_when_until_when_and_that_no_engine_runs(ward: Path) -> None:
    found = ask(ward, "asleep")
    assert re.search(
        r"ward_asleep sleeps for 9 hours more \(since \S+Z, [23] minutes ago; until \S+Z, in 9 hours\)", found.why
    )
    assert "No engine is running, so nothing will wake it: `holdfast resume asleep` resumes it" in found.why
    assert (found.status, found.moves) == ("suspended", False)


def test_a_parent_names_the_child_that_it_waits_for(ward: Path) -> None:
    found = ask(ward, "parent")
    assert re.search(r"ward_parent waits for run run_\w+ \(since ", found.why)
    assert "; that run is suspended: `holdfast why run_" in found.why


def test_a_parent_of_a_child_that_does_not_exist_says_that_nothing_will_wake_it(ward: Path) -> None:
    harm(ward, "UPDATE run_state SET run_id = 'gone' WHERE parent_no = {parent}")
    assert "that run does not exist, so nothing will wake it" in ask(ward, "parent").why


def test_a_retry_says_how_often_it_failed_and_when_it_is_tried_again(ward: Path) -> None:
    found = ask(ward, "retrying")
    assert "ward_stumble failed once; attempt 2 is at 20" in found.why
    assert "Z, in " in found.why


def test_a_hold_says_why_and_that_only_a_person_can_move_it(ward: Path) -> None:
    harm(ward, "UPDATE run_state SET hold = 'crash_loop: 10 engines died in a row' WHERE run_no = {asleep}")
    found = ask(ward, "asleep")
    assert "is on hold and no engine touches it: 10 engines died in a row" in found.why
    assert "Only a person can move it: `holdfast resume asleep`" in found.why
    assert not found.moves


@hf.node(on_crash="ask")
async def why_charge(ctx: hf.Context) -> str:
    GATE["charging"].set()
    await asyncio.Event().wait()
    return "never"


@hf.workflow
def why_asked():
    return why_charge()


async def test_a_body_of_unknown_outcome_says_how_to_decide_either_way(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    GATE["charging"] = asyncio.Event()
    async with hf.open(url(db), grace_seconds=0.01) as engine:
        await engine.start(why_asked, run_id="asked")
        await GATE["charging"].wait()
        harm(db, "UPDATE run_state SET engine = 'eng_gone', token = token + 1")  # as if this engine had died
    async with hf.open(url(db)) as engine:
        run = engine.get("asked")
        await until_async(lambda: _is(run, "suspended"))
        told = await run.why()
        (wait,) = await run.waits()
    asked = r"why_charge asks: why_charge was running when its engine died\. Was it done\? \(w_\w+; since "
    assert re.search(asked, told)
    assert f"To move it: `holdfast respond {wait.wait_id}` answers." in told
    assert "nothing will wake it" not in told


def test_a_stuck_run_sends_to_the_doctor(ward: Path) -> None:
    harm(ward, "DELETE FROM run_waits WHERE run_no = {asleep}", "DELETE FROM run_timers WHERE run_no = {asleep}")
    assert "nothing can wake it; `holdfast doctor asleep` repairs it" in ask(ward, "asleep").why


def test_a_dead_engine_is_named(ward: Path) -> None:
    harm(ward, "UPDATE run_state SET engine = 'eng_gone' WHERE run_no = {asleep}")
    assert "Engine eng_gone, which drove it, is dead: the next engine takes it over" in ask(ward, "asleep").why


@hf.workflow(concurrency=1)
async def why_one_at_a_time(ctx: hf.Context, n: int) -> int:
    await GATE["open"].wait()
    return n


async def test_a_live_engine_is_named_with_what_it_does(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    GATE["open"] = asyncio.Event()
    async with hf.open(url(db), idle_seconds=0.01) as engine:
        first = await engine.start(why_one_at_a_time, n=1)
        await until_async(lambda: _is(first, "running"))
        second = await engine.start(why_one_at_a_time, n=2)
        assert re.search(r"why_one_at_a_time has been running for \d+ s", await first.why())
        assert f"Engine {engine.lease.engine} (process " in await first.why()
        told = await second.why()
        assert "waits for its turn: at most 1 run(s) of why_one_at_a_time run at once" in told
        asleep = await engine.start(ward_asleep, run_id="asleep")
        await until_async(lambda: _is_free(db, "asleep"))
        assert "It has no owner now; engine" in await asleep.why()
        assert "wakes it when the time comes" in await asleep.why()
        GATE["open"].set()
        assert await first.result() == 1
        assert await second.result() == 2


async def test_an_engine_without_the_code_does_not_count(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        run = await engine.start(ward_parent, run_id="parent")
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(db)) as engine:
        harm(
            db,
            "UPDATE engines SET can_run = CAST(json_object('handlers', json_array('somebody.else')) AS BLOB)",
            "UPDATE run_state SET engine = NULL",
        )
        told = await engine.get("parent").why()
        assert "have not loaded the code of workflow ward_parent (" in told
        assert "`holdfast resume parent`" in told


@pytest.mark.parametrize("run_id", ["done", "asleep", "parent", "retrying", "failed", "cancelled"])
def test_it_is_one_paragraph(ward: Path, run_id: str) -> None:
    found = ask(ward, run_id)
    assert "\n" not in found.why
    assert found.why.startswith(f"run {run_id} ")
    assert found.why.endswith(".")
    assert found.as_json() == {"run_id": run_id, "status": found.status, "why": found.why, "moves": found.moves}


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


async def _is_free(db: Path, run_id: str) -> bool:
    with opened(db) as store:
        row = store.run(run_id)
        return row is not None and row.engine is None


async def test_a_suspect_says_that_it_will_run_in_a_process_of_its_own(ward: Path) -> None:
    harm(ward, "UPDATE run_state SET status = 'running', recoveries = 2 WHERE run_no = {asleep}")
    async with open_engine(url(ward), recover=False) as engine:
        offer = capabilities_here(None, None, 10)  # as one that takes over what it finds
        engine.store.register_engine(engine.lease.row(offer.encode()))
        found = await engine.get("asleep").why()
    assert "3 engines in a row died while it made no progress; engine eng_" in found
    assert "will take it and run its bodies in a process of their own" in found


def test_a_pending_ticket_is_told(ward: Path) -> None:
    harm(ward, "UPDATE run_state SET status = 'running' WHERE run_no = {asleep}")
    harm(ward, "UPDATE run_state SET fold = CAST(json_set(fold, '$.ticket.target', 'reject') AS BLOB)")
    assert "it goes to reject when what runs has ended" in ask(ward, "asleep").why


# --- code that has changed -------------------------------------------------------------------------------------------


@hf.workflow(on_code_change="fail")
async def why_strict_sleeper(ctx: hf.Context) -> None:
    await ctx.sleep(36_000)


@hf.workflow(on_code_change="fail")
async def why_strict_asker(ctx: hf.Context) -> str:
    return str(await ctx.ask("Go on?", schema=str))


@hf.workflow
async def why_lenient(ctx: hf.Context) -> None:
    await ctx.sleep(36_000)


@pytest.fixture
async def strict(tmp_path: Path) -> Path:
    """Runs that wait, and that nobody drives; two of them go on only with the code that they began with."""
    db = tmp_path / "strict.db"
    async with hf.open(url(db)) as engine:
        for workflow in (why_strict_sleeper, why_strict_asker, why_lenient):
            run = await engine.start(workflow, run_id=workflow.name)
            await until_async(lambda run=run: _is(run, "suspended"))
    return db


def employ(db: Path, engine: str, *, changed: bool) -> None:
    """An engine on another host that has the code of this process, as it is or as it might have been changed."""
    offer = capabilities_here(None, None, 10)
    if changed:
        offer = msgspec.structs.replace(offer, fingerprints=dict.fromkeys(offer.fingerprints, "other code"))
    with opened(db) as store:
        now = store.now()
        store.register_engine(EngineRow(engine, "elsewhere", 1, "", now, now + 3_600_000_000, offer.encode()))


OTHER_CODE = (
    "every engine that could take it has other code than it began with ({handler}): as its on_code_change is 'fail', "
    "it would be put on hold. Start an engine that has the old code, or accept the new one: `holdfast resume {run}` "
    "resumes it."
)


def other_code(run_id: str) -> str:
    return OTHER_CODE.format(handler=f"{__name__}.{run_id}", run=run_id)


def test_a_run_that_no_engine_has_the_right_code_for_says_so_and_what_to_do(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    found = ask(strict, "why_strict_sleeper")
    assert f"It has no owner now, and {other_code('why_strict_sleeper')}" in found.why
    assert "eng_new" not in found.why
    assert not found.moves


def test_of_several_engines_the_one_with_the_right_code_is_named(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    employ(strict, "eng_old", changed=False)
    found = ask(strict, "why_strict_sleeper")
    assert "It has no owner now; engine eng_old (process 1) wakes it when the time comes." in found.why
    assert found.moves


def test_a_question_of_such_a_run_can_be_answered_and_what_follows_is_told(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    found = ask(strict, "why_strict_asker")
    assert f"answers. What you say is kept, but {other_code('why_strict_asker')}" in found.why
    assert not found.moves


def test_a_run_of_a_dead_engine_is_not_taken_over_by_one_with_other_code(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    harm(strict, "UPDATE run_state SET engine = 'eng_gone' WHERE run_id = 'why_strict_sleeper'")
    found = ask(strict, "why_strict_sleeper")
    assert f"Engine eng_gone, which drove it, is dead, and {other_code('why_strict_sleeper')}" in found.why
    assert not found.moves


def test_an_engine_where_somebody_has_accepted_the_new_code_goes_on(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    harm(strict, "UPDATE run_state SET last_engine = 'eng_new' WHERE run_id = 'why_strict_sleeper'")
    found = ask(strict, "why_strict_sleeper")
    assert "engine eng_new (process 1) wakes it when the time comes." in found.why
    assert found.moves


def test_other_code_is_nothing_to_a_run_that_goes_on_with_any(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    found = ask(strict, "why_lenient")
    assert "engine eng_new (process 1) wakes it when the time comes." in found.why
    assert found.moves


def test_a_first_event_that_cannot_be_read_is_the_doctors(strict: Path) -> None:
    employ(strict, "eng_new", changed=True)
    harm(strict, "UPDATE run_events SET data = CAST('{' AS BLOB) WHERE seq = 1")
    assert "engine eng_new (process 1) wakes it" in ask(strict, "why_strict_sleeper").why
