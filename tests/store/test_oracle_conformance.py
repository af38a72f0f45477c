"""The oracle keeps the contract of a store, so that what is compared with it is compared with the contract."""

from collections.abc import Callable

import pytest

from holdfast.store.contract import Store
from tests.store.conformance.checking import CheckingConformance
from tests.store.conformance.engines import EnginesConformance
from tests.store.conformance.orders import OrderConformance
from tests.store.conformance.people import PeopleConformance
from tests.store.conformance.store import StoreConformance
from tests.store.conformance.versions import VersionsConformance
from tests.store.oracle.store import OracleStore


class TestOracle(
    StoreConformance, CheckingConformance, PeopleConformance, EnginesConformance, OrderConformance, VersionsConformance
):
    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        return OracleStore
