from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.branches import world
from tests.engine.kit import check_file


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Path]:
    """A database; when the test is over every journal in it must prove itself and fold to its rows."""
    path = tmp_path / "runs.db"
    yield path
    if path.exists():
        check_file(path)


@pytest.fixture
def bodies() -> Iterator[world.World]:
    with world.fresh() as here:
        yield here
