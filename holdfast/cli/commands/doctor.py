"""`holdfast doctor`: whether a database keeps its promises, and repairing it where it does not."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast.cli import databases, output, settings
from holdfast.cli.options import Db, Json, Quiet
from holdfast.cli.status_line import StatusLine
from holdfast.engine.repairs import ALL, REBUILDING, Repairs, treat
from holdfast.inspect.doctor.check import check
from holdfast.inspect.inspector import Inspector
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import ORPHAN_SECONDS
from holdfast.model.violations import Report, Violation
from holdfast.opening import open_engine
from holdfast.store.clocks import clock_of

SHOWN_MAX = 50
"""Violations on a terminal; --json has all of them."""


def command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id, or the beginning of one unless something is to be changed; else all.",
            show_default=False,
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Fold every journal and check its hash chain.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Do what is proposed.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Write rows again from journals.")] = False,
    orphan_seconds: Annotated[
        float, typer.Option("--orphan-seconds", min=0, help="How long begun work may be without an owner.")
    ] = ORPHAN_SECONDS,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Check a database: what is wrong, with run and event, and what to do about it.

    Reads only, and may run beside live engines. With --repair each proposal is carried out under the run's lease. A run
    that a live engine owns is left alone. A journal that was tampered with is never changed: its run is put on hold.
    --rebuild folds the journal of a run (of every run whose rows differ) and writes its rows again.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --deep --json | jq '.violations[].what'
      holdfast doctor order-42 --rebuild

    \b
    Exit codes: 0 nothing is wrong (any more), 1 something is, 2 wrong usage.
    """
    url = settings.database_url(db)
    with databases.reading(db) as store:
        find = databases.find if repair or rebuild else databases.find_by_prefix
        run_ids = None if run is None else [find(store, run).run_id]
        progress = StatusLine(silent=quiet or json)

        def tell(runs: int, events: int) -> None:
            progress.show(f"{runs:,} runs" + (f", {events:,} events" if events else ""))

        def look() -> Report:
            found = check(store, run_ids, deep or rebuild, orphan_seconds=orphan_seconds, progress=tell)
            progress.clear()
            return found

        report = look()
        if repair or rebuild:
            means = REBUILDING if rebuild and not repair else ALL
            repairs = Repairs(
                store, Inspector(store, clock_of(store)), store.now(), lambda run_id: asyncio.run(_recover(url, run_id))
            )
            report = treat(repairs, report, look, means=means, rebuild=run_ids or () if rebuild else ())
    if json:
        output.document(report.as_json())
    else:
        _tell(report)
    return output.FAILED if report.violations else output.OK


async def _recover(url: str, run_id: str) -> str:
    """Hand a run to an engine that drives nothing else."""
    async with open_engine(url, recover=False) as engine:
        try:
            recovered = await engine.recover(run_id, actor="holdfast doctor")
        except HoldfastError as error:
            return error.message
    if not recovered.needed:
        return f"nothing was repaired: {recovered.what}"
    if recovered.branch is None:
        return f"wrote its rows again from its journal ({recovered.what})"
    return f"recovered from event {recovered.cutoff_seq} on, as branch {recovered.branch} ({recovered.what})"


def _tell(report: Report) -> None:
    for said in report.repaired:
        output.write(f"{output.paint('↻', 'cyan')} {output.clean(said)}")
    for violation in report.violations[:SHOWN_MAX]:
        _line(violation, "✗", "red")
    if len(report.violations) > SHOWN_MAX:
        output.write(f"… and {len(report.violations) - SHOWN_MAX:,} more; --json lists all of them")
    for warning in report.warnings[:SHOWN_MAX]:
        _line(warning, "!", "yellow")
    looked = output.count(report.checked, "run")
    if report.events:
        looked += f" and {output.count(report.events, 'event')}"
    if report.violations:
        output.write(f"looked at {looked}: {output.count(len(report.violations), 'violation')}")
    else:
        output.write(f"looked at {looked}: nothing is wrong")


def _line(violation: Violation, mark: str, colour: str) -> None:
    where = "" if violation.run_id is None else f"run {output.line(violation.run_id)}: "
    output.write(f"{output.paint(mark, colour)} {violation.code:<4} {where}{output.clean(violation.what)}")
    output.write(f"       {output.clean(violation.repair)}")
