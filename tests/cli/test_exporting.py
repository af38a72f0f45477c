"""`holdfast export`, in real processes."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Project

FLOW = """
import holdfast as hf


@hf.node
def doubled(n: int) -> int:
    return 2 * n


@hf.node
def shown(n: int) -> str:
    return f"{n}!"


@hf.workflow
def twice(n: int, loud: bool = True):
    with hf.when((n > 1) & loud):
        return shown(doubled(n))


@hf.workflow
async def code(ctx: hf.Context) -> int:
    return 1
"""


@pytest.fixture
def written(project: Project) -> Project:
    (project.directory / "twice.py").write_text(FLOW)
    return project


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_exported_document_runs_as_the_graph_does_and_is_the_same_version(written: Project, form: str) -> None:
    done = written.cli("export", "twice.py:twice", "--as", "graph", "--format", form)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "input.n > 1 && input.loud" in done.stdout
    (written.directory / f"exported.{form}").write_text(done.stdout)
    of_python = written.cli("run", "twice.py:twice", "--input", '{"n": 4}', "--run-id", "a")
    of_document = written.cli(
        "run", f"exported.{form}:twice", "--code", "twice.py", "--input", '{"n": 4}', "--run-id", "b"
    )
    assert of_python.returncode == of_document.returncode == 0, of_document
    runs = written.json("list")
    listed = runs["runs"] if isinstance(runs, dict) else runs
    assert {(run["run_id"], run["version"], run["status"]) for run in listed} == {
        ("a", 1, "completed"),
        ("b", 1, "completed"),
    }


def test_run_is_exported_without_its_code(written: Project) -> None:
    written.cli("run", "twice.py:twice", "--input", '{"n": 4}', "--run-id", "a")
    done = written.cli("export", "a", "--format", "json")
    assert done.returncode == 0, done
    assert "not checked: " in done.stderr
    document = json.loads(done.stdout)
    assert [node["id"] for node in document["nodes"]] == ["doubled", "shown"]
    assert document["nodes"][1]["input"] == {"n": "{{ doubled.output }}"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("twice.py:code",), "code is durable code, not a graph"),
        (("twice.py:twice", "--as", "dag"), "--as dag: use graph"),
        (("twice.py:twice", "--format", "toml"), "--format toml: use yaml or json"),
        (("nothing",), "A workflow is given as FILE.py:NAME"),
    ],
)
def test_what_cannot_be_exported_is_refused(written: Project, args: tuple[str, ...], message: str) -> None:
    written.cli("run", "twice.py:twice", "--input", '{"n": 1}', "--run-id", "a")
    done = written.cli("export", *args)
    assert done.returncode != 0
    assert message in done.stderr
