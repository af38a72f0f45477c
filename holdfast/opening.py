"""Opening: store, engine and executor put together.

Owns: `hf.open`, `hf.run`, and where the default store is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine import leftovers, loops
from holdfast.engine.engine import Engine
from holdfast.engine.settings import from_environment
from holdfast.model.errors import RunSuspended, UsageError
from holdfast.store.urls import database_file, store_at
from holdfast.worker import handlers as _builtin_handlers
from holdfast.worker.executor import LocalExecutor
from holdfast.worker.loading import refuse_while_importing

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

R = TypeVar("R")
log = logging.getLogger("holdfast.engine")
DEFAULT_URL = "sqlite:///holdfast.db"
assert _builtin_handlers.__all__  # importing it registered them


def default_url() -> str:
    """`HOLDFAST_DATABASE_URL`, else a file in the working directory."""
    return os.environ.get("HOLDFAST_DATABASE_URL") or DEFAULT_URL


@asynccontextmanager
async def open_engine(
    url: str | None = None,
    *,
    recover: bool = True,
    drive: bool = True,
    queues: Sequence[str] | None = None,
    concurrency: int | None = None,
    lease_seconds: float | None = None,
    grace_seconds: float | None = None,
    drain_seconds: float | None = None,
    idle_seconds: float | None = None,
    threads: int | None = None,
    processes: int | None = None,
    max_recoveries: int | None = None,
) -> AsyncIterator[Engine]:
    """Open a store and drive runs on it until the block is left.

        async with hf.open("sqlite:///shop.db") as engine:
            run = await engine.start(fulfil, order=order)
            print(await run.result())

    At the start everything unfinished whose code is loaded is taken over (`recover=False`: only runs started or resumed
    here are driven). With `drive=False` nothing runs here: `start` only writes, and some engine picks the run up. Of a
    database that several engines share it takes runs of these `queues` only (None: of all), and has at most
    `concurrency` of them at work at once. Leaving the block lets bodies end for `drain_seconds` (else `grace_seconds`,
    which they also have after a cancel or a timeout), then leaves them; no attempt is lost.
    """
    refuse_while_importing("hf.open")
    chosen = url or default_url()
    settings = from_environment(
        dict(os.environ),
        lease_seconds=lease_seconds,
        grace_seconds=grace_seconds,
        drain_seconds=drain_seconds,
        idle_seconds=idle_seconds,
        threads=threads,
        processes=processes,
        max_recoveries=max_recoveries,
        concurrency=concurrency,
    )
    executor = LocalExecutor(
        threads=settings.threads, processes=settings.processes, grace_seconds=settings.grace_seconds
    )
    engine = Engine(
        store_at(chosen), executor, database=database_file(chosen), settings=settings, queues=queues, drives=drive
    )
    await engine.open(takes_over=recover)
    try:
        if recover and drive:
            await engine.recovery.sweep()
        else:
            engine.recovery.roots = set()
        yield engine
    finally:
        await engine.close()


def run(
    workflow: Workflow[..., R],
    /,
    *,
    run_id: str | None = None,
    priority: int | None = None,
    timeout: float | str | timedelta | None = None,
    db: str | None = None,
    **inputs: Any,
) -> R:
    """Run a workflow on the embedded store, wait for it, and return its result: the one-liner.

    Raises RunFailed or RunCancelled, and RunSuspended when only somebody from outside can move the run. With a `run_id`
    that exists and the same input it goes on with that run (or returns its result). It drives this run alone; how many
    others are unfinished and driven by nobody is a warning in the log.
    """
    refuse_while_importing("hf.run")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError("hf.run cannot be called from async code; use `async with hf.open(...)` and engine.start(...)")
    return loops.run(_run(workflow, db, run_id, priority, timeout, inputs))


async def _run(
    workflow: Workflow[..., R],
    db: str | None,
    run_id: str | None,
    priority: int | None,
    timeout: float | str | timedelta | None,
    inputs: dict[str, Any],
) -> R:
    async with open_engine(db, recover=False) as engine:
        engine.committer.wait_when_full = False
        started = await engine.start(workflow, run_id=run_id, priority=priority, timeout=timeout, **inputs)
        try:
            await started.until_quiet()
        except RunSuspended:
            await _tell_of_others(engine, started.run_id)
            raise
        await _tell_of_others(engine, started.run_id)
        return await started.result()


async def _tell_of_others(engine: Engine, run_id: str) -> None:
    """Runs that a crash left behind are nobody's concern here, and somebody should know."""
    others = await engine.read(lambda: leftovers.told(engine, run_id))
    if others:
        log.warning("%s", others)
