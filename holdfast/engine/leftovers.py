"""Leftovers: unfinished runs that nobody drives, for those who drive only their own.

Owns: how many there are, and the sentence that tells of them.
"""

from __future__ import annotations

from holdfast.engine.engine import Engine
from holdfast.engine.waits import resting
from holdfast.model.statuses import RUN_TERMINAL, RunStatus

COUNTED_MAX = 1_000
"""Runs that are looked at: whoever has left more has been told enough."""
_UNFINISHED = tuple(status.value for status in RunStatus if status not in RUN_TERMINAL)


def told(engine: Engine, run_id: str) -> str:
    """What is to be said of the runs beside this one; empty: nothing."""
    store = engine.store
    row = store.run(run_id) if store.unfinished_count() else None
    others = 0 if row is None else _left_alone(engine, row.root_no)
    if not others:
        return ""
    what = "is 1 other unfinished run" if others == 1 else f"are {others:,} other unfinished runs"
    return f"there {what} that nobody drives: `holdfast resume --all`"


def _left_alone(engine: Engine, root_no: int) -> int:
    """Unfinished runs that no live engine drives and that wait for nobody, without those of this root."""
    dead = {row.engine for row in engine.lease.dead_engines(engine.clock.now())}
    rows = engine.store.runs(status=_UNFINISHED, limit=COUNTED_MAX)
    others = [row for row in rows if row.root_no != root_no and (row.engine is None or row.engine in dead)]
    return len(others) - len(resting(engine.store, others, engine.clock.now()))
