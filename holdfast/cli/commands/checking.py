"""`holdfast doctor`, `trust` and `version`: check a database and this installation."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Annotated

import typer

from holdfast.cli import configuration, databases, output
from holdfast.cli.options import Db, Json, Quiet
from holdfast.cli.output import StatusLine
from holdfast.engine.repairs import ALL, REBUILDING, Repairs, treat
from holdfast.inspect.doctor.check import check
from holdfast.inspect.inspector import Inspector
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.limits import ORPHAN_SECONDS
from holdfast.model.violations import Report, Violation
from holdfast.opening import open_engine
from holdfast.store.clocks import clock_of
from holdfast.worker import trust as trusted_files

SHOWN_MAX = 50
"""Violations on a terminal; --json has all of them."""


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="The id of a run, or the beginning of one unless something is changed; else all runs.",
            show_default=False,
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Fold every journal and check its hash chain.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Carry out the proposals.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Write rows again from journals.")] = False,
    orphan_seconds: Annotated[
        float, typer.Option("--orphan-seconds", min=0, help="How long begun work may be without an owner.")
    ] = ORPHAN_SECONDS,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Check a database: list what is wrong, with run and event, and how to repair it.

    Only reads, and may run beside live engines. With --repair each proposal is carried out under the run's lease. A run
    that a live engine owns is not changed. A journal that was tampered with is never changed: its run is put on hold.
    --rebuild folds the journal of a run (of every run whose rows differ) and writes its rows again.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --deep --json | jq '.violations[].what'
      holdfast doctor order-42 --rebuild

    \b
    Exit codes: 0 no violation is left, 1 there are violations, 2 wrong usage.
    """
    url = configuration.database_url(db)
    with databases.reading(db) as store:
        find = databases.find if repair or rebuild else databases.find_by_prefix
        run_ids = None if run is None else [find(store, run).run_id]
        progress = StatusLine(silent=quiet or json)

        def show(runs: int, events: int) -> None:
            progress.show(f"{runs:,} runs" + (f", {events:,} events" if events else ""))

        def find_violations() -> Report:
            found = check(store, run_ids, deep or rebuild, orphan_seconds=orphan_seconds, progress=show)
            progress.clear()
            return found

        report = find_violations()
        if repair or rebuild:
            means = REBUILDING if rebuild and not repair else ALL
            repairs = Repairs(
                store, Inspector(store, clock_of(store)), store.now(), lambda run_id: asyncio.run(_recover(url, run_id))
            )
            report = treat(repairs, report, find_violations, means=means, rebuild=run_ids or () if rebuild else ())
    if json:
        output.document(report.as_json())
    else:
        _print_report(report)
    return output.FAILED if report.violations else output.OK


async def _recover(url: str, run_id: str) -> str:
    """Recover a run with an engine that drives nothing."""
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


def _print_report(report: Report) -> None:
    for done in report.repaired:
        output.write(f"{output.paint('↻', 'cyan')} {output.clean(done)}")
    for violation in report.violations[:SHOWN_MAX]:
        _print_violation(violation, "✗", "red")
    if len(report.violations) > SHOWN_MAX:
        output.write(f"… and {len(report.violations) - SHOWN_MAX:,} more; --json lists all of them")
    for warning in report.warnings[:SHOWN_MAX]:
        _print_violation(warning, "!", "yellow")
    checked = output.count(report.checked, "run")
    if report.events:
        checked += f" and {output.count(report.events, 'event')}"
    if report.violations:
        output.write(f"checked {checked}: {output.count(len(report.violations), 'violation')}")
    else:
        output.write(f"checked {checked}: no violations")


def _print_violation(violation: Violation, mark: str, colour: str) -> None:
    where = "" if violation.run_id is None else f"run {output.line(violation.run_id)}: "
    output.write(f"{output.paint(mark, colour)} {violation.code:<4} {where}{output.clean(violation.what)}")
    output.write(f"       {output.clean(violation.repair)}")


# --- trust and version -----------------------------------------------------------------------------------------------


def trust(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE.py]", help="The file to allow; else list the allowed files.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="No longer allow it.")] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Allow the runs of a database to import a file, or list the allowed files.

    A run records where its code is, and `resume`, `retry`, `jump`, `fork` and `recover` import it from there. They do
    so only for files that you have allowed for this very database: a database from elsewhere must not choose what runs
    on your machine. `run`, `start`, `worker` and `hf.run` allow the files that you run with them. The list is
    yours, in $XDG_STATE_HOME/holdfast (~/.local/state/holdfast).

    \b
    Examples:
      holdfast trust service.py --db postgresql://app@db.example/app
      holdfast trust service.py --remove
      holdfast trust
    """
    with databases.reading(db) as store:
        store_id = store.store_id()
    if file is None:
        if remove:
            raise UsageError("name the file that is no longer allowed: holdfast trust FILE.py --remove")
        _print_trusted(store_id, json=json)
        return
    path = os.path.realpath(file)
    if remove:
        if not trusted_files.forget(store_id, path):
            raise UsageError(f"{path} is not allowed for this database; `holdfast trust` lists what is")
    else:
        if not os.path.isfile(path):
            raise UsageError(f"there is no file {path}")
        if not trusted_files.remember(store_id, [path]):
            raise UsageError("there is no state directory to remember it in: set XDG_STATE_HOME, or use --code FILE.py")
    if json:
        output.document({"store_id": store_id, "file": path, "allowed": not remove})
    else:
        output.note(f"{output.line(path)} is {'no longer allowed' if remove else 'allowed'} for this database")


def _print_trusted(store_id: str, *, json: bool) -> None:
    files = trusted_files.files_of(store_id)
    if json:
        output.document({"store_id": store_id, "files": files})
    elif files:
        for path in files:
            output.write(output.line(path))
    else:
        output.note("no file is allowed for this database")


def version(json: Json = False) -> None:
    """Print the version of Holdfast.

    \b
    Example:
      holdfast version
    """
    try:
        known = package_version("holdfast")
    except PackageNotFoundError:
        known = "unknown"
    if json:
        import apsw

        python = ".".join(str(part) for part in sys.version_info[:3])
        output.document({"version": known, "python": python, "sqlite": apsw.sqlite_lib_version()})
    else:
        output.write(f"holdfast {known}")
