"""The command line's front door: which verb is where, and what every error looks like.

Owns: the table of verbs, and turning whatever is raised into one line, an exit code, and JSON when that was asked for.
Never: imports a verb, or anything of the engine, before it is asked for: `holdfast --help` must be quick.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli import output

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("holdfast.cli.commands.run", "Run a workflow and watch it."),
    "start": ("holdfast.cli.commands.start", "Write a run down for a worker to drive."),
    "worker": ("holdfast.cli.commands.worker", "Drive runs of all workflows of some files, until stopped."),
    "engines": ("holdfast.cli.commands.engines", "List who drives runs, and what each can run."),
    "resume": ("holdfast.cli.commands.resume", "Go on with runs that were interrupted."),
    "list": ("holdfast.cli.commands.list", "List runs, newest first."),
    "show": ("holdfast.cli.commands.show", "Show one run: its state, or why it failed."),
    "events": ("holdfast.cli.commands.events", "Print the journal of a run."),
    "inbox": ("holdfast.cli.commands.inbox", "List what people are asked."),
    "respond": ("holdfast.cli.commands.respond", "Answer a question."),
    "reassign": ("holdfast.cli.commands.reassign", "Hand a question to somebody else."),
    "baskets": ("holdfast.cli.commands.inbox", "List the baskets in which something lies."),
    "basket": ("holdfast.cli.commands.inbox", "List what lies in one basket."),
    "move": ("holdfast.cli.commands.reassign", "Move what lies in a basket into another."),
    "signal": ("holdfast.cli.commands.signal", "Send a signal to a run."),
    "pause": ("holdfast.cli.commands.pause", "Stop a run between its nodes."),
    "cancel": ("holdfast.cli.commands.cancel", "Ask a run to stop."),
    "retry": ("holdfast.cli.commands.retry", "Let what failed try again."),
    "jump": ("holdfast.cli.commands.jump", "Go on at a node, back or forward."),
    "fork": ("holdfast.cli.commands.fork", "Go on from elsewhere, with edits."),
    "branches": ("holdfast.cli.commands.branches", "Draw the lines of history of a run."),
    "diff": ("holdfast.cli.commands.diff", "Show what differs between two branches."),
    "recover": ("holdfast.cli.commands.recover", "Repair a run whose rows and journal do not agree."),
    "why": ("holdfast.cli.commands.why", "Say what a run waits for and what will wake it."),
    "doctor": ("holdfast.cli.commands.doctor", "Check a database, and repair it."),
    "db": ("holdfast.cli.commands.db", "Back up, restore, activate or copy a whole database."),
    "trust": ("holdfast.cli.commands.trust", "Say which files a database may have imported."),
    "graph": ("holdfast.cli.commands.graph", "Draw a workflow, or a run with its statuses."),
    "validate": ("holdfast.cli.commands.validate", "Check definitions and name every problem."),
    "crashtest": ("holdfast.cli.commands.crashtest", "Run a workflow under every crash."),
    "bench": ("holdfast.cli.commands.bench", "Measure this machine."),
    "version": ("holdfast.cli.commands.version", "Print the version."),
}
"""Verb to its module and its line in `holdfast --help`. The module has `app`, `command`, or a function named like the
verb."""

HELP = """Durable workflows: a run survives the crash of its process and goes on where it was.

\b
Examples:
  holdfast run shop.py:fulfil --input '{"order": {"id": "42"}}'
  holdfast resume --all
  holdfast list --status failed

\b
Exit codes: 0 done or completed, 1 failed, 2 wrong usage, 3 the run is suspended,
4 the run was cancelled, 130 interrupted (the run can be resumed).

\b
The database: --db, else HOLDFAST_DATABASE_URL, else database_url in holdfast.toml,
else sqlite:///holdfast.db."""

_UsageProblem: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises; typer does not publish its name."""


class LazyGroup(TyperGroup):
    """Verbs by name; a verb's module is imported when the verb is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # only the names, for "did you mean"

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def load(verb: str) -> Any:
    """The command of a verb, ready to parse its arguments."""
    module = importlib.import_module(COMMANDS[verb][0])
    app = getattr(module, "app", None)
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        function = getattr(module, "command", None) or getattr(module, verb)
        app.command(verb, context_settings=CONTEXT)(function)
    return typer.main.get_command(app)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(
    name="holdfast",
    cls=LazyGroup,
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", envvar="HOLDFAST_DEBUG")] = False,
) -> None:
    output.debug = output.debug or debug


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    return run_app(app, list(sys.argv[1:] if argv is None else argv) or ["--help"], "holdfast")


def run_app(app: typer.Typer, args: list[str], name: str) -> int:
    """Run a command line of ours: every error becomes one line and an exit code."""
    output.json_wanted = "--json" in args or "-ojson" in args or ("-o", "json") in itertools.pairwise(args)
    output.debug = bool(os.environ.get("HOLDFAST_DEBUG"))
    code: int
    try:
        code = typer.main.get_command(app).main(args, prog_name=name, standalone_mode=False) or 0
        output.flush()
    except KeyboardInterrupt:
        code = output.INTERRUPTED
    except _UsageProblem as error:
        code = output.complain("usage", _usage_message(error), output.USAGE)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else output.FAILED
    except Exception as error:  # noqa: BLE001 - the last line of defence: whatever it is, it becomes one line
        code = _explain(error)
    with contextlib.suppress(output.PipeClosed):
        output.flush()
    return code


def _usage_message(error: Any) -> str:
    path = error.ctx.command_path if error.ctx is not None else "holdfast"
    text = str(error.format_message()).rstrip(".")
    return f"{text}{'' if text.endswith('?') else '.'} Try `{path} --help`."


def _explain(error: Exception) -> int:
    from holdfast.model.errors import CorruptJournal, HoldfastError

    if isinstance(error, HoldfastError):
        if output.debug:
            traceback.print_exception(error)
        way_out = "; `holdfast doctor --deep` says what is damaged" if isinstance(error, CorruptJournal) else ""
        return output.complain(error.code, error.message + way_out, exit_code(error))
    if output.debug:
        traceback.print_exception(error)
    kind = type(error).__name__
    return output.complain(
        "internal_error",
        f"an unexpected error, which is a bug: {kind}: {error}. Please report it with the output of the same command "
        "under HOLDFAST_DEBUG=1",
        output.FAILED,
    )


def exit_code(error: Exception) -> int:
    """What kind of trouble an error is: the caller's mistake, a run that failed, or one that waits."""
    from holdfast.model import errors

    match error:
        case errors.RunSuspended():
            return output.SUSPENDED
        case errors.RunCancelled():
            return output.CANCELLED
        case errors.ServerReadOnly() | errors.FilesystemReadOnly():  # it may pass: a supervisor restarts the worker
            return output.FAILED
        case (
            errors.UsageError()
            | errors.InvalidInput()
            | errors.NotSerialisable()
            | errors.ValueTooLarge()
            | errors.DefinitionError()
            | errors.UnknownRun()
            | errors.RunExists()
            | errors.MissingCode()
            | errors.NotOurStore()
            | errors.NewerStore()
            | errors.UnfinishedCopy()
            | errors.UnsafeFilesystem()
            | errors.StoreMissing()
            | errors.StoreReadOnly()
        ):
            return output.USAGE
    return output.FAILED
