"""`holdfast bench`: that it measures, judges and cleans up; never how quick this machine is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli.bench import copies, machine, places, reference, targets, workflows
from holdfast.cli.bench.report import lines, rounded
from holdfast.cli.bench.suites import SUITES
from holdfast.cli.commands.bench import _suites
from holdfast.cli.main import main
from tests.servers import PostgresServer

pytestmark = pytest.mark.timeout(400)  # two whole benchmarks are run, tiny as they are

Quick = tuple[dict[str, Any], str, Path]


def bench(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "bench", "--db-dir", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


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


def test_quick_has_every_suite_and_the_promised_fields(quick: Quick) -> None:
    report = quick[0]
    assert report["reference"]["commits_per_s"] > 0
    assert {"p50_ms", "p99_ms", "commits", "step_p50_ms", "step_p99_ms", "step_commits"} <= report["W1"].keys()
    assert {"steps_per_s", "x_ref", "cpu_us_per_step", "ref", "repetitions"} <= report["W2"].keys()
    assert {"python", "sqlite", "cpus", "filesystem", "at"} <= report["machine"].keys()
    assert report["machine"]["server"] is None
    for figure in targets.figures_of(served=False):
        assert isinstance(report[figure.suite][figure.key], int | float), figure


def test_on_a_server_every_suite_that_makes_sense_there_is_measured(quick_on_server: Quick) -> None:
    report = quick_on_server[0]
    assert report["machine"]["server"].startswith("PostgreSQL ")
    assert {"engines", "flat"} < report.keys()
    assert "explorer" not in report
    for figure in targets.figures_of(served=True):
        assert isinstance(report[figure.suite][figure.key], int | float), figure


def test_a_server_is_left_as_it_was(quick_on_server: Quick, postgres: PostgresServer) -> None:
    with places.connected(postgres.url("theirs")) as execute:
        schemas = execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%bench%' OR nspname = 'theirs'")
    assert schemas == []
    assert list(quick_on_server[2].iterdir()) == []


def test_of_two_engines_the_busiest_has_done_half_at_least(quick_on_server: Quick) -> None:
    """Of so few runs perhaps all: the other one may have come when they were done."""
    assert 0.5 <= quick_on_server[0]["engines"]["busiest"] <= 1.0


def test_quick_counts_steps_that_ran_twice_and_loses_none(quick: Quick) -> None:
    runs = reference.QUICK.runs
    assert 0 <= quick[0]["W5"]["run_twice"] <= runs  # at most one body was under way in each run
    assert quick[0]["W5"]["steps_after_restart"] >= runs * 5


def test_quick_gives_no_verdict_on_tiny_sizes(quick: Quick) -> None:
    assert quick[0]["verdicts"] == []


def test_progress_is_on_stderr_and_nothing_stays_behind(quick: Quick) -> None:
    _, progress, directory = quick
    assert all(f"{name}: " in progress for name in targets.suites_of(served=False))
    assert list(directory.iterdir()) == []


def test_plain_lines_show_measured_floor_aim_and_verdict(quick: Quick) -> None:
    report = {**quick[0], "W2": {**quick[0]["W2"], "x_ref": 4.5, "steps_per_s": 15_000.0, "cpu_us_per_step": 60.0}}
    shown = [" ".join(line.split()) for line in lines(report, judged=True)]
    assert any("steps/s in raw commits 4.5 4.0 7.0 or 20,000/s below aim" in line for line in shown)
    assert any("CPU per step in µs 60.0 50.0 40.0 below floor" in line for line in shown)
    assert any("tiny sizes" in line for line in lines(report, judged=False))


@pytest.mark.parametrize(
    ("suite", "figures", "expected"),
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
def test_verdicts(suite: str, figures: dict[str, float], expected: str) -> None:
    first = next(figure for figure in targets.FIGURES if figure.suite == suite)
    assert targets.verdict(first, figures) == expected


def test_a_figure_is_measured_again_while_the_disk_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1000.0, 2000.0, 1000.0, 1800.0, 1000.0, 1400.0])
    monkeypatch.setattr(reference, "commits_per_second", lambda directory, seconds: next(rates))
    measured, said = list[Path](), list[str]()
    bench = reference.Bench(tmp_path, reference.QUICK, 1, said.append)
    sample = bench.sample(lambda place: measured.append(place.directory))
    assert len(measured) == len(set(measured)) == 3
    assert (sample.ref, len(said)) == (1200.0, 2)


def test_after_three_more_times_the_steadiest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1000.0, 3000.0, 1000.0, 2000.0, 1000.0, 4000.0, 1000.0, 5000.0])
    monkeypatch.setattr(reference, "commits_per_second", lambda directory, seconds: next(rates))
    assert reference.Bench(tmp_path, reference.QUICK, 1, lambda line: None).sample(lambda place: None).ref == 1500.0
    assert next(rates, None) is None


@pytest.mark.parametrize("suite", ["W9", "", "W1,quick", "all,nothing", "engines"])
def test_unknown_suites_are_refused(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", suite, "--db-dir", str(tmp_path)]) == 2
    assert "choose from W1, W2" in capsys.readouterr().err


def test_a_missing_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--db-dir", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_a_file_is_not_named_as_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--db", f"sqlite:///{tmp_path}/x.db"]) == 2
    assert "--db-dir" in capsys.readouterr().err


def test_names_agree() -> None:
    assert tuple(SUITES) == targets.SUITES
    assert {*targets.suites_of(served=False), *targets.suites_of(served=True)} == set(SUITES)
    assert set(targets.SERVED) <= {(figure.suite, figure.key) for figure in targets.FIGURES}


def test_a_server_is_judged_by_what_was_asked_of_servers() -> None:
    results = {"W1": {"p50_ms": 0.8, "commits": 9.0, "x_bare": 2.0}, "W2": {"x_ref": 3.0, "steps_per_s": 90_000}}
    verdicts = {(v["suite"], v["figure"]): v["verdict"] for v in targets.judge(results, served=True)}
    assert verdicts == {("W1", "p50_ms"): "ok", ("W1", "x_bare"): "below floor", ("W2", "x_ref"): "below aim"}


def test_all_leaves_out_what_is_measured_by_name_only() -> None:
    names, quick = _suites("all", served=False)
    assert not quick
    assert set(names) | {"waiting", "flat"} == set(targets.suites_of(served=False))
    assert not {"waiting", "flat"} & set(names)
    assert _suites("Waiting, w6", served=True) == (["W6", "waiting"], False)


@pytest.mark.parametrize("served", [False, True])
def test_a_copied_run_goes_on_like_the_one_it_was_copied_from(
    tmp_path: Path, postgres: PostgresServer, served: bool
) -> None:
    url = postgres.url() if served else places.in_file(tmp_path).url
    copies.copy_run(url, copies.waiting_run(url, workflows.signalled), 5)

    async def signal_all() -> list[int]:
        async with hf.open(url) as engine:
            waiting = [engine.get(row["run_id"]) for row in await engine.list(status="suspended")]
            await asyncio.gather(*(run.signal("go", n) for n, run in enumerate(waiting)))
            return [await run.result() for run in waiting]

    assert asyncio.run(signal_all()) == [1, 2, 3, 4, 5]


def test_the_file_system_of_a_directory_is_found() -> None:
    assert machine.filesystem(Path("/proc")) in ("proc", None)


def test_json_has_no_noise_digits() -> None:
    assert rounded({"a": [1.23456789, 123456.789], "b": 3}) == {"a": [1.235, 123456.8], "b": 3}
