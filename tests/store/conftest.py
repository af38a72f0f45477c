"""Files for SQLite, a store on the PostgreSQL of the tests, and a server that a test may break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.postgres.postgres_store import PostgresStore
from tests.servers import PostgresServer, required_server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    store.open()
    yield store
    store.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop, kill and start in other ways."""
    server = required_server()
    yield server
    server.close()
