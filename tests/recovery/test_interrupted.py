"""Recovering is interrupted: by a real SIGKILL of a real process, before and after every write that it makes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.opening import open_engine
from holdfast.testing import corrupt
from tests.engine.kit import check_file
from tests.recovery.test_catalogue import journal, run_it

ROOT = Path(__file__).parents[2]
WRITES_MAX = 40


def recovering(url: str, die_at: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOLDFAST_DIE_AT": die_at, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.recovery.recovering_process", url]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("case", ["A1", "A5"])
@pytest.mark.parametrize("place", ["write.before", "write.after", "commit.before", "commit.after"])
async def test_k20_a_kill_during_recovery_leaves_a_run_that_is_recovered_once(
    tmp_path: Path, case: str, place: str
) -> None:
    made = tmp_path / "made.db"
    await run_it(f"sqlite:///{made}")
    corrupt(f"sqlite:///{made}", "r", case)
    for number in range(1, WRITES_MAX):
        path = tmp_path / f"{number}.db"
        shutil.copy(made, path)
        url = f"sqlite:///{path}"
        ended = recovering(url, f"{place}:{number}")
        if ended.returncode == 0:
            assert ended.stdout.strip() == "104"
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        async with open_engine(url, recover=False) as engine:
            await engine.recover("r")
            await engine.resume("r")
            assert await engine.get("r").result(timeout=20) == 104
            branches = {branch for branch, _, _ in await journal(engine)}
        assert branches == {1, 2}, "no second branch"
        check_file(str(path))
    assert number > 1, "it never died"
