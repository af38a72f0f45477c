"""Verbs that read a run whose journal or row is damaged: they tell what they can, else who can tell more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from tests.doctor.ward import harm
from tests.engine.kit import url

VERBS = (
    "show RUN",
    "show RUN --branch 1",
    "show RUN --paths",
    "why RUN",
    "events RUN",
    "events RUN --branch 1",
    "graph RUN",
    "branches RUN",
    "diff RUN 1 1",
    "fork RUN --at start --dry-run",
)
IS_LAST = "seq = (SELECT last_seq FROM run_state WHERE run_state.run_no = run_events.run_no)"
HARM = {
    "without its first event": "DELETE FROM run_events WHERE seq = 1",
    "without an event in the middle": "DELETE FROM run_events WHERE seq = 3",
    "without its last event": "DELETE FROM run_events WHERE {IS_LAST}",
    "without any event": "DELETE FROM run_events",
    "that begins with something else": "UPDATE run_events SET type = 'RunResumed' WHERE seq = 1",
    "of a newer Holdfast": "UPDATE run_events SET type = 'RunBegotten' WHERE seq = 1",
    "whose first event is no JSON": "UPDATE run_events SET data = CAST('{' AS BLOB) WHERE seq = 1",
    "whose last event is no JSON": "UPDATE run_events SET data = CAST('{' AS BLOB) WHERE {IS_LAST}",
    "whose outputs are no text": "UPDATE run_events SET data = x'22ff22' WHERE type = 'NodeCompleted'",
    "without its branches": "DELETE FROM run_events WHERE type = 'BranchOpened'",
    "with an event of a branch that nobody opened": "UPDATE run_events SET branch = 9 WHERE seq = 4",
    "whose definition is gone": "DELETE FROM workflow_versions",
    "whose row is no JSON": "UPDATE run_state SET fold = CAST('{' AS BLOB)",
    "whose row is no text": "UPDATE run_state SET fold = x'22ff22'",
}


def call(capsys: pytest.CaptureFixture[str], ward: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = main([*arguments, "--db", url(ward)])
    return code, *capsys.readouterr()


def test_show_of_a_run_without_its_first_event_says_so_names_the_doctor_and_shows_the_rest(
    ward: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(ward, HARM["without its first event"])
    told = "event 1 of run asleep is missing from its journal"
    code, out, _ = call(capsys, ward, "show", "asleep")
    assert code == 0
    assert f"damaged   {told}; `holdfast doctor asleep " in out
    assert "suspended" in out
    code, out, _ = call(capsys, ward, "show", "asleep", "--json")
    shown = json.loads(out)
    assert (code, shown["status"], shown["input"]) == (0, "suspended", {"unreadable": told})
    code, out, _ = call(capsys, ward, "doctor", "--deep", "asleep")
    assert code == 1
    assert "run asleep: event 1 is missing from the journal" in out


def test_a_list_shows_the_others_beside_a_run_whose_end_is_not_in_its_journal(
    ward: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = call(capsys, ward, "list", "--json")
    before = {run["run_id"]: run for run in json.loads(out)}
    harm(ward, "DELETE FROM run_events WHERE run_no = {failed} AND {IS_LAST}", IS_LAST=IS_LAST)
    code, out, _ = call(capsys, ward, "list", "--json")
    after = {run["run_id"]: run for run in json.loads(out)}
    assert code == 0
    assert after["failed"].pop("error")["code"] == "corrupt"
    assert before["failed"].pop("error")["code"] != "corrupt"
    assert after == before


@pytest.mark.parametrize("damage", HARM)
@pytest.mark.parametrize("run", ["done", "asleep", "forked", "failed"])
def test_whoever_reads_a_damaged_run_tells_something_or_names_the_doctor(
    ward: Path, capsys: pytest.CaptureFixture[str], run: str, damage: str
) -> None:
    harm(ward, HARM[damage], IS_LAST=IS_LAST)
    for verb in VERBS:
        arguments = verb.replace("RUN", run).split()
        code, out, err = call(capsys, ward, *arguments)
        if code == 0:
            assert out or "any event" in damage, verb
            continue
        assert (code, out) == (1, ""), (verb, err)
        assert_named(err, run)
        code, out, _ = call(capsys, ward, *arguments, "--json")
        problem = json.loads(out)["error"]
        assert (code, problem["code"]) == (1, "corrupt"), verb
        assert_named(problem["message"], run)


def assert_named(told: str, run: str) -> None:
    assert f"run {run}" in told
    assert told.rstrip("\n").endswith("; `holdfast doctor --deep` lists what is damaged")
