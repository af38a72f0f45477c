"""Requests: what people ask of a run on the command line, whoever drives it.

Owns: sending one request from an engine that drives nothing, who it comes from, and telling how the run stands then.
Never: decides what a request means (the run's owner does; with none, the request is applied here, without any code).
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from holdfast.cli import databases, output, reporting
from holdfast.engine.run_handle import Run
from holdfast.inspect import run_views
from holdfast.opening import open_engine

T = TypeVar("T")

Actor = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who does it, for the journal; else your user name.")
]
WaitId = Annotated[str, typer.Argument(metavar="WAIT", help="The id of a wait.", show_default=False)]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of which run, should two have the same wait.")]


def whoever(actor: str | None) -> str:
    """The name that a request goes under."""
    if actor is not None:
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return "command line"


def send(url: str, run_id: str, request: Callable[[Run[Any]], Awaitable[T]]) -> T:
    """Make one request of a run; what came of it, when its owner has taken it."""

    async def once() -> T:
        async with open_engine(url, recover=False) as engine:
            return await request(engine.get(run_id))

    return asyncio.run(once())


def tell(url: str, run_id: str, done: str, *, json: bool) -> None:
    """What was done, and how the run stands now: the run itself with --json."""
    with databases.reading(url) as store:
        row = databases.find(store, run_id)
        if json:
            output.document(run_views.run_json(store, row))
            return
        output.write(output.line(done))
        for text in reporting.standing(store, row, url):
            output.note(text)
