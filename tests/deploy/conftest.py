"""For tests of deployment files: a directory to work in, a real server, and the commands that the files name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Project
from tests.servers import PostgresServer

DEPLOY = Path(__file__).parents[2] / "deploy"

FLOWS = """
import asyncio
import os
from pathlib import Path

import holdfast as hf


@hf.workflow
async def until_the_gate_opens(ctx: hf.Context) -> str:
    Path("begun").touch()
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return "done"


@hf.workflow
async def asleep_for_a_day(ctx: hf.Context) -> None:
    Path("asleep").touch()
    await ctx.sleep(86_400)
"""


class Site(Project):
    """A working directory, with the variables that a deployment file gives to its workers."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory)
        self.variables = {"HOLDFAST_DATABASE_URL": url}
        (directory / "workflows.py").write_text(FLOWS)

    def holdfast(self, *args: str) -> Any:
        """Run a command to its end, on the database of the workers; what it printed."""
        return self.json(*args, **self.variables)

    def serve(self, command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        """Run the command of a worker as a file names it (`.../holdfast worker ...`), with this project's code."""
        program, *arguments = command
        assert Path(program).name == "holdfast"
        return self.start(*arguments, **variables | self.variables)


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer) -> Iterator[Site]:
    tmp_path.chmod(0o700)
    made = Site(tmp_path, postgres.url())
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
