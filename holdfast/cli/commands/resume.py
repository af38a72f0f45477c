"""`holdfast resume`: go on with runs, with nothing but the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, inputs, output, requests, settings
from holdfast.cli.accounts import Account, account_of, explain, explain_all
from holdfast.cli.commands.run import driven_elsewhere
from holdfast.cli.crowds import SHOWN_MAX, UNFINISHED
from holdfast.cli.driving import drive
from holdfast.cli.logs import show_logs
from holdfast.cli.options import Db, GraceSeconds, Json, LeaseSeconds, Quiet
from holdfast.cli.recorded import load, locations
from holdfast.cli.reporting import report
from holdfast.cli.requests import Actor
from holdfast.cli.tuning import tune
from holdfast.engine import changes
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.inspect.wait_views import hold_of, resting, waits_of
from holdfast.model import definition as definitions
from holdfast.model.errors import UsageError
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.views import Wait
from holdfast.opening import open_engine
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans
from holdfast.store.row_types import RunRow

ALL_MAX = 100_000
"""Runs that `--all` takes at once."""
CALLS_MAX = 20
"""Calls that `--dry-run` lists of each kind; `--json` has all of them."""


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every unfinished run.")] = False,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="WAIT", help="End this wait of the run, and no other.")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--path", metavar="PATH", help="Take what lies on this path out of its basket.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="vars.NAME=VALUE",
            help="Set a variable of the run first. JSON or text.",
            show_default=False,
        ),
    ] = None,
    accept_change: Annotated[
        bool,
        typer.Option("--accept-change", help="Of a run on hold with code_changed: go on with the code as it is now."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --accept-change: say what would be reused and set aside; do nothing."),
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only end the wait, and leave driving to others; needs no code.")
    ] = False,
    actor: Actor = None,
    code: Annotated[
        str | None,
        typer.Option("--code", metavar="FILE.py", help="Where the code is now (or package.module); else where it was."),
    ] = None,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
    lease_seconds: LeaseSeconds = None,
    grace_seconds: GraceSeconds = None,
) -> int:
    """Go on with runs that were interrupted, or that wait for somebody to let them, until they have ended.

    Needs nothing but the database: it knows where the code of a run was. Nothing that was completed runs again. A run
    that another engine drives is followed.

    A run that is named is let go on: its pause ends; else a hold is released, and of what lies in baskets the node on
    the deepest path is taken out, or the one that --wait or --path name. Questions stay open. --all drives what can go
    on by itself, and leaves alone what waits for somebody.

    A run is on hold with code_changed when a body makes other calls than it remembers. Bring the old code back and
    resume it; or go on with the new code by --accept-change: calls that agree with what is remembered are not made
    again, what no call asks for is set aside, all other calls are new. The idempotency keys stay.

    \b
    Examples:
      holdfast resume order-42
      holdfast resume order-42 --wait w_7q2 --set vars.limit=10
      holdfast resume --all --db sqlite:////srv/shop/orders.db
      holdfast resume order-42 --code moved/shop.py
      holdfast resume order-42 --accept-change --dry-run

    \b
    Exit codes: 0 all completed, 1 one failed, 2 wrong usage, 3 one is suspended,
    4 one was cancelled, 130 interrupted.
    """
    named = wait is not None or path is not None or bool(assignments)
    if bool(runs) == everything:
        raise UsageError("name the runs to resume, or say --all")
    if (named or no_run) and (everything or len(runs or ()) != 1):
        raise UsageError("--wait, --path, --set and --no-run go with one run that is named")
    if accept_change and (named or no_run or everything):
        raise UsageError("--accept-change goes with runs that are named, without --wait, --path, --set and --no-run")
    if dry_run and not accept_change:
        raise UsageError("--dry-run says what --accept-change would do; add that")
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    url = settings.database_url(db)
    with databases.reading(db) as store:
        rows = _all(store, quiet) if everything else [databases.find(store, run) for run in dict.fromkeys(runs or ())]
        where = {row.run_no: locations(store, row) for row in rows if row.status not in RUN_TERMINAL}
        store_id, since = store.store_id(), {row.run_no: row.last_seq for row in rows}
        versions = Plans(store)
        before = {row.run_no: account_of(store, versions, row) for row in rows} if not quiet else {}
        word = _Word(requests.whoever(actor), accept_change=accept_change)
        if named:
            word.wait = None if wait is None else databases.find_wait(store, wait, rows[0].run_id).wait_id
            word.path, word.vars = path, _variables(store, rows[0], assignments or ())
    if not rows:
        if json:
            output.document([])
        return output.OK
    if no_run and (hold := hold_of(rows[0])) is not None:
        held = f"run {rows[0].run_id} is on hold ({hold})"
        raise UsageError(f"{held}: resume it where its code is, and without --no-run")
    if no_run:
        return _only_end(url, rows[0].run_id, word, json)
    with output.only_json(json):
        loaded, missing = load(rows, where, code, store_id)
        if missing and not everything:
            raise missing[0]
        for error in missing:
            output.note(f"holdfast: {output.clean(error.message)}")
        if not loaded:
            return output.USAGE
        if dry_run:
            return asyncio.run(_rehearse(url, loaded, json))
        show_logs()
        tune()
        resuming = _Resuming(loaded, before, None if everything else word, quiet)
        endings = drive(url, resuming.begin, json=json, quiet=quiet, since=since)
        exit_code = report(url, endings, json=json)
    return exit_code or (output.FAILED if missing else output.OK)


class _Word(msgspec.Struct):
    """What somebody lets go on."""

    actor: str
    wait: str | None = None
    path: str | None = None
    vars: dict[str, Any] = {}
    accept_change: bool = False

    def options(self) -> dict[str, Any]:
        return {"actor": self.actor, "wait": self.wait, "path": self.path, "vars": self.vars}


async def _rehearse(url: str, rows: Sequence[RunRow], json: bool) -> int:
    """Say what a changed body would make of what it remembers; nothing is written."""
    async with open_engine(url, recover=False) as engine:
        found = {row.run_id: await changes.rehearse(engine, row) for row in rows}
    if json:
        output.document(
            [{"run_id": run_id, **msgspec.to_builtins(one)} for run_id, ones in found.items() for one in ones]
        )
        return output.OK
    output.write("nothing was changed; up to its first call that is not remembered, the code")
    for run_id, ones in found.items():
        for one in ones:
            output.write(f"of {output.line(one.node)} in run {output.line(run_id)}")
            output.write(f"  reuses      {_listed(one.reused)}")
            output.write(f"  makes anew  {_listed(one.new)}")
            output.write(f"  sets aside  {_listed(one.set_aside)}, unless a later call asks for it")
    return output.OK


def _listed(calls: Sequence[str]) -> str:
    shown = [output.line(call) for call in calls[:CALLS_MAX]]
    more = [f"and {len(calls) - CALLS_MAX} more"] if len(calls) > CALLS_MAX else []
    return ", ".join([*shown, *more]) or "nothing"


def _variables(store: Store, row: RunRow, assignments: Sequence[str]) -> dict[str, Any]:
    """`vars.limit=3`: JSON if it is, else text; text where the variable is declared as text."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        if not assignment.startswith("vars."):
            raise UsageError(f"--set {assignment!r}: a resume sets variables, vars.NAME=VALUE; edits are for fork")
        inputs.put(found, assignment.removeprefix("vars."))
    version = store.version(row.workflow, row.version)
    if version is not None and found:
        declared = definitions.decode(version.definition).variables
        params = [definitions.Param(name=name, schema=schema) for name, schema in declared.items()]
        inputs.keep_text(found, [text.removeprefix("vars.") for text in assignments], params)
    return found


