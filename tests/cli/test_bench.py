"""`holdfast bench`: that it measures and cleans up; never how quick this machine is. All suites: tests/benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import measuring
from holdfast.cli.commands.bench import QUICK, SUITES, choose, closing_lines
from holdfast.cli.main import main
from holdfast.cli.measuring import Bench, filesystem, rounded
from tests.servers import PostgresServer


def bench(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "bench", "--db-dir", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_quick_measures_every_suite_with_the_promised_fields(tmp_path: Path) -> None:
    done = bench(tmp_path, "--suite", "quick", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["reference"]["commits_per_s"] > 0
    assert {"p50_ms", "p99_ms", "commits", "step_p50_ms", "step_p99_ms", "step_commits"} <= report["W1"].keys()
    assert {"steps_per_s", "x_ref", "cpu_us_per_step", "no_await_steps_per_s", "ref"} <= report["W2"].keys()
    assert {"p50_ms", "p99_ms", "commits", "repetitions", "drift"} <= report["W4"].keys()
    assert {"python", "sqlite", "cpus", "filesystem", "at"} <= report["machine"].keys()
    assert report["machine"]["server"] is None
    assert all(f"{name}: " in done.stderr for name in SUITES)
    assert list(tmp_path.iterdir()) == []


def test_a_server_is_measured_in_plain_lines_and_left_as_it_was(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.url("theirs")
    done = bench(tmp_path, "--suite", "quick", "--db", url)
    assert done.returncode == 0, done.stderr
    assert "W4     a one-node run from start to end: p50 " in done.stdout
    assert "raw commits/s (ref): " in done.stdout
    assert ", PostgreSQL " in done.stdout
    with measuring.connected(url) as execute:
        schemas = execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%bench%' OR nspname = 'theirs'")
    assert schemas == []
    assert list(tmp_path.iterdir()) == []


def test_an_unsteady_disk_and_tiny_sizes_are_said() -> None:
    machine = {"load": 0.5, "server": None, "sqlite": "3", "holdfast": "1", "python": "3", "cpus": 2, "cpu": "x"}
    rates = {"commits_per_s": 5.0, "lowest": 1.0, "highest": 9.0}
    report = {"reference": rates, "W1": {"drift": 2.0}, "W2": {"drift": 1.1}, "machine": machine | {"filesystem": None}}
    shown = "\n".join(closing_lines(report, quick=True))
    assert "the disk was unsteady during W1: measure again" in shown
    assert "tiny sizes" in shown


def test_a_figure_is_measured_again_while_the_disk_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1000.0, 2000.0, 1000.0, 1800.0, 1000.0, 1400.0])
    monkeypatch.setattr(measuring, "commits_per_second", lambda directory, seconds: next(rates))
    measured, said = list[Path](), list[str]()
    bench = Bench(tmp_path, QUICK, 1, say=said.append)
    sample = bench.sample(lambda place: measured.append(place.directory))
    assert len(measured) == len(set(measured)) == 3
    assert (sample.ref, len(said)) == (1200.0, 2)


def test_after_three_more_times_the_steadiest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1000.0, 3000.0, 1000.0, 2000.0, 1000.0, 4000.0, 1000.0, 5000.0])
    monkeypatch.setattr(measuring, "commits_per_second", lambda directory, seconds: next(rates))
    assert Bench(tmp_path, QUICK, 1, say=lambda line: None).sample(lambda place: None).ref == 1500.0
    assert next(rates, None) is None


@pytest.mark.parametrize("suite", ["W9", "", "W1,quick", "all,nothing", "W5"])
def test_unknown_suites_are_refused(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", suite, "--db-dir", str(tmp_path)]) == 2
    assert "choose from W1, W2" in capsys.readouterr().err


def test_a_missing_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--db-dir", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_a_file_is_not_named_as_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--db", f"sqlite:///{tmp_path}/x.db"]) == 2
    assert "--db-dir" in capsys.readouterr().err


def test_suites_are_chosen_by_name_in_their_own_order() -> None:
    assert choose("W4, w1", list(SUITES)) == (["W1", "W4"], False)
    assert choose("quick", list(SUITES)) == (list(SUITES), True)
    assert choose("all", ["a", "b"], by_name=["b"]) == (["a"], False)


def test_the_file_system_of_a_directory_is_found() -> None:
    assert filesystem(Path("/proc")) in ("proc", None)


def test_json_has_no_noise_digits() -> None:
    assert rounded({"a": [1.23456789, 123456.789], "b": 3}) == {"a": [1.235, 123456.8], "b": 3}
