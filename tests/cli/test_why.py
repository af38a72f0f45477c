"""`holdfast why` beside real workers: which of them will go on with a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Project, eventually

STRICT = """\
import holdfast as hf


@hf.workflow(on_code_change="fail")
async def strict_nap(ctx: hf.Context) -> str:
    await ctx.sleep(36_000)
    return "{returns}"
"""


def worker_of(project: Project, returns: str) -> str:
    """Start a worker whose code returns this; the engine's name."""
    folder = project.directory / returns
    folder.mkdir(exist_ok=True)
    (folder / "strict.py").write_text(STRICT.format(returns=returns))
    process = project.start("worker", str(Path(returns, "strict.py")), "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return str(json.loads(line)["engine"])


def why(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = project.json("why", "nap")
    return found


def test_why_tells_workers_with_the_code_of_a_run_from_those_with_other_code(project: Project) -> None:
    old = worker_of(project, "old")
    project.json("start", "old/strict.py:strict_nap", "--run-id", "nap")
    eventually(lambda: project.json("show", "nap")["status"] == "suspended", "it never slept")
    project.started[0].kill()
    project.started[0].wait()
    new = worker_of(project, "new")
    eventually(lambda: old not in why(project)["why"], "the dead worker is still its owner")
    told = why(project)
    assert "every engine that could take it has other code than it began with (strict.strict_nap)" in told["why"]
    assert "or accept the new one: `holdfast resume nap` resumes it." in told["why"]
    assert (told["status"], told["moves"]) == ("suspended", False)
    assert "it would be put on hold" in project.cli("why", "nap").stdout.replace("\n", " ")
    old = worker_of(project, "old")
    told = why(project)
    assert f"engine {old} (process " in told["why"]
    assert new not in told["why"]
    assert told["moves"] is True
