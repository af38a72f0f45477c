"""Expected rows: what the state tables must hold for a run, by its journal.

Owns: the form in which an audit of a journal hands its result to the engine, which writes rows again.
Never: audits (inspect/doctor/audit.py) or writes (engine/rebuilding.py, engine/repairs.py).
"""

from __future__ import annotations

import msgspec

from holdfast.model.state import RunState
from holdfast.store.row_types import NodeRow, TimerRow, WaitRow

InstanceKey = tuple[str, str, int]
"""(node, path, visit)"""


class ExpectedRows(msgspec.Struct, frozen=True):
    """The rows of one run that an intact journal folds to."""

    seq: int
    head_hash: bytes
    token: int
    """The highest that an event of the journal carries."""
    state: RunState
    nodes: dict[InstanceKey, NodeRow]
    waits: dict[str, WaitRow]
    timers: dict[str, TimerRow]
    opened_waits: frozenset[str]
    """Every wait that the journal knows, on any branch, also of the run that this one was forked from."""
    known_timers: frozenset[str]


class JournalAudit(msgspec.Struct, frozen=True):
    """What an audit of one run came to."""

    expected: ExpectedRows | None
    """None when the journal cannot testify: events are missing, were changed, or do not follow each other."""
    damage: str | None = None
    """The first damage of the journal, or of what the run's row says about its last event."""
    differs: str | None = None
    """The first way in which the rows differ from what is expected."""
    problem: str | None = None
    """The first thing that is wrong, where rows do not differ."""
