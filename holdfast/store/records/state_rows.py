"""State rows: a run's state as table rows, and back.

Owns: the one mapping between RunState and the state tables.
Invariants: reading back what was written gives the same state (except for what is marked "never stored" there).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal
from holdfast.model.evolve import wait_about
from holdfast.model.fold import Counters, Fold
from holdfast.model.journal_format import RAISES, encode, format_of, moment, new_hash
from holdfast.model.naming import ROOT, is_undo
from holdfast.model.plans import Plan
from holdfast.model.state import NodeState, OpenScope, RunState, WaitState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus, RunStatus
from holdfast.model.timers import Elapsed
from holdfast.store.row_types import EventRow, NodeRow, RunChange, RunRow, TimerRow, WaitRow

UNREADABLE = (CorruptJournal, KeyError, ValueError, AssertionError)
"""Errors of reading a run whose rows or journal are damaged."""
_encode = msgspec.json.Encoder().encode
_fold = msgspec.json.Decoder(Fold).decode
_counters = msgspec.json.Decoder(Counters).decode
_captured = msgspec.json.Decoder(dict[str, Any]).decode
_RUN_STATUSES = {status.value: status for status in RunStatus}
_NODE_STATUSES = {status.value: status for status in NodeStatus}
"""By name: looking up an Enum member takes as long as building the rest of an instance."""


class _WaitData(msgspec.Struct, gc=False):
    """What a wait's row keeps as JSON."""

    call: dict[str, Any]
    about: Any = None
    child: str | None = None


_wait_data = msgspec.json.Decoder(_WaitData).decode
_any_data = msgspec.json.Decoder(dict[str, Any]).decode


def node_row(run_no: int, ns: NodeState, is_open: int) -> Any:
    """A row in the order of NodeRow."""
    return (
        run_no,
        ns.node,
        ns.path,
        ns.visit,
        ns.status,
        ns.attempt,
        ns.failures,
        ns.output_seq,
        ns.memory_seq,
        ns.not_before,
        _encode(ns.captured) if ns.captured else None,
        None if ns.counters is None else _encode(ns.counters),
        is_open,
        ns.started_at,
        ns.finished_at,
    )


def changed_nodes(state: RunState) -> list[NodeRow]:
    """The rows that the latest events changed; they count as written from now on."""
    rows = []
    for ns in state.changed:
        ns.changed = False
        rows.append(node_row(state.run_no, ns, 0 if ns.closed else 1))
    state.changed.clear()
    return rows


_ASIDE = frozenset({ev.WaitOpened, ev.WaitClosed, ev.RunEdited, ev.TimerSet, ev.TimerFired, ev.TimerCancelled})
_KINDS = {kind: (name, kind in _ASIDE) for name, kind in ev.TYPES.items()}
"""The name of an event type, and whether it changes waits or timers."""


def event_rows(state: RunState, entries: list[ev.Entry], token: int) -> tuple[list[EventRow], bool]:
    """Events as rows, linked to the ones before them, and whether some of them change waits or timers. Updates the
    run's head hash, and raises its format where an event needs that."""
    rows: list[Any] = []  # plain tuples in the order of EventRow: this is the hottest loop there is
    aside = False
    previous, run_no, run_id = state.head_hash, state.run_no, state.run_id
    known_at, known_visit, when = -1, -1, ""
    for entry in entries:
        seq, at, event, node, path, visit, branch = astuple(entry)
        type_name, is_aside = _KINDS[type(event)]
        if is_aside:
            aside = True
        if at != known_at or visit != known_visit:  # most events of a commit share both
            known_at, known_visit, when = at, visit, moment(visit, at, token)
        data = encode(event)
        hashed = new_hash()  # what `link` says, written out: eleven arguments for each event are a hundredth of a step
        hashed.update(previous + f"{run_id}|{seq}|{branch}|{type_name}|{node}|{path}|{when}".encode() + data)
        previous = hashed.digest()
        rows.append((run_no, seq, branch, type_name, node, path, visit, at, token, previous, data))
    state.head_hash = previous
    if RAISES:
        state.format = max(state.format, format_of(entry.event for entry in entries))
    return rows, aside


