"""`holdfast cancel`: asking runs to stop."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from holdfast.cli import databases, output, reporting, settings
from holdfast.cli.options import Db, Json
from holdfast.engine.engine import Engine
from holdfast.inspect.why import why
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.opening import open_engine
from holdfast.store.contract import Store
from holdfast.store.records.run_records import find_run, terminal_event
from holdfast.store.row_types import RunRow

WAIT_SECONDS = 5.0
"""How long to wait for the end: bodies may clean up, compensations may run, and those are not ours to wait for."""
LOOK_SECONDS = 0.05


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the journal.")] = "",
    give_up_undo: Annotated[
        bool, typer.Option("--give-up-undo", help="Record compensations that no engine has the code of as failed.")
    ] = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Ask runs to stop; running bodies may clean up first.

    Works while an engine runs in another process, and with none running; needs no code of yours. Compensations need it:
    where no engine drives the run, `holdfast resume` runs them. If their code is gone, --give-up-undo ends the run
    without them: its error names what was not undone, and `holdfast retry` runs them if the code comes back. A run that
    is on hold while it compensates gives up what cannot run without that option.

    \b
    Examples:
      holdfast cancel order-42 --reason "customer asked"
      holdfast cancel order-42 --give-up-undo
    """
    with databases.reading(db) as store:  # everything unknown is told before anything is cancelled
        wanted = [databases.find(store, run).run_id for run in runs]
    return asyncio.run(_cancel(settings.database_url(db), wanted, reason, give_up_undo, json))


async def _cancel(url: str, wanted: list[str], reason: str, give_up_undo: bool, json: bool) -> int:
    code = output.OK
    async with open_engine(url, recover=False) as engine:
        for run_id in wanted:
            run = engine.get(run_id)
            try:
                await run.cancel(reason, actor="command line", give_up_undo=give_up_undo)
            except HoldfastError as error:
                code = output.complain(error.code, error.message, output.FAILED)
                continue
            row, moves = await _until_it_rests(engine, run_id)
            if json:
                output.document(await run.show())
            else:
                _tell(engine.store, row, moves, url)
    return code


async def _until_it_rests(engine: Engine, run_id: str) -> tuple[RunRow, bool]:
    """The run when it has ended, when nobody is there who would end it, or when that takes too long; whether somebody
    still ends it."""

    def look() -> tuple[RunRow, bool]:
        row = find_run(engine.store, run_id)
        return row, row.status not in RUN_TERMINAL and why(engine.store, row, engine.clock.now()).moves

    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        row, moves = await engine.read(look)
        if not moves or time.monotonic() > deadline:
            return row, moves
        await asyncio.sleep(LOOK_SECONDS)


def _tell(store: Store, row: RunRow, moves: bool, url: str) -> None:
    run_id = output.line(row.run_id)
    if row.status in RUN_TERMINAL:
        output.write(f"run {run_id} is {row.status}")
        terminal = terminal_event(store, row)
        if isinstance(terminal, ev.RunFailed | ev.RunCancelled):
            for text in reporting.other_lines(terminal):
                output.note(text)
    elif moves:
        output.write(f"run {run_id} is being cancelled; what it was doing is still ending")
    else:
        output.write(f"run {run_id} is being cancelled")
        for text in reporting.standing(store, row, url):
            output.note(text)
