"""A group on SQLite: the commits of many runs as few, large statements.

Owns: the order of the statements of a group, the fence, and finding the one commit that makes the group fail.
Never: begins or ends the transaction (see sqlite_store.py), or reads a payload.
Invariants: the fence comes first. Rows of one commit are written together or not at all. A statement has as many rows
as one of `SIZES`, so that few different statements exist and each is prepared once.
On crash: the transaction was not committed, so nothing happened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import apsw
import msgspec
from msgspec.structs import astuple

from holdfast.model.journal_format import FORMAT
from holdfast.model.statuses import BRANCH_REQUESTS
from holdfast.store.row_types import (
    Commit,
    CommitResult,
    MessageRow,
    Rebuilt,
    RunRow,
    RunStep,
    Sent,
)
from holdfast.store.sql_files import load
from holdfast.store.sqlite.sqlite_reads import as_json

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
"""Errors that the rows of one commit can cause. Everything else is the disk's, the connection's or the process's."""

SIZES = (64, 32, 16, 8, 4, 3, 2, 1)
"""Rows of one statement. More than 64 were not quicker when measured, and the writer holds the GIL while it binds them.
Three is what one step of one run appends to its journal: a single run waits for every statement."""

_ROW_MARK = "/*row*/"


class Repeated:
    """A statement whose row template is repeated: `batches` splits any number of rows into prepared sizes."""

    __slots__ = ("_few", "_texts")

    def __init__(self, name: str, text: str) -> None:
        try:
            before, row, after = text.split(_ROW_MARK)
            row = row.replace(" ", "")  # a prepared statement is found by its text, however long that is
        except ValueError:
            raise ValueError(f"the statement {name} needs exactly one row between two {_ROW_MARK}") from None
        self._texts = [(size, before + ",".join([row] * size) + after) for size in SIZES]
        self._few = [self._cut(count) for count in range(SIZES[0] + 1)]

    def batches(self, count: int) -> Sequence[tuple[int, int, str]]:
        """(from, to, sql) for `count` rows, the largest statements first."""
        return self._few[count] if count < len(self._few) else self._cut(count)

    def _cut(self, count: int) -> list[tuple[int, int, str]]:
        batches, start = [], 0
        for size, sql in self._texts:
            while count - start >= size:
                batches.append((start, start + size, sql))
                start += size
        return batches


_SQL = load("sqlite")
_MOVE_RUNS = Repeated("move_runs", _SQL["move_runs"])
_STEP_RUNS = Repeated("step_runs", _SQL["step_runs"])
_CREATE_RUNS = Repeated("create_runs", _SQL["create_runs"])
_PUT_NODES = Repeated("put_nodes", _SQL["put_nodes"])
_APPEND_EVENTS = Repeated("append_events", _SQL["append_events"])
_PUT_WAITS = Repeated("put_waits", _SQL["put_waits"])
_PUT_TIMERS = Repeated("put_timers", _SQL["put_timers"])
_SETTLE_MESSAGES = Repeated("settle_messages", _SQL["settle_messages"])
_ADD_MESSAGES = Repeated("add_messages", _SQL["add_messages"])
_CLOSE_INBOX = Repeated("close_inbox", _SQL["close_inbox"])
_RELEASE = Repeated("release", _SQL["release"])

_DURABLE = CommitResult(None)
_WORKFLOW, _VERSION, _HEAD_HASH, _FOLD = (
    RunRow.__struct_fields__.index(name) for name in ("workflow", "version", "head_hash", "fold")
)
_winnable = msgspec.json.Decoder(list[list[Any]]).decode


class Retired(Exception):
    """A run or a branch of the group would begin under a retired version."""


class Fenced(Exception):
    """At least one run of the group has another token, last seq or head hash than its owner expects."""


def write_group(cursor: apsw.Cursor, group: Sequence[Commit]) -> list[CommitResult]:
    try:
        return _write_together(cursor, group)
    except (Fenced, Retired, *BAD_COMMIT):
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN IMMEDIATE")
        return _write_one_by_one(cursor, group)


