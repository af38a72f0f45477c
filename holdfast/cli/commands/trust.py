"""`holdfast trust`: which files a database may have imported when one of its runs is resumed."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json
from holdfast.model.errors import UsageError
from holdfast.worker import trust


def command(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE.py]", help="The file to allow; else those that are allowed.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Do not allow it any more.")] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Allow a database to have a file imported, or list the files that are allowed.

    A run records where its code is, and `resume`, `retry`, `jump`, `fork` and `recover` import it from there. They do
    so only for files that you have allowed for this very database: a database that somebody sent you must not choose
    what runs on your machine. `run`, `start`, `worker` and `hf.run` allow the files that you run with them. The list is
    yours, in $XDG_STATE_HOME/holdfast (~/.local/state/holdfast).

    \b
    Examples:
      holdfast trust service.py --db postgresql://app@db.example/app
      holdfast trust service.py --remove
      holdfast trust
    """
    with databases.reading(db) as store:
        store_id = store.store_id()
    if file is None:
        if remove:
            raise UsageError("name the file that is not to be allowed any more: holdfast trust FILE.py --remove")
        _list(store_id, json=json)
        return
    path = os.path.realpath(file)
    if remove:
        if not trust.forget(store_id, path):
            raise UsageError(f"{path} is not allowed for this database; `holdfast trust` lists what is")
    else:
        if not os.path.isfile(path):
            raise UsageError(f"there is no file {path}")
        if not trust.remember(store_id, [path]):
            raise UsageError("there is no state directory to remember it in: set XDG_STATE_HOME, or use --code FILE.py")
    if json:
        output.document({"store_id": store_id, "file": path, "allowed": not remove})
    else:
        output.note(f"{output.line(path)} is {'not allowed any more' if remove else 'allowed'} for this database")


def _list(store_id: str, *, json: bool) -> None:
    files = trust.files_of(store_id)
    if json:
        output.document({"store_id": store_id, "files": files})
    elif files:
        for path in files:
            output.write(output.line(path))
    else:
        output.note("no file is allowed for this database")
