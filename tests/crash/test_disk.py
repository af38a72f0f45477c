"""A disk that is full, and one whose syncs fail: what was told as done is there, and nothing is done twice for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.nursery import ROOT, Nursery
from tests.crash.supervisor import REFUSED, Arena
from tests.crash.test_kill_points import check_chain, check_mixed

KIB = 1024


# --- no space (F25, F38) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kib", [64, 180, 240, 300, 360, 420, 480, 600])
def test_f38_a_limit_on_file_sizes_stops_the_engine_and_the_runs_go_on_without_it(arena: Arena, kib: int) -> None:
    """SQLite takes it for an I/O error, not for a full disk: the next open finds out whether the commit happened."""
    life = arena.start("mixed:m", "chain:r", CRASH_FILE_BYTES=str(kib * KIB))
    output = life.wait()
    assert life.returncode in (0, REFUSED), output
    if life.returncode == REFUSED:
        assert output.split("\n")[-2].startswith("error "), output
    if "started" in output:  # both were acknowledged
        assert dict(arena.query("SELECT run_id, 1 FROM run_state")).keys() >= {"m", "r"}
    arena.finish("mixed:m", "chain:r")
    check_chain(arena)
    check_mixed(arena, "m")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes, of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, free_kib: int) -> Path:
    """Take the space of a file system but for a little."""
    ballast = place / "ballast"
    left = shutil.disk_usage(place).free - free_kib * KIB
    ballast.write_bytes(bytes(left))
    return ballast


@pytest.mark.parametrize("free_kib", [140, 220, 300, *range(320, 440, 20), 470, 500])
def test_f25_a_full_disk_is_waited_for_and_nothing_acknowledged_is_lost(
    small_disk: Path, tmp_path: Path, nursery: Nursery, free_kib: int
) -> None:
    """Wherever it is when the space ends: an engine that was asked for something says that it cannot, one that has
    something to record waits until it can."""
    arena = Arena(tmp_path / "effects-elsewhere", nursery)
    arena.db = small_disk / "runs.db"
    ballast = fill(small_disk, free_kib)
    life = arena.start("mixed:m", "chain:r")
    waits = life.reads("disk full")
    acknowledged = arena.query("SELECT run_no, seq, hash FROM run_events") if waits else []
    ballast.unlink()
    output = life.wait()
    assert life.returncode == 0 or (life.returncode == REFUSED and "error store_full" in output), output
    in_one_life = life.returncode == 0
    arena.look()
    assert set(acknowledged) <= set(arena.query("SELECT run_no, seq, hash FROM run_events"))
    arena.finish("mixed:m", "chain:r")
    check_chain(arena)
    check_mixed(arena, "m")
    if in_one_life:
        assert set(map(tuple, arena.started_attempts("r").values())) == {(1,)}, "a full disk is no failure of a body"


# --- syncs that fail (F26, F27) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 13))
def test_f27_a_failed_sync_at_commit_closes_the_store_and_the_next_open_tells_what_happened(
    arena: Arena, number: int
) -> None:
    arena.finish("steps:first")  # the file is there, and everything that follows is a commit of the engine's
    life = arena.start("chain:r", "steps:s", CRASH_SYNC_FAILS=str(number))
    output = life.wait()
    if life.returncode == 0:
        assert number > 8, "so many syncs are needed at least"
    else:
        assert life.returncode == REFUSED, output
        told = output.split("\n")[-2]  # by the commit itself, or by what was asked of the closed store right after it
        assert told.startswith("error outcome_unknown") or "left the outcome open" in told, output
    arena.look()
    arena.finish("chain:r", "steps:s")
    check_chain(arena)
    assert arena.result("s") == [f"s/step {i}" for i in range(5)]


def _strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _strace_works(), reason="strace is not usable here")
@pytest.mark.parametrize(
    "fault",
    [
        *(f"fdatasync:error=EIO:when={n}" for n in (2, 5, 9)),
        *(f"pwrite64:error=EIO:when={n}" for n in (20, 41)),
        *(f"pwrite64:error=ENOSPC:when={n}" for n in (20, 41)),
    ],
)
def test_f26_f27_the_kernel_reports_an_error_on_the_write_ahead_log(arena: Arena, fault: str) -> None:
    arena.finish("steps:first")
    traced = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", f"{arena.db}-wal"]
    traced += ["-e", "trace=fdatasync,fsync,pwrite64", "-e", f"inject={fault}"]
    program = [sys.executable, "-m", "tests.crash.flows", arena.address, str(arena.effects_file)]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        [*traced, *program, "chain:r", "steps:s"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, REFUSED), done.stdout + done.stderr
    arena.look()
    arena.finish("chain:r", "steps:s")
    check_chain(arena)
    assert arena.result("s") == [f"s/step {i}" for i in range(5)]
