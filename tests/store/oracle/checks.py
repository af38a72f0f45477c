"""The doctor's questions as plain Python, one function each.

Owns: what every check of the contract finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, get_args

import msgspec

from holdfast.model.journal_format import FORMAT, is_newer
from holdfast.model.statuses import BRANCH_REQUESTS
from holdfast.store.row_types import (
    Check,
    EventRow,
    MessageRow,
    NodeRow,
    RunRow,
    Suspect,
    TimerRow,
    WaitRow,
)
from tests.store.oracle.tables import AT_WORK, ENDED, LIVE, Tables, child_of

_TABLES: Final = {
    "events": "run_events",
    "nodes": "run_node_state",
    "waits": "run_waits",
    "timers": "run_timers",
    "branches": "run_branches",
    "messages": "run_inbox_messages",
}


def suspects(tables: Tables, check: Check, before: int) -> list[Suspect]:
    """All that a check finds, in the order of the contract."""
    assert check in get_args(Check)
    if check.startswith("orphan_"):
        found = _orphans(tables, check.removeprefix("orphan_"))
    else:
        found = _CHECKS[check](tables, before)
    return sorted(found, key=lambda s: (s.run_no, s.node or "", s.path or "", s.found))


def _suspect(run: RunRow, found: Any, wanted: Any = None, *, place: Any = None, seq: int | None = None) -> Suspect:
    """`place` is a row that tells where in the run."""
    node, path = (None, None) if place is None else (place.node, place.path)
    return Suspect(run.run_no, run.run_id, node, path, seq, found, wanted)


# --- the run's row and its journal -------------------------------------------------------------------------------


def _format(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        if is_newer(run.format):
            yield _suspect(run, run.format, FORMAT)


def _head(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        last, is_last_known = _last_event(tables, run), tables.events.get((run.run_no, run.last_seq))
        same = None if is_last_known is None else int(is_last_known.hash == run.head_hash)
        newest = None if last is None else last.seq
        if not same or (newest is not None and newest > run.last_seq):
            yield _suspect(run, run.last_seq, same, seq=newest)


def _gap(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        seqs = [event.seq for event in tables.own_events(run.run_no)]
        origin = tables.origin(run.run_no)
        first = 1 if origin is None else origin.cutoff_seq + 1
        if seqs and len(seqs) != seqs[-1] - first + 1:
            missing = min(seq + 1 for seq in (first - 1, *seqs) if seq + 1 not in seqs)
            yield _suspect(run, len(seqs), seqs[-1] - first + 1, seq=missing)


def _token(tables: Tables, _: int) -> Iterator[Suspect]:
    for run, event in _with_head(tables):
        if event is not None and event.token > run.token:
            yield _suspect(run, event.token, run.token, place=event, seq=event.seq)


def _ending(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        if (run.status in ENDED) != (run.finished_at is not None):
            yield _suspect(run, run.status, run.finished_at)


def _terminal(tables: Tables, _: int) -> Iterator[Suspect]:
    for run, event in _with_head(tables):
        kind = None if event is None else event.type
        near = {e.type for e in tables.own_events(run.run_no) if e.seq > run.last_seq - 4}
        if run.status in ENDED:
            is_wrong = f"Run{run.status.capitalize()}" not in near
        else:
            is_wrong = kind in ("RunCompleted", "RunFailed", "RunCancelled")
        if is_wrong:
            yield _suspect(run, run.status, kind, seq=run.last_seq)


def _status(tables: Tables, _: int) -> Iterator[Suspect]:
    return (_suspect(run, run.status) for run in tables.runs.values() if run.status not in LIVE + ENDED)


# --- what a run that has ended, or waits, must not have ----------------------------------------------------------


def _owned_end(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in _ended(tables):
        if run.engine is not None and not tables.has_mail(run.run_no):
            yield _suspect(run, run.engine, run.status)


def _wait_of_end(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in _ended(tables):
        yield from (_suspect(run, wait.wait_id, run.status, place=wait) for wait in _open_waits(tables, run))


def _timer_of_end(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in _ended(tables):
        yield from (_suspect(run, timer.timer, run.status) for timer in _set_timers(tables, run))


def _message_of_end(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in _ended(tables):
        for message in _mail(tables, run):
            if message.status == "new" and message.kind not in BRANCH_REQUESTS:
                yield _suspect(run, message.message_id, run.status)


def _node_of_end(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in _ended(tables):
        for node in _open_nodes(tables, run):
            if node.status in ("scheduled", "running", "suspended"):
                yield _suspect(run, node.status, run.status, place=node)


def _node_of_suspended(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        for node in _open_nodes(tables, run):
            if run.status == "suspended" and node.status == "running" and node.scope is None:
                yield _suspect(run, node.status, run.status, place=node)


def _stuck(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        wakes = _open_waits(tables, run) or _set_timers(tables, run) or tables.has_mail(run.run_no)
        if run.status == "suspended" and run.hold is None and not wakes:
            yield _suspect(run, None, seq=run.last_seq)


# --- what nobody will bring about --------------------------------------------------------------------------------


def _wait_without_timer(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        names = {timer.timer for timer in _set_timers(tables, run)}
        for wait in _open_waits(tables, run):
            if wait.until is not None and wait.wait_id not in names:
                yield _suspect(run, wait.wait_id, wait.until, place=wait)


def _wait_without_child(tables: Tables, _: int) -> Iterator[Suspect]:
    for run, wait, child in _waits_for_children(tables):
        if child is None:
            yield _suspect(run, wait.wait_id, child_of(wait.data), place=wait)


def _wait_for_ended_child(tables: Tables, before: int) -> Iterator[Suspect]:
    for run, wait, child in _waits_for_children(tables):
        if child is None or child.status not in ENDED:
            continue
        is_late = child.finished_at is not None and child.finished_at < before
        reports = [m for m in _mail(tables, run) if m.kind == "child_ended" and m.status == "new"]
        is_told = any(child_of(report.payload) == child.run_id for report in reports)
        if (child.parent_no == run.run_no or is_late) and not is_told:
            yield _suspect(run, child.run_id, child.status, place=wait)


def _child_of_ended(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        parent = None if run.parent_no is None else tables.runs.get(run.parent_no)
        if parent is None or run.status in ENDED or parent.status not in ("failed", "cancelled"):
            continue
        fold = {} if run.fold is None else msgspec.json.decode(run.fold)
        is_attached = fold.get("parent", {}).get("run_id") == parent.run_id
        if is_attached and not any(message.kind == "cancel" for message in _mail(tables, run)):
            yield _suspect(run, parent.run_id, parent.status)


def _left_alone(tables: Tables, before: int) -> Iterator[Suspect]:
    for run, event in _with_head(tables):
        is_free = run.status in AT_WORK and run.engine is None and run.hold is None
        if is_free and run.status != "created" and event is not None and event.at < before:
            yield _suspect(run, event.at, run.status, seq=run.last_seq)


def _overdue(tables: Tables, before: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        for timer in _set_timers(tables, run):
            is_free = run.status == "suspended" and run.engine is None and run.hold is None
            if is_free and timer.due_at < before:
                yield _suspect(run, timer.timer, timer.due_at)


# --- what is not there -------------------------------------------------------------------------------------------


def _lease(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        if run.engine is not None:
            yield _suspect(run, run.engine, run.engine if run.engine in tables.engines else None)


def _version(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        if (run.workflow, run.version) not in tables.versions:
            yield _suspect(run, run.workflow, run.version)


def _parent(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        if run.root_no not in tables.runs or (run.parent_no is not None and run.parent_no not in tables.runs):
            yield _suspect(run, run.parent_no, run.root_no)


def _branch(tables: Tables, _: int) -> Iterator[Suspect]:
    for run in tables.runs.values():
        if run.branch != 1 and (run.run_no, run.branch) not in tables.branches:
            yield _suspect(run, run.branch)


def _orphans(tables: Tables, table: str) -> Iterator[Suspect]:
    rows = getattr(tables, table).values()
    for run_no in {row.run_no for row in rows} - set(tables.runs):
        lost = [row for row in rows if row.run_no == run_no]
        nodes = [row.node for row in lost if table in ("nodes", "waits") and row.node is not None]
        seq = min(row.seq for row in lost) if table == "events" else None
        yield Suspect(run_no, None, min(nodes, default=None), None, seq, len(lost), _TABLES[table])


_CHECKS: Final[dict[str, Callable[[Tables, int], Iterator[Suspect]]]] = {
    "head": _head,
    "gap": _gap,
    "token": _token,
    "ending": _ending,
    "terminal": _terminal,
    "status": _status,
    "owned_end": _owned_end,
    "wait_of_end": _wait_of_end,
    "timer_of_end": _timer_of_end,
    "message_of_end": _message_of_end,
    "node_of_end": _node_of_end,
    "node_of_suspended": _node_of_suspended,
    "stuck": _stuck,
    "wait_without_timer": _wait_without_timer,
    "wait_without_child": _wait_without_child,
    "wait_for_ended_child": _wait_for_ended_child,
    "child_of_ended": _child_of_ended,
    "left_alone": _left_alone,
    "overdue": _overdue,
    "lease": _lease,
    "version": _version,
    "format": _format,
    "parent": _parent,
    "branch": _branch,
}

# --- rows of a run -----------------------------------------------------------------------------------------------


def _ended(tables: Tables) -> list[RunRow]:
    return [run for run in tables.runs.values() if run.status in ENDED]


def _last_event(tables: Tables, run: RunRow) -> EventRow | None:
    return next(reversed(tables.own_events(run.run_no)), None)


def _with_head(tables: Tables) -> list[tuple[RunRow, EventRow | None]]:
    """Each run with the event that its row calls the last one."""
    return [(run, tables.events.get((run.run_no, run.last_seq))) for run in tables.runs.values()]


def _open_nodes(tables: Tables, run: RunRow) -> list[NodeRow]:
    return [node for node in tables.nodes.values() if node.run_no == run.run_no and node.is_open]


def _open_waits(tables: Tables, run: RunRow) -> list[WaitRow]:
    return [wait for wait in tables.waits.values() if wait.run_no == run.run_no and wait.status == "open"]


def _set_timers(tables: Tables, run: RunRow) -> list[TimerRow]:
    return [timer for timer in tables.timers.values() if timer.run_no == run.run_no and timer.status == "set"]


def _mail(tables: Tables, run: RunRow) -> list[MessageRow]:
    return [message for message in tables.messages.values() if message.run_no == run.run_no]


def _waits_for_children(tables: Tables) -> Iterator[tuple[RunRow, WaitRow, RunRow | None]]:
    for run in tables.runs.values():
        for wait in _open_waits(tables, run):
            if wait.kind == "child":
                yield run, wait, tables.with_id(child_of(wait.data))
