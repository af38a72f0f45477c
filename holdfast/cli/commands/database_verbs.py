"""`holdfast db`: back up, restore, activate or copy a whole database, also while it is in use."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import configuration, databases, output
from holdfast.cli.main import CONTEXT
from holdfast.cli.options import Db, Json, Quiet
from holdfast.cli.output import StatusLine
from holdfast.inspect.doctor.check import check
from holdfast.model.violations import Report
from holdfast.store import backups
from holdfast.store.contents import Contents
from holdfast.store.copying import Copied, copy
from holdfast.store.liveness import Locks, life_of
from holdfast.store.row_types import EngineRow
from holdfast.store.urls import database_file, shown

app = typer.Typer(
    name="db", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
)

AGE_SECONDS = 100 * 365 * 86_400.0
"""How long begun work may be without an owner: in a copy no engine could claim it yet, however old it is."""

Deep = Annotated[bool, typer.Option("--deep", help="Then fold every journal and check its hash chain.")]
From = Annotated[str, typer.Argument(metavar="FROM", help="The database that is copied.", show_default=False)]
To = Annotated[
    str, typer.Argument(metavar="TO", help="An empty database, or one that does not exist yet.", show_default=False)
]


@app.callback()
def _group() -> None:
    """Back up, restore, activate or copy a whole database.

    \b
    Examples:
      holdfast db backup
      holdfast db restore holdfast-20261118T040000Z.db
      holdfast db activate
      holdfast db copy holdfast.db postgresql://shop@db.example.com/shop
    """


@app.command("backup", context_settings=CONTEXT)
def backup_command(
    target: Annotated[
        Path | None,
        typer.Argument(metavar="[DEST]", help="The file to make; else one beside the database.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DEST if it is a backup of this database.")] = False,
    replace_any: Annotated[bool, typer.Option("--replace-any", help="Replace DEST whatever it is.")] = False,
    deep: Deep = False,
    db: Db = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Copy a SQLite database into one file, even while engines use it.

    The copy is consistent, verified, readable by you alone (mode 0600) and complete. It gets its name when it is on
    the disk. Engines do not use a backup: put it back with `holdfast db restore`. An existing file is not replaced;
    with --force an older backup of the same store is. The backups of a PostgreSQL database are its server's
    (pg_dump).

    \b
    Examples:
      holdfast db backup
      holdfast db backup /backups/shop.db --force --deep

    \b
    Exit codes: 0 made, 1 it was not, or something is wrong with it (as it is in the database), 2 wrong usage.
    """
    url = configuration.database_url(db)
    line = StatusLine(silent=quiet or json)
    dest = _default_target(url) if target is None else target.absolute()
    replaces: backups.Replaces = "anything" if replace_any else "backup" if force else "nothing"
    size = backups.backup(url, dest, replaces=replaces, progress=_pages(line, "copying"))
    report = _checked(str(dest), line, deep=deep, allow_network=True)
    if json:
        output.document(
            {"from": shown(url), "to": str(dest), "bytes": size, "violations": report.as_json()["violations"]}
        )
    else:
        output.write(f"made {output.line(str(dest))} ({size:,} bytes), and verified it")
        _print_violations(str(dest), report)
    return output.FAILED if report.violations else output.OK


