"""`holdfast fork`, `jump`, `retry` and `recover`: continue a run on a new branch.

Owns: the verbs; from what was typed to a branch that is opened and driven (or only previewed), and how that is worded.
Never: decides what is kept (the engine does, and reports it before anything is changed).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, inputs, output, wording
from holdfast.cli.driving import ACTOR, drive_and_report, driven_elsewhere, load_code, recorded_code
from holdfast.cli.options import DrivingRecorded, Edits, RunId, with_groups
from holdfast.cli.process_setup import prepare_to_drive
from holdfast.engine import operator
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model import handlers
from holdfast.model.errors import UsageError
from holdfast.opening import open_engine
from holdfast.rules.branch_opening import Asked
from holdfast.store.row_types import RunRow

Keys = Annotated[str, typer.Option("--keys", metavar="renew|inherit", help="Idempotency keys of nodes that run again.")]


@with_groups
def fork(
    run: RunId,
    options: Edits,
    driving: DrivingRecorded,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="SEQ|NODE|start",
            help="After an event, before a node, or from the start; else at the end.",
            show_default=False,
        ),
    ] = None,
    branch: Annotated[int | None, typer.Option("--branch", help="Fork from this branch; else the current one.")] = None,
    as_run: Annotated[
        str | None, typer.Option("--as-run", metavar="ID", help="Continue as a new run; this one stays as it is.")
    ] = None,
    keys: Keys = "renew",
) -> int:
    """Continue a run from an earlier point, with edits if you like; what is kept never runs again.

    At a node: it and everything downstream of it run again. At a sequence number: the run is as it was after that
    event. The old branch stays readable: `holdfast branches`, `holdfast show --branch`.

    \b
    Examples:
      holdfast fork order-42 --at charge --set input.order.amount=10
      holdfast fork order-42 --at 17 --as-run order-42b
      holdfast fork order-42 --at 'pick@.pick.3.' --dry-run

    \b
    Exit codes: 0 completed, 1 failed or refused, 2 wrong usage (nothing was changed),
    3 suspended, 4 cancelled, 130 interrupted.
    """
    target = int(at) if at is not None and at.isdigit() else at
    return _open_branch(_Request("fork", run, target, branch, keys, as_run), options, driving)


@with_groups
def jump(
    run: RunId,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node, or one instance: node@.path.")],
    options: Edits,
    driving: DrivingRecorded,
    keys: Keys = "renew",
) -> int:
    """Continue a run at a node, back or forward; also reopens a run that has ended.

    Back: the node and everything downstream of it run again. Forward: the nodes between are skipped; the outputs that
    the node needs must exist, or be given as edits.

    \b
    Examples:
      holdfast jump order-42 charge
      holdfast jump order-42 ship --set outputs.charge=receipt-by-hand

    \b
    Exit codes: 0 completed, 1 failed or refused, 2 wrong usage (nothing was changed),
    3 suspended, 4 cancelled, 130 interrupted.
    """
    return _open_branch(_Request("jump", run, node, keys=keys), options, driving)


@with_groups
def reopen(
    run: RunId,
    ticket: Annotated[
        str, typer.Argument(metavar="TICKET", help="The ticket whose node or unit the run continues at.")
    ],
    options: Edits,
    driving: DrivingRecorded,
    basket: Annotated[
        str | None, typer.Option("--basket", help="Put the run into this basket first, until it is resumed.")
    ] = None,
) -> int:
    """Let a run that has completed continue where one of its tickets leads.

    \b
    Examples:
      holdfast reopen claim-7 appeal
      holdfast reopen claim-7 appeal --basket second_look --set vars.reason=complaint

    \b
    Exit codes: 0 completed, 1 failed or refused, 2 wrong usage (nothing was changed),
    3 suspended, 4 cancelled, 130 interrupted.
    """
    return _open_branch(_Request("reopen", run, ticket, basket=basket or ""), options, driving)


@with_groups
def retry(
    run: RunId,
    options: Edits,
    driving: DrivingRecorded,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="A failed node, or one instance: node@.path.; else all."),
    ] = None,
) -> int:
    """Try failed nodes again, and those that were cancelled because of them.

    Nothing that has completed runs again; bodies keep their recorded calls and idempotency keys, and their retry policy
    counts from 0. A cancelled run continues where it was. Of a run whose compensations have run, those that failed are
    tried again, and the run ends as it did.

    \b
    Examples:
      holdfast retry order-42
      holdfast retry order-42 'pick@.pick.3.'
      holdfast retry order-42 'charge~undo'
      holdfast retry order-42 --set outputs.charge=receipt-by-hand

    \b
    Exit codes: 0 completed, 1 failed or refused, 2 wrong usage (nothing was changed),
    3 suspended, 4 cancelled, 130 interrupted.
    """
    return _open_branch(_Request("retry", run, node), options, driving)


class _Request(msgspec.Struct):
    """What was typed."""

    kind: str
    run: str
    target: str | int | None = None
    branch: int | None = None
    keys: str = "renew"
    as_run: str | None = None
    basket: str = ""

    def asked(self) -> Asked:
        """The engine's request. Raises UsageError."""
        if self.keys not in ("renew", "inherit"):
            raise UsageError(f"--keys is renew or inherit, not {self.keys!r}")
        if self.as_run is not None and self.keys == "inherit":
            raise UsageError("a new run has its own idempotency keys; omit --keys inherit")
        return Asked(self.target, self.branch, keys=self.keys, basket=self.basket, actor=ACTOR)


