"""`holdfast fork`: a run, or a new one, goes on from elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import branching, settings
from holdfast.cli.branching import Assignments, Code, DryRun, GivenEdits, Keys, NoRun, Wish
from holdfast.cli.options import Db, GraceSeconds, Json, LeaseSeconds, Quiet, RunId


def command(
    run: RunId,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="SEQ|NODE|start",
            help="Behind an event, before a node, or the very start; else the end.",
            show_default=False,
        ),
    ] = None,
    branch: Annotated[int | None, typer.Option("--branch", help="Which line of history; else the current one.")] = None,
    assignments: Assignments = None,
    edits: GivenEdits = None,
    as_run: Annotated[
        str | None, typer.Option("--as-run", metavar="ID", help="Let a new run go on; this one is left alone.")
    ] = None,
    keys: Keys = "renew",
    dry_run: DryRun = False,
    no_run: NoRun = False,
    code: Code = None,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
    lease_seconds: LeaseSeconds = None,
    grace_seconds: GraceSeconds = None,
) -> int:
    """Go on from elsewhere, with edits if you like; what is kept never runs again.

    At a node: it and everything downstream of it run again. At a sequence number: the run is as it was behind that
    event. The old line of history stays readable: `holdfast branches`, `holdfast show --branch`.

    \b
    Examples:
      holdfast fork order-42 --at charge --set input.order.amount=10
      holdfast fork order-42 --at 17 --as-run order-42b
      holdfast fork order-42 --at 'pick@.pick.3.' --dry-run

    \b
    Exit codes: 0 completed, 1 failed or refused, 2 wrong usage (nothing was changed),
    3 suspended, 4 cancelled, 130 interrupted.
    """
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    wish = Wish("fork", run, branching.place(at), branch, edits, assignments or (), keys, as_run)
    return branching.carry_out(wish, dry_run=dry_run, no_run=no_run, code=code, quiet=quiet, db=db, json=json)
