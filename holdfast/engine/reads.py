"""Reads: runs as people and programs see them.

Owns: the JSON shapes of runs, nodes and events, the same on the command line and over HTTP.
Never: changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.engine.times import iso, iso_or_none, when
from holdfast.engine.waits import Wait, waits_of, waits_of_all
from holdfast.model import definition as definitions
from holdfast.model import events as ev
from holdfast.model import texts
from holdfast.model.errors import CorruptJournal, UnknownRun
from holdfast.model.lineage import ROOT_BRANCH, is_in
from holdfast.model.state import Fold
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.store.api import EventRow, NodeRow, RunRow, Store


class EventView(msgspec.Struct, frozen=True):
    """One event of a journal."""

    seq: int
    branch: int
    type: str
    node: str | None
    path: str | None
    at: datetime
    data: dict[str, Any]
    visit: int = 1

    def as_json(self) -> dict[str, Any]:
        return {
            "seq": self.seq,
            "branch": self.branch,
            "type": self.type,
            "node": self.node,
            "path": self.path,
            "visit": self.visit,
            "at": iso(self.at),
            "data": self.data,
        }


def event_views(store: Store, run_no: int, after: int = 0, limit: int | None = None) -> list[EventView]:
    return [_view(row) for row in store.events(run_no, after, limit)]


def _view(row: EventRow) -> EventView:
    try:
        data = msgspec.json.decode(row.data)
    except ValueError:  # no JSON, or not even text
        data = {"unreadable": True}
    return EventView(row.seq, row.branch, row.type, row.node, row.path, when(row.at), data, row.visit)


def runs_json(store: Store, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Runs as they are listed: without inputs, results and nodes."""
    waits = waits_of_all(store, rows)
    return [_run_json(store, row, waits[row.run_no], full=False) for row in rows]


def run_json(store: Store, row: RunRow) -> dict[str, Any]:
    """A run with its input, result and nodes."""
    return _run_json(store, row, waits_of(store, row), full=True)


def _run_json(store: Store, row: RunRow, waits: Sequence[Wait], *, full: bool) -> dict[str, Any]:
    terminal, error = None, None
    if row.status in RUN_TERMINAL and (full or row.status != "completed"):
        try:
            terminal = terminal_event(store, row)
        except CorruptJournal as damage:
            if full:
                raise
            error = ev.ErrorInfo(damage.code, damage.message)  # the others of a list are shown, whatever is wrong here
    if isinstance(terminal, ev.RunFailed):
        error = terminal.error
    shown: dict[str, Any] = {
        "run_id": row.run_id,
        "workflow": row.workflow,
        "version": row.version,
        "status": shown_status(row),
        "branch": row.branch,
        "queue": row.queue,
    }
    if full:
        shown["input"] = input_of(store, row)
        shown["result"] = msgspec.json.decode(terminal.result) if isinstance(terminal, ev.RunCompleted) else None
    shown["error"] = None if error is None else error_json(error)
    shown["waits"] = [wait.as_json() for wait in waits]
    if full:
        shown["nodes"] = nodes_json(store, row)
    shown["recoveries"] = row.recoveries
    for field in ("created_at", "started_at", "finished_at"):
        shown[field] = iso_or_none(getattr(row, field))
    if isinstance(terminal, ev.RunFailed | ev.RunCancelled) and terminal.others:
        shown["others"] = [error_json(e) for e in terminal.others]
    if isinstance(terminal, ev.RunCancelled):
        shown["reason"] = terminal.reason
    return shown


def input_of(store: Store, row: RunRow) -> Any:
    """The input that a run works with: what it was given, or what somebody made of that since."""
    seq = _fold(row).input_seq
    holder = event_at(store, row, seq)
    if not isinstance(holder, ev.RunCreated | ev.InputEdited):
        raise CorruptJournal(f"event {seq} of run {row.run_id} should hold its input, and is a {type(holder).__name__}")
    return msgspec.json.decode(holder.input)


def creation_of(store: Store, row: RunRow) -> ev.RunCreated:
    """How a run began."""
    first = event_at(store, row, 1)
    if not isinstance(first, ev.RunCreated):
        raise CorruptJournal(f"the journal of run {row.run_id} does not begin with its creation")
    return first


def event_at(store: Store, row: RunRow, seq: int) -> Any:
    """One event of a run's journal, which must be there."""
    held = store.event_data(row.run_no, [seq]).get(seq)
    if held is None:
        raise CorruptJournal(f"event {seq} of run {row.run_id} is missing from its journal")
    return readable(row.run_id, seq, *held)


def readable(run_id: str, seq: int, type_name: str, data: bytes) -> Any:
    """An event, decoded. Raises CorruptJournal, which says of which event."""
    try:
        return ev.decode(type_name, data)
    except CorruptJournal as error:
        raise CorruptJournal(f"event {seq} of run {run_id}: {error.message}") from None


def current_visits(row: RunRow) -> dict[str, int]:
    """The visit of top-level nodes that were entered again."""
    return _fold(row).visits


