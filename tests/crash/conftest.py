"""What all tests of real crashes share: one nursery, and an arena for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.nursery import Nursery
from tests.crash.supervisor import Arena


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _nobody_lives_on(nursery: Nursery) -> Iterator[None]:
    yield
    nursery.end_lives()


@pytest.fixture
def arena(tmp_path: Path, nursery: Nursery) -> Arena:
    return Arena(tmp_path, nursery)
