"""The quick check: every kind of damage that one statement finds is told with its code and its run, and repaired."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tests.doctor.ward import examine, harm, journal, opened, repair, told

"""999999 is the number of no run."""

HARM = {
    "a head behind the journal": (
        ["UPDATE run_state SET last_seq = last_seq - 1 WHERE run_no = {asleep}"],
        {("I1", "asleep")},
        True,
    ),
    "a head before the journal": (
        ["UPDATE run_state SET last_seq = last_seq + 1 WHERE run_no = {asleep}"],
        {("I1", "asleep")},
        True,
    ),
    "a head of another event": (
        ["UPDATE run_state SET head_hash = x'00' WHERE run_no = {asleep}"],
        {("I3", "asleep")},
        False,
    ),
    "an event that is missing": (
        ["DELETE FROM run_events WHERE run_no = {done} AND seq = 5"],
        {("I1", "done")},
        False,
    ),
    "a first event that is missing": (
        ["DELETE FROM run_events WHERE run_no = {done} AND seq = 1"],
        {("I1", "done")},
        False,
    ),
    "a token that was never given out": (
        ["UPDATE run_state SET token = 0 WHERE run_no = {asleep}"],
        {("I4", "asleep")},
        False,
    ),
    "an end without a time": (
        ["UPDATE run_state SET finished_at = NULL WHERE run_no = {done}"],
        {("I7", "done")},
        True,
    ),
    "an end that the journal does not know": (
        ["UPDATE run_state SET status = 'completed', finished_at = 1 WHERE run_no = {asleep}"],
        {("I7", "asleep"), ("I22", "asleep")},
        True,
    ),
    "an end that the row does not know": (
        ["UPDATE run_state SET status = 'running', finished_at = NULL WHERE run_no = {done}"],
        {("I7", "done")},
        True,
    ),
    "a status that does not exist": (
        ["UPDATE run_state SET status = 'waiting' WHERE run_no = {asleep}"],
        {("I8", "asleep")},
        True,
    ),
    "an ended run that waits": (
        ["UPDATE run_waits SET status = 'open' WHERE run_no = {cancelled}"],
        {("I22", "cancelled"), ("I23", "cancelled")},
        True,
    ),
    "an ended run with a timer": (
        ["UPDATE run_timers SET status = 'set' WHERE run_no = {cancelled}"],
        {("I22", "cancelled")},
        True,
    ),
    "an ended run with work": (
        ["UPDATE run_node_state SET status = 'running' WHERE run_no = {done} AND node = 'last'"],
        {("I22", "done")},
        True,
    ),
    "an ended run with mail": (
        [
            "INSERT INTO run_inbox_messages (message_id, run_no, kind, payload, created_at, status) "
            "VALUES ('m1', {done}, 'cancel', CAST('{}' AS BLOB), 1, 'new')"
        ],
        {("I24", "done")},
        True,
    ),
    "a suspended run with a running body": (
        ["UPDATE run_node_state SET status = 'running' WHERE run_no = {asleep}"],
        {("I20", "asleep")},
        True,
    ),
    "a suspended run that nothing can wake": (
        ["DELETE FROM run_timers WHERE run_no = {asleep}", "DELETE FROM run_waits WHERE run_no = {asleep}"],
        {("I20", "asleep")},
        True,
    ),
    "a sleep without a timer": (
        ["DELETE FROM run_timers WHERE run_no = {asleep}"],
        {("I23", "asleep")},
        True,
    ),
    "a wait for a child that does not exist": (
        ["UPDATE run_state SET run_id = 'gone' WHERE parent_no = {parent}"],
        {("I38", "parent")},
        False,
    ),
    "a child that nobody asked to stop": (
        ["UPDATE run_state SET status = 'failed', finished_at = 1 WHERE run_no = {parent}"],
        {("I37", "CHILD"), ("I7", "parent"), ("I22", "parent")},
        False,
    ),
    "a lease of no engine": (
        ["UPDATE run_state SET engine = 'eng_gone' WHERE run_no = {asleep}"],
        {("I19", "asleep")},
        True,
    ),
    "an ended run with an owner": (
        ["UPDATE run_state SET engine = 'eng_gone' WHERE run_no = {done}"],
        {("I19", "done"), ("I22", "done")},
        True,
    ),
    "a version that is missing": (
        ["UPDATE run_state SET version = 7 WHERE run_no = {asleep}"],
        {("I40", "asleep")},
        False,
    ),
    "a parent that is missing": (
        ["UPDATE run_state SET parent_no = 999999 WHERE parent_no = {parent}"],
        {("I44", "CHILD")},
        False,
    ),
    "a branch that was never opened": (
        ["UPDATE run_state SET branch = 2 WHERE run_no = {asleep}"],
        {("I35", "asleep")},
        False,
    ),
    "instances of no run": (
        ["UPDATE run_node_state SET run_no = 999999 WHERE run_no = {done} AND node = 'last'"],
        {("I44", None)},
        False,  # the orphan is removed; that the run lacks a row only its journal tells
    ),
    "waits of no run": (
        [
            "INSERT INTO run_waits (run_no, wait_id, kind, visit, branch, status, since, data) "
            "SELECT 999999, wait_id, kind, visit, branch, status, since, data FROM run_waits WHERE run_no = {asleep}"
        ],
        {("I44", None)},
        True,
    ),
    "timers of no run": (
        [
            "INSERT INTO run_timers SELECT 999999, timer, due_at, branch, status, boot, elapsed FROM run_timers "
            "WHERE run_no = {asleep}"
        ],
        {("I44", None)},
        True,
    ),
    "branches of no run": (
        ["INSERT INTO run_branches VALUES (999999, 2, 1, 3, 1, 'fork', CAST('{}' AS BLOB), 1)"],
        {("I44", None)},
        True,
    ),
    "messages to no run": (
        [
            "INSERT INTO run_inbox_messages (message_id, run_no, kind, payload, created_at, status) "
            "VALUES ('m1', 999999, 'cancel', CAST('{}' AS BLOB), 1, 'new')"
        ],
        {("I44", None)},
        True,
    ),
    "events of no run": (
        ["UPDATE run_events SET run_no = 999999 WHERE run_no = {done}"],
        {("I44", None), ("I1", "done"), ("I7", "done")},
        False,
    ),
}


def child_of(path: Path) -> str:
    with opened(path) as store:
        parent = store.run("parent")
        assert parent is not None
        return next(row.run_id for row in store.runs() if row.parent_no == parent.run_no)


def test_a_healthy_store_gives_no_finding(ward: Path) -> None:
    report = examine(ward)
    assert (report.checked, report.violations, report.warnings) == (8, [], [])


@pytest.mark.parametrize("damage", HARM)
def test_damage_is_told_with_its_code_and_its_run(ward: Path, damage: str) -> None:
    statements, expected, _ = HARM[damage]
    wanted = {(code, child_of(ward) if run == "CHILD" else run) for code, run in expected}
    harm(ward, *statements)
    report = examine(ward)
    found = set(told(report.violations))
    assert found == wanted
    assert all(v.what and v.repair for v in report.violations)


@pytest.mark.parametrize("damage", [name for name, (_, _, repairable) in HARM.items() if repairable])
def test_what_can_be_repaired_is_and_a_second_look_finds_nothing(ward: Path, damage: str) -> None:
    harm(ward, *HARM[damage][0])
    report = repair(ward)
    assert report.violations == []
    assert report.repaired
    deep = examine(ward, deep=True)
    assert deep.violations == []
    assert deep.events > 50


def test_a_look_at_one_run_finds_what_is_wrong_with_it_and_nothing_else(ward: Path) -> None:
    harm(
        ward,
        "UPDATE run_state SET finished_at = NULL WHERE run_no = {done}",
        "DELETE FROM run_timers WHERE run_no = {asleep}",
    )
    assert told(examine(ward, run_ids=["done"]).violations) == [("I7", "done")]
    assert told(examine(ward, run_ids=["asleep"]).violations) == [("I23", "asleep")]
    assert examine(ward, run_ids=["failed"]).violations == []


def test_a_run_that_nobody_drives_is_left_alone_only_after_five_minutes(ward: Path) -> None:
    harm(ward, "UPDATE run_state SET status = 'running' WHERE run_no = {retrying}")
    fresh = examine(ward, run_ids=["retrying"])
    assert ("I51", "retrying") not in told(fresh.violations)
    late = examine(ward, run_ids=["retrying"], orphan_seconds=0.0)
    assert ("I51", "retrying") in told(late.violations)
    assert "holdfast resume retrying" in next(v.repair for v in late.violations if v.code == "I51")


@pytest.mark.parametrize(("seconds", "is_told"), [(299, False), (301, True)])
def test_an_orphan_is_told_when_nothing_has_happened_for_five_minutes(ward: Path, seconds: int, is_told: bool) -> None:
    harm(ward, "UPDATE run_state SET status = 'running' WHERE run_no = {retrying}")
    later = _StoppedClock(journal(ward, "retrying")[-1].at + seconds * 1_000_000)
    found = told(examine(ward, run_ids=["retrying"], clock=later).violations)
    assert (("I51", "retrying") in found) is is_told


class _StoppedClock:
    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def elapsed(self) -> None:
        """Durations are counted by what it shows."""


def test_a_timer_that_nobody_woke_up_for_is_told(ward: Path) -> None:
    harm(ward, "UPDATE run_timers SET due_at = 1000000, boot = '' WHERE run_no = {asleep}")
    assert ("I51", "asleep") in told(examine(ward).violations)


def test_a_run_on_hold_is_neither_stuck_nor_left_alone(ward: Path) -> None:
    harm(
        ward, "UPDATE run_state SET status = 'running', hold = 'crash_loop: 10 engines died' WHERE run_no = {retrying}"
    )
    codes = [v.code for v in examine(ward, run_ids=["retrying"], orphan_seconds=0.0).violations]
    assert "I51" not in codes


def test_a_definition_that_was_changed_is_told(ward: Path) -> None:
    harm(ward, "UPDATE workflow_versions SET hash = 'other' WHERE workflow = 'ward_done'")
    assert [v.code for v in examine(ward).violations] == ["I40"]


def test_a_definition_that_is_not_valid_is_told(ward: Path) -> None:
    harm(ward, "UPDATE workflow_versions SET definition = CAST('{' AS BLOB) WHERE workflow = 'ward_done'")
    assert [v.code for v in examine(ward, deep=True).violations] == ["I42"]


def test_a_damaged_file_is_told_and_not_a_crash(ward: Path) -> None:
    connection = apsw.Connection(str(ward))
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'run_node_state_open'").fetchall()
    connection.close()
    with ward.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert "I43" in [v.code for v in examine(ward, deep=True).violations]
