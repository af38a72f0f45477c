"""Options that several verbs share, each defined once.

Owns: the options, and groups of them: a command has a group as one parameter, which `with_groups` expands.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from holdfast.cli import configuration
from holdfast.inspect.vocabulary import SOURCES
from holdfast.model.errors import UsageError

unset_option = functools.partial(typer.Option, show_default=False)
"""An option whose help says what happens without it, or that may be repeated."""

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
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most this many.")]
Target = Annotated[
    str,
    typer.Argument(metavar="FILE:NAME", help="The workflow, in Python or YAML; omit NAME if the file has only one."),
]
HandlerCode = Annotated[
    list[str] | None,
    typer.Option(
        "--code",
        metavar="FILE.py",
        help="The code of a document's Python handlers (or package.module); may be repeated.",
        show_default=False,
    ),
]
GivenInput = Annotated[
    str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="Inputs by name, as one JSON object.")
]
InputAssignments = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One input; the value is JSON or text.", show_default=False),
]
NewRunId = Annotated[
    str | None, typer.Option("--run-id", help="Your own id. The same id with the same input is the same run.")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.", show_default=False)]
RunIdPrefix = Annotated[
    str, typer.Argument(metavar="RUN", help="The id of a run, or the beginning of one.", show_default=False)
]
WaitId = Annotated[str, typer.Argument(metavar="WAIT", help="The id of a wait.", show_default=False)]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="The run, if two runs have the same wait id.")]
Actor = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who acts, for the journal; else your user name.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; recorded in the journal.")]
LeaseSeconds = Annotated[
    float | None,
    typer.Option("--lease-seconds", help="How long this engine may be silent before another one takes over (10)."),
]
GraceSeconds = Annotated[
    float | None,
    typer.Option("--grace-seconds", help="How long bodies may keep running after Ctrl-C before they are stopped (10)."),
]

SecretsDir = Annotated[
    str | None,
    typer.Option("--secrets-dir", metavar="DIR", help="A directory with one file for each secret, by its name."),
]


@dataclasses.dataclass(frozen=True)
class Driving:
    """Options of verbs that drive runs in this process."""

    quiet: Quiet = False
    db: Db = None
    json: Json = False
    lease_seconds: LeaseSeconds = None
    grace_seconds: GraceSeconds = None
    secrets_dir: SecretsDir = None

    def url(self) -> str:
        """The database; publishes the numbers and the directory of secrets to the engines of this process."""
        configuration.engine_numbers(lease_seconds=self.lease_seconds, grace_seconds=self.grace_seconds)
        configuration.secrets_directory(self.secrets_dir)
        return configuration.database_url(self.db)


@dataclasses.dataclass(frozen=True)
class DrivingRecorded(Driving):
    """The same for runs whose code is imported from where the run recorded it."""

    code: Annotated[
        str | None,
        typer.Option(
            "--code", metavar="FILE.py", help="Where the code is now (or package.module); else where it was recorded."
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class Edits:
    """Options of verbs that open a branch."""

    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="One edit: input.order.amount=10, vars.limit=3, outputs.charge=null, answers.WAIT=true. JSON or text.",
            show_default=False,
        ),
    ] = None
    edits: Annotated[
        str | None,
        typer.Option(
            "--edits", metavar="JSON|@FILE|-", help="Edits as one object: input, vars, outputs, answers, version."
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be reused and what would run again; change nothing.")
    ] = False
    no_run: Annotated[bool, typer.Option("--no-run", help="Open the branch, and let another engine drive it.")] = False


def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Expand each parameter that is a group of options into the options of the group."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    own = {name: p for name, p in inspect.signature(function).parameters.items() if name not in groups}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(annotation=hints[name], kind=keyword) for name, parameter in own.items()]
    for group in groups.values():  # behind the command's own options
        inner = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(f.name, keyword, default=f.default, annotation=inner[f.name])
            for f in dataclasses.fields(group)
        ]

    @functools.wraps(function)
    def expanded(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in dataclasses.fields(group)})
        return function(**values)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect looks for
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def source_of_words(name: str) -> str:
    """The design of engines that `--as` names. Raises UsageError for any other word."""
    if name not in SOURCES:
        listed = ", ".join(f"{key} ({words.about})" for key, words in SOURCES.items())
        raise UsageError(f"--as {name} is not known; use one of {listed}")
    return name
