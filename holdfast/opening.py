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

from holdfast.engine import event_loop
from holdfast.engine.engine import Engine
from holdfast.engine.engine_settings import from_environment
from holdfast.handlers import NAMES
from holdfast.inspect import wait_views
from holdfast.inspect.inspector import Inspector
from holdfast.model.errors import RunSuspended, UsageError
from holdfast.store.urls import outlives_process, store_at
from holdfast.worker import trust
from holdfast.worker.executor import LocalExecutor
from holdfast.worker.loading import refuse_while_importing
from holdfast.worker.permissions import Permissions
from holdfast.worker.permissions import from_environment as permissions_from
from holdfast.worker.secret_values import OperatorSecrets, Source

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

R = TypeVar("R")
log = logging.getLogger("holdfast.engine")
DEFAULT_URL = "sqlite:///holdfast.db"
assert NAMES  # importing the package registered the built-in handlers


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
    allow_network_filesystem: bool = False,
    secrets: Source | None = None,
    permissions: Permissions | None = None,
) -> AsyncIterator[Engine]:
    """Open a store and drive runs on it until the block is left.

        async with hf.open("sqlite:///shop.db") as engine:
            run = await engine.start(fulfil, order=order)
            print(await run.result())

    At the start everything unfinished whose code is loaded is taken over (`recover=False`: only runs started or resumed
    here are driven). With `drive=False` nothing runs here: `start` only writes, and some engine picks the run up. Of a
    database that several engines share it takes runs of these `queues` only (None: of all), and has at most
    `concurrency` of them at work at once. Leaving the block lets bodies end for `drain_seconds` (else `grace_seconds`,
    which they also have after a cancel or a timeout), then leaves them; no attempt is lost. A SQLite file on a network
    file system is refused, unless `allow_network_filesystem` says that no other process opens it. `secrets` gives the
    values of `hf.secret(name)`: a mapping, or a function (async or not) that returns text or None; then
    `HOLDFAST_SECRETS_DIR` and `HOLDFAST_SECRET_<NAME>` are read. `permissions` is what built-in handlers may reach
    (default: from `HOLDFAST_*` variables).
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
    allowed = permissions_from(os.environ) if permissions is None else permissions
    executor = LocalExecutor(
        threads=settings.threads,
        processes=settings.processes,
        grace_seconds=settings.grace_seconds,
        secrets=OperatorSecrets(secrets, os.environ.get("HOLDFAST_SECRETS_DIR"), allowed),
        permissions=allowed,
    )
    engine = Engine(
        store_at(chosen, allow_network=allow_network_filesystem),
        executor,
        Inspector,
        settings=settings,
        queues=queues,
        drives=drive,
    )
    await engine.open(takes_over=recover)
    try:
        async with _left_on_failure(engine):
            if recover and drive:
                await engine.claims.sweep()
            else:
                engine.claims.only_root_runs = set()
            yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def _left_on_failure(engine: Engine) -> AsyncIterator[None]:
    """Cancel the block when the engine's store fails for good, and raise what it failed with: a program that waits for
    something else would never learn that nothing is driven."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before, is_inside, is_cancelled = task.cancelling(), True, False

    def leave() -> None:
        nonlocal is_cancelled
        is_cancelled = is_inside and task.cancel()

    engine.on_failure = leave
    try:
        yield
        if engine.fatal is not None:
            raise engine.fatal
    except asyncio.CancelledError:
        if is_cancelled and task.cancelling() - 1 <= cancelled_before and engine.fatal is not None:
            raise engine.fatal from None
        raise
    finally:
        is_inside = False
        if is_cancelled:
            task.uncancel()


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

    Raises RunFailed or RunCancelled, and RunSuspended when only a request from outside can move it. With a `run_id`
    that exists and the same input it resumes that run (or returns its result). It drives this run alone; how many
    other runs are unfinished and driven by no engine is logged as a warning.
    """
    refuse_while_importing("hf.run")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError("hf.run cannot be called from async code; use `async with hf.open(...)` and engine.start(...)")
    return event_loop.run(_run(workflow, db, run_id, priority, timeout, inputs))


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
        if (files := workflow.source_files) and outlives_process(db or default_url()):
            trust.remember(engine.store_id, files)  # the user has run this code on this database
        started = await engine.start(workflow, run_id=run_id, priority=priority, timeout=timeout, **inputs)
        try:
            await started.until_quiet()
        except RunSuspended:
            await _tell_of_others(engine, started.run_id)
            raise
        await _tell_of_others(engine, started.run_id)
        return await started.result()


async def _tell_of_others(engine: Engine, run_id: str) -> None:
    """Log how many unfinished runs there are beside this one: `hf.run` does not drive them."""
    others = await engine.runtime.read(undriven_runs, engine, run_id)
    if others:
        what = "is 1 other unfinished run" if others == 1 else f"are {others:,} other unfinished runs"
        log.warning("there %s that no engine drives; `hf.open()` takes over what is unfinished", what)


def undriven_runs(engine: Engine, run_id: str) -> int:
    """How many unfinished runs beside this one, and its children, no engine drives."""
    now = engine.clock.now()
    dead = {row.engine for row in engine.lease.dead_engines(now)}
    return wait_views.undriven_runs(engine.store, dead, run_id, now)
