"""`holdfast resume`: continue runs, with nothing but the database.

Owns: the verb, which runs `--all` drives, the rehearsal of changed code, and the sentence about what is reused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, inputs, output, wording
from holdfast.cli.commands.requesting import actor_name, send, show_outcome
from holdfast.cli.driving import Places, drive_and_report, driven_elsewhere, load_code, recorded_code
from holdfast.cli.options import Actor, DrivingRecorded, with_groups
from holdfast.cli.process_setup import prepare_to_drive
from holdfast.cli.progress import SHOWN_MAX, UNFINISHED
from holdfast.engine import operator
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.inspect.wait_views import hold_of, resting, waits_of
from holdfast.model import definition as definitions
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.opening import open_engine
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans
from holdfast.store.row_types import NodeRow, RunRow

ALL_MAX = 100_000
"""Runs that `--all` drives."""
NAMES_MAX = 5
"""Nodes of each kind that the summary of a run names."""


@with_groups
def resume(
    driving: DrivingRecorded,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every unfinished run.")] = False,
    wait: Annotated[str | None, typer.Option("--wait", metavar="WAIT", help="End only this wait of the run.")] = None,
    path: Annotated[
        str | None, typer.Option("--path", metavar="PATH", help="Take the node on this path out of its basket.")
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
        typer.Option("--accept-change", help="Continue a run on hold with code_changed, using the code as it is now."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --accept-change: show what would be reused and set aside; change nothing."
        ),
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only end the wait, and let another engine drive the run; needs no code.")
    ] = False,
    actor: Actor = None,
) -> int:
    """Continue interrupted, paused or held runs until they have ended.

    Needs only the database, which records where the code of each run is. Nothing that has completed runs again. A run
    that another engine drives is followed.

    `resume RUN` ends one thing, in this order: a pause; else a hold; else the basket entry on the deepest path (the
    oldest if several), or the one that --wait or --path names. Questions stay open. --all drives the runs that can
    continue by themselves, and leaves those that wait for a person alone.

    A run is on hold with code_changed if a body makes other calls than those recorded. Bring the old code back and
    resume the run, or continue with the new code by --accept-change: calls that match a recorded one are not made
    again, recorded ones that no call matches are set aside, all other calls are new. Idempotency keys stay the same.

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
    request = _Request(actor_name(actor), wait, path, accept_change=accept_change)
    named = wait is not None or path is not None or bool(assignments)
    _check_options(runs or [], everything, named, accept_change, dry_run, no_run)
    url = driving.url()
    with databases.reading(driving.db) as store:
        rows = (
            _all(store, driving.quiet) if everything else [databases.find(store, r) for r in dict.fromkeys(runs or ())]
        )
        chosen = _Chosen(store, rows, with_summaries=not driving.quiet)
        if wait is not None:
            request.wait = databases.find_wait(store, wait, rows[0].run_id).wait_id
        request.vars = _variables(store, rows[0], assignments) if assignments else {}
    if not rows:
        if driving.json:
            output.document([])
        return output.OK
    if no_run:
        return _only_end(url, rows[0], request, driving.json)
    with output.only_json(driving.json):
        loaded, missing = load_code(rows, chosen.code, driving.code, chosen.store_id)
        if missing and not everything:
            raise missing[0]
        for error in missing:
            output.note(f"holdfast: {output.clean(error.message)}")
        if not loaded:
            return output.USAGE
        if dry_run:
            return asyncio.run(_rehearse(url, loaded, driving.json))
        prepare_to_drive()
        begin = _Resuming(loaded, chosen.summaries, None if everything else request, driving.quiet).begin
        exit_code = drive_and_report(url, begin, json=driving.json, quiet=driving.quiet, since=chosen.since)
    return exit_code or (output.FAILED if missing else output.OK)


def _check_options(
    runs: list[str], everything: bool, named: bool, accept_change: bool, dry_run: bool, no_run: bool
) -> None:
    if bool(runs) == everything:
        raise UsageError("name the runs to resume, or use --all")
    if (named or no_run) and (everything or len(runs) != 1):
        raise UsageError("--wait, --path, --set and --no-run are for one named run")
    if accept_change and (named or no_run or everything):
        raise UsageError("--accept-change is for named runs, without --wait, --path, --set and --no-run")
    if dry_run and not accept_change:
        raise UsageError("--dry-run shows what --accept-change would do; add --accept-change")


class _Request(msgspec.Struct):
    """What ends the wait of a named run."""

    actor: str
    wait: str | None = None
    path: str | None = None
    vars: dict[str, Any] = {}
    accept_change: bool = False

    def options(self) -> dict[str, Any]:
        return {"actor": self.actor, "wait": self.wait, "path": self.path, "vars": self.vars}