def _only_end(url: str, run_id: str, word: _Word, json: bool) -> int:
    """Let a run go on that others drive."""
    with databases.reading(url) as store:
        waits = {wait.wait_id: wait for wait in waits_of(store, databases.find(store, run_id))}
    ended = requests.send(url, run_id, lambda run: run.resume(**word.options()))
    said = "; ".join(_ended(waits.get(wait_id), wait_id) for wait_id in ended)
    requests.tell(url, run_id, f"run {run_id}: {said or 'nothing waits to be resumed'}", json=json)
    return output.OK


def _ended(wait: Wait | None, wait_id: str) -> str:
    """Which wait has ended, and how."""
    if wait is None:
        return f"resumed {wait_id}"
    node = instance_text(wait.node or "?", wait.path or ".")
    match wait.kind:
        case "basket":
            return f"took {node} out of the basket {wait.basket} ({wait_id})"
        case "pause":
            return f"the pause is over ({wait_id})"
    return f"released {node} ({wait_id})"


def _all(store: Store, quiet: bool) -> list[RunRow]:
    """Unfinished runs, each with its children; those that wait for somebody's word are left alone."""
    rows = store.runs(status=UNFINISHED, limit=ALL_MAX)
    numbers = {row.run_no for row in rows}
    mine = [row for row in rows if row.parent_no not in numbers]
    rest = resting(store, mine, store.now()) - _with_mail(store)
    driven = sorted((row for row in mine if row.run_no not in rest), key=lambda row: row.run_no)
    if not quiet:
        held = [row for row in mine if hold_of(row) is not None]
        for row in held:
            run_id = output.line(row.run_id)
            output.note(
                f"run {run_id} is on hold ({output.line(hold_of(row))}); `holdfast resume {run_id}` releases it"
            )
        if len(rest) > len(held):
            what = output.count(len(rest) - len(held), "run waits", "runs wait")
            output.note(f"{what} for somebody from outside: `holdfast inbox`, `holdfast list --status suspended`")
        if not driven:
            output.note("nothing to resume: " + ("no other run is unfinished" if rest else "every run has ended"))
    return driven


def _with_mail(store: Store) -> set[int]:
    """Runs that nobody drives and that have something to do, such as mail that nobody has read yet."""
    return {run_no for run_no, _, _ in store.claimable(store.unowned_versions(), limit=ALL_MAX)}


class _Resuming:
    """What is to be resumed, and with which word; without one nothing is let go on that waits for one."""

    def __init__(self, rows: Sequence[RunRow], before: dict[int, Account], word: _Word | None, quiet: bool) -> None:
        self.rows = rows
        self.before = before
        self.word = word
        self.quiet = quiet

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        if self.word is None:  # one sweep, not one for each
            engine.claims.only_root_runs = None
            await engine.claims.sweep()
            runs = [Run[Any](engine, row.run_id, row.run_no) for row in self.rows]
        else:
            runs = [await self._let_go_on(engine, row, self.word) for row in self.rows]
        if not self.quiet and len(runs) <= SHOWN_MAX:
            for row, run in zip(self.rows, runs, strict=True):
                output.note(driven_elsewhere(engine, run) or explain(row, self.before[row.run_no]))
        elif not self.quiet:
            output.note(explain_all(self.rows, self.before))
        return runs

    async def _let_go_on(self, engine: Engine, row: RunRow, word: _Word) -> Run[Any]:
        if word.accept_change:
            return await engine.resume(row.run_id, accept_change=True, actor=word.actor)
        waits = {wait.wait_id: wait for wait in waits_of(engine.store, row)}
        run, ended = await engine.go_on(row.run_id, **word.options())
        for wait_id in ended if not self.quiet else ():
            output.note(output.line(f"run {row.run_id}: {_ended(waits.get(wait_id), wait_id)}"))
        return run