def _write_together(cursor: apsw.Cursor, group: Sequence[Commit]) -> list[CommitResult]:
    """Write the whole group. Raises Fenced, Retired or one of BAD_COMMIT; then the transaction must be rolled
    back."""
    moves: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    creates: list[tuple[Any, ...]] = []
    nodes: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    rare: list[Commit] = []
    begins: list[tuple[str, int]] = []
    for commit in group:
        change = commit.change
        if isinstance(change, RunStep):
            fence = (commit.run_no, commit.token, commit.expected_seq, commit.expected_hash)
            steps.append((*fence, change.last_seq, change.head_hash, change.recoveries))
        elif change is not None:
            moves.append((commit.run_no, commit.token, commit.expected_seq, commit.expected_hash, *change))
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
            or commit.gone
            or commit.version
        ):
            rare.append(commit)
            _take_new_runs(commit, creates, nodes, events, rare)
            if commit.begins is not None:
                begins.append(commit.begins)

    if steps:
        _fence(cursor, _STEP_RUNS, _SQL["step_run"], steps)
    if moves:
        _fence(cursor, _MOVE_RUNS, _SQL["move_run"], moves)
    if creates or begins:
        _refuse_retired(cursor, creates, begins)
    if creates:
        _execute(cursor, _CREATE_RUNS, creates)
    if nodes:
        _execute(cursor, _PUT_NODES, nodes)
    if events:
        _execute(cursor, _APPEND_EVENTS, events)
    if rare:
        _write_rare(cursor, rare)
    return [_DURABLE] * len(group)


def _write_one_by_one(cursor: apsw.Cursor, group: Sequence[Commit]) -> list[CommitResult]:
    """Write each commit under its own savepoint, so that only the bad ones are refused. Slow, and rare."""
    landed = []
    for commit in group:
        cursor.execute("SAVEPOINT one_commit")
        try:
            _write_together(cursor, (commit,))
            landed.append(_DURABLE)
        except Fenced:
            _undo(cursor)
            landed.append(
                CommitResult("fenced", f"run {commit.run_no} is not at token {commit.token}, {commit.expected_seq=}")
            )
        except Retired as error:
            _undo(cursor)
            landed.append(_what_is_taken(cursor, commit) or CommitResult("retired", str(error)))
        except BAD_COMMIT as error:
            _undo(cursor)
            taken = _what_is_taken(cursor, commit) if isinstance(error, apsw.ConstraintError) else None
            landed.append(taken or CommitResult("failed", f"{type(error).__name__}: {error}"))
        cursor.execute("RELEASE one_commit")
    return landed


def _fence(cursor: apsw.Cursor, many: Repeated, one: str, rows: list[tuple[Any, ...]]) -> None:
    """Update the runs whose token, last seq and head hash are as expected; raise Fenced if there is any other."""
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


def _refuse_retired(cursor: apsw.Cursor, creates: list[tuple[Any, ...]], begins: list[tuple[str, int]]) -> None:
    """Raise Retired if a version under which something begins is retired: nearly always none is."""
    retired = cursor.execute(_SQL["retired_versions"]).fetchall()
    if retired:
        wanted = {*begins, *((row[_WORKFLOW], row[_VERSION]) for row in creates)}
        for workflow, version in wanted.intersection(cast(list[tuple[str, int]], retired)):
            raise Retired(f"version {version} of workflow {workflow} is retired")


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
    """Write what most steps do not have."""
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
            cursor.execute(_SQL["put_branch"], commit.opens)
        if commit.gone:
            cursor.execute(_SQL["drop_nodes"], (commit.run_no, msgspec.json.encode(commit.gone).decode()))
        if commit.version:
            cursor.execute(_SQL["pin_version"], (commit.run_no, commit.version))
    if ended:
        _execute(cursor, _CLOSE_INBOX, ended)
    if waits:
        _execute(cursor, _PUT_WAITS, waits)
    if timers:
        _execute(cursor, _PUT_TIMERS, timers)
    if outcomes:
        _execute(cursor, _SETTLE_MESSAGES, outcomes)
    if messages:
        _execute(cursor, _ADD_MESSAGES, messages)
        for sent in messages:
            cursor.execute(_SQL["drop_undeliverable"], (sent[0],))


