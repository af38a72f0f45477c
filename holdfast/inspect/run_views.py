"""Run views: runs as people and programs see them, as they are and as one of their branches was.

Owns: the JSON shapes of runs, nodes and events, the same on the command line and over HTTP; the views of a run from one
branch, the tree of branches, and what differs between two of them.
Never: changes anything. State rows are of the current branch only, so another branch is folded from the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from holdfast.inspect.wait_views import shown_status, waits_of, waits_of_all
from holdfast.model import definition as definitions
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.errors import CorruptJournal, NewerFormat
from holdfast.model.naming import instance_text, is_undo
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.views import EventView, Wait, iso, iso_or_none, when
from holdfast.rules.branch_opening import REQUESTS
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import WaitAndTimerHistory
from holdfast.store.records.journal import History, event_of
from holdfast.store.records.run_records import current_visits, fold_of, input_of, result_of, terminal_event
from holdfast.store.records.state_rows import node_row
from holdfast.store.row_types import EngineRow, EventRow, LinkedRow, NodeRow, RunRow, WaitRow
from holdfast.store.version_contract import VersionRow


def event_views(store: Store, run_no: int, after: int = 0, limit: int | None = None) -> list[EventView]:
    return [_view(row) for row in store.events(run_no, after, limit)]


def _view(row: EventRow) -> EventView:
    try:
        data = msgspec.json.decode(row.data)
    except ValueError:  # no JSON, or not even text
        data = {"unreadable": True}
    return EventView(row.seq, row.branch, row.type, row.node, row.path, when(row.at), data, row.visit, _is_unknown(row))


def _is_unknown(row: EventRow) -> bool:
    try:
        journal_format.decode(row.type, row.data)
    except CorruptJournal as error:
        return isinstance(error, NewerFormat)
    return False


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
        except CorruptJournal as damage:  # the rest is shown, and the others of a list, whatever is wrong here
            error = ev.ErrorInfo(damage.code, damage.message)
    if isinstance(terminal, ev.RunFailed):
        error = terminal.error
    shown: dict[str, Any] = {
        "run_id": row.run_id,
        "workflow": row.workflow,
        "version": row.version,
        "status": shown_status(store, row),
        "branch": row.branch,
        "queue": row.queue,
    }
    if full:
        shown["input"] = _input_shown(store, row)
        shown["result"] = _result_shown(store, row, terminal) if isinstance(terminal, ev.RunCompleted) else None
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


def _input_shown(store: Store, row: RunRow) -> Any:
    try:
        return input_of(store, row)
    except CorruptJournal as damage:
        return {"unreadable": damage.message}


def _result_shown(store: Store, row: RunRow, completed: ev.RunCompleted) -> Any:
    try:
        return msgspec.json.decode(result_of(store, row, completed))
    except CorruptJournal as damage:
        return {"unreadable": damage.message}


def ways_on(store: Store, row: RunRow) -> list[tuple[str, list[str]]]:
    """How a run that failed can continue, or compensations of one that was cancelled: what for, and the verb with its
    arguments. None of them is refused."""
    undone = [n for n in store.nodes(row.run_no) if is_undo(n.node)] if fold_of(row).closing == "compensating" else []
    if not undone:
        return [("let what failed try again", ["retry", row.run_id])] if row.status == RunStatus.FAILED else []
    failed = [instance_text(n.node, n.path, n.visit) for n in undone if n.status == NodeStatus.FAILED]
    ways = []
    if len(failed) == 1:
        ways.append(("let the compensation that failed try again, with its key", ["retry", row.run_id, failed[0]]))
    elif failed:
        what = f"let the {len(failed)} compensations that failed try again, with their keys"
        ways.append((what, ["retry", row.run_id]))
    if row.status == RunStatus.FAILED:
        ways.append(("do everything again, with new keys", ["fork", row.run_id, "--at", "start"]))
    return ways


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
    shown = [_node_json(node, values.get(node.output_seq)) for node in found]
    seen = {(node.node, node.visit) for node in found if node.path == "."}
    visits = current_visits(row)
    version = store.version(row.workflow, row.version)
    if version is not None and row.status not in RUN_TERMINAL:
        reached = {node.node for node in found}
        for definition in definitions.decode(version.definition).nodes:
            visit = visits.get(definition.id, 1)
            is_reached = definition.unit and (definition.unit == "join" or definition.id in reached)
            if (definition.id, visit) not in seen and not definition.lane and not is_reached:
                shown.append(_pending(definition.id, visit))
    return shown


def phases_json(store: Store, row: RunRow) -> list[dict[str, Any]]:
    """The phases of a run, each with its nodes and what they gave: the steps of a document, with their modules."""
    version = store.version(row.workflow, row.version)
    definition = None if version is None else definitions.decode(version.definition)
    if definition is None:
        return []
    state = fold_of(row).phases
    of_phase = {node.id: node.phase for node in definition.nodes}
    found = [node for node in nodes_json(store, row) if node["node"] in of_phase]
    return [
        {
            "phase": phase.name,
            "status": state.get(phase.name, "pending"),
            "nodes": [node for node in found if of_phase[node["node"]] == phase.name],
        }
        for phase in definition.phases
    ]


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


def _outputs(store: Store, row: RunRow, nodes: list[NodeRow]) -> dict[int, LinkedRow]:
    seqs = [n.output_seq for n in nodes if n.output_seq][:1000]
    return store.event_data(row.run_no, seqs) if seqs else {}


def _node_json(node: NodeRow, held: LinkedRow | None) -> dict[str, Any]:
    output, error, event = None, None, None
    if held is not None:
        try:
            event = event_of(held)
        except CorruptJournal as damage:
            output = {"unreadable": damage.message}
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


# --- branches -------------------------------------------------------------------------------------------------------


_encode = msgspec.json.Encoder().encode


class BranchView:
    """The part of a store that shows one run, with one of its branches as if it were the current one."""

    def __init__(self, store: Store, history: History, branch: int) -> None:
        self._store = store
        self.url = store.url
        line = history.line(branch)
        state = history.state(branch, line)
        there = {entry.seq for entry in line}
        self._events = [row for row in history.rows if row.seq in there]
        self._nodes = [NodeRow._make(node_row(history.row.run_no, ns, 0 if ns.closed else 1)) for ns in state.changed]
        self._waits = [row for row in WaitAndTimerHistory(line).wait_rows(state).values() if row.status == "open"]
        self.row: RunRow = msgspec.structs.replace(
            history.row,
            version=state.plan.version,
            status=state.status.value,
            branch=branch,
            last_seq=line[-1].seq,
            fold=_encode(state.fold),
            engine=history.row.engine if branch == history.row.branch else None,
            hold=history.row.hold if branch == history.row.branch else None,
            recoveries=state.recoveries,
            started_at=state.started_at,
            finished_at=state.finished_at,
        )

    def as_store(self) -> Store:
        """The part of `Store` that readers of one run use."""
        return cast(Store, self)

    def events(
        self, run_no: int, after: int = 0, limit: int | None = None, *, types: Sequence[str] | None = None
    ) -> list[EventRow]:
        found = [row for row in self._events if row.seq > after and (types is None or row.type in types)]
        return found[:limit]

    def event_data(self, run_no: int, seqs: Sequence[int]) -> dict[int, LinkedRow]:
        return self._store.event_data(run_no, seqs)

    def nodes(self, run_no: int) -> list[NodeRow]:
        return self._nodes

    def open_nodes(self, run_nos: Sequence[int]) -> list[NodeRow]:
        return [node for node in self._nodes if node.is_open]

    def nodes_under(self, run_no: int, node_ids: Sequence[str], path_prefix: str, visit: int) -> list[NodeRow]:
        return [n for n in self._nodes if n.node in node_ids and n.path.startswith(path_prefix) and n.visit == visit]

    def open_waits(self, run_nos: Sequence[int]) -> list[WaitRow]:
        return self._waits

    def version(self, workflow: str, version: int) -> VersionRow | None:
        return self._store.version(workflow, version)

    def engines(self) -> list[EngineRow]:
        return self._store.engines()

    def now(self) -> int:
        return self._store.now()


def branch_json(store: Store, history: History, branch: int) -> dict[str, Any]:
    """A run as one of its branches tells it, in the shape of a run."""
    past = BranchView(store, history, branch)
    return run_json(past.as_store(), past.row)


def branch_event_views(store: Store, history: History, branch: int, after: int = 0) -> list[EventView]:
    """The events of a branch's lineage."""
    past = BranchView(store, history, branch)
    return event_views(past.as_store(), past.row.run_no, after)


