"""`holdfast db backup`, `restore` and `activate` in real processes, as an operator uses them."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Project

FLOWS = """
import holdfast as hf


@hf.node
def finish(answer: str) -> str:
    with open("finished", "a") as f:
        f.write("x")
    return answer


@hf.workflow
def kept_question(n: int = 4):
    return finish(hf.ask("Which?", schema=str))
"""


def wait_of(project: Project, *options: str) -> str:
    (asked,) = project.json("inbox", *options)
    return str(asked["wait_id"])


def test_a_run_goes_on_from_a_backup_that_was_restored_and_activated(project: Project) -> None:
    (project.directory / "flows.py").write_text(FLOWS)
    assert project.cli("run", "flows.py:kept_question", "--run-id", "r").returncode == 3
    made = project.json("db", "backup", "kept.db", "--deep")
    assert (made["violations"], Path(made["to"]).name) == ([], "kept.db")
    assert project.cli("db", "backup", "kept.db").returncode == 2
    default = project.json("db", "backup")
    assert Path(default["to"]).parent == project.directory

    project.cli("respond", wait_of(project), "--input", '"first"')
    assert project.cli("resume", "r").returncode == 0
    assert project.json("show", "r")["status"] == "completed"

    restored = project.json("db", "restore", "kept.db")
    assert Path(restored["replaced"]).exists()
    assert project.json("show", "r")["status"] == "suspended", "verbs that read work"
    refused = project.cli("resume", "r")
    assert refused.returncode == 1
    assert "holdfast db activate" in refused.stderr
    assert project.cli("respond", wait_of(project), "--input", '"second"').returncode == 1
    assert project.cli("doctor", "--deep").returncode == 0

    assert project.json("db", "activate") == project.json("db", "activate") | {"activated": True}
    project.cli("respond", wait_of(project), "--input", '"second"')
    assert project.cli("resume", "r").returncode == 0
    assert project.json("show", "r")["result"] == "second"
    assert project.cli("doctor", "--deep").returncode == 0
