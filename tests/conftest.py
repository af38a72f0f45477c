"""What all tests may use: a real PostgreSQL server for each process that runs tests, a registry for each test; how
examples are drawn; which tests run when."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import registry
from tests.budget import EXPLORE
from tests.processes import allow_interrupts
from tests.servers import PostgresServer, required_server

SERVER_FIXTURES = {"postgres", "own_server", "server", "mortal"}
"""Fixtures that start a PostgreSQL server."""

# Which files a database may have imported is remembered per user; tests do not write into the user's own list.
_STATE = tempfile.TemporaryDirectory(prefix="holdfast-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True, "database": None}
settings.register_profile("steady", derandomize=True, **_COMMON)
settings.register_profile("explore", derandomize=False, **_COMMON)
settings.load_profile("explore" if EXPLORE else "steady")

allow_interrupts()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a PostgreSQL server; leave out what is for `make soak`, unless -m asks for it."""
    for item in items:
        if _needs_server(item):
            item.add_marker(pytest.mark.postgres)
    if "soak" in config.option.markexpr:
        return
    soaking = [item for item in items if item.get_closest_marker("soak")]
    if soaking:
        config.hook.pytest_deselected(items=soaking)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


def _needs_server(item: pytest.Item) -> bool:
    """Whether a test asks for a server by a fixture, or is the case `postgres` of a test for several databases."""
    case = getattr(item, "callspec", None)
    is_case = case is not None and any(value == "postgres" for value in case.params.values() if isinstance(value, str))
    return is_case or not SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Import each test module as if it were the only one."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with registry.importing():
        return (yield)


@pytest.fixture(autouse=True)
def _own_registry(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.module is None:
        yield
        return
    with registry.registry_of(request.module):
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up."""
    server = required_server()
    try:
        yield server.start()
    finally:
        server.close()
