"""PostgreSQL keeps the contract of a store, directly and as behind a transaction pooler."""

from collections.abc import Callable

import pytest

from holdfast.store.contract import Store
from holdfast.store.postgres.postgres_store import PostgresStore
from tests.servers import PostgresServer
from tests.store.conformance.checking import CheckingConformance
from tests.store.conformance.engines import EnginesConformance, SharedEnginesConformance
from tests.store.conformance.orders import OrderConformance
from tests.store.conformance.people import PeopleConformance
from tests.store.conformance.store import SharedStoreConformance, StoreConformance
from tests.store.conformance.versions import SharedVersionsConformance, VersionsConformance


class TestServer(
    StoreConformance,
    CheckingConformance,
    PeopleConformance,
    EnginesConformance,
    OrderConformance,
    SharedStoreConformance,
    SharedEnginesConformance,
    VersionsConformance,
    SharedVersionsConformance,
):
    @pytest.fixture
    def connect(self, postgres: PostgresServer) -> Callable[[], Store]:
        url = postgres.url()
        return lambda: PostgresStore(url)


class TestPooled(
    StoreConformance,
    EnginesConformance,
    OrderConformance,
    SharedStoreConformance,
    SharedEnginesConformance,
    VersionsConformance,
):
    """Nothing is prepared and nothing is set, as a transaction pooler needs it."""

    @pytest.fixture
    def connect(self, postgres: PostgresServer) -> Callable[[], Store]:
        url = postgres.url(statement_cache_size="0")
        return lambda: PostgresStore(url)
