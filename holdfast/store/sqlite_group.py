"""A group on SQLite: the commits of many runs as few, large statements.

Owns: the order of the statements of a group, the fence, and finding the one commit that spoils it for the others.
Never: begins or ends the transaction (see sqlite.py), or looks into a payload.
Invariants: the fence comes first. Rows of one commit land together or not at all.
On crash: the transaction was not committed, so nothing happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from holdfast.store.api import BranchRow, Commit, Landed, NodeRow, RunStep, TimerRow, WaitRow
from holdfast.store.statements import Repeated, load

BAD_COMMIT = (
    apsw.BindingsError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.SQLError,
    apsw.TooBigError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What one commit's rows can be guilty of. Everything else is the disk's, the connection's or the process's."""

_SQL = load("sqlite")
_MOVE_RUNS = Repeated("move_runs", _SQL["move_runs"])
_STEP_RUNS = Repeated("step_runs", _SQL["step_runs"])
_CREATE_RUNS = Repeated("create_runs", _SQL["create_runs"])
_PUT_OPEN_NODES = Repeated("put_open_nodes", _SQL["put_open_nodes"])
_PUT_NODES = Repeated("put_nodes", _SQL["put_nodes"])
_APPEND_EVENTS = Repeated("append_events", _SQL["append_events"])
_PUT_WAITS = Repeated("put_waits", _SQL["put_waits"])
_PUT_TIMERS = Repeated("put_timers", _SQL["put_timers"])
_SETTLE_MESSAGES = Repeated("settle_messages", _SQL["settle_messages"])
_ADD_MESSAGES = Repeated("add_messages", _SQL["add_messages"])
_CLOSE_INBOX = Repeated("close_inbox", _SQL["close_inbox"])

_IS_OPEN = NodeRow._fields.index("is_open")
_DURABLE = Landed(None)


class Fenced(Exception):
    """At least one run of the group has another token or another last seq than its owner thinks."""


def write_together(cursor: apsw.Cursor, group: Sequence[Commit]) -> list[Landed]:
    """The whole group at once. Raises Fenced or one of BAD_COMMIT, and then the transaction must be rolled back."""
    moves: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    creates: list[tuple[Any, ...]] = []
    nodes: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    rare: list[Commit] = []
    for commit in group:
        change = commit.change
        if isinstance(change, RunStep):
            run_no, token, expected_seq = commit.run_no, commit.token, commit.expected_seq
            steps.append((run_no, token, expected_seq, change.last_seq, change.head_hash, change.recoveries))
        elif change is not None:
            moves.append((commit.run_no, commit.token, commit.expected_seq, *change))
        nodes += commit.nodes
        events += commit.events
        if (
            change is None
            or commit.waits
            or commit.timers
            or commit.outcomes
            or commit.messages
            or commit.children
            or commit.ends
            or commit.opens
        ):
            rare.append(commit)
            _take_new_runs(commit, creates, nodes, events, rare)

    if steps:
        _fence(cursor, _STEP_RUNS, _SQL["step_run"], steps)
    if moves:
        _fence(cursor, _MOVE_RUNS, _SQL["move_run"], moves)
    if creates:
        _execute(cursor, _CREATE_RUNS, creates)
    if nodes:
        _put_nodes(cursor, nodes)
    if events:
        _execute(cursor, _APPEND_EVENTS, events)
    if rare:
        _write_rare(cursor, rare)
    return [_DURABLE] * len(group)


def write_one_by_one(cursor: apsw.Cursor, group: Sequence[Commit]) -> list[Landed]:
    """Each commit under its own savepoint, so that only the bad ones are refused. Slow, and rare."""
    landed = []
    for commit in group:
        cursor.execute("SAVEPOINT one_commit")
        try:
            write_together(cursor, (commit,))
            landed.append(_DURABLE)
        except Fenced:
            _undo(cursor)
            landed.append(
                Landed("fenced", f"run {commit.run_no} is not at token {commit.token}, {commit.expected_seq=}")
            )
        except BAD_COMMIT as error:
            _undo(cursor)
            taken = _taken_run_id(cursor, commit) if isinstance(error, apsw.ConstraintError) else None
            if taken is not None:
                landed.append(Landed("run_exists", f"the run id {taken} is taken"))
            else:
                landed.append(Landed("failed", f"{type(error).__name__}: {error}"))
        cursor.execute("RELEASE one_commit")
    return landed


