"""`holdfast deploy`, `workflows`, `versions`, `retire`, `alias` and `rollback`: which version a start by name gets.

Owns: the verbs; from what was typed to one request of the engine's, and its outcome in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from holdfast.cli import configuration, databases, output
from holdfast.cli.commands.migrating_runs import is_fine, print_plans
from holdfast.cli.commands.requesting import actor_name
from holdfast.cli.main import CONTEXT
from holdfast.cli.options import Actor, Db, Json, Reason
from holdfast.engine.engine import Engine
from holdfast.inspect import version_views
from holdfast.model.errors import UsageError
from holdfast.model.rollouts import STABLE
from holdfast.opening import open_engine
from holdfast.worker import trust
from holdfast.worker.targets import load_places, load_workflows

_T = TypeVar("_T")

WorkflowName = Annotated[str, typer.Argument(metavar="NAME", help="The name of a workflow.", show_default=False)]
Alias = Annotated[str, typer.Argument(metavar="ALIAS", help="The name of the alias.", show_default=False)]
Version = Annotated[int, typer.Argument(metavar="VERSION", help="The number of a version.", show_default=False)]


def _ask(db: str | None, ask: Callable[[Engine], Awaitable[_T]]) -> _T:
    """Ask an engine that drives nothing."""

    async def asking() -> _T:
        async with open_engine(configuration.database_url(db), drive=False) as engine:
            return await ask(engine)

    return asyncio.run(asking())


# --- versions -------------------------------------------------------------------------------------------------------


def deploy(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE[:NAME]...", help="Python files or documents; without NAME all of a file.", show_default=False
        ),
    ],
    code: Annotated[
        list[str] | None,
        typer.Option("--code", metavar="FILE.py", help="Load the functions of nodes from there.", show_default=False),
    ] = None,
    check_running: Annotated[
        bool, typer.Option("--check-running", help="Deploy only if every unfinished run could be moved there.")
    ] = False,
    db: Db = None,
    json: Json = False,
) -> int:
    """Make workflows available by name: each is a version, whose number its content decides.

    The same content has the same number, however often it is deployed; new content gets the next one. Nothing starts,
    and runs keep their version. `holdfast start NAME@latest` starts the highest one, `holdfast alias` says which one
    `holdfast start NAME@stable` means.

    \b
    Examples:
      holdfast deploy shop.py
      holdfast deploy shop.py:fulfil reports.py:monthly --db postgresql://app@db.example/app
      holdfast deploy flows.yaml --code handlers.py --check-running

    \b
    Exit codes: 0 deployed, 1 runs could not be moved (--check-running: nothing was deployed),
    2 wrong usage.
    """
    with output.only_json(json):
        files = load_places(code or ())
        loaded = [one for target in targets for one in load_workflows(target)]
        found = list({id(one.workflow.registered): one.workflow for one in loaded}.values())
        files.update(file for one in loaded for file in one.files)

        async def ask(engine: Engine) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            trust.remember(engine.store_id, files)
            plans = [one for workflow in found if check_running for one in await engine.check_running(workflow)]
            return plans, await engine.deploy(*found) if all(map(is_fine, plans)) else []

        plans, done = _ask(db, ask)
    if check_running and not json:
        print_plans(plans)
    if not done:
        stuck = sum(not is_fine(one) for one in plans)
        runs = output.count(stuck, "unfinished run")
        return output.complain("refused", f"nothing was deployed: {runs} could not be moved to it", output.FAILED)
    if json:
        output.document(done)
        return output.OK
    for one in done:
        about = "new" if one["is_new"] else "active again" if one["was_retired"] else "unchanged"
        output.write(f"{output.line(one['workflow'])} version {one['version']} ({about})")
    return output.OK


def workflows(db: Db = None, json: Json = False) -> None:
    """List workflows: their latest version, aliases, and how many runs are unfinished.

    \b
    Examples:
      holdfast workflows
      holdfast workflows --json | jq '.[].aliases'
    """
    with databases.reading(db) as store:
        found = version_views.workflows_json(store)
    if json:
        output.document(found)
        return
    if not found:
        output.note("no workflows: `holdfast deploy FILE.py` deploys them, and so does starting a run")
        return
    rows = [
        (
            output.line(one["workflow"]),
            str(one["latest"] or "-"),
            str(one["versions"]) + (f" ({one['retired']} retired)" if one["retired"] else ""),
            str(one["unfinished"]),
            ", ".join(f"{name}: {_target_text(target)}" for name, target in one["aliases"].items()),
        )
        for one in found
    ]
    for text in output.table(("WORKFLOW", "LATEST", "VERSIONS", "UNFINISHED", "ALIASES"), rows):
        output.write(text)


def versions(name: WorkflowName, db: Db = None, json: Json = False) -> None:
    """List the versions of a workflow.

    \b
    Examples:
      holdfast versions fulfil
      holdfast diff --workflow fulfil 3 4
    """
    with databases.reading(db) as store:
        found = version_views.versions_json(store, name)
    if json:
        output.document(found)
        return
    rows = [
        (
            str(one["version"]),
            "retired" if one["retired_at"] else "active",
            one["created_at"],
            str(one["unfinished"]),
            str(one["nodes"]),
            ", ".join(one["aliases"]) or "-",
            output.line(one["code"] or "-"),
        )
        for one in found
    ]
    for text in output.table(("VERSION", "STATE", "SINCE", "UNFINISHED", "NODES", "ALIASES", "CODE"), rows):
        output.write(text)


def retire(name: WorkflowName, version: Version, db: Db = None, json: Json = False) -> None:
    """Let nothing of a version start any more; it stays readable.

    Refused while a run of it is unfinished or an alias names it. `holdfast deploy` makes it active again.

    \b
    Examples:
      holdfast retire fulfil 3
    """
    _ask(db, lambda engine: engine.retire(name, version))
    if json:
        output.document({"workflow": name, "version": version, "retired": True})
    else:
        output.write(f"version {version} of workflow {output.line(name)} is retired")


# --- aliases --------------------------------------------------------------------------------------------------------


alias = typer.Typer(
    name="alias", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
)


@alias.callback()
def _group() -> None:
    """Set, list, show or remove aliases: names for versions, which starts by name follow.

    `NAME@ALIAS` starts the version that the alias points to. A start by NAME alone follows the alias `stable` if there
    is one, else it gets the latest version.

    \b
    Examples:
      holdfast alias set fulfil stable 3 --weight 4=10
      holdfast alias list fulfil
      holdfast alias show fulfil stable
      holdfast alias remove fulfil canary
    """


@alias.command("set", context_settings=CONTEXT)
def set_command(
    name: WorkflowName,
    name_of_alias: Alias,
    version: Version,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weight",
            metavar="VERSION=PERCENT",
            help="Another version, and its share of the starts (up to two of them).",
            show_default=False,
        ),
    ] = None,
    reason: Reason = "",
    actor: Actor = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Point an alias to a version, with a share of the starts for others.

    One key (the `rollout_key` of the start, else the run id) always gets the same version, and raising a weight only
    moves keys towards that version. Runs that were started keep their version.

    \b
    Examples:
      holdfast alias set fulfil stable 3
      holdfast alias set fulfil stable 3 --weight 4=10 --reason 'first tenth'
      holdfast alias set fulfil stable 4
    """
    shares = dict(_weight(text) for text in weights or ())
    who = actor_name(actor)
    _ask(db, lambda engine: engine.set_alias(name, name_of_alias, version, weights=shares, reason=reason, actor=who))
    _show_alias(db, name, name_of_alias, json=json)


