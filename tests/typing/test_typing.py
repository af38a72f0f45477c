"""The public API and the examples pass `mypy --strict`, and what must be an error for a user is one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("what", ["examples", "tests/typing"])
def test_mypy_strict_finds_nothing_wrong(what: str) -> None:
    """Unused ignores are errors under --strict, so the `wrong` functions fail when mypy stops to see a mistake."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", what]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
