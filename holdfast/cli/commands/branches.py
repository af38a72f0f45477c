"""`holdfast branches`: the lines of history of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json, RunIdPrefix
from holdfast.cli.progress import SYMBOLS
from holdfast.inspect import branch_views
from holdfast.store.records.journal import History, Plans


def command(run: RunIdPrefix, db: Db = None, json: Json = False) -> None:
    """Draw the lines of history of a run; plain rows when nobody watches.

    \b
    Examples:
      holdfast branches order-42
      holdfast show order-42 --branch 1
    """
    with databases.reading(db) as store:
        row = databases.find_by_prefix(store, run)
        shown = branch_views.branches_json(store, History(store, Plans(store), row))
    if json:
        output.document(shown)
    elif sys.stdout.isatty():
        output.write(f"run {output.line(row.run_id)}  {output.line(row.workflow)}")
        for text in tree(shown):
            output.write(text)
    else:
        headers = ["BRANCH", "PARENT", "BEHIND", "STATUS", "EVENTS", "WHAT"]
        cells = ("branch", "parent", "cutoff_seq", "status", "events")
        rows = [[*(str(branch[name] or "-") for name in cells), what(branch)] for branch in shown]
        for text in output.table(headers, rows):
            output.write(text)


def tree(branches: list[dict[str, Any]]) -> Iterator[str]:
    """Branches below the one that they go on from."""
    below: dict[int | None, list[dict[str, Any]]] = {}
    for branch in branches:
        below.setdefault(branch["parent"], []).append(branch)

    def draw(branch: dict[str, Any], indent: str, mark: str) -> Iterator[str]:
        symbol = output.paint(SYMBOLS[branch["status"]], output.STATUS_COLOURS[branch["status"]])
        cut = f", behind event {branch['cutoff_seq']}" if branch["parent"] is not None else ""
        about = f"{branch['status']}, {output.count(branch['events'], 'event')}{cut}"
        yield f"{indent}{mark}{symbol} {branch['branch']}  {what(branch)}  {output.paint(about, 'dim')}"
        inner = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[mark]
        children = below.get(branch["branch"], [])
        for child in children:
            yield from draw(child, inner, "└─ " if child is children[-1] else "├─ ")

    for root in below.get(None, []):
        yield from draw(root, "", "")


def what(branch: dict[str, Any]) -> str:
    """Why a branch was opened."""
    words = {"start": "start", "fork": "fork at", "jump": "jump to", "retry": "retry of", "recovery": "recovery"}
    text = words.get(branch["reason"], str(branch["reason"]))
    if branch["target"]:
        text += f" {output.line(branch['target'])}"
    if branch["origin"]:
        text = f"forked from run {output.line(branch['origin'])}"
    if branch["actor"]:
        text += f", by {output.line(branch['actor'])}"
    return text + (" (current)" if branch["current"] else "")
