"""`holdfast cancel`: asking runs to stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import typer

from holdfast.cli import databases, output, settings
from holdfast.cli.options import Db, Json
from holdfast.model.errors import HoldfastError
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.opening import open_engine

WAIT_SECONDS = 5.0
"""How long to wait for the end: bodies may clean up, compensations may run, and those are not ours to wait for."""


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs, or beginnings of them.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the journal.")] = "",
    db: Db = None,
    json: Json = False,
) -> int:
    """Ask runs to stop; running bodies may clean up first.

    Works while an engine runs in another process, and with none running; needs no code of yours.

    \b
    Example:
      holdfast cancel order-42 --reason "customer asked"
    """
    with databases.reading(db) as store:  # everything unknown is told before anything is cancelled
        wanted = [databases.find(store, run).run_id for run in runs]
    return asyncio.run(_cancel(settings.database_url(db), wanted, reason, json))


async def _cancel(url: str, wanted: list[str], reason: str, json: bool) -> int:
    code = output.OK
    async with open_engine(url, recover=False) as engine:
        for run_id in wanted:
            run = engine.get(run_id)
            try:
                await run.cancel(reason, actor="command line")
            except HoldfastError as error:
                code = output.complain(error.code, error.message, output.FAILED)
                continue
            with suppress(TimeoutError, HoldfastError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await run.until_quiet()
            _tell(await run.show() if json else await _row(run), json)
    return code


async def _row(run: Any) -> dict[str, Any]:
    return {"run_id": run.run_id, "status": await run.status()}


def _tell(shown: dict[str, Any], json: bool) -> None:
    if json:
        output.document(shown)
        return
    run_id = output.line(shown["run_id"])
    if shown["status"] in RUN_TERMINAL:
        output.write(f"run {run_id} is {shown['status']}")
    else:
        output.write(f"run {run_id} is being cancelled; what it was doing is still ending")
