"""What the tests of versions share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of its own, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url()
