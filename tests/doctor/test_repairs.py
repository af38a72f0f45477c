"""Repairs: what is done, what is refused, and what is never touched."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.repairs import REBUILDING, Repairs, treat
from holdfast.inspect.doctor.check import check
from holdfast.inspect.inspector import Inspector
from holdfast.model.errors import Refused
from holdfast.store.clocks import clock_of
from tests.doctor.ward import examine, harm, journal, opened, repair, told, ward_asleep
from tests.engine.kit import check_file, until_async, url

TAMPER = (
    'UPDATE run_events SET data = CAST(\'{"attempt":1,"output":1000000}\' AS BLOB) WHERE run_no = {asleep} AND seq = 4'
)


def now() -> int:
    return time.time_ns() // 1000


def number_of(path: Path, run_id: str) -> int:
    with opened(path) as store:
        row = store.run(run_id)
        assert row is not None
        return row.run_no


def every_row_of(path: Path, run_id: str) -> dict[str, list[Any]]:
    number = number_of(path, run_id)
    connection = sqlite3.connect(path)
    found = {
        table: connection.execute(f"SELECT * FROM {table} WHERE run_no = ? ORDER BY 2, 3", (number,)).fetchall()  # noqa: S608
        for table in ("run_node_state", "run_waits", "run_timers", "run_events")
    }
    connection.close()
    return found


@pytest.mark.parametrize("run_id", ["done", "asleep", "parent", "retrying", "failed", "cancelled"])
def test_a_rebuild_gives_the_rows_that_the_engine_wrote(ward: Path, run_id: str) -> None:
    before = every_row_of(ward, run_id)
    harm(
        ward,
        "DELETE FROM run_node_state WHERE run_no = {RUN}",
        "DELETE FROM run_waits WHERE run_no = {RUN}",
        "DELETE FROM run_timers WHERE run_no = {RUN}",
        "UPDATE run_state SET status = 'running', fold = NULL, finished_at = NULL, recoveries = 9 WHERE run_no = {RUN}",
        RUN=number_of(ward, run_id),
    )
    report = repair(ward, deep=True, means=REBUILDING)
    assert report.violations == []
    after = every_row_of(ward, run_id)
    # when a wait or timer that is over was due, and which child it was for, depends on how its events were committed
    assert after["run_node_state"] == before["run_node_state"]
    assert after["run_events"] == before["run_events"]
    assert [row[:8] for row in after["run_waits"]] == [row[:8] for row in before["run_waits"]]
    assert [(row[1], row[4]) for row in after["run_timers"]] == [(row[1], row[4]) for row in before["run_timers"]]


async def test_a_rebuilt_run_goes_on_to_its_end(ward: Path) -> None:
    harm(
        ward,
        "DELETE FROM run_timers WHERE run_no = {asleep}",
        "DELETE FROM run_waits WHERE run_no = {asleep}",
        "UPDATE run_node_state SET status = 'completed' WHERE run_no = {asleep}",
    )
    assert repair(ward, deep=True).violations == []
    async with hf.open(url(ward)) as engine:
        await engine.get("asleep").cancel()
        await until_async(lambda: _is(engine.get("asleep"), "cancelled"))
    check_file(ward)


def test_a_tampered_journal_is_named_put_on_hold_and_never_changed(ward: Path) -> None:
    harm(ward, TAMPER)
    before = journal(ward, "asleep")
    (found,) = examine(ward, deep=True).violations
    assert (found.code, found.run_id, found.seq) == ("I3", "asleep", 4)
    report = repair(ward, deep=True)
    assert told(report.violations) == [("I3", "asleep")]
    assert "on hold" in report.violations[0].repair
    with opened(ward) as store:
        row = store.run("asleep")
        assert row is not None
        assert row.hold is not None
        assert row.hold.startswith("corrupt: event 4")
        assert store.claim("eng_x", [row.run_no]) == []
    assert journal(ward, "asleep") == before


def test_a_rebuild_of_a_tampered_journal_only_puts_the_run_on_hold(ward: Path) -> None:
    harm(ward, TAMPER, "UPDATE run_node_state SET attempt = 9 WHERE run_no = {asleep}")
    with opened(ward) as store:
        row = store.run("asleep")
        assert row is not None
        assert "is on hold" in Repairs(store, Inspector(store, clock_of(store)), now()).rebuild(row)
        assert [node.attempt for node in store.nodes(row.run_no)] == [9]


def test_a_hold_for_damaged_rows_ends_with_their_repair(ward: Path) -> None:
    harm(
        ward,
        "UPDATE run_node_state SET node = 'nobody' WHERE run_no = {asleep}",
        "UPDATE run_state SET hold = 'corrupt: KeyError: nobody' WHERE run_no = {asleep}",
    )
    assert repair(ward, deep=True).violations == []
    with opened(ward) as store:
        row = store.run("asleep")
        assert row is not None
        assert row.hold is None


def test_a_rebuild_fences_whoever_thinks_that_it_owns_the_run(ward: Path) -> None:
    harm(ward, "UPDATE run_node_state SET attempt = 9 WHERE run_no = {asleep}")
    with opened(ward) as store:
        before = store.run("asleep")
        repair(ward, deep=True)
        after = store.run("asleep")
        assert before is not None
        assert after is not None
        assert after.token == before.token + 1
        assert after.engine is None


async def test_a_run_that_a_live_engine_owns_is_refused_with_who_owns_it(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        run = await engine.start(ward_asleep, run_id="asleep")
        await until_async(lambda: _is(run, "suspended"))
        with opened(db) as store:
            row = store.run("asleep")
            assert row is not None
            with pytest.raises(Refused, match=f"owned by engine {engine.lease.engine}.*alive"):
                Repairs(store, Inspector(store, clock_of(store)), now()).rebuild(row)
            harm(db, "UPDATE run_node_state SET attempt = 9 WHERE run_no = {asleep}")
            report = treat(
                Repairs(store, Inspector(store, clock_of(store)), now()),
                check(store, deep=True),
                lambda: check(store, deep=True),
            )
            assert told(report.violations) == [("I5", "asleep")]
            assert engine.lease.engine in report.repaired[0]


DIES = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
import holdfast as hf
from tests.doctor.ward import ward_asleep

async def main():
    async with hf.open({url!r}) as engine:
        for name in ("one", "two"):
            run = await engine.start(ward_asleep, run_id=name)
            while await run.status() != "suspended":
                await asyncio.sleep(0.01)
        os._exit(9)

asyncio.run(main())
"""


