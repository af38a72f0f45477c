"""Journal: stored events, checked before their data is used; a run's whole history; the compiled definitions.

Owns: `event_of`, the one way from a stored event to its data. The event's own link (its hash over the event before it
and everything in its row) is recomputed first, so that a changed byte is CorruptJournal and never a value. `History`,
the one way from all events of a run to its branches and their states. `Plans`, which compiles each version once.
Never: checks what this process wrote and still has in memory. `History` is not needed to advance a run (its rows are
enough); only to branch, recover, check and inspect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.model import definition as definitions
from holdfast.model import events as ev
from holdfast.model import journal_format, lineage
from holdfast.model.definition import Definition
from holdfast.model.errors import (
    CorruptJournal,
    HoldfastError,
    IllegalTransition,
    InvalidInput,
    NewerFormat,
    StoreDamaged,
    StoreError,
)
from holdfast.model.journal_format import is_newer, newer
from holdfast.model.lineage import Branch
from holdfast.model.plans import Plan, compile_definition
from holdfast.model.state import RunState
from holdfast.model.statuses import RunStatus
from holdfast.store.contract import Store
from holdfast.store.row_types import EventRow, LinkedRow, RunRow

CANNOT_BE_READ = (CorruptJournal, StoreError)
"""Errors of reading a run's rows or journal. They are not a failure of the run, nor of the body that reads."""
DAMAGE = (CorruptJournal, StoreDamaged)
"""Those of them that a retry cannot help: the run is put on hold."""


def hold_reason(error: Exception) -> str:
    """The reason for the hold of a run that cannot be read."""
    code = NewerFormat.code if isinstance(error, NewerFormat) else "corrupt"
    what = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return f"{code}: {what}"


def refuse_newer(row: RunRow) -> None:
    """Raise NewerFormat if a run was written by a newer Holdfast, whose events this one may not understand."""
    if is_newer(row.format):
        raise NewerFormat(f"run {row.run_id} was {newer(row.format)}")


def event_of(row: LinkedRow) -> Any:
    """The event that a row holds. Raises CorruptJournal, and NewerFormat where this version cannot read it."""
    check_link(row)
    return readable(row.run_id or "", row.seq, row.type, row.data)


def check_link(row: LinkedRow) -> None:
    """Raise CorruptJournal if an event is not the one that was written."""
    _, seq, branch, kind, node, path, visit, at, token, found, data, previous, run_id = row
    if previous is None and seq > 1:
        raise CorruptJournal(f"event {seq - 1} of run {run_id} is missing from its journal")
    if (
        journal_format.link(previous or b"", run_id or "", seq, branch, kind, node, path, visit, at, token, data)
        != found
    ):
        raise CorruptJournal(
            f"event {seq} ({kind}) of run {run_id} is not the one that was written: its hash does not follow from its "
            "content and the event before it"
        )


def event_at(store: Store, row: RunRow, seq: int) -> Any:
    """Read one event of a run's journal, which must exist."""
    held = store.event_data(row.run_no, [seq]).get(seq)
    if held is None:
        raise CorruptJournal(f"event {seq} of run {row.run_id} is missing from its journal")
    return event_of(held)


def readable(run_id: str, seq: int, type_name: str, data: bytes) -> Any:
    """Decode an event. Raises CorruptJournal, which names the event."""
    try:
        return journal_format.decode(type_name, data)
    except CorruptJournal as error:
        raise type(error)(f"event {seq} of run {run_id}: {error.message}") from None


class Plans:
    """The compiled definitions of one store, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_version: dict[tuple[str, int], Plan] = {}

    def numbered(self, workflow: str, version: int, definition: Definition | None = None) -> Plan:
        """The plan of a version; `definition` saves reading it. Raises CorruptJournal if the store has no such
        version."""
        plan = self._by_version.get((workflow, version))
        if plan is None:
            if definition is None:
                row = self._store.version(workflow, version)
                if row is None:
                    raise CorruptJournal(f"version {version} of workflow {workflow} is not in the store")
                definition = definitions.decode(row.definition)
            plan = self._by_version[workflow, version] = compile_definition(definition, version)
        return plan

    def of_run(self, row: RunRow) -> Plan:
        """The plan of the version that a run is on. Raises CorruptJournal, which names the run."""
        try:
            return self.numbered(row.workflow, row.version)
        except CorruptJournal as error:
            raise CorruptJournal(f"run {row.run_id}: {error.message}") from None


def entry_of(run_id: str, row: EventRow) -> ev.Entry:
    """Decode a stored event of a run."""
    event = readable(run_id, row.seq, row.type, row.data)
    return ev.Entry(row.seq, row.at, event, row.node, row.path, row.visit, row.branch)


def _check_chain(store: Store, row: RunRow, events: list[EventRow]) -> None:
    """Raise CorruptJournal if an event is missing, or is not the one that was written."""
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
    """Everything that happened to one run, on all its branches. Raises CorruptJournal if events contradict each
    other."""

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
        """Up to this event the journal is that of the run which this one was forked from; 0: all events are its own."""
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
        """The events of a branch's lineage."""
        self.branch(branch)
        with self._making_sense():
            return lineage.lineage(self.entries, branch, self.plan)

    def state(self, branch: int, line: list[ev.Entry] | None = None) -> RunState:
        """The state that a branch folds to; `changed` lists all of its instances."""
        line = self.line(branch) if line is None else line
        with self._making_sense():
            found = lineage.fold(self.plan_of(branch), self.row.run_no, self.row.run_id, line)
        found.branch = branch
        return found

    def status(self, branch: int) -> RunStatus:
        """The status of a branch, also of one whose version is no longer in the store."""
        if all(self._has_version(here) for here in lineage.ancestry(self.branches, branch)):
            return self.state(branch).status
        return lineage.recorded_status(self.entries, self.branches, branch)

    def _has_version(self, branch: Branch) -> bool:
        try:
            self.plan(branch.version)
        except CorruptJournal:
            return False
        return True

    def hash_at(self, seq: int) -> bytes:
        return next(row.hash for row in self.rows if row.seq == seq)

    @contextmanager
    def _making_sense(self) -> Iterator[None]:
        """Report any error of events that cannot follow each other as CorruptJournal."""
        try:
            yield
        except CorruptJournal as error:
            raise CorruptJournal(f"run {self.row.run_id}: {error.message}") from None
        except (IllegalTransition, AssertionError, LookupError, ValueError, AttributeError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise CorruptJournal(f"the journal of run {self.row.run_id} does not make sense: {why}") from error
