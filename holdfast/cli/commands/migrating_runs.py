"""`holdfast migrate`: move runs to another version; and the plan of it in words, which `deploy` prints as well."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import configuration, databases, output, wording
from holdfast.cli.commands.requesting import actor_name
from holdfast.cli.options import Actor, Db, Json
from holdfast.engine.engine import Engine
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.opening import open_engine

Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="The ids of runs.", show_default=False)]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="INSTANCE",
        help="An instance that has started and that the version does not keep (may be repeated).",
        show_default=False,
    ),
]


def migrate(
    runs: Runs = None,
    to: Annotated[int, typer.Option("--to", metavar="VERSION", help="The version to move them to.")] = 0,
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="With --from-version: all unfinished runs.")
    ] = None,
    from_version: Annotated[
        int | None, typer.Option("--from-version", metavar="VERSION", help="The version that they have.")
    ] = None,
    drop: Drop = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is kept, runs again or is lost; change nothing.")
    ] = False,
    actor: Actor = None,
    db: Db = None,
    json: Json = False,
) -> int:
    """Move runs to another version of their workflow. An engine that has its code continues them.

    A node is kept when the version has it, with the same handler, and everything upstream of it is kept: it does not
    run again, and its open questions, timers, signals and children stay as they are. A body that is running is cut off
    and repeated with its idempotency keys. What has started and is not kept refuses the migration, unless it is dropped
    by name. Each run is moved by itself; the same command again moves those that are left.

    \b
    Examples:
      holdfast migrate order-42 --to 4 --dry-run
      holdfast migrate order-42 --to 4 --drop pack
      holdfast migrate --workflow fulfil --from-version 3 --to 4

    \b
    Exit codes: 0 all were moved (or could be), 1 some cannot be moved, 2 wrong usage.
    """
    if to < 1:
        raise UsageError("say which version to move to: --to VERSION")
    if bool(runs) == bool(workflow) or (workflow is None) != (from_version is None):
        raise UsageError("name runs, or --workflow NAME with --from-version VERSION")
    who = actor_name(actor)
    with databases.reading(db) as store:  # an unknown run is reported before any run is moved
        named = [databases.find(store, run).run_id for run in runs or ()]

    async def ask(engine: Engine) -> list[dict[str, Any]]:
        if workflow is not None and from_version is not None:
            return await engine.migrate(
                workflow, from_version=from_version, to=to, drop=drop or (), dry_run=dry_run, actor=who
            )
        return [await _one(engine, run, to, drop or [], who, dry_run=dry_run) for run in named]

    done = asyncio.run(_asked(db, ask))
    if json:
        output.document(done)
    else:
        print_plans(done)
    return output.OK if all(is_fine(one) for one in done) else output.FAILED


async def _asked(db: str | None, ask: Any) -> list[dict[str, Any]]:
    async with open_engine(configuration.database_url(db), drive=False) as engine:
        found: list[dict[str, Any]] = await ask(engine)
        return found


async def _one(engine: Engine, run: str, to: int, drop: list[str], who: str, *, dry_run: bool) -> dict[str, Any]:
    if dry_run:
        return await engine.plan_migration(run, to, drop=drop)
    try:
        done = await engine.migrating.migrate(run, to, drop, who, drive=False)
    except HoldfastError as error:
        if error.code != "refused":
            raise
        plan = await engine.plan_migration(run, to, drop=drop)
        outcome = "impossible" if plan["outcome"] == "possible" else plan["outcome"]
        return {**plan, "outcome": outcome, "why": error.message}
    found: dict[str, Any] = msgspec.to_builtins(done)
    return found


def is_fine(one: dict[str, Any]) -> bool:
    return one["outcome"] in ("possible", "migrated", "unchanged")


def print_plans(done: list[dict[str, Any]]) -> None:
    """One line for each run, and how many there are of each outcome if there are several."""
    for one in done:
        output.write(f"run {output.line(one['run_id'])}: {_plan_text(one)}")
    if not done:
        output.note("no unfinished run has that version")
    elif len(done) > 1:
        outcomes = [one["outcome"] for one in done]
        output.note(", ".join(f"{outcomes.count(word):,} {word}" for word in dict.fromkeys(outcomes)))


def _plan_text(one: dict[str, Any]) -> str:
    versions = f"version {one['from_version']} to {one['to_version']}"
    match one["outcome"]:
        case "migrated":
            return f"moved from {versions}, on branch {one['branch']}"
        case "unchanged":
            return f"follows version {one['to_version']} already"
        case "possible":
            again = one.get("runs_again")
            more = f"; runs again: {wording.listed(again)}" if again else ""
            return f"{versions} is possible; kept: {wording.listed(one.get('kept', []), none='nothing')}{more}"
        case "lost":
            lost = one.get("lost") or []
            what = f"not kept although started: {wording.listed(lost)} (--drop NAME drops it)" if lost else one["why"]
            return f"stays at version {one['from_version']}; {what}"
    return f"stays at version {one['from_version']}; {output.line(one['why'])}"
