"""Runs whose compensations have no code, in real processes: they can be ended, and undone when the code comes back."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Project, eventually

UNDO = """
@hf.node
async def refund(charge: str) -> None:
    act("refund")


"""

FLOWS = (
    """
import holdfast as hf


def act(what: str) -> None:
    with open("acts", "a") as f:
        f.write(f"{what} ")


@hf.node
async def unbook(booking: str) -> None:
    act("unbook")


@hf.node(compensate=unbook)
async def book() -> str:
    return "booking"

"""
    + UNDO
    + """
@hf.node(compensate=refund)
async def charge() -> str:
    return "charge"


@hf.workflow(on_failure="compensate")
async def order(ctx: hf.Context) -> None:
    await ctx.step(book)
    await ctx.step(charge)
    await ctx.receive("go")
"""
)
WITHOUT_REFUND = FLOWS.replace(UNDO, "").replace("compensate=refund", "")


@pytest.fixture
def held(project: Project) -> Project:
    """A run that was cancelled, and whose last compensation was removed from the file."""
    (project.directory / "flows.py").write_text(FLOWS)
    assert project.cli("run", "flows.py:order", "--run-id", "r", "-q").returncode == 3
    (project.directory / "flows.py").write_text(WITHOUT_REFUND)
    assert "is being cancelled" in project.cli("cancel", "r").stdout
    assert project.cli("resume", "r", "-q").returncode == 3
    assert "missing_code" in project.cli("list").stdout
    return project


def test_cancel_ends_a_run_on_hold_and_names_what_was_not_undone(held: Project) -> None:
    assert "`holdfast cancel r` ends it" in " ".join(held.cli("why", "r").stdout.split())
    done = held.cli("cancel", "r")
    assert (done.returncode, done.stdout) == (0, "run r is cancelled\n")
    told = " ".join(done.stderr.split())
    assert "charge~undo: not undone, given up by a cancel: no engine has loaded its compensation flows.refund" in told
    assert "book~undo: not undone" in told
    assert held.cli("doctor", "--deep").returncode == 0
    (held.directory / "flows.py").write_text(FLOWS)
    assert held.cli("retry", "r", "-q").returncode == 4
    assert (held.directory / "acts").read_text() == "refund unbook "


def test_cancel_lets_a_worker_undo_what_it_has_the_code_of(held: Project) -> None:
    worker = held.start("worker", "flows.py", "--json")
    assert worker.stdout is not None
    assert worker.stdout.readline(), "it works"
    assert held.cli("cancel", "r").returncode == 0
    eventually(lambda: held.json("show", "r")["status"] == "cancelled", "the worker ends it")
    assert (held.directory / "acts").read_text() == "unbook "


def test_cancel_ends_a_run_that_no_engine_can_take_when_it_is_told_to_give_up(project: Project) -> None:
    (project.directory / "flows.py").write_text(FLOWS)
    assert project.cli("run", "flows.py:order", "--run-id", "r", "-q").returncode == 3
    assert "is being cancelled" in project.cli("cancel", "r").stdout
    assert "is being cancelled" in project.cli("cancel", "r").stdout, "an engine with its code may come"
    assert "holdfast cancel r --give-up-undo" in " ".join(project.cli("why", "r").stdout.split())
    done = project.cli("cancel", "r", "--give-up-undo")
    assert (done.returncode, done.stdout) == (0, "run r is cancelled\n")
    assert done.stderr.count("not undone") == 2
