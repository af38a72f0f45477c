"""Branching: what fork, jump and retry share on the command line.

Owns: from what was typed to a branch that is opened and driven (or only looked at), and how that is told.
Never: decides what is kept (the engine does, and says so before anything is done).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, inputs, output, reporting, settings
from holdfast.cli.commands.run import driven_elsewhere
from holdfast.cli.driving import drive
from holdfast.cli.logs import show_logs
from holdfast.cli.recorded import load, locations
from holdfast.cli.tuning import tune
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model.errors import UsageError
from holdfast.opening import open_engine
from holdfast.rules.branch_opening import Asked
from holdfast.store.row_types import RunRow

ACTOR = "command line"
LISTED_MAX = 20
"""Instances that a line lists; --json has all of them."""

Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="One edit: input.order.amount=10, vars.limit=3, outputs.charge=null, answers.WAIT=true. JSON or text.",
        show_default=False,
    ),
]
GivenEdits = Annotated[
    str | None,
    typer.Option(
        "--edits", metavar="JSON|@FILE|-", help="Edits as one object: input, vars, outputs, answers, version."
    ),
]
Keys = Annotated[str, typer.Option("--keys", metavar="renew|inherit", help="Idempotency keys of what runs again.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be reused and what runs again; do nothing.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Open the branch, and leave driving it to others.")]
Code = Annotated[
    str | None, typer.Option("--code", metavar="FILE.py", help="Where the code is now; else where it was.")
]


class Wish(msgspec.Struct):
    """What was typed."""

    kind: str
    run: str
    target: str | int | None = None
    branch: int | None = None
    given: str | None = None
    assignments: Sequence[str] = ()
    keys: str = "renew"
    as_run: str | None = None

    def edits(self) -> dict[str, Any]:
        found = {} if self.given is None else inputs.parse(*inputs.source(self.given, "--edits"))
        for assignment in self.assignments:
            inputs.put(found, assignment)
        return found

    def asked(self) -> Asked:
        if self.keys not in ("renew", "inherit"):
            raise UsageError(f"--keys is renew or inherit, not {self.keys!r}")
        if self.as_run is not None and self.keys == "inherit":
            raise UsageError("a run of its own has its own idempotency keys; leave --keys inherit out")
        return Asked(self.target, self.branch, keys=self.keys, actor=ACTOR)


def carry_out(
    wish: Wish, *, dry_run: bool, no_run: bool, code: str | None, quiet: bool, db: str | None, json: bool
) -> int:
    """Open the branch and drive the run to its end; or less, if less was asked for. The exit code."""
    edits, url = wish.edits(), settings.database_url(db)
    wish.asked()  # what was typed makes sense before anything is loaded
    with databases.reading(db) as store:
        row = databases.find(store, wish.run)
        where, store_id = {row.run_no: locations(store, row)}, store.store_id()
    with output.only_json(json):
        needed = not (dry_run or no_run)
        if needed or edits:
            _, missing = load([row], where, code, store_id)
            if missing and (needed or edits.keys() & {"input", "vars"}):
                raise missing[0]
        _keep_text(wish, row, edits)
        if dry_run:
            return asyncio.run(_preview(url, row, wish, edits, json))
        if no_run:
            return asyncio.run(_only_open(url, row, wish, edits, json))
        show_logs()
        tune()
        going = _Going(row, wish, edits, quiet)
        endings = drive(url, going.begin, json=json, quiet=quiet, since=going.since)
        return reporting.report(url, endings, json=json)


def _keep_text(wish: Wish, row: RunRow, edits: dict[str, Any]) -> None:
    """`--set input.code=007` means the text where the workflow wants text."""
    from holdfast.model import handlers

    workflow = handlers.find_workflow(row.workflow)
    given = [text.removeprefix("input.") for text in wish.assignments if text.startswith("input.")]
    if workflow is not None and given:
        inputs.keep_text(edits["input"], given, workflow.definition.params)


class _Going:
    """What is to be opened, then driven."""

    def __init__(self, row: RunRow, wish: Wish, edits: dict[str, Any], quiet: bool) -> None:
        self.row = row
        self.wish = wish
        self.edits = edits
        self.quiet = quiet
        self.since = {row.run_no: row.last_seq}

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        shown = await engine.branching.preview(self.row.run_id, self.wish.kind, self.wish.asked(), self.edits)
        run = await _open(engine, self.row, self.wish, self.edits, drive=True)
        found = engine.store.run(run.run_id)
        assert found is not None
        if found.run_no != self.row.run_no:
            self.since[found.run_no] = shown.cutoff_seq
        if not self.quiet:
            again = f"; runs again: {_listed(shown.runs_again)}" if shown.runs_again else ""
            reused = output.count(len(shown.reused), "node")
            output.note(f"run {output.line(run.run_id)} goes on with branch {shown.branch}: {reused} reused{again}")
            elsewhere = driven_elsewhere(engine, run)
            if elsewhere:
                output.note(elsewhere)
        return [run]


async def _open(engine: Engine, row: RunRow, wish: Wish, edits: dict[str, Any], *, drive: bool) -> Run[Any]:
    asked = wish.asked()
    if wish.as_run is None:
        await engine.branching.ask(row.run_id, wish.kind, asked, edits, drive=drive)
        return engine.get(row.run_id)
    forked = await engine.branching.fork_as_run(row.run_id, wish.as_run, asked, edits, drive=drive)
    return engine.get(forked.run_id)


async def _only_open(url: str, row: RunRow, wish: Wish, edits: dict[str, Any], json: bool) -> int:
    async with open_engine(url, recover=False) as engine:
        run = await _open(engine, row, wish, edits, drive=False)
        shown = await run.show()
    if json:
        output.document(shown)
        return output.OK
    run_id = output.line(run.run_id)
    output.write(f"run {run_id} is {shown['status']} on branch {shown['branch']}")
    output.note(f"`{reporting.command('resume', run.run_id, url)}` goes on with it, unless an engine does already")
    return output.OK


async def _preview(url: str, row: RunRow, wish: Wish, edits: dict[str, Any], json: bool) -> int:
    async with open_engine(url, recover=False) as engine:
        shown = await engine.branching.preview(row.run_id, wish.kind, wish.asked(), edits)
    if json:
        output.document(msgspec.structs.asdict(shown))
        return output.OK
    whose = f"run {output.line(wish.as_run or row.run_id)}"
    output.write(
        f"nothing was changed; {whose} would go on with branch {shown.branch}, behind event {shown.cutoff_seq}"
    )
    output.write(f"reused      {_listed(shown.reused) or 'nothing'}")
    output.write(f"runs again  {_listed(shown.runs_again) or 'nothing that ran before'}")
    if shown.given:
        output.write(f"given       {_listed(shown.given)}")
    if shown.answered:
        output.write(f"answered    {_listed(shown.answered)}")
    if shown.pended:
        output.write(f"pended      {_listed(shown.pended)}")
    if shown.skipped:
        output.write(f"skipped     {_listed(shown.skipped)}")
    if shown.repeats:
        keys = "the same idempotency keys" if shown.same_keys and wish.as_run is None else "new idempotency keys"
        output.write(f"effects of {_listed(shown.repeats)} happen again, under {keys}")
    return output.OK


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(output.line(name) for name in names[:LISTED_MAX])
    return f"{shown} and {len(names) - LISTED_MAX:,} more" if len(names) > LISTED_MAX else shown


def place(at: str | None) -> str | int | None:
    """`--at`: a sequence number, a node, or `start`."""
    return int(at) if at is not None and at.isdigit() else at
