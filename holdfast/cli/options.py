"""Options that several verbs share, said once."""

from __future__ import annotations

from typing import Annotated

import typer

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The database: sqlite:///file.db, a path or postgresql://user@host/database; else HOLDFAST_DATABASE_URL, "
        "holdfast.toml, sqlite:///holdfast.db.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Target = Annotated[
    str, typer.Argument(metavar="FILE.py:NAME", help="The workflow; NAME may be left out if it is the only one.")
]
GivenInput = Annotated[
    str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="Inputs by name, as one JSON object.")
]
InputAssignments = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One input; the value is JSON or text.", show_default=False),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id.", show_default=False)]
RunIdPrefix = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, or the beginning of one.", show_default=False)
]
Branch = Annotated[
    int | None, typer.Option("--branch", help="As this branch tells it, perhaps an old one; else the current one.")
]
LeaseSeconds = Annotated[
    float | None,
    typer.Option("--lease-seconds", help="How long this engine may be silent before another takes over (10)."),
]
GraceSeconds = Annotated[
    float | None,
    typer.Option("--grace-seconds", help="How long bodies may go on after Ctrl-C before they are left (10)."),
]
