"""`holdfast doctor` and `holdfast why`, as a person calls them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import ORDER, Project, project
from tests.doctor.ward import harm, journal

__all__ = ["project"]


@pytest.fixture
def shop(project: Project) -> Project:
    project.cli("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "order", "-q")
    project.cli("run", "flows.py:broken", "--input", ORDER, "--run-id", "broken", "-q")
    return project


def db(shop: Project) -> Path:
    return shop.directory / "holdfast.db"


def test_a_healthy_database_is_exit_code_0(shop: Project) -> None:
    done = shop.cli("doctor")
    assert (done.returncode, done.stdout) == (0, "checked 2 runs: no violations\n")
    deep = shop.json("doctor", "--deep")
    assert (deep["checked"], deep["violations"], deep["warnings"]) == (2, [], [])
    assert deep["events"] > 10


def test_a_violation_is_a_sentence_with_its_repair_and_exit_code_1(shop: Project) -> None:
    harm(db(shop), "UPDATE run_node_state SET attempt = 9 WHERE run_no = {order} AND node = 'charge'")
    assert shop.cli("doctor").returncode == 0  # only the journal can tell
    done = shop.cli("doctor", "--deep")
    assert done.returncode == 1
    assert "I5   run order: charge: attempt is 9 in its row and 1 by the journal" in done.stdout
    assert "holdfast doctor order --rebuild" in done.stdout
    (found,) = shop.json("doctor", "order", "--deep", exit_code=1)["violations"]
    assert list(found) == ["code", "run_id", "node", "path", "seq", "what", "repair"]
    assert (found["code"], found["run_id"], found["node"]) == ("I5", "order", "charge")


def test_nothing_is_repaired_unless_asked(shop: Project) -> None:
    harm(db(shop), "UPDATE run_node_state SET attempt = 9 WHERE run_no = {order} AND node = 'charge'")
    before = sqlite3.connect(db(shop)).execute("SELECT * FROM run_node_state").fetchall()
    assert shop.cli("doctor", "--deep").returncode == 1
    assert sqlite3.connect(db(shop)).execute("SELECT * FROM run_node_state").fetchall() == before


@pytest.mark.parametrize("way", [("order", "--rebuild"), ("--rebuild",), ("--deep", "--repair")])
def test_rebuild_writes_rows_again_and_leaves_nothing_wrong(shop: Project, way: tuple[str, ...]) -> None:
    harm(db(shop), "UPDATE run_node_state SET attempt = 9 WHERE run_no = {order} AND node = 'charge'")
    done = shop.cli("doctor", *way)
    assert done.returncode == 0, done
    assert "run order: wrote its rows again from" in done.stdout
    assert shop.cli("doctor", "--deep").returncode == 0


def test_a_tampered_journal_stays_a_violation(shop: Project) -> None:
    harm(db(shop), "UPDATE run_events SET at = at + 1 WHERE run_no = {order} AND seq = 3")
    (found,) = shop.json("doctor", "--deep", "--repair", exit_code=1)["violations"]
    assert (found["code"], found["run_id"], found["seq"]) == ("I3", "order", 3)
    assert "on hold" in found["repair"]


def test_a_run_of_the_catalogue_is_recovered(shop: Project) -> None:
    """The journal lost its end: every node has settled, and the run is shown as completed."""
    before, _ = journal(db(shop), "order")[-2:]
    harm(
        db(shop),
        "DELETE FROM run_events WHERE run_no = {order} AND seq > {SEQ}",
        "UPDATE run_state SET last_seq = {SEQ}, head_hash = x'{HEAD}' WHERE run_no = {order}",
        SEQ=before.seq,
        HEAD=before.hash.hex(),
    )
    assert shop.cli("doctor").returncode == 1
    assert shop.cli("doctor", "--repair").returncode == 0
    done = shop.cli("resume", "order", "-q")
    assert done.returncode == 0, done
    assert shop.cli("doctor", "--deep").returncode == 0


def test_work_that_nobody_drives_is_told_after_the_time_that_was_given(shop: Project) -> None:
    process = shop.start("run", "flows.py:gated", "--run-id", "gated", "-q")
    shop.wait_for("attempt-1")
    process.kill()
    process.communicate()
    found = shop.json("doctor", exit_code=1)["violations"]
    assert [(v["code"], v["run_id"]) for v in found] == [("I19", "gated")]
    assert shop.cli("doctor", "--repair").returncode == 0
    (left,) = shop.json("doctor", "--orphan-seconds", "0", exit_code=1)["violations"]
    assert (left["code"], left["repair"]) == ("I51", "resume the run: `holdfast resume gated`")
    shop.open_gate()
    assert shop.cli("resume", "gated", "-q").returncode == 0
    assert shop.cli("doctor", "--deep", "--orphan-seconds", "0").returncode == 0


def test_a_run_that_does_not_say_where_its_code_was_keeps_no_other_from_going_on(shop: Project) -> None:
    for run_id in ("whole", "damaged"):
        shop.cli("start", "flows.py:sleeper", "--run-id", run_id)
    harm(db(shop), "DELETE FROM run_events WHERE run_no = {damaged} AND seq = 1")
    told = "event 1 of run damaged is missing from its journal"
    for verb in ("resume", "recover"):
        done = shop.cli(verb, "damaged", "-q")
        assert done.returncode == 1
        assert done.stderr == f"holdfast: {told}; `holdfast doctor --deep` lists what is damaged\n"
    done = shop.cli("resume", "--all", "-q")
    assert done.returncode == 1
    assert f"holdfast: {told}\n" in done.stderr
    assert shop.json("show", "whole")["status"] == "completed"


def test_a_run_that_does_not_exist_is_wrong_usage(shop: Project) -> None:
    for verb in ("doctor", "why"):
        done = shop.cli(verb, "nobody")
        assert done.returncode == 2
        assert "there is no run 'nobody'" in done.stderr


def test_why_says_where_a_run_stands(shop: Project) -> None:
    told = shop.cli("why", "order")
    assert told.returncode == 0
    assert told.stdout.startswith("run order completed ")
    assert "ValueError: no money for 42 \\x1b[31mred" in " ".join(shop.cli("why", "broken").stdout.split())
    assert shop.json("why", "order")["moves"] is True
