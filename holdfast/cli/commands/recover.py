"""`holdfast recover`: repair a run whose rows and journal do not agree, and go on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, output, reporting, settings
from holdfast.cli.branching import ACTOR, Code
from holdfast.cli.driving import drive
from holdfast.cli.logs import show_logs
from holdfast.cli.options import Db, GraceSeconds, Json, LeaseSeconds, Quiet, RunId
from holdfast.cli.recorded import load, locations
from holdfast.cli.tuning import tune
from holdfast.engine.catalogue import Recovered
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.opening import open_engine


def command(
    run: RunId,
    reverify: Annotated[
        bool, typer.Option("--reverify", help="Where only the end is missing, let the last node run again.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Decide a completed run again whose version is not in the store."),
    ] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Repair it, and leave driving it to others.")] = False,
    code: Code = None,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
    lease_seconds: LeaseSeconds = None,
    grace_seconds: GraceSeconds = None,
) -> int:
    """Repair a run whose rows and journal do not agree, and go on with it.

    For what a restored backup, an edit by hand or a foreign writer left; a crash leaves nothing of the kind, and a run
    that was merely interrupted is resumed. The journal is right: the run goes on from its last stable event, on a
    branch of its own; where only its rows are behind, they are written again from the journal. Nothing is deleted, and
    recovering twice is recovering once.

    \b
    Examples:
      holdfast recover order-42
      holdfast recover order-42 --no-run --json

    \b
    Exit codes: 0 completed (--no-run: in order), 1 failed, or it cannot be repaired,
    2 wrong usage, 3 suspended, 4 cancelled, 130 interrupted.
    """
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    url = settings.database_url(db)
    with databases.reading(db) as store:
        row = databases.find(store, run)
        where = {} if no_run else {row.run_no: locations(store, row)}
        store_id = store.store_id()
    if no_run:
        return asyncio.run(_only_repair(url, row.run_id, json, reverify=reverify, force=force))
    with output.only_json(json):
        _, missing = load([row], where, code, store_id)
        if missing:
            raise missing[0]
        show_logs()
        tune()

        async def begin(engine: Engine) -> Sequence[Run[Any]]:
            said = await engine.recover(row.run_id, reverify=reverify, force=force, actor=ACTOR)
            if not quiet:
                output.note(_told(row.run_id, said))
            return [await engine.resume(row.run_id, actor=ACTOR)]

        endings = drive(url, begin, json=json, quiet=quiet, since={row.run_no: row.last_seq})
        return reporting.report(url, endings, json=json)


async def _only_repair(url: str, run_id: str, json: bool, **options: bool) -> int:
    async with open_engine(url, recover=False) as engine:
        said = await engine.recover(run_id, **options, actor=ACTOR)
    if json:
        output.document({"run_id": run_id, **msgspec.structs.asdict(said)})
    else:
        output.write(_told(run_id, said))
    return output.OK


def _told(run_id: str, said: Recovered) -> str:
    name = f"run {output.line(run_id)}"
    if not said.needed:
        return f"{name}: nothing to repair, {output.line(said.what)}"
    if said.branch is None:
        return f"{name} is recovered ({said.case}: {output.line(said.what)}); its rows were written again"
    return f"{name} is recovered ({said.case}: {output.line(said.what)}); it goes on with branch {said.branch}"
