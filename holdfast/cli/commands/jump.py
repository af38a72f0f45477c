"""`holdfast jump`: a run goes on at a node."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import branching, settings
from holdfast.cli.branching import Assignments, Code, DryRun, GivenEdits, Keys, NoRun, Wish
from holdfast.cli.options import Db, GraceSeconds, Json, LeaseSeconds, Quiet, RunId


def command(
    run: RunId,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node, or one instance: node@.path.")],
    assignments: Assignments = None,
    edits: GivenEdits = None,
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
    """Go on at a node, back or forward; also reopens a run that has ended.

    Back: the node and everything downstream of it run again. Forward: what lies between is skipped; the outputs that
    the node needs must be there, or come as edits.

    \b
    Examples:
      holdfast jump order-42 charge
      holdfast jump order-42 ship --set outputs.charge=receipt-by-hand

    \b
    Exit codes: 0 completed, 1 failed or refused, 2 wrong usage (nothing was changed),
    3 suspended, 4 cancelled, 130 interrupted.
    """
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    wish = Wish("jump", run, node, None, edits, assignments or (), keys)
    return branching.carry_out(wish, dry_run=dry_run, no_run=no_run, code=code, quiet=quiet, db=db, json=json)