def _open_branch(request: _Request, options: Edits, driving: DrivingRecorded) -> int:
    """Open the branch and drive the run to its end; or less, if less was asked for. Returns the exit code."""
    url = driving.url()
    edits = {} if options.edits is None else inputs.parse(*inputs.source(options.edits, "--edits"))
    for assignment in options.assignments or ():
        inputs.put(edits, assignment)
    request.asked()  # wrong usage is reported before anything is loaded
    with databases.reading(driving.db) as store:
        row = databases.find(store, request.run)
        code, store_id = {row.run_no: recorded_code(store, row)}, store.store_id()
    with output.only_json(driving.json):
        drives = not (options.dry_run or options.no_run)
        if drives or edits:
            _, missing = load_code([row], code, driving.code, store_id)
            if missing and (drives or edits.keys() & {"input", "vars"}):
                raise missing[0]
        _keep_text(row, edits, options.assignments or ())
        if options.dry_run:
            return asyncio.run(_preview(url, row, request, edits, driving.json))
        if options.no_run:
            return asyncio.run(_only_open(url, row, request, edits, driving.json))
        prepare_to_drive()
        opening = _Opening(row, request, edits, driving.quiet)
        return drive_and_report(url, opening.begin, json=driving.json, quiet=driving.quiet, since=opening.since)


def _keep_text(row: RunRow, edits: dict[str, Any], assignments: Sequence[str]) -> None:
    """`--set input.code=007` means the text if the workflow declares text."""
    workflow = handlers.find_workflow(row.workflow)
    given = [text.removeprefix("input.") for text in assignments if text.startswith("input.")]
    if workflow is not None and given:
        inputs.keep_text(edits["input"], given, workflow.definition.params)


class _Opening:
    """The branch to open, then to drive."""

    def __init__(self, row: RunRow, request: _Request, edits: dict[str, Any], quiet: bool) -> None:
        self.row = row
        self.request = request
        self.edits = edits
        self.quiet = quiet
        self.since = {row.run_no: row.last_seq}

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        request = self.request
        shown = await operator.preview_branch(engine, self.row.run_id, request.kind, request.asked(), self.edits)
        run = await _open(engine, self.row, request, self.edits, drive=True)
        found = operator.row_of(engine, run)
        if found.run_no != self.row.run_no:
            self.since[found.run_no] = shown.cutoff_seq
        if not self.quiet:
            again = f"; runs again: {wording.listed(shown.runs_again)}" if shown.runs_again else ""
            reused = output.count(len(shown.reused), "node")
            output.note(f"run {output.line(run.run_id)} continues on branch {shown.branch}: {reused} reused{again}")
            if elsewhere := driven_elsewhere(engine, run):
                output.note(elsewhere)
        return [run]


async def _open(engine: Engine, row: RunRow, request: _Request, edits: dict[str, Any], *, drive: bool) -> Run[Any]:
    return await operator.open_branch(
        engine, row.run_id, request.kind, request.asked(), edits, as_run=request.as_run, drive=drive
    )