def run_change(state: RunState, engine: str | None) -> RunChange:
    return RunChange(
        state.seq,
        state.head_hash,
        state.status,
        state.branch,
        engine,
        state.recoveries,
        state.started_at,
        state.finished_at,
        _encode(state.fold) if state.fold_changed else None,
        state.format,
    )


def run_row(
    state: RunState, token: int, engine: str | None, input_hash: str, parent_no: int | None, root_no: int
) -> RunRow:
    fold = state.fold
    return RunRow(
        state.run_no,
        state.run_id,
        state.plan.definition.name,
        state.plan.version,
        state.status,
        state.branch,
        state.seq,
        state.head_hash,
        token,
        engine,
        _encode(fold),
        input_hash,
        parent_no,
        root_no,
        fold.settings.priority,
        state.recoveries,
        None,
        state.created_at,
        state.started_at,
        state.finished_at,
        fold.settings.queue,
        format=state.format,
    )


def wait_rows(state: RunState, entries: list[ev.Entry]) -> list[WaitRow]:
    """Rows of the waits that these events opened, reassigned or closed, one for each."""
    rows: dict[str, WaitRow] = {}
    for entry in entries:
        match entry.event:
            case ev.WaitOpened(wait_id=wait_id):
                rows[wait_id] = wait_row(state.run_no, entry, state.waits.get(wait_id))
            case ev.WaitClosed(wait_id=wait_id, outcome=outcome, actor=actor):
                opened = rows.get(wait_id)
                if opened is None:
                    rows[wait_id] = _known_wait(state.run_no, wait_id, "closed", None, None, outcome, actor or None)
                else:
                    rows[wait_id] = opened._replace(status="closed", outcome=outcome, actor=actor or None)
            case ev.RunEdited(after={"wait_id": wait_id}) if wait_id in state.waits and wait_id not in rows:
                wait = state.waits[wait_id]
                rows[wait_id] = _known_wait(state.run_no, wait_id, "open", wait.basket, wait.assignee)
    return list(rows.values())


def wait_row(run_no: int, opened: ev.Entry, wait: WaitState | None) -> WaitRow:
    """The row of a wait, from the event that opened it and its current state (None: closed)."""
    e = opened.event
    where = wait_about(e.about)
    return WaitRow(
        run_no,
        e.wait_id,
        e.kind,
        opened.node,
        opened.path,
        opened.visit,
        opened.branch,
        "open",
        opened.at,
        e.until,
        _encode({"call": e.call, "about": e.about, "child": None if wait is None else wait.child}),
        where.get("basket") if wait is None else wait.basket,
        where.get("assignee") if wait is None else wait.assignee,
    )


def _known_wait(run_no: int, wait_id: str, status: str, *changed: str | None) -> WaitRow:
    """A change of a wait that has a row: basket, assignee, outcome, actor. The store ignores the other fields."""
    return WaitRow(run_no, wait_id, "", None, None, 1, 1, status, 0, None, b"{}", *changed)


def timer_rows(state: RunState, entries: list[ev.Entry]) -> list[TimerRow]:
    """Rows of the timers that these events set, fired or cancelled."""
    rows: dict[str, TimerRow] = {}
    for entry in entries:
        match entry.event:
            case ev.TimerSet(timer=timer, due_at=due_at, boot=boot, elapsed=elapsed):
                rows[timer] = TimerRow(state.run_no, timer, due_at, entry.branch, "set", boot, elapsed)
            case ev.TimerFired(timer=timer):
                rows[timer] = TimerRow(state.run_no, timer, 0, entry.branch, "fired")
            case ev.TimerCancelled(timer=timer):
                rows[timer] = TimerRow(state.run_no, timer, 0, entry.branch, "cancelled")
    return list(rows.values())


# --- back ------------------------------------------------------------------------------------------------------


