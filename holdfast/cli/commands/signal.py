"""`holdfast signal`: sending a signal to a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import databases, inputs, requests, settings
from holdfast.cli.options import Db, Json, RunId
from holdfast.engine import signal_ids
from holdfast.model.naming import unique


def command(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the signal.", show_default=False)],
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON|@FILE|-]", help="What it brings; else null.", show_default=False)
    ] = None,
    signal_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The same id is the same signal, however often it is sent.")
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Send a signal to a run, which receives it now or when it asks for it.

    Works while an engine runs in another process, and with none running; needs no code of yours. A signal that is
    refused because its payload does not fit has not used up its id: send the corrected one under the same id.

    \b
    Examples:
      holdfast signal order-42 packed '{"boxes": 2}'
      holdfast signal order-42 hurry --id hurry-1

    \b
    Exit codes: 0 received or kept, 1 refused (it does not fit, the run has ended, or the id was used for another
    payload), 2 wrong usage.
    """
    value: Any = None if payload is None else inputs.value_of(*inputs.source(payload, "the payload"))
    url = settings.database_url(db)
    with databases.reading(db) as store:
        run_id = databases.find(store, run).run_id
    known = signal_id or unique("s_")
    requests.send(url, run_id, lambda handle: handle.signal(name, value, id=known))
    with databases.reading(db) as store:
        _, message = signal_ids.last(store, run_id, known)
    kept = message is not None and message.status == "held"
    done = f"kept the signal {name} until run {run_id} asks for it" if kept else f"run {run_id} received {name}"
    requests.tell(url, run_id, done, json=json)
