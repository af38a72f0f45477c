"""How long a schedule of these tests may go on before it counts as one that never ends."""

from __future__ import annotations

import pytest

from holdfast.testing.simulation import world

TURNS_MAX = 6_000
"""More than any scenario here takes (2,000 were too few for one), a third of the limit for workflows of any size."""


@pytest.fixture(autouse=True)
def _short_schedules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("soak") is None:
        monkeypatch.setattr(world, "TURNS_MAX", TURNS_MAX)
