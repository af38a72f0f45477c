"""SQLite keeps the contract of a store, in a file and in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.api import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.conformance.checking import CheckingConformance
from holdfast.testing.conformance.engines import EnginesConformance, SharedEnginesConformance
from holdfast.testing.conformance.orders import OrderConformance
from holdfast.testing.conformance.people import PeopleConformance
from holdfast.testing.conformance.store import SharedStoreConformance, StoreConformance


class TestFile(
    StoreConformance,
    CheckingConformance,
    PeopleConformance,
    EnginesConformance,
    OrderConformance,
    SharedStoreConformance,
    SharedEnginesConformance,
):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: SqliteStore(f"sqlite:///{tmp_path}/runs.db")


class TestMemory(StoreConformance, CheckingConformance, PeopleConformance, EnginesConformance, OrderConformance):
    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        return lambda: SqliteStore("sqlite://")
