"""Copies: runs that wait or have ended, by the hundred thousand, made from the rows of a real one.

Owns: the statements that copy a run. By running them a million runs would take an hour; only the links between the
events of a copy are those of another run, which nobody asks about who goes on with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast as hf
from holdfast.cli.bench.places import connected
from holdfast.store.urls import is_postgres, store_at

NUMBERS = (
    "WITH RECURSIVE numbers (n) AS (SELECT CAST($1 AS bigint) "
    "UNION ALL SELECT n + 1 FROM numbers WHERE n < CAST($2 AS bigint)) "
)
COPY = (
    """
    INSERT INTO run_state (run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold,
        input_hash, parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at,
        last_engine)
    SELECT n, 'copy-' || CAST(100000000 + n AS text), workflow, version, status, branch, last_seq, head_hash, token,
        NULL, fold, input_hash, parent_no, n, priority, recoveries, hold, created_at, started_at, finished_at,
        last_engine
    FROM numbers CROSS JOIN run_state WHERE run_no = CAST($3 AS bigint)
    """,
    """
    INSERT INTO run_node_state (run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq,
        not_before, captured, scope, is_open, started_at, finished_at)
    SELECT n, node, path, visit, status, attempt, failures, output_seq, memory_seq,
        not_before, captured, scope, is_open, started_at, finished_at
    FROM numbers CROSS JOIN run_node_state WHERE run_no = CAST($3 AS bigint)
    """,
    """
    INSERT INTO run_events (run_no, seq, branch, type, node, path, visit, at, token, hash, data)
    SELECT n, seq, branch, type, node, path, visit, at, token, hash, data
    FROM numbers CROSS JOIN run_events WHERE run_no = CAST($3 AS bigint)
    """,
    """
    INSERT INTO run_waits (run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket,
        assignee, outcome, actor)
    SELECT n, wait_id, kind, node, path, visit, branch, status, since, until, data, basket,
        assignee, outcome, actor
    FROM numbers CROSS JOIN run_waits WHERE run_no = CAST($3 AS bigint)
    """,
    """
    INSERT INTO run_timers (run_no, timer, due_at, branch, status)
    SELECT n, timer, due_at, branch, status
    FROM numbers CROSS JOIN run_timers WHERE run_no = CAST($3 AS bigint)
    """,
)
UNSAFE = ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF")
"""Of a file: what is made here is thrown away if anything goes wrong."""
SAFE_AGAIN = "PRAGMA journal_mode = WAL"
TIDY = "VACUUM (ANALYZE) run_state, run_node_state, run_events, run_waits, run_timers"
"""What a server does by itself, after a while."""


def waiting_run(url: str, workflow: hf.Workflow[..., Any], **inputs: Any) -> str:
    """Start a run and let it be when it waits; its id."""
    return _run_until(url, "suspended", workflow, inputs)


def finished_run(url: str, workflow: hf.Workflow[..., Any], **inputs: Any) -> str:
    """Start a run and let it end; its id."""
    return _run_until(url, "completed", workflow, inputs)


def _run_until(url: str, status: str, workflow: hf.Workflow[..., Any], inputs: dict[str, Any]) -> str:
    async def start() -> str:
        async with hf.open(url) as engine:
            run = await engine.start(workflow, **inputs)
            while await run.status() != status:  # noqa: ASYNC110 - one run, once
                await asyncio.sleep(0.001)
            return run.run_id

    return asyncio.run(start())


def copy_run(url: str, run_id: str, count: int) -> None:
    """Let a database have `count` runs that wait or have ended as this one, which it has itself. No engine may be open
    on it."""
    store = store_at(url)
    store.open()
    row = store.run(run_id)
    assert row is not None
    assert row.engine is None
    first = store.reserve_run_numbers(count)
    store.close()
    with connected(url) as execute:
        for text in () if is_postgres(url) else UNSAFE:
            execute(text)
        execute("BEGIN")
        for text in COPY if count > 1 else ():
            execute(NUMBERS + text, first, first + count - 2, row.run_no)
        execute("COMMIT")
        execute(TIDY if is_postgres(url) else SAFE_AGAIN)
