"""`holdfast db`: what is done with a database as a whole."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from holdfast.cli import databases, output
from holdfast.cli.main import CONTEXT
from holdfast.cli.options import Json, Quiet
from holdfast.cli.status_line import StatusLine
from holdfast.engine.doctor.check import check
from holdfast.engine.doctor.violations import Report
from holdfast.engine.leases import life_of
from holdfast.store.api import EngineRow
from holdfast.store.copying import Copied, copy
from holdfast.store.urls import shown

app = typer.Typer(
    name="db", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
)

AGE_SECONDS = 100 * 365 * 86_400.0
"""How long begun work may be without an owner: nobody had the time to take it over yet, however old it is."""

From = Annotated[str, typer.Argument(metavar="FROM", help="The database that is copied.", show_default=False)]
To = Annotated[
    str, typer.Argument(metavar="TO", help="An empty one, or one that is not there yet.", show_default=False)
]


@app.callback()
def _group() -> None:
    """What is done with a database as a whole.

    \b
    Examples:
      holdfast db copy holdfast.db postgresql://shop@db.example.com/shop
    """


@app.command("copy", context_settings=CONTEXT)
def copy_command(
    source: From,
    target: To,
    again: Annotated[
        bool, typer.Option("--again", help="Empty TO first, if a copy into it did not come to its end.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Then fold every journal and check its hash chain.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Copy everything into another database: SQLite to PostgreSQL, back, or to the same kind.

    Runs, journals, questions, timers, messages and definitions, with their numbers. FROM stays as it is; nobody can
    write to it meanwhile, and no engine may work on it. Then TO is read again and compared, and checked as `holdfast
    doctor` does. A copy that was interrupted cannot be opened; --again begins anew. Runs go on in TO as after a crash:
    stop using FROM, or both will go on with them.

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
        copied = copy(source, target, is_dead=_is_dead, again=again, progress=tell)
    except BaseException:
        line.clear()
        if begun:
            output.note(
                f"holdfast: {output.line(shown(target))} is not whole, and cannot be opened; begin anew with --again"
            )
        raise
    report = _look_at(target, line, deep=deep)
    if json:
        output.document(_as_json(source, target, copied, report))
    else:
        _tell(target, copied, report)
    return output.FAILED if report.violations else output.OK


def _is_dead(engine: EngineRow, now: int) -> bool:
    """Also one that is late is not: its process may wake up, and go on with its runs."""
    return life_of(engine, now) == "dead"


def _look_at(target: str, line: StatusLine, *, deep: bool) -> Report:
    with databases.reading(target) as store:
        report = check(
            store,
            deep=deep,
            orphan_seconds=AGE_SECONDS,
            progress=lambda runs, _: line.show(f"checking: {runs:,} runs"),
        )
    line.clear()
    return report


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
    if report.violations:
        what = output.count(len(report.violations), "violation")
        command = shlex.join(["holdfast", "doctor", "--db", where])
        output.note(f"holdfast: {what} in it, as in what was copied: `{command}` tells more")
