"""Newer: what an engine of a later version of Holdfast leaves behind.

Owns: `write`: a newer engine takes over what a dead one drove, appends an event of a type that this version does not
know, and gives the runs back. With `marked` it raises their format, as model/journal_format.py asks; without,
it has forgotten to.
"""

from __future__ import annotations

from holdfast.model import journal_format
from holdfast.model.journal_format import FORMAT
from holdfast.store.row_types import Commit, EventRow, RunChange, RunRow
from holdfast.testing.simulation.database import WorldDatabase

UNKNOWN_TYPE = "WrittenByANewerHoldfast"
_ENGINE = "newer"
_ALIVE = ("created", "running", "suspended", "recovering")


def write(shared: WorldDatabase, dead: str, now: int, *, marked: bool) -> dict[int, RunRow]:
    """Write to the unfinished runs of a dead engine; their rows afterwards, by number."""
    owned = [row.run_no for row in shared.runs(status=_ALIVE, limit=1_000) if row.engine == dead]
    if not owned:
        return {}
    shared.write("remove_engine", dead)
    for row in shared.write("claim", _ENGINE, owned):
        shared.write("commit", [_commit(row, now, FORMAT + 1 if marked else row.format)])
    found = (shared.run_by_no(run_no) for run_no in owned)
    return {row.run_no: row for row in found if row is not None}


def _commit(row: RunRow, now: int, run_format: int) -> Commit:
    seq, data = row.last_seq + 1, b"{}"
    place = (seq, row.branch, UNKNOWN_TYPE, None, None, 1, now, row.token)
    hashed = journal_format.link(row.head_hash, row.run_id, *place, data)
    event = EventRow(row.run_no, *place, hashed, data)
    times = (row.recoveries, row.started_at, row.finished_at)
    change = RunChange(seq, hashed, row.status, row.branch, None, *times, None, run_format)
    return Commit(row.run_no, row.token, row.last_seq, change=change, events=[event], expected_hash=row.head_hash)
