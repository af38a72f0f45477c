"""Corrupting: the catalogue's inconsistent states, made on purpose.

Owns: `corrupt(url, run_id, case)`, which leaves a stopped store as a crash between two writes, a restored backup or a
foreign writer could: the journal ends at one event, the rows are those of another.
Never: used on a store with a live engine.

Holdfast does not get into these states by itself, because events and rows are one commit. Each case needs a run whose
journal has what the case is about: a wait that was answered (A1), a wait (A2, B1, B2), a failure (A4), an end (A3, A5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import msgspec

from holdfast.engine.versions import Versions
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.errors import UsageError
from holdfast.model.lineage import fold
from holdfast.store.records import state_rows
from holdfast.store.records.expected_rows import WaitAndTimerHistory
from holdfast.store.records.journal import History
from holdfast.store.records.run_records import find_run
from holdfast.store.row_types import RunRow
from holdfast.store.sqlite.sqlite_connections import database_path
from holdfast.store.sqlite.sqlite_store import SqliteStore

DAY = 24 * 3600 * 1_000_000
_FORGET_ROWS = (
    "DELETE FROM run_node_state WHERE run_no = ?",
    "DELETE FROM run_waits WHERE run_no = ?",
    "DELETE FROM run_timers WHERE run_no = ?",
)
_UNTAKE_MESSAGE = "UPDATE run_inbox_messages SET status = 'new', outcome = NULL WHERE message_id = ?"
_ADD_NODE = "INSERT INTO run_node_state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_WAIT = "INSERT INTO run_waits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_TIMER = "INSERT INTO run_timers VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADD_EVENT = "INSERT INTO run_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def corrupt(url: str, run_id: str, case: str) -> None:
    """Bring a run of a stopped store into the state that a case of the catalogue describes: A1 (`A1-answer`: the answer
    is there, and the node has not ended), A2, A3, A4, A5, D2, E1, E2, R1 (the rows are those of an earlier event), or a
    consistent one: B1, B2, C1, C2, D1."""
    make = _CASES.get(case)
    if make is None:
        raise UsageError(f"there is no case {case}; there are {', '.join(_CASES)}")
    store = SqliteStore(url)
    store.open()
    try:
        row = find_run(store, run_id)
        if any(engine.engine == row.engine for engine in store.engines()):
            raise UsageError(f"run {row.run_id} is owned by an engine; stop it first")
        history = History(store, Versions(store), row)
        with _writing(url) as cursor:
            make(_Patient(cursor, row, history))
    finally:
        store.close()


class _Patient:
    """One run, with what is needed to rewrite it."""

    def __init__(self, cursor: apsw.Cursor, row: RunRow, history: History) -> None:
        self.cursor = cursor
        self.row = row
        self.history = history
        self.line = history.line(row.branch)

    def last(self, wanted: Callable[[ev.Entry], bool], what: str, before: int | None = None) -> int:
        """The index of the last event of a kind."""
        for i in range((len(self.line) if before is None else before) - 1, -1, -1):
            if wanted(self.line[i]):
                return i
        raise UsageError(f"run {self.row.run_id} has no {what} in its journal, and this case is about one")

    def forget_events(self, behind: int) -> None:
        """End the journal with this event; messages that were consumed after it become new again."""
        seq = self.line[behind].seq
        taken = [e.event.message_id for e in self.line[behind + 1 :] if type(e.event) is ev.MessageConsumed]
        self.cursor.executemany(_UNTAKE_MESSAGE, [(message_id,) for message_id in taken])
        self.cursor.execute("DELETE FROM run_events WHERE run_no = ? AND seq > ?", (self.row.run_no, seq))

    def rows_as_of(self, index: int) -> None:
        """Set the rows to what was true when this event was the last one."""
        line = self.line[: index + 1]
        state = fold(self.history.plan_of(self.row.branch), self.row.run_no, self.row.run_id, line)
        state.branch, state.head_hash = self.row.branch, self.history.hash_at(state.seq)
        number = (self.row.run_no,)
        for forget in _FORGET_ROWS:
            self.cursor.execute(forget, number)
        self.cursor.executemany(_ADD_NODE, state_rows.changed_nodes(state))
        register, shared = WaitAndTimerHistory(line), self.history.shared_until
        self.cursor.executemany(_ADD_WAIT, list(register.wait_rows(state, shared).values()))
        self.cursor.executemany(_ADD_TIMER, list(register.timer_rows(state, shared).values()))
        self.cursor.execute(
            "UPDATE run_state SET status = ?, last_seq = ?, head_hash = ?, fold = ?, started_at = ?, finished_at = ?, "
            "engine = NULL, recoveries = ? WHERE run_no = ?",
            (
                state.status,
                state.seq,
                state.head_hash,
                msgspec.json.encode(state.fold),
                state.started_at,
                state.finished_at,
                state.recoveries,
                *number,
            ),
        )

    def append(self, event: Any) -> None:
        """Append one more event, properly linked, that no row reflects."""
        last = self.history.rows[-1]
        seq, at, data, name = last.seq + 1, last.at, journal_format.encode(event), type(event).__name__
        branch, token = self.row.branch, last.token
        linked = journal_format.link(last.hash, self.row.run_id, seq, branch, name, None, None, 1, at, token, data)
        row = (self.row.run_no, seq, branch, name, None, None, 1, at, token, linked, data)
        self.cursor.execute(_ADD_EVENT, row)

    def happened_earlier(self, micros: int) -> None:
        """Move everything back by this time, properly linked."""
        previous = b""
        for i, row in enumerate(self.history.rows):
            at = row.at - micros
            hashed = journal_format.link(previous, self.row.run_id, *row[1:7], at, row.token, row.data)
            self.history.rows[i] = row._replace(at=at, hash=hashed)
            moved = (at, hashed, row.run_no, row.seq)
            self.cursor.execute("UPDATE run_events SET at = ?, hash = ? WHERE run_no = ? AND seq = ?", moved)
            previous = hashed
        self.line = [msgspec.structs.replace(entry, at=entry.at - micros) for entry in self.line]
        earlier = (micros, self.row.run_no)
        self.cursor.execute("UPDATE run_state SET created_at = created_at - ? WHERE run_no = ?", earlier)

    def pin(self, version: int) -> None:
        self.cursor.execute("UPDATE run_state SET version = ? WHERE run_no = ?", (version, self.row.run_no))


def _is(*kinds: type[Any]) -> Callable[[ev.Entry], bool]:
    return lambda entry: type(entry.event) in kinds


def _answers(entry: ev.Entry) -> bool:
    return type(entry.event) is ev.WaitClosed and entry.event.outcome not in ev.UNANSWERED


def _a1(p: _Patient, *, answer_only: bool = False) -> None:
    """The answer is in the journal (and perhaps the end of the node that asked); the rows still wait."""
    answered = p.last(_answers, "answered wait")
    asked = p.last(_is(ev.RunSuspended), "suspension", answered)
    behind = answered
    if not answer_only:
        node, path = p.line[answered].node, p.line[answered].path
        behind = p.last(lambda e: type(e.event) is ev.NodeCompleted and (e.node, e.path) == (node, path), "completion")
    p.forget_events(behind)
    p.rows_as_of(asked)


def _a2(p: _Patient) -> None:
    """The question is in the journal; the rows say that the node runs."""
    suspended = p.last(_is(ev.RunSuspended), "suspension")
    started = p.last(_is(ev.NodeStarted), "started node", suspended)
    p.forget_events(suspended)
    p.rows_as_of(started)


def _a3(p: _Patient) -> None:
    """Every node has completed, and the run's end is in neither."""
    p.forget_events(_before_the_end(p))
    p.rows_as_of(_before_the_end(p))


