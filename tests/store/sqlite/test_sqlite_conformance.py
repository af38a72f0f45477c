"""SQLite keeps the contract of a store, in a file and in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.contract import Store
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.store.conformance.checking import CheckingConformance
from tests.store.conformance.engines import EnginesConformance, SharedEnginesConformance
from tests.store.conformance.orders import OrderConformance
from tests.store.conformance.people import PeopleConformance
from tests.store.conformance.store import SharedStoreConformance, StoreConformance
from tests.store.conformance.versions import SharedVersionsConformance, VersionsConformance


class TestFile(
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
    def connect(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: SqliteStore(f"sqlite:///{tmp_path}/runs.db")


class TestMemory(
    StoreConformance, CheckingConformance, PeopleConformance, EnginesConformance, OrderConformance, VersionsConformance
):
    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        return lambda: SqliteStore("sqlite://")
