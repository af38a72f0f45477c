"""`holdfast list`: which runs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import databases, output
from holdfast.cli.crowds import UNFINISHED
from holdfast.cli.options import Db, Json
from holdfast.cli.waiting import together
from holdfast.inspect import run_views
from holdfast.inspect.wait_views import hold_of, wait_view
from holdfast.model.errors import UsageError
from holdfast.model.statuses import RunStatus
from holdfast.model.views import Wait, iso_or_none
from holdfast.store.contract import Store
from holdfast.store.row_types import RunRow


def command(
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", help="Only runs of this status (may be repeated), or `unfinished`.", show_default=False
        ),
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only runs of this workflow.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most this many.")] = 50,
    form: Annotated[str, typer.Option("--output", "-o", metavar="table|json|id", help="What to print.")] = "table",
    db: Db = None,
    json: Json = False,
) -> None:
    """List runs, newest first.

    \b
    Examples:
      holdfast list --status failed --limit 10
      holdfast list --status unfinished -o id | xargs holdfast cancel
    """
    if form not in {"table", "json", "id"}:
        raise UsageError(f"-o {form}: use table, json or id")
    wanted = statuses(status)
    try:
        with databases.reading(db) as store:
            rows = store.runs(status=wanted, workflow=workflow, limit=limit)
            waits = _waits(store, rows) if form == "table" and not json else {}
            if json or form == "json":
                output.document(run_views.runs_json(store, rows))
                return
    except databases.NoDatabase as error:
        rows, waits = [], {}
        output.note(f"holdfast: {output.clean(error.message)}")
        if json or form == "json":
            output.document([])
            return
    if form == "id":
        for row in rows:
            output.write(output.line(row.run_id))
    else:
        _table(rows, waits)


def statuses(given: list[str] | None) -> list[str] | None:
    """Statuses to look for, checked; None: any."""
    if not given:
        return None
    known = [status.value for status in RunStatus]
    wanted = [part for text in given for part in text.split(",")]
    for word in wanted:
        if word not in known and word != "unfinished":
            raise UsageError(f"--status {word}: use {', '.join(known)} or unfinished")
    return [s for s in known if s in wanted or ("unfinished" in wanted and s in UNFINISHED)]


def _waits(store: Store, rows: list[RunRow]) -> dict[int, str]:
    """What suspended runs wait for, by their numbers."""
    names = {row.run_no: row for row in rows if row.status == RunStatus.SUSPENDED}
    found: dict[int, list[Wait]] = {}
    for wait in store.open_waits(list(names)) if names else ():
        row = names[wait.run_no]
        found.setdefault(wait.run_no, []).append(wait_view(row.run_id, row.workflow, wait))
    now = store.now() if found else 0
    return {number: together(waits, now) for number, waits in found.items()}


def _table(rows: list[RunRow], waits: dict[int, str]) -> None:
    if not rows:
        output.note("no runs")
        return
    cells = []
    for row in rows:
        ended = row.finished_at
        began = row.started_at or row.created_at
        took = output.duration((ended - began) / 1_000_000) if ended is not None else ""
        hold = hold_of(row)
        status = f"{row.status}" if hold is None else "suspended"
        waits_for = waits.get(row.run_no, "") if hold is None else f"on hold: {hold}"
        about = output.line(f"{row.workflow}  {waits_for}".rstrip())
        cells.append((output.line(row.run_id), status, iso_or_none(row.created_at) or "", took, about))
    for text in output.table(("RUN", "STATUS", "CREATED", "TOOK", "WORKFLOW"), cells, colour=1):
        output.write(text)
