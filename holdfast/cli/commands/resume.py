"""`holdfast resume`: go on with runs, with nothing but the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, output, settings
from holdfast.cli.commands.run import driven_elsewhere
from holdfast.cli.crowds import SHOWN_MAX, UNFINISHED
from holdfast.cli.driving import drive
from holdfast.cli.logs import show_logs
from holdfast.cli.options import Db, GraceSeconds, Json, LeaseSeconds, Quiet
from holdfast.cli.reporting import report
from holdfast.cli.tuning import tune
from holdfast.engine.engine import Engine
from holdfast.engine.run import Run
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError, MissingCode, UsageError
from holdfast.model.handlers import CodeLocation
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.store.api import RunRow, Store
from holdfast.store.sqlite_connections import database_path
from holdfast.worker.loading import load_file, load_recorded

ALL_MAX = 100_000
"""Runs that `--all` takes at once."""


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs, or beginnings of them.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every unfinished run.")] = False,
    code: Annotated[
        str | None, typer.Option("--code", metavar="FILE.py", help="Where the code is now; else where it was.")
    ] = None,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
    lease_seconds: LeaseSeconds = None,
    grace_seconds: GraceSeconds = None,
) -> int:
    """Go on with runs that were interrupted, until they have ended.

    Needs nothing but the database: it knows where the code of a run was. Nothing that was completed runs again. A run
    on hold is released. A run that another engine drives is followed.

    \b
    Examples:
      holdfast resume order-42
      holdfast resume --all --db sqlite:////srv/shop/orders.db
      holdfast resume order-42 --code moved/shop.py

    \b
    Exit codes: 0 all completed, 1 one failed, 2 wrong usage, 3 one is suspended,
    4 one was cancelled, 130 interrupted.
    """
    if bool(runs) == everything:
        raise UsageError("name the runs to resume, or say --all")
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    url = settings.database_url(db)
    with databases.reading(db) as store:
        rows = _all(store, quiet) if everything else [databases.find(store, run) for run in dict.fromkeys(runs or ())]
        where = {row.run_no: locations(store, row) for row in rows if row.status not in RUN_TERMINAL}
        since = {row.run_no: row.last_seq for row in rows}
        before = {row.run_no: _account(store, row) for row in rows} if not quiet else {}
    if not rows:
        output.note("nothing to resume: every run has ended")
        if json:
            output.document([])
        return output.OK
    with output.only_json(json):
        loaded, missing = load(rows, where, code, url)
        if missing and not everything:
            raise missing[0]
        for error in missing:
            output.note(f"holdfast: {output.clean(error.message)}")
        if not loaded:
            return output.USAGE
        show_logs()
        tune()
        resuming = _Resuming(loaded, before, everything, quiet)
        endings = drive(url, resuming.begin, json=json, quiet=quiet, since=since)
        exit_code = report(url, endings, json=json)
    return exit_code or (output.FAILED if missing else output.OK)


def _all(store: Store, quiet: bool) -> list[RunRow]:
    """Unfinished runs, each with its children; those on hold wait for somebody's word."""
    rows = store.runs(status=UNFINISHED, limit=ALL_MAX)
    numbers = {row.run_no for row in rows}
    mine = [row for row in rows if row.parent_no not in numbers]
    held = [row for row in mine if row.hold is not None]
    if not quiet:
        for row in held:
            run_id = output.line(row.run_id)
            output.note(f"run {run_id} is on hold ({output.line(row.hold)}); `holdfast resume {run_id}` releases it")
    return sorted((row for row in mine if row.hold is None), key=lambda row: row.run_no)


def locations(store: Store, row: RunRow) -> list[CodeLocation]:
    """Where the code of a run and of its unfinished children was when they began."""
    found: dict[CodeLocation, None] = {}
    family = store.runs(status=UNFINISHED, root_no=row.root_no, limit=1000)
    for member in [row, *(m for m in family if m.run_no != row.run_no)]:
        created: ev.RunCreated = ev.decode(*store.event_data(member.run_no, [1])[1])
        if created.code is not None:
            found[msgspec.convert(created.code, CodeLocation)] = None
    return list(found)


