"""`holdfast db backup`, `restore` and `activate`: a database copied while it is in use, and put back."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import databases, output, settings
from holdfast.cli.options import Db, Json, Quiet
from holdfast.cli.status_line import StatusLine
from holdfast.inspect.doctor.check import check
from holdfast.model.violations import Report
from holdfast.store import backups
from holdfast.store.contents import Contents
from holdfast.store.liveness import Locks, life_of
from holdfast.store.row_types import EngineRow
from holdfast.store.urls import database_file, shown

AGE_SECONDS = 100 * 365 * 86_400.0
"""How long begun work may be without an owner: nobody had the time to take it over yet, however old it is."""

Deep = Annotated[bool, typer.Option("--deep", help="Then fold every journal and check its hash chain.")]


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
    """Copy a SQLite database into one file, also while engines use it.

    The copy is consistent, verified, readable by you alone (mode 0600) and stands alone. It gets its name when it is on
    the disk. Engines do not work on a backup: put it back with `holdfast db restore`. A file that is there is not
    replaced; with --force an older backup of the same store is. The backups of a PostgreSQL database are its server's
    (pg_dump).

    \b
    Examples:
      holdfast db backup
      holdfast db backup /backups/shop.db --force --deep

    \b
    Exit codes: 0 made, 1 it was not, or something is wrong with it (as it is in the database), 2 wrong usage.
    """
    url = settings.database_url(db)
    line = StatusLine(silent=quiet or json)
    dest = _default_target(url) if target is None else target.absolute()
    replaces: backups.Replaces = "anything" if replace_any else "backup" if force else "nothing"
    size = backups.backup(url, dest, replaces=replaces, progress=_pages(line, "copying"))
    report = look_at(str(dest), line, deep=deep, allow_network=True)
    if json:
        output.document(
            {"from": shown(url), "to": str(dest), "bytes": size, "violations": report.as_json()["violations"]}
        )
    else:
        output.write(f"made {output.line(str(dest))} ({size:,} bytes), and verified it")
        tell_of_violations(str(dest), report)
    return output.FAILED if report.violations else output.OK


def restore_command(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The file to put back.", show_default=False)],
    db: Db = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Put a backup in the place of a SQLite database.

    The database that is there is kept under another name; nobody may have it open. BACKUP is copied and verified first,
    and is not changed. Leases of engines are not restored. Engines do not work on what was restored until `holdfast db
    activate`: look at it first.

    \b
    Example:
      holdfast db restore /backups/shop.db --db sqlite:///shop.db

    \b
    Exit codes: 0 restored, 1 it was not, 2 wrong usage.
    """
    url = settings.database_url(db)
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
        output.note(f"what was there before is kept as {output.line(str(done.replaced))}")
    command = shlex.join(["holdfast", "db", "activate", "--db", where])
    output.note(f"engines do not work on it yet; look at it, then: {command}")
    return output.OK


def activate_command(
    restored: Annotated[
        bool,
        typer.Option("--restored", help="It was put back by other means (pg_restore, cp): free its leases first."),
    ] = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Let engines work on a database that was restored.

    Do it when no engine works on the original any more: both would go on with the same runs. What happened since the
    backup was made happens again, under the same idempotency keys.

    \b
    Examples:
      holdfast db activate
      holdfast db activate --restored --db postgresql://shop@db.example.com/shop

    \b
    Exit codes: 0 engines may work on it, 1 an error, 2 wrong usage (an engine lives).
    """
    url = settings.database_url(db)
    standing = backups.activate(url, is_dead=is_dead, restored=restored)
    if json:
        output.document({"db": shown(url), "activated": standing is not None})
    elif standing is None:
        output.write(f"{output.line(shown(url))} is active already")
    else:
        output.write(f"{output.line(shown(url))} is active: engines work on it")
    return output.OK


def is_dead(side: Contents, engine: EngineRow, now: int) -> bool:
    """Also one that is late is not: its process may wake up, and go on with its runs."""
    locks = Locks(database_file(side.shown), side.meta().store_id)
    return life_of(engine, now, locks) == "dead"


def look_at(target: str, line: StatusLine, *, deep: bool, allow_network: bool = False) -> Report:
    """What the doctor says of a database that was just made, and that nobody else uses yet."""
    with databases.reading(target, allow_network=allow_network) as store:
        report = check(
            store,
            deep=deep,
            orphan_seconds=AGE_SECONDS,
            progress=lambda runs, _: line.show(f"checking: {runs:,} runs"),
        )
    line.clear()
    return report


def tell_of_violations(where: str, report: Report) -> None:
    """How much is wrong with a database that was just made, as it is in what it was made from."""
    if report.violations:
        what = output.count(len(report.violations), "violation")
        command = shlex.join(["holdfast", "doctor", "--db", where])
        output.note(f"holdfast: {what} in it, as in what was copied: `{command}` tells more")


def _pages(line: StatusLine, what: str) -> backups.Progress:
    return lambda done, total: line.show(f"{what}: {done:,} of {total:,} pages")


def _default_target(url: str) -> Path:
    """`shop-20261118T040000Z.db` beside `shop.db`."""
    path = database_file(url)
    name = Path("holdfast.db") if path is None else path  # what cannot be backed up is refused later, with the reason
    return name.with_name(f"{name.stem}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}{name.suffix}")