def node_from_row(state: RunState, row: NodeRow) -> NodeState:
    """An instance from its row, with its scope (a placeholder if that is closed)."""
    (
        _, node, path, visit, status_name, attempt, failures, output_seq, memory_seq, not_before, captured, counted, _,
        started_at, finished_at,
    ) = row  # fmt: skip
    scope = state.scopes.get(path)
    plan = None if scope is None else scope.plan.nodes.get(node)
    if scope is None or plan is None:  # a compensation, a unit of a journey, in a lane, or in a scope that is closed
        scope_plan = state.plan.scope_of(path)
        plan = scope_plan.nodes.get(node) or state.undo_plan(scope_plan, node, path, visit)
        scope_path = ROOT if plan.definition.unit else path[: len(path) - len(plan.lane)]
        scope = state.scopes.get(scope_path) or OpenScope(scope_path, scope_plan, None)
    status = _NODE_STATUSES[status_name]
    counters = _counters(counted) if counted else None
    return NodeState(
        plan,
        scope,
        node,
        path,
        visit,
        status,
        attempt,
        failures,
        output_seq,
        memory_seq,
        not_before,
        _captured(captured) if captured else {},
        counters,
        counters is not None and status is NodeStatus.COMPLETED,
        (),
        started_at,
        finished_at,
    )


def state_from_rows(
    plan: Plan, row: RunRow, nodes: Sequence[NodeRow], waits: Iterable[WaitRow], timers: Iterable[TimerRow]
) -> RunState:
    """Build a run's state from its rows. Optimised: very many runs may be loaded at the same time."""
    state = RunState(
        plan,
        row.run_no,
        row.run_id,
        row.created_at,
        _RUN_STATUSES[row.status],
        row.last_seq,
        row.head_hash,
        row.branch,
        row.recoveries,
        row.started_at,
        row.finished_at,
        _fold(row.fold) if row.fold else Fold(),
    )
    state.format = row.format
    state.open_root()
    if len(nodes) > 1:  # outer scopes first, so that the ones inside find their maps and loops
        nodes = sorted(nodes, key=lambda n: n.path.count("."))
    for node in nodes:
        if node.path not in state.scopes and not is_undo(node.node):
            state.scope_at(node.path)
        ns = state.nodes[node.node, node.path] = node_from_row(state, node)
        if ns.status in NODE_SETTLED:
            ns.scope.unsettled.discard(ns.node)
    if plan.definition.start and row.started_at is not None and ROOT not in state.fold.tokens:
        state.scopes[ROOT].unsettled = set()  # its path has ended
    for wait in map(_wait_from_row, waits):
        state.waits[wait.wait_id] = wait
        holder = state.nodes.get((wait.node, wait.path))
        if holder is not None:
            holder.waits = (*holder.waits, wait.wait_id)
    for timer in timers:
        state.timers[timer.timer] = timer.due_at
        if timer.boot:
            state.lasting[timer.timer] = Elapsed(timer.boot, timer.elapsed)
    known = [row.created_at, row.started_at or 0, row.finished_at or 0, *(wait.since for wait in state.waits.values())]
    state.last_at = max(*known, *(max(node.started_at or 0, node.finished_at or 0) for node in nodes))
    return state


def _wait_from_row(row: WaitRow) -> WaitState:
    data = _wait_data(row.data)
    return WaitState(
        row.wait_id,
        row.kind,
        row.node or "",  # an operator's pause belongs to no node
        row.path or ".",
        row.visit,
        data.call,
        row.since,
        row.until,
        data.child,
        wait_about(data.about) if data.about else {},
        row.basket,
        row.assignee,
    )


def about_of(row: WaitRow) -> dict[str, Any]:
    """What a wait is about: its question and schema, its signal, or why a node is in a basket."""
    about = _any_data(row.data).get("about")
    return about if isinstance(about, dict) else {}


def child_of(row: WaitRow) -> str | None:
    """The child that a wait is for, if any. An unreadable row is reported by `state_from_rows`."""
    try:
        return _any_data(row.data).get("child") if row.kind == "child" else None
    except msgspec.MsgspecError:
        return None