def load(
    rows: Sequence[RunRow], locations: dict[int, list[CodeLocation]], code: str | None, url: str
) -> tuple[list[RunRow], list[HoldfastError]]:
    """Import what the runs need; the runs whose code is there, and why the others' is not."""
    if code is not None:
        load_file(code)
    path = database_path(url)
    database = None if path is None else str(path)
    loaded: list[RunRow] = []
    missing: list[HoldfastError] = []
    tried: dict[CodeLocation, HoldfastError | None] = {}
    for row in rows:
        problem: HoldfastError | None = None
        for location in locations.get(row.run_no, ()) if code is None else ():
            if location not in tried:
                tried[location] = _try(location, database)
            problem = problem or tried[location]
        if problem is None:
            loaded.append(row)
        else:
            missing.append(MissingCode(f"run {row.run_id}: {problem.message}"))
    return loaded, missing


def _try(location: CodeLocation, database: str | None) -> HoldfastError | None:
    try:
        load_recorded(location, database)
    except HoldfastError as error:
        return error
    return None


class Account(msgspec.Struct):
    """What of a run is kept, and what begins again."""

    nodes: int = 0
    steps: int = 0
    again: list[str] = []
    """Cut off while running: another attempt."""
    onward: list[str] = []
    """Left in order: the same attempt goes on."""


def _account(store: Store, row: RunRow) -> Account:
    account = Account()
    if row.status in RUN_TERMINAL:
        return account
    for node in store.nodes(row.run_no):
        name = node.node if node.path == "." else f"{node.node}@{node.path}"
        if node.status == NodeStatus.COMPLETED:
            account.nodes += 1
        elif node.status == NodeStatus.RUNNING and node.scope is None:
            account.again = [*account.again, f"{name} (attempt {node.attempt + 1})"]
        elif node.status == NodeStatus.SUSPENDED:
            account.onward = [*account.onward, name]
    account.steps = len(store.events(row.run_no, types=("StepCompleted",)))
    return account


class _Resuming:
    """What is to be resumed."""

    def __init__(self, rows: Sequence[RunRow], before: dict[int, Account], everything: bool, quiet: bool) -> None:
        self.rows = rows
        self.before = before
        self.everything = everything
        self.quiet = quiet

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        if self.everything:  # one sweep, not one for each
            engine.recovery.roots = None
            await engine.recovery.sweep()
            runs = [Run[Any](engine, row.run_id, row.run_no) for row in self.rows]
        else:
            runs = [await engine.resume(row.run_id, actor="command line") for row in self.rows]
        if not self.quiet and len(runs) <= SHOWN_MAX:
            for row, run in zip(self.rows, runs, strict=True):
                output.note(driven_elsewhere(engine, run) or explain(row, self.before[row.run_no]))
        elif not self.quiet:
            output.note(explain_all(self.rows, self.before))
        return runs


def explain(row: RunRow, account: Account) -> str:
    """What resuming a run means, in a sentence."""
    name = f"run {output.line(row.run_id)}"
    if row.status in RUN_TERMINAL:
        return f"{name} has {row.status} already"
    kept = [output.count(account.nodes, "node")] * bool(account.nodes)
    kept += [output.count(account.steps, "step")] * bool(account.steps)
    parts = [f"{' and '.join(kept)} reused" if kept else "nothing was completed yet"]
    parts += [f"runs again: {_listed(account.again)}"] * bool(account.again)
    parts += [f"goes on: {_listed(account.onward)}"] * bool(account.onward)
    return f"resuming {name} ({output.line(row.workflow)} v{row.version}): {'; '.join(parts)}"


def explain_all(rows: Sequence[RunRow], before: dict[int, Account]) -> str:
    """The same for very many."""
    accounts = [before[row.run_no] for row in rows]
    nodes, steps = sum(a.nodes for a in accounts), sum(a.steps for a in accounts)
    again = sum(len(a.again) for a in accounts)
    reused = f"{output.count(nodes, 'node')} and {output.count(steps, 'step')} reused"
    return f"resuming {output.count(len(rows), 'run')}: {reused}; {output.count(again, 'body', 'bodies')} run again"


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(output.line(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