def _a5(p: _Patient) -> None:
    """The rows say that the run has completed; the journal does not."""
    p.forget_events(_before_the_end(p))


def _before_the_end(p: _Patient) -> int:
    return p.last(_is(ev.RunCompleted), "end") - 1


def _a4(p: _Patient) -> None:
    """A node failed, and the run did not react."""
    failed = p.last(_is(ev.NodeFailed), "failure")
    p.forget_events(failed)
    p.rows_as_of(p.last(_is(ev.NodeStarted), "started node", failed))


def _waiting(p: _Patient, *, long_ago: bool = False) -> None:
    suspended = p.last(_is(ev.RunSuspended), "suspension")
    p.forget_events(suspended)
    if long_ago:
        p.happened_earlier(400 * DAY)
    p.rows_as_of(suspended)


def _behind(p: _Patient) -> None:
    """The journal is complete; the rows, and what became of messages, are as of the first time that the run waited, or
    of the first node that was started."""
    kinds = [type(entry.event) for entry in p.line]
    behind = next((kinds.index(kind) for kind in (ev.RunSuspended, ev.NodeStarted) if kind in kinds), 0)
    seq = p.line[behind].seq
    taken = [e.event.message_id for e in p.line if e.seq > seq and type(e.event) is ev.MessageConsumed]
    p.cursor.executemany(_UNTAKE_MESSAGE, [(message_id,) for message_id in taken])
    p.rows_as_of(behind)


def _interrupted(p: _Patient, *, in_phase: bool = False) -> None:
    """A node has started and not ended; with `in_phase` another one of its phase has completed."""
    started = p.last(_is(ev.NodeStarted), "started node")
    if in_phase:
        p.last(_is(ev.PhaseStarted), "phase", started)
        p.last(_is(ev.NodeCompleted), "completion", started)
    p.forget_events(started)
    p.rows_as_of(started)


def _d1(p: _Patient) -> None:
    """A branch that nothing refers to."""
    branch = max(p.history.branches) + 1
    p.cursor.execute(
        "INSERT INTO run_branches (run_no, branch, parent, cutoff_seq, key_epoch, reason, data, created_at) "
        "VALUES (?, ?, ?, 1, 2, 'fork', CAST('{}' AS BLOB), ?)",
        (p.row.run_no, branch, p.row.branch, p.row.created_at),
    )


def _d2(p: _Patient) -> None:
    """A jump was asked for; no branch was opened."""
    target = next(e.node for e in p.line if type(e.event) is ev.NodeScheduled)
    p.append(ev.JumpRequested(target or "", max(p.history.branches) + 1, None, "operator"))


def _e1(p: _Patient) -> None:
    """The run does not say which version it runs."""
    p.pin(0)


def _e2(p: _Patient) -> None:
    """The version that it names is not in the store."""
    p.pin(p.row.version + 1000)


_CASES: dict[str, Callable[[_Patient], None]] = {
    "A1": _a1,
    "A1-answer": lambda p: _a1(p, answer_only=True),
    "A2": _a2,
    "A3": _a3,
    "A4": _a4,
    "A5": _a5,
    "B1": _waiting,
    "B2": lambda p: _waiting(p, long_ago=True),
    "C1": _interrupted,
    "C2": lambda p: _interrupted(p, in_phase=True),
    "D1": _d1,
    "D2": _d2,
    "E1": _e1,
    "E2": _e2,
    "R1": _behind,
}


@contextmanager
def _writing(url: str) -> Iterator[apsw.Cursor]:
    connection = apsw.Connection(str(database_path(url)))
    try:
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        yield cursor
        cursor.execute("COMMIT")
    finally:
        connection.close(True)
