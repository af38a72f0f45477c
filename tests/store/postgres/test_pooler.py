"""F48: PostgreSQL behind a transaction pooler, where every transaction may meet another session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.model.errors import StoreError
from holdfast.store.contract import Store
from holdfast.store.postgres.postgres_store import PostgresStore
from tests.pooler import SESSIONS, Pooler
from tests.servers import PostgresServer
from tests.store.conformance.engines import EnginesConformance, SharedEnginesConformance
from tests.store.conformance.store import SharedStoreConformance, StoreConformance, make_runs, refusals, step
from tests.store.postgres_kit import sql


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[Pooler]:
    made = Pooler(postgres)
    yield made
    made.close()


class TestPooler(StoreConformance, EnginesConformance, SharedStoreConformance, SharedEnginesConformance):
    @pytest.fixture
    def connect(self, postgres: PostgresServer, pooler: Pooler) -> Callable[[], Store]:
        url = pooler.url(postgres.url())
        return lambda: PostgresStore(url)


def test_one_caller_meets_every_session(postgres: PostgresServer, pooler: Pooler) -> None:
    """Or else none of this shows anything."""
    url = pooler.url(postgres.url())
    assert len({sql(url, "SELECT pg_backend_pid()")[0] for _ in range(2 * SESSIONS)}) == SESSIONS


def test_more_callers_than_sessions_wait_for_each_other(postgres: PostgresServer, pooler: Pooler) -> None:
    stores = [PostgresStore(pooler.url(postgres.url())) for _ in range(2 * SESSIONS)]
    for store in stores:
        store.open()
    for store in stores:
        assert refusals(store, *(step(no) for no in make_runs(store, 3))) == [None] * 3
        store.close()


def test_an_address_that_does_not_tell_of_the_pooler_is_told_what_is_missing(
    postgres: PostgresServer, pooler: Pooler
) -> None:
    url = pooler.url(postgres.url()).replace("statement_cache_size=0&", "")
    with pytest.raises(StoreError, match=r"unsupported startup parameter.+add \?statement_cache_size=0 to the address"):
        PostgresStore(url).open()
