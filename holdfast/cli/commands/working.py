"""`holdfast worker`: an engine process that drives every run whose code it has."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.cli import configuration, output
from holdfast.cli.driving import stopping
from holdfast.cli.options import Db, Json, LeaseSeconds, SecretsDir, unset_option
from holdfast.cli.process_setup import prepare_to_drive
from holdfast.engine import operator
from holdfast.engine.engine import Engine
from holdfast.model import handlers
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.opening import open_engine
from holdfast.store.urls import shown
from holdfast.worker import trust
from holdfast.worker.targets import load_places

CONCURRENCY = 100
"""Runs driven at once unless set: enough to share commits, few enough to leave runs to other workers."""
DRAIN_SECONDS = 30.0
"""How long bodies may keep running after SIGTERM unless set."""


def worker(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|MODULE]...",
            help="The code to run, and documents; else `code` of holdfast.toml.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        unset_option("--concurrency", "-c", min=1, help=f"How many runs are driven at once; else {CONCURRENCY}."),
    ] = None,
    queues: Annotated[
        list[str] | None,
        unset_option("--queue", metavar="NAME", help="Claim only runs of this queue (may be repeated); else of all."),
    ] = None,
    drain: Annotated[
        float | None,
        unset_option(
            "--drain",
            min=0,
            metavar="SECONDS",
            help=f"How long bodies may keep running after SIGTERM; else {DRAIN_SECONDS:g}.",
        ),
    ] = None,
    lease_seconds: LeaseSeconds = None,
    secrets_dir: SecretsDir = None,
    db: Db = None,
    json: Json = False,
) -> int:
    """Drive runs until stopped: those without an engine, and those of engines that have died.

    Any number of workers share a database. Each claims runs whose code it has, in turn over the workflows, and by
    priority within each. SIGTERM or Ctrl-C stops it gracefully: it claims nothing new, lets bodies end, and releases
    the rest to other workers with no attempt lost. A second one exits at once.

    \b
    Examples:
      holdfast worker shop.py --db postgresql://app@db.example/app
      holdfast worker shop reports --queue default --queue slow --concurrency 200
      holdfast worker shop.py --drain 60 --json
      holdfast worker handlers.py flows/

    \b
    Exit codes: 0 stopped gracefully, 1 the database can no longer be used, 2 wrong usage, 130 exited at once.
    """
    url = configuration.database_url(db)
    configuration.engine_numbers(lease_seconds=lease_seconds, concurrency=concurrency, drain_seconds=drain)
    configuration.secrets_directory(secrets_dir)
    configuration.engine_defaults(concurrency=CONCURRENCY, drain_seconds=DRAIN_SECONDS)
    places = files or configuration.project().get("code", [])
    if not places:
        raise UsageError('name the code to run: holdfast worker FILE.py, or code = ["FILE.py"] in holdfast.toml')
    with output.only_json(json):
        loaded = load_places(places)
        _check_workflows(places)
        prepare_to_drive()
        return operator.run_to_end(_work(url, loaded, tuple(queues) if queues else None, json=json))


def _check_workflows(places: Sequence[str]) -> None:
    if not handlers.workflow_names():
        hint = "put @hf.workflow on a function, or name a document"
        raise UsageError(f"there is no workflow in {', '.join(places)}: {hint}")


async def _work(url: str, files: set[str], queues: tuple[str, ...] | None, *, json: bool) -> int:
    stop = _Stop(asyncio.get_running_loop())
    engine: Engine | None = None
    try:
        async with open_engine(url, queues=queues) as engine:
            trust.remember(engine.store_id, files)
            _announce("working", engine, url, json=json)
            await stop.asked.wait()
            if operator.drives_any(engine):
                output.note(f"{stopping(engine)}; a second signal exits at once")
        _announce("stopped", engine, url, json=json)
        return output.OK
    except HoldfastError as error:
        if engine is None or engine.fatal is not error:
            raise
        # It worked until now: this is not wrong usage, and starting the worker again may help.
        return output.complain(error.code, error.message, output.FAILED)
    finally:
        stop.restore()


def _announce(what: str, engine: Engine, url: str, *, json: bool) -> None:
    names = handlers.workflow_names()
    if json:
        about: dict[str, Any] = {"engine": operator.engine_id(engine), "pid": os.getpid(), "status": what}
        if what == "working":
            about |= {"workflows": names, "queues": engine.queues, "concurrency": engine.settings.concurrency}
        output.document(about, compact=True)
        output.flush()
    elif what == "working":
        served = "all queues" if engine.queues is None else f"queue {', '.join(engine.queues)}"
        name = f"engine {operator.engine_id(engine)} (process {os.getpid()})"
        limit = f"at most {engine.settings.concurrency} runs at once"
        output.note(f"{name} works on {shown(url)}: {', '.join(names)}; {served}; {limit}. Ctrl-C stops it gracefully.")
    else:
        output.note(f"engine {operator.engine_id(engine)} has stopped")


class _Stop:
    """SIGTERM and Ctrl-C: the first one stops in order, the second one exits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        if self.asked.is_set():
            output.note("exiting at once: other engines take the runs over when the lease has expired")
            os._exit(output.INTERRUPTED)
        self.asked.set()

    def restore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)