@app.command("restore", context_settings=CONTEXT)
def restore_command(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The file to put back.", show_default=False)],
    db: Db = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Put a backup in the place of a SQLite database.

    The present database is kept under another name; no process may have it open. BACKUP is copied and verified first,
    and is not changed. Leases of engines are not restored. Engines do not use the restored database before `holdfast db
    activate`: check it first.

    \b
    Example:
      holdfast db restore /backups/shop.db --db sqlite:///shop.db

    \b
    Exit codes: 0 restored, 1 it was not, 2 wrong usage.
    """
    url = configuration.database_url(db)
    line = StatusLine(silent=quiet or json)
    done = backups.restore(url, source, is_dead=is_dead, progress=_pages(line, "restoring"))
    line.clear()
    if json:
        replaced = None if done.replaced is None else str(done.replaced)
        output.document({"from": str(source), "to": shown(url), "epoch": done.epoch, "replaced": replaced})
        return output.OK
    where = output.line(shown(url))
    output.write(f"restored {where} from {output.line(str(source))}")
    if done.replaced is not None:
        output.note(f"the previous database is kept as {output.line(str(done.replaced))}")
    command = shlex.join(["holdfast", "db", "activate", "--db", where])
    output.note(f"engines do not use it yet; check it, then: {command}")
    return output.OK


@app.command("activate", context_settings=CONTEXT)
def activate_command(
    restored: Annotated[
        bool,
        typer.Option("--restored", help="It was put back by other means (pg_restore, cp): free its leases first."),
    ] = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Let engines use a restored database.

    Do it only when no engine uses the original any longer: both would drive the same runs. What happened after the
    backup was made happens again, with the same idempotency keys.

    \b
    Examples:
      holdfast db activate
      holdfast db activate --restored --db postgresql://shop@db.example.com/shop

    \b
    Exit codes: 0 engines may use it, 1 an error, 2 wrong usage (an engine is alive).
    """
    url = configuration.database_url(db)
    standing = backups.activate(url, is_dead=is_dead, restored=restored)
    if json:
        output.document({"db": shown(url), "activated": standing is not None})
    elif standing is None:
        output.write(f"{output.line(shown(url))} is active already")
    else:
        output.write(f"{output.line(shown(url))} is active: engines may use it")
    return output.OK


@app.command("copy", context_settings=CONTEXT)
def copy_command(
    source: From,
    target: To,
    again: Annotated[
        bool, typer.Option("--again", help="Empty TO first, if an earlier copy into it was interrupted.")
    ] = False,
    new_identity: Annotated[
        bool,
        typer.Option("--new-identity", help="Make TO another store: its unfinished runs are put on hold."),
    ] = False,
    deep: Deep = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Copy everything into another database: SQLite to PostgreSQL, back, or to the same kind.

    Runs, journals, questions, timers, messages and definitions, with their numbers. FROM stays as it is; no process
    can write to it meanwhile, and no engine may use it. Then TO is read again, compared, and checked as `holdfast
    doctor` does. An interrupted copy cannot be opened; --again starts over. Runs continue in TO as after a crash: stop
    using FROM, or both will drive them. TO has the same store id, and so the same idempotency keys; for a test system
    beside FROM use --new-identity.

    \b
    Examples:
      holdfast db copy holdfast.db postgresql://shop@db.example.com/shop
      holdfast db copy "$HOLDFAST_DATABASE_URL" sqlite:///backup.db --deep

    \b
    Exit codes: 0 everything was copied, 1 it was not, or it has violations (as FROM has), 2 wrong usage.
    """
    line = StatusLine(silent=quiet or json)
    begun = False

    def show(what: str, table: str, done: int, total: int) -> None:
        nonlocal begun
        begun = True
        line.show(f"{what} {table}: {done:,} of {total:,} rows")

    try:
        copied = copy(source, target, is_dead=is_dead, again=again, new_identity=new_identity, progress=show)
    except BaseException:
        line.clear()
        if begun:
            output.note(
                f"holdfast: {output.line(shown(target))} is incomplete and cannot be opened; start over with --again"
            )
        raise
    report = _checked(target, line, deep=deep)
    if json:
        output.document(_as_json(source, target, copied, report))
    else:
        _print_copied(target, copied, report)
    return output.FAILED if report.violations else output.OK


def _as_json(source: str, target: str, copied: list[Copied], report: Report) -> dict[str, object]:
    return {
        "from": shown(source),
        "to": shown(target),
        "tables": {one.table: {"rows": one.rows, "digest": one.digest} for one in copied},
        "violations": report.as_json()["violations"],
    }


def _print_copied(target: str, copied: list[Copied], report: Report) -> None:
    where = output.line(shown(target))
    for text in output.table(("TABLE", "ROWS", "DIGEST"), [(c.table, f"{c.rows:,}", c.digest) for c in copied]):
        output.write(text)
    output.write(f"copied into {where}, read again, and found equal")
    _print_violations(where, report)


# --- parts of both ---------------------------------------------------------------------------------------------------


def is_dead(side: Contents, engine: EngineRow, now: int) -> bool:
    """A late engine is not dead: its process may wake up and continue its runs."""
    locks = Locks(database_file(side.shown), side.meta().store_id)
    return life_of(engine, now, locks) == "dead"


def _checked(target: str, line: StatusLine, *, deep: bool, allow_network: bool = False) -> Report:
    """The doctor's report on a database that was just made and that no other process uses yet."""
    with databases.reading(target, allow_network=allow_network) as store:
        report = check(
            store,
            deep=deep,
            orphan_seconds=AGE_SECONDS,
            progress=lambda runs, _: line.show(f"checking: {runs:,} runs"),
        )
    line.clear()
    return report


def _print_violations(where: str, report: Report) -> None:
    """Say how many violations a copy has, as its source has them."""
    if report.violations:
        what = output.count(len(report.violations), "violation")
        command = shlex.join(["holdfast", "doctor", "--db", where])
        output.note(f"holdfast: {what} in it, as in its source: `{command}` lists them")


def _pages(line: StatusLine, what: str) -> backups.Progress:
    return lambda done, total: line.show(f"{what}: {done:,} of {total:,} pages")


def _default_target(url: str) -> Path:
    """`shop-20261118T040000Z.db` beside `shop.db`."""
    path = database_file(url)
    name = Path("holdfast.db") if path is None else path  # what cannot be backed up is refused later, with the reason
    return name.with_name(f"{name.stem}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}{name.suffix}")
