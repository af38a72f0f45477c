"""Runs that a program started as a script: another process, which imports the file, continues them alike."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import ENVIRONMENT, Project

FLOWS = """
import asyncio
import os
import sys

import holdfast as hf


class Busy(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def call(status: int) -> None:
    raise Busy(status)


@hf.workflow
async def caught(ctx: hf.Context) -> str:
    try:
        await ctx.step(call, 429)
    except Busy as busy:
        seen = f"busy {busy.status}"
    except Exception as error:
        seen = type(error).__name__
    print("saw", seen, flush=True)
    await ctx.receive("go")
    return seen


@hf.node(retry=hf.Retry(attempts=3, backoff=0.01, on=(Busy,)))
def flaky(ctx: hf.SyncContext) -> int:
    if ctx.attempt < 3:
        raise Busy(503)
    return ctx.attempt


@hf.workflow
def retried() -> int:
    return flaky()


async def start(workflow) -> None:
    async with hf.open(os.environ["DB"], drive=False) as engine:
        await engine.start(workflow, run_id="r")


if __name__ == "__main__":
    if sys.argv[1] == "caught":
        try:
            hf.run(caught, db=os.environ["DB"], run_id="r")
        except hf.RunSuspended:
            pass
    else:
        asyncio.run(start(retried))
"""


@pytest.fixture
def project(project: Project) -> Project:
    (project.directory / "flows.py").write_text(FLOWS)
    return project


def _script(project: Project, workflow: str) -> str:
    done = subprocess.run(
        [sys.executable, "flows.py", workflow],
        cwd=project.directory,
        env=ENVIRONMENT | {"DB": project.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_an_exception_that_a_script_defines_is_the_same_one_in_another_process(project: Project) -> None:
    assert _script(project, "caught") == "saw busy 429\n"
    assert project.cli("signal", "r", "go").returncode == 0
    done = project.cli("resume", "r", "--code", "flows.py", "-q")
    assert (done.returncode, "saw busy 429" in done.stdout) == (0, True), done
    assert project.json("show", "r")["result"] == "busy 429"


def test_a_retry_policy_of_a_script_names_the_exceptions_that_another_process_raises(project: Project) -> None:
    _script(project, "retried")
    assert project.cli("resume", "r", "--code", "flows.py", "-q").returncode == 0
    assert project.json("show", "r")["result"] == 3
    assert project.cli("run", "flows.py:retried", "--run-id", "s", "-q").returncode == 0
    assert project.json("show", "s")["version"] == project.json("show", "r")["version"], "it is the same workflow"
