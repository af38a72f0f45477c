"""The entry point of the command line: the table of verbs, and the form of every error.

Owns: where each verb is implemented, and turning every exception into one line, an exit code, and JSON if asked for.
Never: imports a verb, or anything of the engine, before it is used: `holdfast --help` must be quick.
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

COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("starting_runs", "run", "Run a workflow and watch it."),
    "start": ("starting_runs", "start", "Store a run for a worker to drive."),
    "worker": ("working", "worker", "Drive the runs of all workflows of some files, until stopped."),
    "engines": ("listing", "engines", "List the engines, and what each can run."),
    "resume": ("resuming_runs", "resume", "Continue interrupted, paused or held runs."),
    "list": ("listing", "list_runs", "List runs, newest first."),
    "show": ("showing", "show", "Show one run: its state, or why it failed."),
    "vars": ("showing", "variables", "Print the variables of a run."),
    "events": ("listing", "events", "Print the journal of a run."),
    "inbox": ("answering", "inbox", "List open questions and the contents of baskets."),
    "respond": ("answering", "respond", "Answer a question."),
    "reassign": ("answering", "reassign", "Reassign a question to another person or basket."),
    "baskets": ("answering", "baskets", "List the baskets that are not empty."),
    "basket": ("answering", "basket", "List the contents of one basket."),
    "move": ("answering", "move", "Move a question or a node into another basket."),
    "signal": ("requesting", "signal", "Send a signal to a run."),
    "pause": ("requesting", "pause", "Stop a run between its nodes."),
    "cancel": ("requesting", "cancel", "Cancel runs."),
    "retry": ("branch_verbs", "retry", "Try failed nodes again."),
    "jump": ("branch_verbs", "jump", "Continue a run at a node, back or forward."),
    "reopen": ("branch_verbs", "reopen", "Let a completed run continue at a ticket."),
    "fork": ("branch_verbs", "fork", "Continue a run from an earlier point, with edits."),
    "branches": ("histories", "branches", "Draw the branches of a run."),
    "diff": ("histories", "diff", "Show what differs between two branches, or two versions."),
    "recover": ("branch_verbs", "recover", "Repair a run whose rows and journal disagree."),
    "deploy": ("deploying", "deploy", "Make workflows available by name, as versions."),
    "workflows": ("deploying", "workflows", "List workflows, their versions and aliases."),
    "versions": ("deploying", "versions", "List the versions of a workflow."),
    "alias": ("deploying", "alias", "Say which version a start by name gets."),
    "rollback": ("deploying", "rollback", "Take back the last move of an alias."),
    "migrate": ("migrating_runs", "migrate", "Move runs to another version."),
    "retire": ("deploying", "retire", "Let nothing of a version start any more."),
    "why": ("listing", "why", "Explain what a run waits for and what will wake it."),
    "doctor": ("checking", "doctor", "Check a database, and repair it."),
    "db": ("database_verbs", "app", "Back up, restore, activate or copy a whole database."),
    "trust": ("checking", "trust", "Allow the runs of a database to import a file."),
    "graph": ("graphs", "graph", "Draw a workflow, or a run with its statuses."),
    "export": ("exporting", "export", "Write a workflow as a document."),
    "validate": ("validating", "validate", "Check workflows and list every problem."),
    "schema": ("validating", "schema", "Print the JSON Schema of documents."),
    "crashtest": ("crashtest", "crashtest", "Run a workflow under every crash."),
    "bench": ("bench", "bench", "Measure this machine."),
    "version": ("checking", "version", "Print the version."),
}
"""Verb to its module in `commands`, the function (or the group of verbs) in it, and its line in `holdfast --help`."""

HELP = """Durable workflows: if the process dies, a run continues from its last finished step.

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
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


def load(verb: str) -> Any:
    """Import the command of a verb."""
    place, name, _ = COMMANDS[verb]
    found = getattr(importlib.import_module(f"holdfast.cli.commands.{place}"), name)
    if not isinstance(found, typer.Typer):
        function = found
        found = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        found.command(verb, context_settings=CONTEXT)(function)
    return typer.main.get_command(found)


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
    except Exception as error:  # noqa: BLE001 - every error becomes one line
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
        way_out = "; `holdfast doctor --deep` lists what is damaged" if isinstance(error, CorruptJournal) else ""
        return output.complain(error.code, error.message + way_out, exit_code(error))
    if output.debug:
        traceback.print_exception(error)
    kind = type(error).__name__
    return output.complain(
        "internal_error",
        f"unexpected error, which is a bug: {kind}: {error}. Please report it with the output of the same command "
        "under HOLDFAST_DEBUG=1",
        output.FAILED,
    )


def exit_code(error: Exception) -> int:
    """The exit code of an error: wrong usage, a run that failed, or one that waits."""
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
            | errors.UnknownVersion()
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
