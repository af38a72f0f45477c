"""What all tests may use: a real PostgreSQL server, one for each process that runs tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.servers import NoServer, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up. A machine without one fails where tests must be complete, and is a loud skip elsewhere."""
    try:
        server = PostgresServer()
    except NoServer as error:
        if os.environ.get("CI"):
            pytest.fail(f"no PostgreSQL: {error}")
        pytest.skip(f"NO POSTGRESQL: {error}")
    try:
        yield server.start()
    finally:
        server.close()