def branches_json(store: Store, history: History) -> list[dict[str, Any]]:
    """The branches of a run, in the order in which they were opened."""
    requests = {
        entry.event.new_branch: entry.event.target
        for entry in history.entries
        if type(entry.event) in REQUESTS.values()
    }
    own = Counter(entry.branch for entry in history.entries)
    origins = {row.branch: row.origin_no for row in store.branches(history.row.run_no) if row.origin_no is not None}
    shown = []
    for b in history.branches.values():
        origin = store.run_by_no(origins[b.branch]) if b.branch in origins else None
        shown.append(
            {
                "branch": b.branch,
                "parent": b.parent,
                "cutoff_seq": b.cutoff_seq,
                "reason": b.reason,
                "target": requests.get(b.branch),
                "current": b.branch == history.row.branch,
                "status": str(history.status(b.branch)),
                "events": own[b.branch],
                "version": b.version,
                "key_epoch": b.key_epoch,
                "dropped": list(b.dropped),
                "reopened": list(b.reopened),
                "origin": None if origin is None else origin.run_id,
                "actor": b.actor,
                "at": iso(when(b.at)),
            }
        )
    return shown


def diff_json(store: Store, history: History, one: int, other: int) -> dict[str, Any]:
    """What differs between two branches: the run itself, and instances by status, output or error (null: it has none
    there)."""
    sides = [branch_json(store, history, one), branch_json(store, history, other)]
    instances = [{(n["node"], n["path"], n["visit"]): n for n in side["nodes"]} for side in sides]
    found = []
    for key in dict.fromkeys([*instances[0], *instances[1]]):
        shown = [_facts(side.get(key), "status", "output", "error") for side in instances]
        if shown[0] != shown[1]:
            found.append({"node": key[0], "path": key[1], "visit": key[2], "one": shown[0], "other": shown[1]})
    run = [_facts(side, "status", "input", "result", "error", "version") for side in sides]
    return {"one": {"branch": one, **(run[0] or {})}, "other": {"branch": other, **(run[1] or {})}, "nodes": found}


def _facts(shown: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return None if shown is None else {name: shown[name] for name in names}
