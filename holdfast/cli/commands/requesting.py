"""`holdfast signal`, `pause` and `cancel`: requests to runs, with or without an engine running.

Owns: the verbs; sending one request from an engine that drives nothing, the name of its actor, and showing the state of
the run after it.
Never: decides what a request means (the run's owner does; without one, the request is applied here, without any code).
"""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from holdfast.cli import configuration, databases, inputs, output, wording
from holdfast.cli.driving import ACTOR
from holdfast.cli.options import Actor, Db, Json, Reason, RunId
from holdfast.engine import operator
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.inspect import run_views
from holdfast.inspect.why import why
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.naming import unique
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.opening import open_engine
from holdfast.store.contract import Store
from holdfast.store.records.run_records import find_run, terminal_event
from holdfast.store.row_types import RunRow

T = TypeVar("T")

CANCEL_SECONDS = 5.0
"""How long `cancel` waits for the end of a run: bodies may clean up, and compensations may take longer."""
POLL_SECONDS = 0.05


def actor_name(actor: str | None) -> str:
    """The name under which a request is recorded."""
    if actor is not None:
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return ACTOR


def send(url: str, run_id: str, request: Callable[[Run[Any]], Awaitable[T]]) -> T:
    """Make one request of a run, and return its result when the run's owner has applied it."""

    async def once() -> T:
        async with open_engine(url, recover=False) as engine:
            return await request(engine.get(run_id))

    return asyncio.run(once())


def show_outcome(url: str, run_id: str, done: str, *, json: bool) -> None:
    """Print what was done and the state of the run after it; with --json the run itself."""
    with databases.reading(url) as store:
        row = databases.find(store, run_id)
        if json:
            output.document(run_views.run_json(store, row))
            return
        output.write(output.line(done))
        for text in wording.standing(store, row, url):
            output.note(text)


def signal(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the signal.", show_default=False)],
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON|@FILE|-]", help="Its payload; else null.", show_default=False)
    ] = None,
    signal_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The same id is the same signal, however often it is sent.")
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Send a signal to a run, which receives it now or when it asks for it.

    Works with and without a running engine, and needs no code of yours. A signal that is refused because its payload
    does not fit has not used up its id: send the corrected one under the same id.

    \b
    Examples:
      holdfast signal order-42 packed '{"boxes": 2}'
      holdfast signal order-42 hurry --id hurry-1

    \b
    Exit codes: 0 received or kept, 1 refused (it does not fit, the run has ended, or the id was used for another
    payload), 2 wrong usage.
    """
    value: Any = None if payload is None else inputs.value_of(*inputs.source(payload, "the payload"))
    url = configuration.database_url(db)
    with databases.reading(db) as store:
        run_id = databases.find(store, run).run_id
    known = signal_id or unique("s_")
    send(url, run_id, lambda handle: handle.signal(name, value, id=known))
    with databases.reading(db) as store:
        kept = operator.is_kept(store, run_id, known)
    done = f"kept signal {name} until run {run_id} asks for it" if kept else f"run {run_id} received {name}"
    show_outcome(url, run_id, done, json=json)


def pause(run: RunId, reason: Reason = "", actor: Actor = None, db: Db = None, json: Json = False) -> None:
    """Stop a run between its nodes until it is resumed: no new node starts.

    Bodies that are running finish their node, or are suspended at their next call on ctx and continue there later.
    Works with and without a running engine, and needs no code of yours. A second pause changes nothing.

    \b
    Example:
      holdfast pause order-42 --reason "the bank is down"
    """
    url = configuration.database_url(db)
    with databases.reading(db) as store:
        run_id = databases.find(store, run).run_id
    who = actor_name(actor)
    send(url, run_id, lambda handle: handle.pause(reason, actor=who))
    show_outcome(url, run_id, f"paused run {run_id}", json=json)


def cancel(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs.")],
    reason: Reason = "",
    give_up_undo: Annotated[
        bool, typer.Option("--give-up-undo", help="Record compensations whose code no engine has as failed.")
    ] = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Cancel runs; running bodies may clean up first.

    Works with and without a running engine, and needs no code of yours. Compensations need it: if no engine drives the
    run, `holdfast resume` runs them. If their code is gone, --give-up-undo ends the run without them: its error names
    what was not undone, and `holdfast retry` runs them if the code comes back. A run that is on hold while it
    compensates gives up what cannot run without that option.

    \b
    Examples:
      holdfast cancel order-42 --reason "customer asked"
      holdfast cancel order-42 --give-up-undo
    """
    with databases.reading(db) as store:  # an unknown run is reported before any run is cancelled
        wanted = [databases.find(store, run).run_id for run in runs]
    return asyncio.run(_cancel(configuration.database_url(db), wanted, reason, give_up_undo, json))


async def _cancel(url: str, wanted: list[str], reason: str, give_up_undo: bool, json: bool) -> int:
    code = output.OK
    async with open_engine(url, recover=False) as engine:
        for run_id in wanted:
            run = engine.get(run_id)
            try:
                await run.cancel(reason, actor=ACTOR, give_up_undo=give_up_undo)
            except HoldfastError as error:
                code = output.complain(error.code, error.message, output.FAILED)
                continue
            row, moves = await _until_quiet(engine, run_id)
            if json:
                output.document(await run.show())
            else:
                _print_cancelled(engine.store, row, moves, url)
    return code


async def _until_quiet(engine: Engine, run_id: str) -> tuple[RunRow, bool]:
    """The run when it has ended, when no engine is there to end it, or after CANCEL_SECONDS; and whether an engine is
    still ending it."""

    def read() -> tuple[RunRow, bool]:
        row = find_run(engine.store, run_id)
        return row, row.status not in RUN_TERMINAL and why(engine.store, row, engine.store.now()).moves

    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        row, moves = await engine.runtime.read(read)
        if not moves or time.monotonic() > deadline:
            return row, moves
        await asyncio.sleep(POLL_SECONDS)


def _print_cancelled(store: Store, row: RunRow, moves: bool, url: str) -> None:
    run_id = output.line(row.run_id)
    lines: list[str] = []
    if row.status in RUN_TERMINAL:
        output.write(f"run {run_id} is {row.status}")
        terminal = terminal_event(store, row)
        lines = wording.other_lines(terminal) if isinstance(terminal, ev.RunFailed | ev.RunCancelled) else []
    elif moves:
        output.write(f"run {run_id} is being cancelled; its bodies or compensations have not ended yet")
    else:
        output.write(f"run {run_id} is being cancelled")
        lines = wording.standing(store, row, url)
    for text in lines:
        output.note(text)
