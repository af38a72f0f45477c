"""`holdfast db`: what is done with a database as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.commands import backup
from holdfast.cli.main import CONTEXT
from holdfast.cli.options import Json, Quiet
from holdfast.cli.status_line import StatusLine
from holdfast.model.violations import Report
from holdfast.store.copying import Copied, copy
from holdfast.store.urls import shown

app = typer.Typer(
    name="db", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
)

From = Annotated[str, typer.Argument(metavar="FROM", help="The database that is copied.", show_default=False)]
To = Annotated[
    str, typer.Argument(metavar="TO", help="An empty one, or one that is not there yet.", show_default=False)
]


@app.callback()
def _group() -> None:
    """What is done with a database as a whole.

    \b
    Examples:
      holdfast db backup
      holdfast db restore holdfast-20261118T040000Z.db
      holdfast db activate
      holdfast db copy holdfast.db postgresql://shop@db.example.com/shop
    """


app.command("backup", context_settings=CONTEXT)(backup.backup_command)
app.command("restore", context_settings=CONTEXT)(backup.restore_command)
app.command("activate", context_settings=CONTEXT)(backup.activate_command)


@app.command("copy", context_settings=CONTEXT)
def copy_command(
    source: From,
    target: To,
    again: Annotated[
        bool, typer.Option("--again", help="Empty TO first, if a copy into it did not come to its end.")
    ] = False,
    new_identity: Annotated[
        bool,
        typer.Option("--new-identity", help="Make TO another store: its unfinished runs are put on hold."),
    ] = False,
    deep: backup.Deep = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Copy everything into another database: SQLite to PostgreSQL, back, or to the same kind.

    Runs, journals, questions, timers, messages and definitions, with their numbers. FROM stays as it is; nobody can
    write to it meanwhile, and no engine may work on it. Then TO is read again and compared, and checked as `holdfast
    doctor` does. A copy that was interrupted cannot be opened; --again begins anew. Runs go on in TO as after a crash:
    stop using FROM, or both will go on with them. TO has the same store id, and so the same idempotency keys; for one
    that is to live beside FROM (a test system) use --new-identity.

    \b
    Examples:
      holdfast db copy holdfast.db postgresql://shop@db.example.com/shop
      holdfast db copy "$HOLDFAST_DATABASE_URL" sqlite:///backup.db --deep

    \b
    Exit codes: 0 everything was copied, 1 it was not, or something is wrong with it (as it is in FROM), 2 wrong usage.
    """
    line = StatusLine(silent=quiet or json)
    begun = False

    def tell(what: str, table: str, done: int, total: int) -> None:
        nonlocal begun
        begun = True
        line.show(f"{what} {table}: {done:,} of {total:,} rows")

    try:
        copied = copy(source, target, is_dead=backup.is_dead, again=again, new_identity=new_identity, progress=tell)
    except BaseException:
        line.clear()
        if begun:
            output.note(
                f"holdfast: {output.line(shown(target))} is not whole, and cannot be opened; begin anew with --again"
            )
        raise
    report = backup.look_at(target, line, deep=deep)
    if json:
        output.document(_as_json(source, target, copied, report))
    else:
        _tell(target, copied, report)
    return output.FAILED if report.violations else output.OK


def _as_json(source: str, target: str, copied: list[Copied], report: Report) -> dict[str, object]:
    return {
        "from": shown(source),
        "to": shown(target),
        "tables": {one.table: {"rows": one.rows, "digest": one.digest} for one in copied},
        "violations": report.as_json()["violations"],
    }


def _tell(target: str, copied: list[Copied], report: Report) -> None:
    where = output.line(shown(target))
    for text in output.table(("TABLE", "ROWS", "DIGEST"), [(c.table, f"{c.rows:,}", c.digest) for c in copied]):
        output.write(text)
    output.write(f"copied into {where}, read again, and found equal")
    backup.tell_of_violations(where, report)