class _Chosen:
    """What is read about the runs before an engine is opened."""

    def __init__(self, store: Store, rows: Sequence[RunRow], *, with_summaries: bool) -> None:
        plans = Plans(store)
        self.store_id = store.store_id()
        self.since = {row.run_no: row.last_seq for row in rows}
        self.code: dict[int, Places] = {
            row.run_no: recorded_code(store, row) for row in rows if row.status not in RUN_TERMINAL
        }
        self.summaries = {row.run_no: summary_of(store, plans, row) for row in rows} if with_summaries else {}


class _Resuming:
    """Begins the chosen runs; without a request, no wait of theirs is ended."""

    def __init__(
        self, rows: Sequence[RunRow], summaries: dict[int, Summary], request: _Request | None, quiet: bool
    ) -> None:
        self.rows = rows
        self.summaries = summaries
        self.request = request
        self.quiet = quiet

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        if self.request is None:
            runs = await operator.claim_all(engine, self.rows)
        else:
            runs = [await self._resume(engine, row, self.request) for row in self.rows]
        if not self.quiet and len(runs) <= SHOWN_MAX:
            for row, run in zip(self.rows, runs, strict=True):
                output.note(driven_elsewhere(engine, run) or explain(row, self.summaries[row.run_no]))
        elif not self.quiet:
            output.note(explain_all([self.summaries[row.run_no] for row in self.rows]))
        return runs

    async def _resume(self, engine: Engine, row: RunRow, request: _Request) -> Run[Any]:
        waits = {wait.wait_id: wait for wait in waits_of(engine.store, row)}
        run, ended = await operator.resume(engine, row.run_id, accept_change=request.accept_change, **request.options())
        for wait_id in ended if not self.quiet else ():
            output.note(output.line(f"run {row.run_id}: {wording.ended_wait(waits.get(wait_id), wait_id)}"))
        return run


async def _rehearse(url: str, rows: Sequence[RunRow], json: bool) -> int:
    """Show which recorded calls a changed body would reuse; nothing is written."""
    async with open_engine(url, recover=False) as engine:
        found = {row.run_id: await operator.rehearse(engine, row) for row in rows}
    if json:
        output.document(
            [{"run_id": run_id, **msgspec.to_builtins(one)} for run_id, ones in found.items() for one in ones]
        )
        return output.OK
    output.write("nothing was changed; up to its first call that is not recorded, the code")
    for run_id, ones in found.items():
        for one in ones:
            output.write(f"of {output.line(one.node)} in run {output.line(run_id)}")
            output.write(f"  reuses      {wording.listed(one.reused, none='nothing')}")
            output.write(f"  calls anew  {wording.listed(one.new, none='nothing')}")
            output.write(
                f"  sets aside  {wording.listed(one.set_aside, none='nothing')}, unless a later call matches it"
            )
    return output.OK


