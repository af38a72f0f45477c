"""The oracle keeps the contract of a store, so that what is compared with it is compared with the contract."""

from collections.abc import Callable

import pytest

from holdfast.store.api import Store
from holdfast.testing.conformance.checking import CheckingConformance
from holdfast.testing.conformance.engines import EnginesConformance
from holdfast.testing.conformance.oracle.store import OracleStore
from holdfast.testing.conformance.orders import OrderConformance
from holdfast.testing.conformance.people import PeopleConformance
from holdfast.testing.conformance.store import StoreConformance


class TestOracle(StoreConformance, CheckingConformance, PeopleConformance, EnginesConformance, OrderConformance):
    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        return OracleStore
