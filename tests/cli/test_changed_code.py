"""A run whose code was changed under it, in real processes: shown, rehearsed, accepted, rolled back."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Project

FLOWS = """
import holdfast as hf


def act(what: str) -> str:
    with open("acts", "a") as f:
        f.write(what[0])
    return what


@hf.workflow
async def order(ctx: hf.Context) -> list[str]:
    found = [await ctx.step(act, "reserve"), await ctx.step(act, "charge")]
    await ctx.receive("go")
    return [*found, await ctx.step(act, "ship")]
"""


@pytest.fixture
def held(project: Project) -> Project:
    """A run that waited while its code was changed, and then got its signal."""
    flows = project.directory / "flows.py"
    flows.write_text(FLOWS)
    assert project.cli("run", "flows.py:order", "--run-id", "r", "-q").returncode == 3
    flows.write_text(FLOWS.replace('"reserve"', '"check"'))
    assert project.cli("signal", "r", "go").returncode == 0
    assert project.cli("resume", "r", "-q").returncode == 3
    return project


def test_a_changed_run_is_shown_on_hold_with_the_ways_on(held: Project) -> None:
    assert "code_changed" in held.cli("list").stdout
    assert "code_changed" in held.cli("show", "r").stdout
    why = " ".join(held.cli("why", "r").stdout.split())
    assert "deploy the old code again and resume it" in why
    assert "holdfast resume r --accept-change" in why
    assert (held.directory / "acts").read_text() == "rc"


def test_a_rehearsal_says_what_would_be_reused_and_changes_nothing(held: Project) -> None:
    before = held.events("r")
    told = held.cli("resume", "r", "--accept-change", "--dry-run").stdout
    assert "calls anew  step flows.act" in told
    assert "sets aside  step flows.act, step flows.act, receive go" in told
    (shown,) = held.json("resume", "r", "--accept-change", "--dry-run")
    assert (shown["run_id"], shown["node"], shown["reused"]) == ("r", "order", [])
    assert held.events("r") == before
    assert (held.directory / "acts").read_text() == "rc"


def test_an_accepted_change_goes_on_with_the_new_code(held: Project) -> None:
    done = held.cli("resume", "r", "--accept-change", "--actor", "ann", "-q")
    assert (done.returncode, json.loads(done.stdout)) == (0, ["check", "charge", "ship"])
    assert (held.directory / "acts").read_text() == "rccs"
    (opened,) = held.events("r", "BranchOpened")
    assert opened["data"]["reason"] == "accept_change"
    assert opened["data"]["actor"] == "ann"
    assert held.cli("doctor", "--deep").returncode == 0


def test_a_rollback_goes_on_with_the_old_code(held: Project) -> None:
    (held.directory / "flows.py").write_text(FLOWS)
    done = held.cli("resume", "r", "-q")
    assert (done.returncode, json.loads(done.stdout)) == (0, ["reserve", "charge", "ship"])
    assert (held.directory / "acts").read_text() == "rcs"


def test_options_that_do_not_go_together_are_refused(held: Project) -> None:
    assert "add --accept-change" in held.here("resume", "r", "--dry-run").stderr
    assert "--accept-change is for named runs" in held.here("resume", "--all", "--accept-change").stderr
