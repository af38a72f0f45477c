"""Leftovers: unfinished runs that no engine drives, for programs that drive only their own."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.inspect.wait_views import resting
from holdfast.model.limits import UNDRIVEN_COUNTED_MAX
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.store.contract import Store

_UNFINISHED = tuple(status.value for status in RunStatus if status not in RUN_TERMINAL)


def undriven_runs(store: Store, dead_engines: Collection[str], run_id: str, now: int) -> int:
    """How many unfinished runs no live engine drives and no person has to move, without those that belong to the tree
    of `run_id`."""
    row = store.run(run_id) if store.unfinished_count() else None
    if row is None:
        return 0
    rows = store.runs(status=_UNFINISHED, limit=UNDRIVEN_COUNTED_MAX)
    others = [r for r in rows if r.root_no != row.root_no and (r.engine is None or r.engine in dead_engines)]
    return len(others) - len(resting(store, others, now))
