"""Fold: the parts of a run's state that its rows hold as JSON values.

Owns: `Fold` (the run's row) and `Counters` (the row of a map or loop), with what they consist of.
Never: decides (rules), changes by itself (evolve.py changes it).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model.definition import Settings
from holdfast.model.naming import Instance


class Ranges(msgspec.Struct, array_like=True):
    """A set of ints as sorted, disjoint, non-touching half-open pairs. The items of a map end nearly in order, so that
    100,000 of them are a handful of pairs."""

    starts: list[int] = []
    ends: list[int] = []

    def add(self, n: int) -> None:
        """Add a number; adding it again changes nothing."""
        starts, ends = self.starts, self.ends
        i = bisect_right(starts, n)
        if i and n < ends[i - 1]:
            return
        joins_left = i > 0 and ends[i - 1] == n
        joins_right = i < len(starts) and starts[i] == n + 1
        if joins_left and joins_right:
            ends[i - 1] = ends.pop(i)
            starts.pop(i)
        elif joins_left:
            ends[i - 1] = n + 1
        elif joins_right:
            starts[i] = n
        else:
            starts.insert(i, n)
            ends.insert(i, n + 1)

    def __contains__(self, n: int) -> bool:
        i = bisect_right(self.starts, n)
        return i > 0 and n < self.ends[i - 1]

    def __len__(self) -> int:
        return sum(self.ends) - sum(self.starts)


class Counters(msgspec.Struct, gc=False, omit_defaults=True):
    """What a map or loop keeps instead of its items, stored in its row."""

    count: int | None = None
    """Items of a map."""
    opened: int = 0
    """Items or rounds begun."""
    done: Ranges = msgspec.field(default_factory=Ranges)
    """Items or rounds ended."""
    carry: Any = None
    """Loop: the last round's result, located."""


class Ticket(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A pending ticket: it was raised, and its target is not entered yet. Until then nothing new starts."""

    target: str
    node: str
    """The node that raised it."""
    path: str
    name: str | None = None


class GivenAnswer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An answer from the edits of a branch, to a question that is not open there yet."""

    wait_id: str
    """The question as it was asked on the earlier branch."""
    node: str
    path: str
    visit: int
    call: dict[str, Any]
    value: msgspec.Raw
    actor: str = ""

    def is_for(self, node: str, path: str, visit: int, call: dict[str, Any]) -> bool:
        """Whether this call of a body asks the same question."""
        same = (node, path, visit) == (self.node, self.path, self.visit)
        return same and all(call.get(part) == self.call.get(part) for part in _CALL)


_CALL = ("scope", "position", "kind", "name", "digest", "key")
"""The parts that identify a remembered call."""


class Fold(msgspec.Struct, gc=False, omit_defaults=True):
    """What a run's state needs beyond its columns and nodes; stored as one JSON value in the run's row."""

    closing: str = ""
    """`failing` or `cancelling` while everything is being stopped, then `compensating`."""
    error: ev.ErrorInfo | None = None
    others: list[ev.ErrorInfo] = []
    cancel_reason: str | None = None
    cancel_actor: str = ""
    paused: str = ""
    """The wait of an operator's pause; nothing new starts until it is closed."""
    outcome_unknown: list[Instance] = []
    """Instances whose outcome is unknown and that may have to be undone."""
    vars: dict[str, int] = {}
    vars_captured: dict[str, Any] = {}
    input_captured: dict[str, Any] = {}
    phases: dict[str, str] = {}
    settings: Settings = Settings()
    parent: dict[str, Any] | None = None
    depth: int = 0
    key_epoch: int = 1
    code_hash: str = ""
    """One hash over the fingerprints in RunCreated: equal means that no code has changed."""
    children: dict[str, str] = {}
    """Attached children that have not ended: child run id to the wait it answers."""
    failed: int = 0
    """Nodes that failed under `continue`."""
    ticket: Ticket | None = None
    visits: dict[str, int] = {}
    """The current visit of top-level nodes that were entered again; what is inside a map or loop has its visit."""
    tokens: dict[str, tuple[str, int]] = {}
    """Of a journey: the unit that each execution path has reached, and its visit."""
    open_paths: dict[str, list[str]] = {}
    """Of a journey: the names of the paths of a parallel unit that have not arrived at the join, by the prefix that
    they have in common."""
    baskets: dict[str, tuple[str, str, int]] = {}
    """The basket whose milestones are set, of each path, with the unit and the visit that pended there. A unit that
    runs again and fails into another basket has made no progress: it keeps these."""
    left_baskets: dict[str, str] = {}
    """The basket that each path was in before it was resumed."""
    entered: list[str] = []
    """Top-level nodes with a condition that a ticket or an operator led to: for them and what follows, the condition
    counts as true."""
    undoes_steps: bool = False
    """Steps with a compensation were started; the journal has which."""
    undoing: dict[str, ev.StepUndo] = {}
    """Compensations of steps that have begun and not ended, by instance."""
    gives_up_undo: bool = False
    """An operator has asked that compensations which cannot run are recorded as failed."""
    input_seq: int = 1
    """The event that holds the input: RunCreated, unless it was edited."""
    ancestors: list[tuple[int, int]] = []
    """(branch, last seq) of the branches that this one continues, oldest first."""
    failures_before_retry: dict[str, int] = {}
    """Failures of instances from before a person let them try again: their retry policy counts from 0, the ids of their
    children do not."""
    answers: list[GivenAnswer] = []
    """Answers for questions that will be asked again."""
