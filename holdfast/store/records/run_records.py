"""Run records: what the row of a run and single events of its journal say.

Owns: finding a run by its id, its fold, how it began, its input, how it ended and its result.
Never: changes anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model import texts
from holdfast.model.errors import CorruptJournal, UnknownRun
from holdfast.model.fold import Fold
from holdfast.model.lineage import ROOT_BRANCH, is_in
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.views import command_line
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans, event_at, event_of
from holdfast.store.records.state_rows import state_from_rows
from holdfast.store.records.stored_values import Values
from holdfast.store.row_types import EventRow, RunRow


def find_run(store: Store, run_id: str) -> RunRow:
    """Find a run by its whole id: a prefix would send a request to another run if the right one does not exist."""
    if not texts.is_name(run_id):
        raise UnknownRun(f"{run_id!r:.60} is not a run id; {command_line('list')} shows the runs there are")
    row = store.run(run_id)
    if row is None:
        raise UnknownRun(f"there is no run {run_id!r} in {store.url}; {command_line('list')} shows the runs there are")
    return row


def fold_of(row: RunRow) -> Fold:
    try:
        fold: Fold = msgspec.json.decode(row.fold or b"{}", type=Fold)
    except ValueError as error:  # no JSON, or not even text
        raise CorruptJournal(f"the row of run {row.run_id} cannot be read: {error}") from None
    return fold


def creation_of(store: Store, row: RunRow) -> ev.RunCreated:
    """The event that created a run."""
    first = event_at(store, row, 1)
    if not isinstance(first, ev.RunCreated):
        raise CorruptJournal(f"the journal of run {row.run_id} does not begin with its creation")
    return first


def input_of(store: Store, row: RunRow) -> Any:
    """The current input of a run: what it was started with, or what an edit has made of that."""
    seq = fold_of(row).input_seq
    holder = event_at(store, row, seq)
    if not isinstance(holder, ev.RunCreated | ev.InputEdited):
        raise CorruptJournal(f"event {seq} of run {row.run_id} should hold its input, and is a {type(holder).__name__}")
    return msgspec.json.decode(holder.input)


def variables_of(store: Store, row: RunRow) -> dict[str, Any]:
    """The variables of a run that are set, by name."""
    found: dict[str, Any] = {}
    for name, seq in sorted(fold_of(row).vars.items()):
        holder = event_at(store, row, seq)
        values = getattr(holder, "vars", {})
        if name not in values:
            what = f"event {seq} of run {row.run_id} should hold the variable {name}, and is a {type(holder).__name__}"
            raise CorruptJournal(what)
        found[name] = msgspec.json.decode(values[name])
    return found


def current_visits(row: RunRow) -> dict[str, int]:
    """The visit of top-level nodes that were entered again."""
    return fold_of(row).visits


def cancel_asked(row: RunRow) -> tuple[str, str] | None:
    """Why a run that has not ended is being cancelled, and who asked for it; None if it is not."""
    fold = fold_of(row)
    if row.status in RUN_TERMINAL or fold.cancel_reason is None:
        return None
    return fold.cancel_reason, fold.cancel_actor


def closing_of(row: RunRow) -> str:
    """How a run is about to end: failing, cancelling or compensating; empty if it is not."""
    return fold_of(row).closing


def of_current_branch(row: RunRow, events: list[EventRow]) -> list[EventRow]:
    """Those of these events that may belong to the current branch, by their branch alone."""
    if row.branch == ROOT_BRANCH:
        return events
    ancestors = fold_of(row).ancestors
    return [event for event in events if is_in(ancestors, row.branch, event.branch, event.seq)]


def terminal_event(store: Store, row: RunRow) -> Any:
    """The event that ended a run: its last one except for the request that led to it."""
    found = store.event_data(row.run_no, list(range(max(1, row.last_seq - 3), row.last_seq + 1)))
    ends = [seq for seq, held in found.items() if held.type in ("RunCompleted", "RunFailed", "RunCancelled")]
    if not ends:
        raise CorruptJournal(f"run {row.run_id} has {row.status}, but its journal does not say how")
    return event_of(found[max(ends)])


def result_of(store: Store, row: RunRow, completed: ev.RunCompleted) -> bytes:
    """The result of a completed run as JSON. One that is too large for an event is built, each time it is read, from
    the values that the journal holds already (a map of 100,000 items). Raises CorruptJournal if one of these cannot be
    read."""
    if completed.located is None:
        return bytes(completed.result)
    plan = Plans(store).of_run(row)
    state = state_from_rows(plan, row, store.open_nodes([row.run_no]), (), ())
    return Values(store).load(state, completed.located)
