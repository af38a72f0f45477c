"""`holdfast recover` in real processes."""

from __future__ import annotations

import pytest

from holdfast.testing import corrupt
from tests.cli.conftest import Project

ORDER = '{"order": {"id": "1", "amount": 5}}'


@pytest.fixture
def damaged(project: Project) -> Project:
    project.cli("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "r", "-q")
    corrupt(project.url, "r", "A5")
    return project


def test_recover_repairs_a_run_and_leads_it_to_its_end(damaged: Project) -> None:
    ended = damaged.cli("recover", "r")
    assert ended.returncode == 0
    assert "run r is recovered (A5:" in ended.stderr
    assert "it continues on branch 2" in ended.stderr
    again = damaged.cli("recover", "r", "--no-run")
    assert again.stdout == "run r: nothing to repair, its rows and its journal agree\n"


def test_recover_without_running_tells_what_it_did_as_json(damaged: Project) -> None:
    said = damaged.json("recover", "r", "--no-run")
    assert (said["run_id"], said["needed"], said["case"], said["branch"]) == ("r", True, "A5", 2)


def test_a_run_that_cannot_be_repaired_is_an_error_with_the_ways_out(project: Project) -> None:
    project.cli("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "r", "-q")
    corrupt(project.url, "r", "E1")
    ended = project.cli("recover", "r", "--no-run")
    assert ended.returncode == 1
    assert "run r cannot be repaired" in ended.stderr
    assert "restore a backup" in ended.stderr


ASKING = """
import holdfast as hf


@hf.workflow
async def asking(ctx: hf.Context) -> int:
    return await ctx.ask("how many?", schema=int)
"""


@pytest.mark.parametrize("verb", ["recover", "resume"])
def test_a2_the_call_that_recovers_prints_the_question_that_is_asked_again(project: Project, verb: str) -> None:
    (project.directory / "asking.py").write_text(ASKING)
    assert project.cli("run", "asking.py", "--run-id", "r", "-q").returncode == 3
    corrupt(project.url, "r", "A2")
    ended = project.cli(verb, "r")
    assert ended.returncode == 3
    assert "how many?" in ended.stdout + ended.stderr
    assert "holdfast respond" in ended.stdout + ended.stderr
    events = [event["type"] for event in project.events("r")]
    assert (events.count("RunRecovered"), events.count("WaitOpened")) == (1, 2)
