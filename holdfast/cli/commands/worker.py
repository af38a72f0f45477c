"""`holdfast worker`: an engine process that takes whatever its code can run."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated, Any

import typer

from holdfast.cli import output, settings
from holdfast.cli.logs import show_logs
from holdfast.cli.options import Db, Json, LeaseSeconds
from holdfast.cli.tuning import tune
from holdfast.engine import loops
from holdfast.engine.engine import Engine
from holdfast.model import handlers
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.opening import open_engine
from holdfast.store.urls import shown
from holdfast.worker import trust
from holdfast.worker.loading import load_place, source_files

CONCURRENCY = 100
"""Runs at work at once unless somebody says otherwise: enough to share commits, few enough to leave work for others."""
DRAIN_SECONDS = 30.0
"""How long bodies may go on after SIGTERM unless somebody says otherwise."""


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.py|MODULE]...",
            help="The code that it runs; else `code` of holdfast.toml.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help=f"How many runs are at work here at once; else {CONCURRENCY}.",
            show_default=False,
        ),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="Take only runs of this queue (may be repeated); else of all.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            "--drain",
            min=0,
            metavar="SECONDS",
            help=f"How long bodies may go on after SIGTERM; else {DRAIN_SECONDS:g}.",
            show_default=False,
        ),
    ] = None,
    lease_seconds: LeaseSeconds = None,
    db: Db = None,
    json: Json = False,
) -> int:
    """Drive runs until it is stopped: those that nobody drives, and those that a dead engine left.

    Any number of workers share a database. Each takes runs whose code it has, by turns over the workflows, and by
    priority inside each. SIGTERM or Ctrl-C stops it in order: nothing new is taken, bodies may end, the rest is left
    for others with no attempt lost. A second one leaves at once.

    \b
    Examples:
      holdfast worker shop.py --db postgresql://app@db.example/app
      holdfast worker shop reports --queue default --queue slow --concurrency 200
      holdfast worker shop.py --drain 60 --json

    \b
    Exit codes: 0 stopped in order, 1 the database cannot be used any more, 2 wrong usage, 130 left at once.
    """
    url = settings.database_url(db)
    settings.engine_numbers(lease_seconds=lease_seconds, concurrency=concurrency, drain_seconds=drain)
    settings.engine_defaults(concurrency=CONCURRENCY, drain_seconds=DRAIN_SECONDS)
    places = files or settings.project().get("code", [])
    if not places:
        raise UsageError('name the code to run: holdfast worker FILE.py, or code = ["FILE.py"] in holdfast.toml')
    with output.only_json(json):
        loaded = {file for place in places for file in source_files(load_place(place))}
        if not handlers.workflow_names():
            raise UsageError(f"there is no workflow in {', '.join(places)}: put @hf.workflow on a function")
        show_logs()
        tune()
        return loops.run(_work(url, loaded, tuple(queues) if queues else None, json=json))


async def _work(url: str, files: set[str], queues: tuple[str, ...] | None, *, json: bool) -> int:
    stop = _Stop(asyncio.get_running_loop())
    engine: Engine | None = None
    try:
        async with open_engine(url, queues=queues) as engine:
            trust.remember(engine.store_id, files)
            _say("working", engine, url, json=json)
            await stop.asked.wait()
            if engine.actors:
                patience = engine.settings.patience_seconds
                output.note(f"stopping: bodies may go on for {patience:g} s; once more leaves at once")
        _say("stopped", engine, url, json=json)
        return output.OK
    except HoldfastError as error:
        if engine is None or engine.fatal is not error:
            raise
        # It worked until now: whatever it was, it is no wrong usage, and starting the worker again may help.
        return output.complain(error.code, error.message, output.FAILED)
    finally:
        stop.silence()


def _say(what: str, engine: Engine, url: str, *, json: bool) -> None:
    names = handlers.workflow_names()
    if json:
        told: dict[str, Any] = {"engine": engine.lease.engine, "pid": os.getpid(), "status": what}
        if what == "working":
            told |= {"workflows": names, "queues": engine.queues, "concurrency": engine.settings.concurrency}
        output.document(told, compact=True)
        output.flush()
    elif what == "working":
        served = "all queues" if engine.queues is None else f"queue {', '.join(engine.queues)}"
        who = f"engine {engine.lease.engine} (process {os.getpid()})"
        limit = f"at most {engine.settings.concurrency} runs at once"
        output.note(f"{who} works on {shown(url)}: {', '.join(names)}; {served}; {limit}. Ctrl-C stops it in order.")
    else:
        output.note(f"engine {engine.lease.engine} has stopped")


class _Stop:
    """SIGTERM and Ctrl-C: the first asks, the second does not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        if self.asked.is_set():
            output.note("left at once: others take the runs over when the lease has run out")
            os._exit(output.INTERRUPTED)
        self.asked.set()

    def silence(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)
