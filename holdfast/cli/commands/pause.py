"""`holdfast pause`: stopping a run between its nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import databases, requests, settings
from holdfast.cli.options import Db, Json, RunId
from holdfast.cli.requests import Actor


def command(
    run: RunId,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the journal.")] = "",
    actor: Actor = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Stop a run between its nodes until somebody resumes it: nothing new starts.

    Bodies at work finish their node, or are left at their next call on ctx and go on there later. Works while an engine
    runs in another process, and with none running; needs no code of yours. A second pause changes nothing.

    \b
    Example:
      holdfast pause order-42 --reason "the bank is down"
    """
    url = settings.database_url(db)
    with databases.reading(db) as store:
        run_id = databases.find(store, run).run_id
    who = requests.whoever(actor)
    requests.send(url, run_id, lambda handle: handle.pause(reason, actor=who))
    requests.tell(url, run_id, f"paused run {run_id}", json=json)
