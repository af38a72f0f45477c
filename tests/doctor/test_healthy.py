"""No false alarms: whatever a run may legally go through, and while engines work, the doctor finds nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.inspect.doctor.check import check
from holdfast.model.violations import Report
from tests.doctor.ward import admit, examine, opened, ward_add, ward_asleep, ward_done, ward_parent
from tests.engine.kit import until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


BROKEN = {"on": True}


@hf.node(inline=True)
def healthy_gate(n: int) -> int:
    if BROKEN["on"]:
        raise ValueError("closed")
    return n


@hf.workflow
def healthy_chain(n: int):
    middle = healthy_gate(ward_add(n))
    return ward_add.named("end")(middle)


@hf.node(inline=True)
def healthy_again(ctx: hf.SyncContext, n: int) -> int:
    if ctx.visit < 3:
        hf.goto("healthy_first", output=n)
    return n


@hf.node(inline=True)
def healthy_first(n: int) -> int:
    return n + 1


@hf.workflow
def healthy_circle(n: int):
    return ward_add.named("after")(healthy_again(healthy_first(n)))


@hf.workflow
async def healthy_nap(ctx: hf.Context) -> str:
    await ctx.sleep(0.02)
    return "awake"


@hf.workflow
def healthy_maps(n: int):
    return hf.map(lambda i: ward_add(ward_add.named("inner")(i)), list(range(30)), limit=5)


def in_order(report: Report) -> None:
    assert [(v.code, v.run_id, v.seq, v.what) for v in report.violations] == []


async def test_runs_of_every_kind_are_in_order(db: Path) -> None:
    await admit(db)
    in_order(examine(db, deep=True))


async def test_branches_forks_jumps_retries_and_visits_are_in_order(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        BROKEN["on"] = True
        run: Any = await engine.start(healthy_chain, run_id="chain", n=1)
        with pytest.raises(hf.RunFailed):
            await run.result()
        passed = await run.fork("healthy_gate", as_run="passed")
        with pytest.raises(hf.RunFailed):
            await passed.result()
        given: Any = await passed.jump("end", edits={"outputs": {"healthy_gate": 9}})
        assert await given.result() == 10
        BROKEN["on"] = False
        assert await (await run.retry()).result() == 3
        assert await (await run.jump("healthy_gate")).result() == 3
        assert await (await run.fork("end", edits={"outputs": {"healthy_gate": 9}})).result() == 10
        assert await (await run.fork("start")).result() == 3
        other = await run.fork("healthy_gate", as_run="other")
        assert await other.result() == 3
        again = await other.fork("end", as_run="other-still")
        assert await again.result() == 3
        assert await (await other.jump("healthy_gate")).result() == 3
        asleep = await engine.start(ward_asleep, run_id="asleep")
        await until_async(lambda: _is(asleep, "suspended"))
        await asleep.fork("start")
        await until_async(lambda: _is(asleep, "suspended"))
        twin = await asleep.fork(as_run="asleep-too")  # inherits a wait, and waits by itself
        await until_async(lambda: _is(twin, "suspended"))
        assert await (await engine.start(healthy_circle, n=1)).result() == 3
        with opened(db) as store:
            in_order(check(store, deep=True))
    in_order(examine(db, deep=True))


async def test_a_live_engine_at_work_gives_no_false_alarm(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        done = asyncio.Event()
        looks = 0

        async def look() -> None:
            nonlocal looks
            with opened(db) as store:
                while not done.is_set():
                    in_order(await asyncio.to_thread(check, store, None, True))
                    looks += 1

        async def work(number: int) -> None:
            workflow: Any = (ward_done, healthy_maps, healthy_nap, healthy_circle)[number % 4]
            inputs = {} if workflow is healthy_nap else {"n": number}
            await (await engine.start(workflow, **inputs)).result()

        async with asyncio.TaskGroup() as group:
            looking = group.create_task(look())
            for start in range(0, 400, 40):
                await asyncio.gather(*(work(number) for number in range(start, start + 40)))
            while looks < 3 and not looking.done():  # noqa: ASYNC110 - a look takes as long as it takes
                await asyncio.sleep(0.01)
            done.set()
    in_order(examine(db, deep=True))


async def test_engines_that_come_and_go_give_no_false_alarm(db: Path) -> None:
    with opened(db) as store:
        for number in range(5):
            async with hf.open(url(db)) as engine:
                run = await engine.start(ward_parent, run_id=f"parent-{number}")
                await until_async(lambda run=run: _is(run, "suspended"))
                in_order(await asyncio.to_thread(check, store, None, True))
            in_order(await asyncio.to_thread(check, store, None, True))


async def test_a_lease_that_its_living_engine_did_not_renew_is_a_warning_only(db: Path) -> None:
    async with hf.open(url(db), lease_seconds=3600) as engine:
        run = await engine.start(ward_asleep, run_id="asleep")
        await until_async(lambda: _is(run, "suspended"))
        with opened(db) as store:
            assert store.renew_engine(engine.lease.engine, 1, 1)
            report = check(store)
            assert report.violations == []
            assert [(v.code, v.run_id) for v in report.warnings] == [("I19", "asleep")]
            assert store.renew_engine(engine.lease.engine, 1, 2**60)
            assert check(store).warnings == []


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)
