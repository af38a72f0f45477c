"""The ward, made once; a copy for each test."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.doctor.ward import admit


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ward") / "runs.db"
    asyncio.run(admit(path))
    return path


@pytest.fixture
def ward(original: Path, tmp_path: Path) -> Path:
    """A database of its own with a run of every kind."""
    return Path(shutil.copy(original, tmp_path / "runs.db"))
