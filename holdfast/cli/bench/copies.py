"""Copies: runs that wait, by the hundred thousand, made from the rows of a real one.

Owns: the statements that copy a run. By running them a million runs would take an hour; only the links between the
events of a copy are those of another run, which nobody asks about who goes on with it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.store.sqlite import SqliteStore

NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last) "
COPY = (
    """
    INSERT INTO run_state (run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold,
        input_hash, parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at)
    SELECT n, printf('copy-%08d', n), workflow, version, status, branch, last_seq, head_hash, token, NULL, fold,
        input_hash, parent_no, n, priority, recoveries, hold, created_at, started_at, finished_at
    FROM numbers CROSS JOIN run_state WHERE run_no = :model
    """,
    """
    INSERT INTO run_node_state (run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq,
        not_before, captured, scope, is_open, started_at, finished_at)
    SELECT n, node, path, visit, status, attempt, failures, output_seq, memory_seq,
        not_before, captured, scope, is_open, started_at, finished_at
    FROM numbers CROSS JOIN run_node_state WHERE run_no = :model
    """,
    """
    INSERT INTO run_events (run_no, seq, branch, type, node, path, visit, at, token, hash, data)
    SELECT n, seq, branch, type, node, path, visit, at, token, hash, data
    FROM numbers CROSS JOIN run_events WHERE run_no = :model
    """,
    """
    INSERT INTO run_waits (run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket,
        assignee, outcome, actor)
    SELECT n, wait_id, kind, node, path, visit, branch, status, since, until, data, basket,
        assignee, outcome, actor
    FROM numbers CROSS JOIN run_waits WHERE run_no = :model
    """,
    """
    INSERT INTO run_timers (run_no, timer, due_at, branch, status)
    SELECT n, timer, due_at, branch, status
    FROM numbers CROSS JOIN run_timers WHERE run_no = :model
    """,
)


def waiting_run(database: Path, workflow: hf.Workflow[..., Any], **inputs: Any) -> str:
    """Start a run and let it be when it waits; its id."""

    async def start() -> str:
        async with hf.open(f"sqlite:///{database}") as engine:
            run = await engine.start(workflow, **inputs)
            while await run.status() != "suspended":  # noqa: ASYNC110 - one run, once
                await asyncio.sleep(0.001)
            return run.run_id

    return asyncio.run(start())


def copy_run(database: Path, run_id: str, count: int) -> None:
    """Let a database have `count` runs that wait as this one does, which it has itself. No engine may be open on it."""
    store = SqliteStore(f"sqlite:///{database}")
    store.open()
    row = store.run(run_id)
    assert row is not None
    assert row.status == "suspended"
    first = store.reserve_run_numbers(count)
    store.close()
    bindings = {"model": row.run_no, "first": first, "last": first + count - 2}
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")  # what is made here is thrown away if anything goes wrong
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for statement in COPY if count > 1 else ():
            connection.execute(NUMBERS + statement, bindings)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
