"""History: a run's journal, read whole, with its branches.

Owns: the one way from stored events to a line of history and the state it comes to.
Never: is needed to go on with a run (its rows are enough); only to branch, recover, check and look back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.model import events as ev
from holdfast.model import lineage
from holdfast.model.errors import CorruptJournal, IllegalTransition, InvalidInput
from holdfast.model.graph import Plan
from holdfast.model.lineage import Branch
from holdfast.model.state import RunState
from holdfast.store.contract import Store
from holdfast.store.records.journal import check_link, readable, refuse_newer
from holdfast.store.records.plans import Plans
from holdfast.store.row_types import EventRow, LinkedRow, RunRow


def entry_of(run_id: str, row: EventRow) -> ev.Entry:
    """A stored event of a run, decoded."""
    event = readable(run_id, row.seq, row.type, row.data)
    return ev.Entry(row.seq, row.at, event, row.node, row.path, row.visit, row.branch)


def _check_chain(store: Store, row: RunRow, events: list[EventRow]) -> None:
    """Raise CorruptJournal when an event is missing, or is not the one that was written."""
    run_ids: dict[int, str] = {row.run_no: row.run_id}
    previous: bytes | None = None
    for number, event in enumerate(events, start=1):
        if event.seq != number:
            raise CorruptJournal(f"event {number} of run {row.run_id} is missing from its journal")
        if event.run_no not in run_ids:
            origin = store.run_by_no(event.run_no)
            run_ids[event.run_no] = "" if origin is None else origin.run_id
        check_link(LinkedRow(*event, previous, run_ids[event.run_no]))
        previous = event.hash


class History:
    """Everything that happened to one run, on all its branches. A journal that makes no sense is CorruptJournal."""

    def __init__(self, store: Store, plans: Plans, row: RunRow, until: int | None = None) -> None:
        """`until`: only the events up to this one are read."""
        self.row = row
        self._plans = plans
        refuse_newer(row)
        self.rows = store.events(row.run_no, 0, until)
        _check_chain(store, row, self.rows)
        self.entries = [entry_of(row.run_id, event) for event in self.rows]
        if not self.entries or type(self.entries[0].event) is not ev.RunCreated:
            raise CorruptJournal(f"the journal of run {row.run_id} does not begin with its creation")
        self.branches: dict[int, Branch] = lineage.branches_of(self.entries)
        if row.branch not in self.branches:
            raise CorruptJournal(f"run {row.run_id} is on branch {row.branch}, of which its journal knows nothing")

    @property
    def shared_until(self) -> int:
        """Up to here the journal is that of the run which this one was forked from; 0: it is all its own."""
        return max((row.seq for row in self.rows if row.run_no != self.row.run_no), default=0)

    def plan(self, version: int) -> Plan:
        return self._plans.numbered(self.row.workflow, version)

    def plan_of(self, branch: int) -> Plan:
        return self.plan(self.branch(branch).version)

    def branch(self, branch: int) -> Branch:
        found = self.branches.get(branch)
        if found is None:
            there = ", ".join(map(str, self.branches))
            raise InvalidInput(f"run {self.row.run_id} has no branch {branch}; it has {there}")
        return found

    def line(self, branch: int) -> list[ev.Entry]:
        """The events of a branch's line of history."""
        self.branch(branch)
        with self._making_sense():
            return lineage.lineage(self.entries, branch, self.plan)

    def state(self, branch: int, line: list[ev.Entry] | None = None) -> RunState:
        """What a branch came to; `changed` lists every instance of it."""
        line = self.line(branch) if line is None else line
        with self._making_sense():
            found = lineage.fold(self.plan_of(branch), self.row.run_no, self.row.run_id, line)
        found.branch = branch
        return found

    def hash_at(self, seq: int) -> bytes:
        return next(row.hash for row in self.rows if row.seq == seq)

    @contextmanager
    def _making_sense(self) -> Iterator[None]:
        """Events that cannot follow each other lead to anything."""
        try:
            yield
        except CorruptJournal as error:
            raise CorruptJournal(f"run {self.row.run_id}: {error.message}") from None
        except (IllegalTransition, AssertionError, LookupError, ValueError, AttributeError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise CorruptJournal(f"the journal of run {self.row.run_id} does not make sense: {why}") from error