def _fence(cursor: apsw.Cursor, many: Repeated, one: str, rows: list[tuple[Any, ...]]) -> None:
    """Move the runs whose token and last seq are as expected; any other spoils the group."""
    changes = cursor.connection.changes
    if len(rows) == 1:
        cursor.execute(one, rows[0])
        if changes() != 1:
            raise Fenced
        return
    for start, end, sql in many.batches(len(rows)):
        cursor.execute(sql, _flat(rows[start:end]))
        if changes() != end - start:
            raise Fenced


def _put_nodes(cursor: apsw.Cursor, nodes: list[tuple[Any, ...]]) -> None:
    changes = cursor.connection.changes
    is_open = [row for row in nodes if row[_IS_OPEN]]
    for start, end, sql in _PUT_OPEN_NODES.batches(len(is_open)):
        cursor.execute(sql, _flat(is_open[start:end]))
        if changes() != end - start:  # one of them was closed: a branch opened it again
            _execute(cursor, _PUT_NODES, is_open[start:end])
    if len(is_open) != len(nodes):
        _execute(cursor, _PUT_NODES, [row for row in nodes if not row[_IS_OPEN]])


def _execute(cursor: apsw.Cursor, statement: Repeated, rows: list[tuple[Any, ...]]) -> None:
    for start, end, sql in statement.batches(len(rows)):
        cursor.execute(sql, _flat(rows[start:end]))


def _flat(rows: list[tuple[Any, ...]]) -> list[Any]:
    values: list[Any] = []
    for row in rows:
        values += row  # twice as quick as a chain of iterators
    return values


def _take_new_runs(
    commit: Commit,
    creates: list[tuple[Any, ...]],
    nodes: list[tuple[Any, ...]],
    events: list[tuple[Any, ...]],
    rare: list[Commit],
) -> None:
    if (commit.create is None) == (commit.change is None):
        raise ValueError(f"a commit of run {commit.run_no} needs either `create` or `change`")
    if commit.create is not None:
        creates.append(astuple(commit.create))
    for child in commit.children:
        nodes += child.nodes
        events += child.events
        rare.append(child)
        _take_new_runs(child, creates, nodes, events, rare)


def _write_rare(cursor: apsw.Cursor, commits: list[Commit]) -> None:
    """What most steps do not have."""
    waits: list[tuple[Any, ...]] = []
    timers: list[tuple[Any, ...]] = []
    outcomes: list[tuple[Any, ...]] = []
    messages: list[tuple[Any, ...]] = []
    ended: list[tuple[Any, ...]] = []
    for commit in commits:
        waits += commit.waits
        timers += commit.timers
        outcomes += commit.outcomes
        for message in commit.messages:
            messages.append(message[:7])
        if commit.ends:
            ended.append((commit.run_no,))
        if commit.opens is not None:
            _open_branch(cursor, commit, commit.opens)
    if ended:
        _execute(cursor, _CLOSE_INBOX, ended)
    if waits:
        _execute(cursor, _PUT_WAITS, waits)
    if timers:
        _execute(cursor, _PUT_TIMERS, timers)
    if outcomes:
        _execute(cursor, _SETTLE_MESSAGES, outcomes)
    if messages:
        add_messages(cursor, messages)
        for sent in messages:
            cursor.execute(_SQL["drop_undeliverable"], (sent[0],))


def _open_branch(cursor: apsw.Cursor, commit: Commit, branch: BranchRow) -> None:
    cursor.execute(_SQL["put_branch"], branch)
    if commit.gone:
        cursor.execute(_SQL["drop_nodes"], (commit.run_no, msgspec.json.encode(commit.gone).decode()))
    if commit.version:
        cursor.execute(_SQL["pin_version"], (commit.run_no, commit.version))


def add_messages(cursor: apsw.Cursor, messages: list[tuple[Any, ...]]) -> None:
    """Messages as rows, without `no`: they arrive in this order."""
    _execute(cursor, _ADD_MESSAGES, messages)


def write_rows(
    cursor: apsw.Cursor, nodes: Sequence[NodeRow], waits: Sequence[WaitRow], timers: Sequence[TimerRow]
) -> None:
    """State rows alone, for a run whose rows are written anew."""
    _execute(cursor, _PUT_NODES, list(nodes))
    _execute(cursor, _PUT_WAITS, list(waits))
    _execute(cursor, _PUT_TIMERS, list(timers))


def _undo(cursor: apsw.Cursor) -> None:
    cursor.execute("ROLLBACK TO one_commit")


def _taken_run_id(cursor: apsw.Cursor, commit: Commit) -> str | None:
    wanted = [child.create.run_id for child in commit.children if child.create is not None]
    if commit.create is not None:
        wanted.insert(0, commit.create.run_id)
    for run_id in wanted:
        if cursor.execute(_SQL["is_run_id_taken"], (run_id,)).fetchone() is not None:
            return run_id
    return None
