"""PostgreSQL keeps the contract of a store, directly and as behind a transaction pooler."""

from collections.abc import Callable

import pytest

from holdfast.store.api import Store
from holdfast.store.postgres import PostgresStore
from holdfast.testing.conformance.checking import CheckingConformance
from holdfast.testing.conformance.engines import EnginesConformance, SharedEnginesConformance
from holdfast.testing.conformance.orders import OrderConformance
from holdfast.testing.conformance.people import PeopleConformance
from holdfast.testing.conformance.store import SharedStoreConformance, StoreConformance
from tests.servers import PostgresServer


class TestServer(
    StoreConformance,
    CheckingConformance,
    PeopleConformance,
    EnginesConformance,
    OrderConformance,
    SharedStoreConformance,
    SharedEnginesConformance,
):
    @pytest.fixture
    def connect(self, postgres: PostgresServer) -> Callable[[], Store]:
        url = postgres.url()
        return lambda: PostgresStore(url)


class TestPooled(
    StoreConformance, EnginesConformance, OrderConformance, SharedStoreConformance, SharedEnginesConformance
):
    """Nothing is prepared and nothing is set, as a transaction pooler needs it."""

    @pytest.fixture
    def connect(self, postgres: PostgresServer) -> Callable[[], Store]:
        url = postgres.url(statement_cache_size="0")
        return lambda: PostgresStore(url)
