"""`holdfast retry`: what failed tries again."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import branching, settings
from holdfast.cli.branching import Assignments, Code, DryRun, GivenEdits, NoRun, Wish
from holdfast.cli.options import Db, GraceSeconds, Json, LeaseSeconds, Quiet, RunId


def command(
    run: RunId,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="A failed node, or one instance: node@.path.; else all."),
    ] = None,
    assignments: Assignments = None,
    edits: GivenEdits = None,
    dry_run: DryRun = False,
    no_run: NoRun = False,
    code: Code = None,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
    lease_seconds: LeaseSeconds = None,
    grace_seconds: GraceSeconds = None,
) -> int:
    """Let what failed, and what was cancelled because of it, try again.

    Nothing that completed runs again; bodies keep what they remember and their idempotency keys, and their retry policy
    counts from 0. A run that was cancelled goes on where it was. Of a run whose compensations have run, those of them
    that failed try again, and the run ends as it did.

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
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    wish = Wish("retry", run, node, None, edits, assignments or ())
    return branching.carry_out(wish, dry_run=dry_run, no_run=no_run, code=code, quiet=quiet, db=db, json=json)