async def _only_open(url: str, row: RunRow, request: _Request, edits: dict[str, Any], json: bool) -> int:
    async with open_engine(url, recover=False) as engine:
        run = await _open(engine, row, request, edits, drive=False)
        shown = await run.show()
    if json:
        output.document(shown)
        return output.OK
    output.write(f"run {output.line(run.run_id)} is {shown['status']} on branch {shown['branch']}")
    output.note(f"`{wording.command('resume', run.run_id, url)}` continues it, unless an engine drives it already")
    return output.OK


async def _preview(url: str, row: RunRow, request: _Request, edits: dict[str, Any], json: bool) -> int:
    async with open_engine(url, recover=False) as engine:
        shown = await operator.preview_branch(engine, row.run_id, request.kind, request.asked(), edits)
    if json:
        output.document(msgspec.structs.asdict(shown))
        return output.OK
    whose = f"run {output.line(request.as_run or row.run_id)}"
    output.write(
        f"nothing was changed; {whose} would continue on branch {shown.branch}, after event {shown.cutoff_seq}"
    )
    output.write(f"reused      {wording.listed(shown.reused, none='nothing')}")
    output.write(f"runs again  {wording.listed(shown.runs_again, none='nothing that ran before')}")
    for what in ("given", "answered", "pended", "skipped"):
        if names := getattr(shown, what):
            output.write(f"{what:<11} {wording.listed(names)}")
    if shown.repeats:
        keys = "the same idempotency keys" if shown.same_keys and request.as_run is None else "new idempotency keys"
        output.write(f"effects of {wording.listed(shown.repeats)} happen again, with {keys}")
    return output.OK


# --- recover --------------------------------------------------------------------------------------------------------


@with_groups
def recover(
    run: RunId,
    driving: DrivingRecorded,
    reverify: Annotated[
        bool, typer.Option("--reverify", help="If only the end is missing, run the last node again.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Decide a completed run again whose version is not in the store."),
    ] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Repair it, and let another engine drive it.")] = False,
) -> int:
    """Repair a run whose rows and journal disagree, and continue it.

    For damage by a restored backup, an edit by hand or a foreign writer; a crash causes none, and an interrupted run is
    resumed instead. The journal decides: the run continues from its last stable event, on a branch of its own; if only
    its rows are behind, they are written again from the journal. Nothing is deleted, and recovering twice is the same
    as recovering once.

    \b
    Examples:
      holdfast recover order-42
      holdfast recover order-42 --no-run --json

    \b
    Exit codes: 0 completed (--no-run: in order), 1 failed, or it cannot be repaired,
    2 wrong usage, 3 suspended, 4 cancelled, 130 interrupted.
    """
    url = driving.url()
    with databases.reading(driving.db) as store:
        row = databases.find(store, run)
        code = {} if no_run else {row.run_no: recorded_code(store, row)}
        store_id = store.store_id()
    if no_run:
        return asyncio.run(_only_repair(url, row.run_id, driving.json, reverify=reverify, force=force))
    with output.only_json(driving.json):
        _, missing = load_code([row], code, driving.code, store_id)
        if missing:
            raise missing[0]
        prepare_to_drive()

        async def begin(engine: Engine) -> Sequence[Run[Any]]:
            recovered = await engine.recover(row.run_id, reverify=reverify, force=force, actor=ACTOR)
            if not driving.quiet:
                output.note(_recovered_text(row.run_id, recovered))
            return [await engine.resume(row.run_id, actor=ACTOR)]

        since = {row.run_no: row.last_seq}
        return drive_and_report(url, begin, json=driving.json, quiet=driving.quiet, since=since)


async def _only_repair(url: str, run_id: str, json: bool, **options: bool) -> int:
    async with open_engine(url, recover=False) as engine:
        recovered = await engine.recover(run_id, **options, actor=ACTOR)
    if json:
        output.document({"run_id": run_id, **msgspec.structs.asdict(recovered)})
    else:
        output.write(_recovered_text(run_id, recovered))
    return output.OK


def _recovered_text(run_id: str, recovered: operator.Recovered) -> str:
    name = f"run {output.line(run_id)}"
    if not recovered.needed:
        return f"{name}: nothing to repair, {output.line(recovered.what)}"
    case = f"({recovered.case}: {output.line(recovered.what)})"
    if recovered.branch is None:
        return f"{name} is recovered {case}; its rows were written again"
    return f"{name} is recovered {case}; it continues on branch {recovered.branch}"
