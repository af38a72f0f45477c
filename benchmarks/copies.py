"""Copies: runs that wait or have ended, by the hundred thousand, made from the rows of a real one.

Owns: the statements that copy a run, and the links between the events of each copy, which an engine checks when it
reads them. By running them a million runs would take an hour.
"""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast as hf
from holdfast.cli.measuring import Execute, connected
from holdfast.model.journal_format import link
from holdfast.store.urls import is_postgres, store_at

NUMBERS = (
    "WITH RECURSIVE numbers (n) AS (SELECT CAST($1 AS bigint) "
    "UNION ALL SELECT n + 1 FROM numbers WHERE n < CAST($2 AS bigint)) "
)
STATE = """
    INSERT INTO run_state (run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold,
        input_hash, parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at,
        last_engine, format)
    SELECT copy.column1, 'copy-' || CAST(copy.column1 AS text), workflow, version, status, branch, last_seq,
        copy.column2, token, NULL, fold, input_hash, parent_no, copy.column1, priority, recoveries, hold, created_at,
        started_at, finished_at, last_engine, format
    FROM {copies} CROSS JOIN run_state WHERE run_no = CAST($1 AS bigint)
    """
EVENT = """
    INSERT INTO run_events (run_no, seq, branch, type, node, path, visit, at, token, hash, data)
    SELECT copy.column1, seq, branch, type, node, path, visit, at, token, copy.column2, data
    FROM {copies} CROSS JOIN run_events WHERE run_no = CAST($1 AS bigint) AND seq = CAST($2 AS bigint)
    """
COPY = (
    """
    INSERT INTO run_node_state (run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq,
        not_before, captured, scope, is_open, started_at, finished_at)
    SELECT n, node, path, visit, status, attempt, failures, output_seq, memory_seq,
        not_before, captured, scope, is_open, started_at, finished_at
    FROM numbers CROSS JOIN run_node_state WHERE run_no = CAST($3 AS bigint)
    """,
    """
    INSERT INTO run_waits (run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket,
        assignee, outcome, actor)
    SELECT n, wait_id, kind, node, path, visit, branch, status, since, until, data, basket,
        assignee, outcome, actor
    FROM numbers CROSS JOIN run_waits WHERE run_no = CAST($3 AS bigint)
    """,
    """
    INSERT INTO run_timers (run_no, timer, due_at, branch, status, boot, elapsed)
    SELECT n, timer, due_at, branch, status, boot, elapsed
    FROM numbers CROSS JOIN run_timers WHERE run_no = CAST($3 AS bigint)
    """,
)
CHUNK = 2_000
"""Copies that one statement makes; databases take some ten thousand values at once."""
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
        for begin in range(first, first + count - 1, CHUNK):
            _link_copies(url, execute, row.run_no, range(begin, min(begin + CHUNK, first + count - 1)))
        for text in COPY if count > 1 else ():
            execute(NUMBERS + text, first, first + count - 2, row.run_no)
        execute("COMMIT")
        execute(TIDY if is_postgres(url) else SAFE_AGAIN)


def _link_copies(url: str, execute: Execute, run_no: int, numbers: range) -> None:
    """The rows of some copies whose hashes are their own: events, and the run with the hash of the last one."""
    heads = dict.fromkeys(numbers, b"")
    columns = "seq, branch, type, node, path, visit, at, token, data"
    for event in execute(f"SELECT {columns} FROM run_events WHERE run_no = $1 ORDER BY seq", run_no):  # noqa: S608 - ours
        heads = {number: link(head, f"copy-{number}", *event) for number, head in heads.items()}
        _insert(url, execute, EVENT, (run_no, event[0]), heads)
    _insert(url, execute, STATE, (run_no,), heads)


def _insert(url: str, execute: Execute, text: str, values: tuple[int, ...], heads: dict[int, bytes]) -> None:
    places = range(len(values) + 1, len(values) + 1 + 2 * len(heads), 2)
    blob = "bytea" if is_postgres(url) else "blob"
    copies = ", ".join(f"(CAST(${at} AS bigint), CAST(${at + 1} AS {blob}))" for at in places)
    pairs = [part for pair in heads.items() for part in pair]
    execute(text.format(copies=f"(VALUES {copies}) AS copy"), *values, *pairs)
