"""What all tests may use: a real PostgreSQL server, one for each process that runs tests; how examples are drawn."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import PostgresServer, required_server

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True, "database": None}
settings.register_profile("steady", derandomize=True, **_COMMON)
settings.register_profile("explore", derandomize=False, **_COMMON)
settings.load_profile("explore" if os.environ.get("HOLDFAST_EXPLORE") else "steady")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up."""
    server = required_server()
    try:
        yield server.start()
    finally:
        server.close()