def _variables(store: Store, row: RunRow, assignments: Sequence[str]) -> dict[str, Any]:
    """`vars.limit=3`: JSON if it is, else text; text where the variable is declared as text."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        if not assignment.startswith("vars."):
            raise UsageError(f"--set {assignment!r}: resume sets variables, vars.NAME=VALUE; for edits use fork")
        inputs.put(found, assignment.removeprefix("vars."))
    version = store.version(row.workflow, row.version)
    if version is not None:
        declared = definitions.decode(version.definition).variables
        params = [definitions.Param(name=name, schema=schema) for name, schema in declared.items()]
        inputs.keep_text(found, [text.removeprefix("vars.") for text in assignments], params)
    return found


def _only_end(url: str, row: RunRow, request: _Request, json: bool) -> int:
    """End a wait of a run that another engine drives."""
    if (hold := hold_of(row)) is not None:
        raise UsageError(f"run {row.run_id} is on hold ({hold}): resume it where its code is, and without --no-run")
    with databases.reading(url) as store:
        waits = {wait.wait_id: wait for wait in waits_of(store, row)}
    ended = send(url, row.run_id, lambda run: run.resume(**request.options()))
    what = "; ".join(wording.ended_wait(waits.get(wait_id), wait_id) for wait_id in ended)
    show_outcome(url, row.run_id, f"run {row.run_id}: {what or 'nothing waits to be resumed'}", json=json)
    return output.OK


def _all(store: Store, quiet: bool) -> list[RunRow]:
    """Unfinished runs, each with its children, without those that wait for a request from outside."""
    rows = store.runs(status=UNFINISHED, limit=ALL_MAX)
    numbers = {row.run_no for row in rows}
    roots = [row for row in rows if row.parent_no not in numbers]
    claimable = {run_no for run_no, _, _ in store.claimable(store.unowned_versions(), limit=ALL_MAX)}
    waiting = resting(store, roots, store.now()) - claimable  # a claimable run may have a message to apply
    driven = sorted((row for row in roots if row.run_no not in waiting), key=lambda row: row.run_no)
    if not quiet:
        held = [row for row in roots if hold_of(row) is not None]
        for row in held:
            run_id = output.line(row.run_id)
            output.note(
                f"run {run_id} is on hold ({output.line(hold_of(row))}); `holdfast resume {run_id}` releases it"
            )
        if len(waiting) > len(held):
            what = output.count(len(waiting) - len(held), "run waits", "runs wait")
            output.note(f"{what} for a person or another program: `holdfast inbox`, `holdfast list --status suspended`")
        if not driven:
            output.note("nothing to resume: " + ("no other run is unfinished" if waiting else "every run has ended"))
    return driven


# --- what is reused, and what runs again ----------------------------------------------------------------------------


class Summary(msgspec.Struct):
    """What of a run is reused when it is resumed, and what runs again."""

    nodes: int = 0
    steps: int = 0
    again: list[str] = []
    """Cut off while running: another attempt."""
    asked: list[str] = []
    """Cut off while running, and not repeated before a person has answered whether it was done."""
    fails: list[str] = []
    """Cut off while running, and never repeated."""
    onward: list[str] = []
    """Suspended in order: the same attempt continues."""


def summary_of(store: Store, plans: Plans, row: RunRow) -> Summary:
    summary = Summary()
    if row.status in RUN_TERMINAL:
        return summary
    waits = {(wait.node, wait.path) for wait in store.open_waits([row.run_no])}
    for node in store.nodes(row.run_no):
        name = instance_text(node.node, node.path)
        if node.status == NodeStatus.COMPLETED:
            summary.nodes += 1
        elif node.status == NodeStatus.RUNNING and node.scope is None:
            match _on_crash(plans, row, node):
                case "ask":
                    summary.asked = [*summary.asked, name]
                case "fail":
                    summary.fails = [*summary.fails, name]
                case _:
                    summary.again = [*summary.again, f"{name} (attempt {node.attempt + 1})"]
        elif node.status == NodeStatus.SUSPENDED and (node.node, node.path) not in waits:
            summary.onward = [*summary.onward, name]
    summary.steps = len(store.events(row.run_no, types=("StepCompleted",)))
    return summary


def _on_crash(plans: Plans, row: RunRow, node: NodeRow) -> str:
    try:
        found = plans.of_run(row).scope_of(node.path).nodes.get(node.node)
    except HoldfastError:  # its definition is damaged, which the engine that drives the run reports
        found = None
    return "rerun" if found is None else found.definition.on_crash  # a compensation is repeated


def explain(row: RunRow, summary: Summary) -> str:
    """What resuming a run means, in a sentence."""
    if row.status in RUN_TERMINAL:
        return wording.status_text(row, already=True)
    kept = [output.count(summary.nodes, "node")] * bool(summary.nodes)
    kept += [output.count(summary.steps, "step")] * bool(summary.steps)
    parts = [f"{' and '.join(kept)} reused" if kept else "nothing was completed yet"]
    kinds = (
        ("runs again", summary.again),
        ("asks first whether it was done", summary.asked),
        ("fails, as it must not be repeated", summary.fails),
        ("continues", summary.onward),
    )
    parts += [f"{what}: {wording.listed(names, NAMES_MAX)}" for what, names in kinds if names]
    return f"resuming run {output.line(row.run_id)} ({output.line(row.workflow)} v{row.version}): {'; '.join(parts)}"


def explain_all(summaries: Sequence[Summary]) -> str:
    """The same for many runs."""
    nodes, steps = sum(s.nodes for s in summaries), sum(s.steps for s in summaries)
    again, asked, fails = (
        sum(map(len, names)) for names in zip(*((s.again, s.asked, s.fails) for s in summaries), strict=True)
    )
    parts = [f"{output.count(nodes, 'node')} and {output.count(steps, 'step')} reused"]
    parts.append(f"{output.count(again, 'body', 'bodies')} run again")
    parts += [f"{asked:,} only when a person has answered whether they were done"] * bool(asked)
    parts += [f"{fails:,} fail, as they must not be repeated"] * bool(fails)
    return f"resuming {output.count(len(summaries), 'run')}: {'; '.join(parts)}"