def cancel_asked(row: RunRow) -> tuple[str, str] | None:
    """Why a run that has not ended is being cancelled, and who asked for it; None when nobody did."""
    fold = _fold(row)
    if row.status in RUN_TERMINAL or fold.cancel_reason is None:
        return None
    return fold.cancel_reason, fold.cancel_actor


def _fold(row: RunRow) -> Fold:
    try:
        fold: Fold = msgspec.json.decode(row.fold or b"{}", type=Fold)
    except ValueError as error:  # no JSON, or not even text
        raise CorruptJournal(f"the row of run {row.run_id} cannot be read: {error}") from None
    return fold


def of_current_branch(row: RunRow, events: list[EventRow]) -> list[EventRow]:
    """Those of some events that the line of history of a run's current branch may have, by their branch alone."""
    if row.branch == ROOT_BRANCH:
        return events
    ancestors = _fold(row).ancestors
    return [event for event in events if is_in(ancestors, row.branch, event.branch, event.seq)]


def shown_status(row: RunRow) -> str:
    """A run on hold is suspended, whatever it was doing when the engine put it there."""
    return "suspended" if row.hold is not None and row.status not in RUN_TERMINAL else row.status


def error_json(error: ev.ErrorInfo) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "node": error.node,
        "path": error.path,
        "attempt": error.attempt,
        "retryable": error.retryable,
        "kinds": list(error.kinds),
        "frames": list(error.frames),
    }


def nodes_json(store: Store, row: RunRow) -> list[dict[str, Any]]:
    """Every instance that has a row, then the nodes of the definition that have none yet."""
    found = store.nodes(row.run_no)
    values = _outputs(store, row, found)
    shown = [_node_json(row.run_id, node, values.get(node.output_seq)) for node in found]
    seen = {(node.node, node.visit) for node in found if node.path == "."}
    visits = current_visits(row)
    version = store.version(row.workflow, row.version)
    if version is not None and row.status not in RUN_TERMINAL:
        for definition in definitions.decode(version.definition).nodes:
            visit = visits.get(definition.id, 1)
            if (definition.id, visit) not in seen and not definition.lane:
                shown.append(_pending(definition.id, visit))
    return shown


def _pending(node: str, visit: int) -> dict[str, Any]:
    return {
        "node": node,
        "path": ".",
        "visit": visit,
        "status": "pending",
        "attempt": 0,
        "started_at": None,
        "finished_at": None,
        "output": None,
        "error": None,
    }


def _outputs(store: Store, row: RunRow, nodes: list[NodeRow]) -> dict[int, tuple[str, bytes]]:
    seqs = [n.output_seq for n in nodes if n.output_seq][:1000]
    return store.event_data(row.run_no, seqs) if seqs else {}


def _node_json(run_id: str, node: NodeRow, held: tuple[str, bytes] | None) -> dict[str, Any]:
    output, error = None, None
    if held is not None:
        event = readable(run_id, node.output_seq, *held)
        if isinstance(event, ev.NodeFailed):
            error = error_json(event.error)
        elif isinstance(event, ev.OutputEdited | ev.NodeSuspended) or (
            isinstance(event, ev.NodeCompleted) and not event.virtual
        ):
            output = msgspec.json.decode(event.output)
    shown = {
        "node": node.node,
        "path": node.path,
        "visit": node.visit,
        "status": str(node.status),
        "attempt": node.attempt,
        "started_at": iso_or_none(node.started_at),
        "finished_at": iso_or_none(node.finished_at),
        "output": output,
        "error": error if node.status in (NodeStatus.FAILED, NodeStatus.SCHEDULED) else None,
    }
    if node.status == NodeStatus.SCHEDULED and node.not_before:
        shown["starts_at"] = iso_or_none(node.not_before)
    if node.scope is not None:
        counters = msgspec.json.decode(node.scope)
        shown["items"] = {"count": counters.get("count"), "done": _done(counters)}
    return shown


def _done(counters: dict[str, Any]) -> int:
    starts, ends = (counters.get("done") or [[], []])[:2]
    return int(sum(ends) - sum(starts))


def terminal_event(store: Store, row: RunRow) -> Any:
    """The event that ended a run: its last one but for the request that brought it about."""
    found = store.events(row.run_no, max(0, row.last_seq - 4), types=("RunCompleted", "RunFailed", "RunCancelled"))
    if not found:
        raise CorruptJournal(f"run {row.run_id} has {row.status}, but its journal does not say how")
    return readable(row.run_id, found[-1].seq, found[-1].type, found[-1].data)


def find_run(store: Store, run_id: str) -> RunRow:
    """A run by its id or by a prefix of it that no other id has."""
    if not texts.is_name(run_id):  # an empty text is the beginning of every id
        raise UnknownRun(f"{run_id!r:.60} is no run id; `holdfast list` shows the runs there are")
    row = store.run(run_id)
    if row is not None:
        return row
    matches = store.resolve_run_id(run_id)
    if len(matches) == 1:
        row = store.run(matches[0])
        assert row is not None
        return row
    if matches:
        raise UnknownRun(f"{run_id!r} is not unique: {', '.join(matches)}")
    raise UnknownRun(f"there is no run {run_id!r} in {store.url}; `holdfast list` shows the runs there are")
