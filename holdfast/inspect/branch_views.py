"""Pasts: a run as one of its branches tells it, whether it is the current one or was left long ago.

Owns: the reads of a run, answered from one line of history; the tree of branches; what differs between two of them.
Never: changes anything. State rows are of the current branch only, so a past is folded from the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from holdfast.inspect import run_views
from holdfast.model.views import EventView, iso, when
from holdfast.rules.branch_opening import REQUESTS
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import WaitAndTimerHistory
from holdfast.store.records.journal import History
from holdfast.store.records.state_rows import node_row
from holdfast.store.row_types import EngineRow, EventRow, LinkedRow, NodeRow, RunRow, VersionRow, WaitRow

_encode = msgspec.json.Encoder().encode


class Past:
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
        """For whoever reads a run from a store; it has what reads.py and `holdfast show` ask for."""
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
    past = Past(store, history, branch)
    return run_views.run_json(past.as_store(), past.row)


def event_views(store: Store, history: History, branch: int, after: int = 0) -> list[EventView]:
    """The events of a branch's line of history."""
    past = Past(store, history, branch)
    return run_views.event_views(past.as_store(), past.row.run_no, after)


def branches_json(store: Store, history: History) -> list[dict[str, Any]]:
    """The lines of history of a run, in the order in which they were opened."""
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
                "status": str(history.state(b.branch).status),
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
