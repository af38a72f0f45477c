"""`holdfast start`: write a run down for whoever drives it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from holdfast.cli import inputs, output, settings
from holdfast.cli.options import Db, GivenInput, InputAssignments, Json, Target
from holdfast.opening import open_engine
from holdfast.worker import trust
from holdfast.worker.loading import load_target, source_files


def command(
    target: Target,
    given: GivenInput = None,
    assignments: InputAssignments = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Your own id. The same id with the same input is the same run.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Which workers drive it; else as the workflow says.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="Higher ones come first among runs of the same workflow.")
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Start a run without driving it: it is written down, and a worker picks it up. Prints the run's id.

    \b
    Examples:
      holdfast start shop.py:fulfil --input @order.json --run-id order-42
      holdfast start reports.py:monthly --set month=2024-05 --queue slow
    """
    values = inputs.read(given, assignments or ())
    url = settings.database_url(db)
    with output.only_json(json):
        module, workflow = load_target(target)
        inputs.keep_text(values, assignments or (), workflow.definition.params)
        options = {"run_id": run_id, "queue": queue, "priority": priority}
        started = asyncio.run(_start(url, workflow, source_files(module), values, options))
    if json:
        output.document(started)
    else:
        output.write(output.line(started["run_id"]))


async def _start(
    url: str, workflow: Any, files: set[str], values: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    async with open_engine(url, drive=False) as engine:
        trust.remember(engine.store_id, files)
        run = await engine.start(workflow, **options, **values)
        return {"run_id": run.run_id, "status": await run.status()}