def _weight(text: str) -> tuple[int, float]:
    version, equals, percent = text.partition("=")
    try:
        assert equals
        return int(version), float(percent.removesuffix("%"))
    except (AssertionError, ValueError):
        raise UsageError(f"--weight {text}: write VERSION=PERCENT, as in --weight 4=10") from None


def _show_alias(db: str | None, name: str, name_of_alias: str, *, json: bool) -> None:
    """Print where an alias points now."""
    with databases.reading(db) as store:
        now = version_views.history_json(store, name, name_of_alias)[-1]
    if json:
        output.document(now)
    else:
        output.write(f"{output.line(name)}@{name_of_alias} is {_target_text(now['target'])}")


@alias.command("list", context_settings=CONTEXT)
def list_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only aliases of this workflow.", show_default=False)
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """List aliases: where each points, since when, and who moved it.

    \b
    Examples:
      holdfast alias list
      holdfast alias list fulfil --json
    """
    with databases.reading(db) as store:
        found = version_views.aliases_json(store, name)
    if json:
        output.document(found)
        return
    if not found:
        output.note("no aliases: `holdfast alias set NAME stable VERSION` sets one")
        return
    rows = [(output.line(f"{one['workflow']}@{one['alias']}"), *_move_cells(one)) for one in found]
    for text in output.table(("ALIAS", "VERSION", "SINCE", "BY", "WHY"), rows):
        output.write(text)


@alias.command("show", context_settings=CONTEXT)
def show_command(name: WorkflowName, name_of_alias: Alias, db: Db = None, json: Json = False) -> None:
    """Print every move of an alias: when, from where to where, who and why.

    \b
    Examples:
      holdfast alias show fulfil stable
    """
    with databases.reading(db) as store:
        moves = version_views.history_json(store, name, name_of_alias)
    if json:
        output.document(moves)
        return
    rows = [(_target_text(one["before"]), *_move_cells(one)) for one in moves]
    for text in output.table(("FROM", "TO", "AT", "BY", "WHY"), rows):
        output.write(text)


@alias.command("remove", context_settings=CONTEXT)
def remove_command(
    name: WorkflowName,
    name_of_alias: Alias,
    reason: Reason = "",
    actor: Actor = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Remove an alias; its history stays.

    \b
    Examples:
      holdfast alias remove fulfil canary --reason 'rolled out'
    """
    who = actor_name(actor)
    _ask(db, lambda engine: engine.remove_alias(name, name_of_alias, reason=reason, actor=who))
    _show_alias(db, name, name_of_alias, json=json)


def rollback(
    name: WorkflowName,
    name_of_alias: Annotated[
        str, typer.Argument(metavar="[ALIAS]", help="The name of the alias.", show_default=STABLE)
    ] = STABLE,
    reason: Reason = "",
    actor: Actor = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Point an alias to where it pointed before its last move. Runs keep their version.

    Rolling back twice goes back two moves; `holdfast alias show` lists them.

    \b
    Examples:
      holdfast rollback fulfil --reason 'payments fail'
      holdfast rollback fulfil canary
    """
    who = actor_name(actor)
    _ask(db, lambda engine: engine.rollback(name, name_of_alias, reason=reason, actor=who))
    _show_alias(db, name, name_of_alias, json=json)


def _move_cells(move: dict[str, Any]) -> tuple[str, ...]:
    return (
        _target_text(move["target"]),
        move["at"],
        output.line(move["actor"] or "-"),
        output.line(move["reason"] or "-"),
    )


def _target_text(target: dict[str, Any] | None) -> str:
    """`3`, or `3, 10 % 4`."""
    if target is None:
        return "nothing"
    shares = [f"{percent:g} % {version}" for version, percent in target["weights"].items()]
    return ", ".join([str(target["version"]), *shares])