def _undo(cursor: apsw.Cursor) -> None:
    cursor.execute("ROLLBACK TO one_commit")


def _what_is_taken(cursor: apsw.Cursor, commit: Commit) -> CommitResult | None:
    """Why new runs of a commit cannot be inserted: by their ids first, since a commit that was written before has
    both."""
    created = [new.create for new in (commit, *commit.children) if new.create is not None]
    for new in created:
        if cursor.execute(_SQL["is_run_id_taken"], (new.run_id,)).fetchone() is not None:
            return CommitResult("run_exists", f"the run id {new.run_id} is taken")
    for new in created:
        if cursor.execute(_SQL["is_run_no_taken"], (new.run_no,)).fetchone() is not None:
            return CommitResult("number_taken", f"the run number {new.run_no} is taken")
    return None


# writes that are not commits ----------------------------------------------------------------------------------------


def claim(cursor: apsw.Cursor, engine: str, run_nos: Sequence[int]) -> dict[int, RunRow]:
    ((found,),) = cursor.execute(_SQL["winnable"], (engine, as_json(run_nos), FORMAT)).fetchall()
    won: dict[int, RunRow] = {}
    for row in _decode_winnable(cast(bytes, found)):
        row[_HEAD_HASH] = bytes.fromhex(row[_HEAD_HASH])
        row[_FOLD] = None if row[_FOLD] is None else row[_FOLD].encode(errors="surrogateescape")
        won[row[0]] = RunRow(*row)
    if won:
        cursor.execute(_SQL["claim"], (engine, as_json(list(won))))
    return won


def _decode_winnable(found: bytes) -> list[list[Any]]:
    try:
        return _winnable(found)
    except UnicodeDecodeError:  # one of them is damaged, and must not keep us from the others
        damaged: list[list[Any]] = json.loads(found.decode(errors="surrogateescape"))
        return damaged


def send(cursor: apsw.Cursor, messages: Sequence[MessageRow]) -> list[Sent]:
    ids, run_nos = as_json([m.message_id for m in messages]), as_json(sorted({m.run_no for m in messages}))
    known = {row[0]: row[1:] for row in cursor.execute(_SQL["known_messages"], (ids,))}
    is_finished = {row[0]: row[1] for row in cursor.execute(_SQL["are_runs_finished"], (run_nos,))}
    became: list[Sent] = []
    new: list[tuple[Any, ...]] = []
    for message in messages:
        said = (message.run_no, message.kind, message.payload)
        if message.message_id in known:
            became.append("duplicate" if known[message.message_id] == said else "conflict")
        elif message.run_no not in is_finished:
            became.append("unknown_run")
        elif is_finished[message.run_no] and message.kind not in BRANCH_REQUESTS:
            became.append("finished")
        else:
            became.append("new")
            known[message.message_id] = said
            new.append(message[:7])
    _execute(cursor, _ADD_MESSAGES, new)
    return became


def release(cursor: apsw.Cursor, engine: str, leases: Sequence[tuple[int, int]], unused: bool) -> int:
    released = 0
    for start, end, sql in _RELEASE.batches(len(leases)):
        bindings = [value for lease in leases[start:end] for value in (*lease, engine, unused)]
        released += cursor.execute(sql, bindings).connection.changes()
    return released


def rebuild(cursor: apsw.Cursor, rebuilt: Rebuilt) -> bool:
    *columns, nodes, waits, timers = rebuilt
    cursor.execute(_SQL["rebuild_run"], tuple(columns))
    if cursor.connection.changes() != 1:
        return False
    for table in ("nodes", "waits", "timers"):
        cursor.execute(_SQL[f"drop_{table}_of_run"], (rebuilt.run_no,))
    _execute(cursor, _PUT_NODES, list(nodes))
    _execute(cursor, _PUT_WAITS, list(waits))
    _execute(cursor, _PUT_TIMERS, list(timers))
    return True


def close_inbox(cursor: apsw.Cursor, run_no: int) -> int:
    ((_, is_finished),) = cursor.execute(_SQL["are_runs_finished"], (as_json([run_no]),)).fetchall() or [(0, 0)]
    return cursor.execute(_SQL["close_inbox"], (run_no,)).connection.changes() if is_finished else 0
