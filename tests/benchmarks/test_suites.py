"""The full benchmark: that its suites measure, judge and clean up; never how quick this machine is.

One suite is run per commit, all of them with `make soak`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from benchmarks import copies, figures, report, sizes, workflows
from benchmarks.__main__ import app
from benchmarks.suites import SUITES
from holdfast.cli.commands.bench import choose, measure
from holdfast.cli.main import run_app
from holdfast.cli.measuring import Bench, connected, in_file
from tests.servers import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
Quick = tuple[dict[str, Any], str, Path]


def bench(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--db-dir", str(directory), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    directory = tmp_path_factory.mktemp("bench")
    done = bench(directory, "--suite", "quick", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, directory


@pytest.fixture(scope="module")
def quick_on_server(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    directory = tmp_path_factory.mktemp("bench")
    done = bench(directory, "--suite", "quick", "--json", "--db", postgres.url("theirs"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, directory


def test_a_suite_measures_and_cleans_up(tmp_path: Path) -> None:
    said: list[str] = []
    found = measure({"W3": SUITES["W3"]}, Bench(tmp_path, sizes.QUICK, 1, say=said.append))
    assert {figure.key for figure in figures.FIGURES if figure.suite == "W3"} <= found["W3"].keys()
    assert [verdict["suite"] for verdict in report.judge(found, figures.figures_of(served=False))] == ["W3"]
    assert any(line.startswith("W3: ") for line in said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_quick_has_every_suite_and_the_promised_fields(quick: Quick) -> None:
    found = quick[0]
    assert found["reference"]["commits_per_s"] > 0
    assert {"p50_ms", "p99_ms", "commits", "step_p50_ms", "step_p99_ms", "step_commits"} <= found["W1"].keys()
    assert {"steps_per_s", "x_ref", "cpu_us_per_step", "ref", "repetitions"} <= found["W2"].keys()
    assert {"python", "sqlite", "cpus", "filesystem", "at"} <= found["machine"].keys()
    assert found["machine"]["server"] is None
    for figure in figures.figures_of(served=False):
        assert isinstance(found[figure.suite][figure.key], int | float), figure


@pytest.mark.soak
def test_on_a_server_every_suite_that_makes_sense_there_is_measured(quick_on_server: Quick) -> None:
    found = quick_on_server[0]
    assert found["machine"]["server"].startswith("PostgreSQL ")
    assert {"engines", "flat"} < found.keys()
    assert "explorer" not in found
    for figure in figures.figures_of(served=True):
        assert isinstance(found[figure.suite][figure.key], int | float), figure


@pytest.mark.soak
def test_a_server_is_left_as_it_was(quick_on_server: Quick, postgres: PostgresServer) -> None:
    with connected(postgres.url("theirs")) as execute:
        schemas = execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%bench%' OR nspname = 'theirs'")
    assert schemas == []
    assert list(quick_on_server[2].iterdir()) == []


@pytest.mark.soak
def test_of_two_engines_the_busiest_has_done_half_at_least(quick_on_server: Quick) -> None:
    """Of so few runs perhaps all: the other one may have come when they were done."""
    assert 0.5 <= quick_on_server[0]["engines"]["busiest"] <= 1.0


@pytest.mark.soak
def test_quick_counts_steps_that_ran_twice_and_loses_none(quick: Quick) -> None:
    runs = sizes.QUICK.runs
    assert 0 <= quick[0]["W5"]["run_twice"] <= runs  # at most one body was under way in each run
    assert quick[0]["W5"]["steps_after_restart"] >= runs * 5


@pytest.mark.soak
def test_quick_gives_no_verdict_on_tiny_sizes(quick: Quick) -> None:
    assert quick[0]["verdicts"] == []


@pytest.mark.soak
def test_progress_is_on_stderr_and_nothing_stays_behind(quick: Quick) -> None:
    _, progress, directory = quick
    assert all(f"{name}: " in progress for name in figures.suites_of(served=False))
    assert list(directory.iterdir()) == []


def test_plain_lines_show_measured_floor_aim_and_verdict() -> None:
    machine = {"load": 0.5, "server": None, "sqlite": "3", "holdfast": "1", "python": "3", "cpus": 2, "cpu": "x"}
    measured = {
        "reference": {"commits_per_s": 5.0, "lowest": 1.0, "highest": 9.0},
        "W2": {"x_ref": 4.5, "steps_per_s": 15_000.0, "cpu_us_per_step": 60.0},
        "machine": machine | {"filesystem": None},
    }
    catalogue = figures.figures_of(served=False)
    shown = [" ".join(line.split()) for line in report.lines(measured, catalogue, judged=True)]
    assert any("steps/s in raw commits 4.5 4.0 7.0 or 20,000/s below aim" in line for line in shown)
    assert any("CPU per step in µs 60.0 50.0 40.0 below floor" in line for line in shown)
    assert any("tiny sizes" in line for line in report.lines(measured, catalogue, judged=False))


@pytest.mark.parametrize(
    ("suite", "measured", "expected"),
    [
        ("W1", {"commits": 1.9}, "ok"),
        ("W1", {"commits": 2.0}, "ok"),
        ("W1", {"commits": 2.5}, "below aim"),
        ("W1", {"commits": 2.9}, "below floor"),
        ("W2", {"x_ref": 7.1, "steps_per_s": 9_000}, "ok"),
        ("W2", {"x_ref": 3.0, "steps_per_s": 20_000}, "ok"),
        ("W2", {"x_ref": 6.9, "steps_per_s": 19_999}, "below aim"),
        ("W2", {"x_ref": 3.9, "steps_per_s": 19_999}, "below floor"),
        ("W5", {}, ""),
    ],
)
def test_verdicts(suite: str, measured: dict[str, float], expected: str) -> None:
    first = next(figure for figure in figures.FIGURES if figure.suite == suite)
    assert report.verdict(first, measured) == expected


@pytest.mark.parametrize("suite", ["W9", "", "W1,quick", "all,nothing", "engines"])
def test_unknown_suites_are_refused(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(app, ["--suite", suite, "--db-dir", str(tmp_path)], "benchmarks") == 2
    assert "choose from W1, W2" in capsys.readouterr().err


def test_names_agree() -> None:
    assert list(SUITES) == list(dict.fromkeys(figure.suite for figure in figures.FIGURES))
    assert {*figures.suites_of(served=False), *figures.suites_of(served=True)} == set(SUITES)
    assert set(figures.SERVED) <= {(figure.suite, figure.key) for figure in figures.FIGURES}


def test_a_server_is_judged_by_what_was_asked_of_servers() -> None:
    results = {"W1": {"p50_ms": 0.8, "commits": 9.0, "x_bare": 2.0}, "W2": {"x_ref": 3.0, "steps_per_s": 90_000}}
    verdicts = {(v["suite"], v["figure"]): v["verdict"] for v in report.judge(results, figures.figures_of(served=True))}
    assert verdicts == {("W1", "p50_ms"): "ok", ("W1", "x_bare"): "below floor", ("W2", "x_ref"): "below aim"}


def test_all_leaves_out_what_is_measured_by_name_only() -> None:
    served, alone = figures.suites_of(served=True), figures.suites_of(served=False)
    names, quick = choose("all", alone, by_name=figures.BY_NAME)
    assert not quick
    assert set(names) | {"waiting", "flat"} == set(alone)
    assert not {"waiting", "flat"} & set(names)
    assert choose("Waiting, w6", served, by_name=figures.BY_NAME) == (["W6", "waiting"], False)


@pytest.mark.parametrize("served", [False, True])
def test_a_copied_run_goes_on_like_the_one_it_was_copied_from(
    tmp_path: Path, postgres: PostgresServer, served: bool
) -> None:
    url = postgres.url() if served else in_file(tmp_path).url
    copies.copy_run(url, copies.waiting_run(url, workflows.signalled), 5)

    async def signal_all() -> list[int]:
        async with hf.open(url) as engine:
            waiting = [engine.get(row["run_id"]) for row in await engine.list(status="suspended")]
            await asyncio.gather(*(run.signal("go", n) for n, run in enumerate(waiting)))
            return [await run.result() for run in waiting]

    assert asyncio.run(signal_all()) == [1, 2, 3, 4, 5]
