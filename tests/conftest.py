"""What all tests may use: a real PostgreSQL server, one for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import PostgresServer, required_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up."""
    server = required_server()
    try:
        yield server.start()
    finally:
        server.close()
