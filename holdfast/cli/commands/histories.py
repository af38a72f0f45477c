"""`holdfast branches` and `diff`: the branches of a run, and what differs between two of them or two versions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from holdfast.cli import databases, output
from holdfast.cli.commands.listing import VALUE_WIDTH
from holdfast.cli.options import Db, Json, RunIdPrefix
from holdfast.cli.progress import SYMBOLS
from holdfast.inspect import version_views
from holdfast.inspect.inspector import Inspector
from holdfast.model.naming import instance_text
from holdfast.store.clocks import clock_of


def branches(run: RunIdPrefix, db: Db = None, json: Json = False) -> None:
    """Draw the branches of a run as a tree; as plain rows if stdout is not a terminal.

    \b
    Examples:
      holdfast branches order-42
      holdfast show order-42 --branch 1
    """
    with databases.reading(db) as store:
        row = databases.find_by_prefix(store, run)
        shown = Inspector(store, clock_of(store)).branches(row)
    if json:
        output.document(shown)
    elif sys.stdout.isatty():
        output.write(f"run {output.line(row.run_id)}  {output.line(row.workflow)}")
        for text in branch_tree(shown):
            output.write(text)
    else:
        headers = ["BRANCH", "PARENT", "AFTER", "STATUS", "EVENTS", "WHAT"]
        cells = ("branch", "parent", "cutoff_seq", "status", "events")
        rows = [[*(str(branch[name] or "-") for name in cells), _branch_reason(branch)] for branch in shown]
        for text in output.table(headers, rows):
            output.write(text)


def branch_tree(branches: list[dict[str, Any]]) -> Iterator[str]:
    """Each branch below the one that it was opened from."""
    below: dict[int | None, list[dict[str, Any]]] = {}
    for branch in branches:
        below.setdefault(branch["parent"], []).append(branch)

    def draw(branch: dict[str, Any], indent: str, mark: str) -> Iterator[str]:
        symbol = output.paint(SYMBOLS[branch["status"]], output.STATUS_COLOURS[branch["status"]])
        cut = f", after event {branch['cutoff_seq']}" if branch["parent"] is not None else ""
        about = f"{branch['status']}, {output.count(branch['events'], 'event')}{cut}"
        yield f"{indent}{mark}{symbol} {branch['branch']}  {_branch_reason(branch)}  {output.paint(about, 'dim')}"
        inner = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[mark]
        children = below.get(branch["branch"], [])
        for child in children:
            yield from draw(child, inner, "└─ " if child is children[-1] else "├─ ")

    for root in below.get(None, []):
        yield from draw(root, "", "")


def _branch_reason(branch: dict[str, Any]) -> str:
    """Why a branch was opened."""
    words = {"start": "start", "fork": "fork at", "jump": "jump to", "retry": "retry of", "recovery": "recovery"}
    text = words.get(branch["reason"], str(branch["reason"]))
    if branch["reason"] == "migrated":
        text = f"moved to version {branch['version']}"
    elif branch["target"]:
        text += f" {output.line(branch['target'])}"
    if branch["origin"]:
        text = f"forked from run {output.line(branch['origin'])}"
    if branch["actor"]:
        text += f", by {output.line(branch['actor'])}"
    return text + (" (current)" if branch["current"] else "")


def diff(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|NAME", help="A run, or the beginning of its id; or a workflow.", show_default=False
        ),
    ],
    one: Annotated[int, typer.Argument(metavar="BRANCH|VERSION", help="A branch of the run, or a version.")],
    other: Annotated[int, typer.Argument(metavar="BRANCH|VERSION", help="Another one.")],
    workflow: Annotated[
        bool, typer.Option("--workflow", help="NAME is a workflow, also if a run's id begins like that.")
    ] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Show what differs between two branches of a run (outputs and statuses) or two versions of a workflow (nodes,
    their fields, and edges).

    \b
    Examples:
      holdfast diff order-42 1 2
      holdfast diff order-42 1 2 --json | jq '.nodes[].node'
      holdfast diff fulfil 3 4
    """
    with databases.reading(db) as store:
        workflow = workflow or (store.latest_version(what) is not None and not store.resolve_run_id(what))
        if workflow:
            changed = version_views.diff_json(store, what, one, other)
        else:
            found = Inspector(store, clock_of(store)).diff(databases.find_by_prefix(store, what), one, other)
    if json:
        output.document(changed if workflow else found)
        return
    if workflow:
        _print_version_diff(changed)
        return
    rows = [[name, *(_value(found[side][name]) for side in ("one", "other"))] for name in ("status", "input", "result")]
    rows = [row for row in rows if row[1] != row[2]]
    for node in found["nodes"]:
        name = output.line(instance_text(node["node"], node["path"], node["visit"]))
        rows.append([name, _instance(node["one"]), _instance(node["other"])])
    if not rows:
        output.write(f"branches {one} and {other} have the same outputs and statuses")
        return
    for text in output.table(["", f"BRANCH {one}", f"BRANCH {other}"], rows):
        output.write(text)


def _print_version_diff(changed: dict[str, Any]) -> None:
    """One line for each node, field, edge or setting: + added, - removed, ~ changed."""
    lines = [f"+ node {output.line(name)}" for name in changed["nodes"]["added"]]
    lines += [f"- node {output.line(name)}" for name in changed["nodes"]["removed"]]
    for node in changed["nodes"]["changed"]:
        of_node = f"node {output.line(node['node'])}: "
        lines += [_field_line(of_node + field, *sides) for field, sides in node["fields"].items()]
    for sign, edges in (("+", changed["edges"]["added"]), ("-", changed["edges"]["removed"])):
        lines += [f"{sign} edge {output.line(before)} -> {output.line(after)}" for before, after in edges]
    lines += [_field_line(name, *sides) for name, sides in changed["other"].items()]
    for text in lines or [f"versions {changed['from']} and {changed['to']} are the same"]:
        output.write(text)


def _field_line(name: str, before: Any, after: Any) -> str:
    return f"~ {output.line(name)}: {_value(before)} -> {_value(after)}"


def _instance(instance: dict[str, Any] | None) -> str:
    if instance is None:
        return "-"
    value = "" if instance["output"] is None else f" {_value(instance['output'])}"
    error = "" if instance["error"] is None else f": {output.line(instance['error']['message'], VALUE_WIDTH)}"
    return f"{instance['status']}{value}{error}"


def _value(value: Any) -> str:
    return output.line(value if isinstance(value, str) else output.json_text(value, compact=True), VALUE_WIDTH)