def test_the_leases_of_a_dead_engine_are_told_and_freed(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    root = str(Path(__file__).resolve().parents[2])
    code = DIES.format(root=root, url=url(db))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    report = examine(db)
    assert told(report.violations) == [("I19", "one"), ("I19", "two")]
    assert "is dead" in report.violations[0].what
    treated = repair(db)
    assert treated.violations == []
    assert len(treated.repaired) == 1
    with opened(db) as store:
        assert store.engines() == []
        assert all(row.engine is None for row in store.runs())


@hf.workflow
async def repairs_quick(ctx: hf.Context) -> int:
    await ctx.sleep(0.01)
    return 7


@hf.workflow
async def repairs_waits(ctx: hf.Context) -> int:
    return await ctx.child(repairs_quick) + 1


async def test_a_run_that_was_not_told_of_its_childs_end_is_told(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        parent = await engine.start(repairs_waits, run_id="parent")
        assert await parent.result() == 8
    # take the parent back to where it waited, as a restored table would
    events = journal(db, "parent")
    cut = next(e.seq for e in events if e.type == "RunSuspended")
    head = next(e.hash.hex() for e in events if e.seq == cut)
    harm(
        db,
        "DELETE FROM run_events WHERE run_no = {parent} AND seq > {CUT}",
        "UPDATE run_state SET last_seq = {CUT}, head_hash = x'{HEAD}' WHERE run_no = {parent}",
        "DELETE FROM run_inbox_messages WHERE run_no = {parent}",
        CUT=cut,
        HEAD=head,
    )
    report = repair(db, deep=True)
    assert report.violations == []
    assert any("told it that" in said for said in report.repaired)
    async with hf.open(url(db)) as engine:
        assert await engine.get("parent").result() == 8
    check_file(db)


def test_orphan_events_are_told_and_never_deleted(ward: Path) -> None:
    harm(ward, "DELETE FROM run_state WHERE run_no = {done}")
    before = sqlite3.connect(ward).execute("SELECT count(*) FROM run_events").fetchall()
    report = repair(ward)
    assert told(report.violations) == [("I44", None)]
    assert "never deleted" in report.violations[0].repair
    assert sqlite3.connect(ward).execute("SELECT count(*) FROM run_events").fetchall() == before


def test_a_check_changes_nothing(ward: Path) -> None:
    harm(ward, TAMPER, "UPDATE run_node_state SET attempt = 9 WHERE run_no = {done}")
    connection = sqlite3.connect(ward)
    before = list(connection.iterdump())
    connection.close()
    assert examine(ward, deep=True).violations
    connection = sqlite3.connect(ward)
    assert list(connection.iterdump()) == before


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)
