"""What the explorer has found in the engine; each schedule is run again for ever."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import explore, harness
from tests.explorer import scenarios


@pytest.mark.parametrize(
    ("workflow", "tape", "options"),
    [
        # a full disk while a body orders a child failed the body
        (scenarios.graph_parent, "0/4.3", {}),
        # an unknown COMMIT of anything but a group of commits left an engine that could do nothing and did not stop
        (scenarios.chain, "0/2.4", {}),
        (scenarios.retried, "0/9.4", {}),
        # what there is to undo was brought twice, and the second list began with what was undone already
        (scenarios.compensated, "0/10.9", {"cancel_after": "xp_book"}),
    ],
)
def test_a_schedule_that_once_failed_is_survived(workflow: Any, tape: str, options: dict[str, Any]) -> None:
    report = explore(workflow, tape=tape, **options)
    assert report.safe, report.explain()


async def test_a_run_held_by_an_engine_that_nobody_knows_is_freed() -> None:
    """An engine that was declared dead could claim a run before it noticed; when it died then, nobody missed it."""
    async with harness() as h:
        run = await h.start(scenarios.code, x=1)
        await h.advance(minutes=1)
        h._store.ask("UPDATE run_state SET engine = 'ghost', token = token + 1")
        await h.advance(hours=2)
        assert await run.status() == "completed"
