"""`holdfast diff`: what differs between two branches of a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json, RunIdPrefix
from holdfast.inspect import branch_views
from holdfast.model.naming import instance_text
from holdfast.store.records.journal import History, Plans

VALUE_CHARS_MAX = 60


def command(
    run: RunIdPrefix,
    one: Annotated[int, typer.Argument(metavar="BRANCH", help="A branch.")],
    other: Annotated[int, typer.Argument(metavar="BRANCH", help="Another one.")],
    db: Db = None,
    json: Json = False,
) -> None:
    """Show the outputs and statuses that differ between two branches.

    \b
    Examples:
      holdfast diff order-42 1 2
      holdfast diff order-42 1 2 --json | jq '.nodes[].node'
    """
    with databases.reading(db) as store:
        row = databases.find_by_prefix(store, run)
        found = branch_views.diff_json(store, History(store, Plans(store), row), one, other)
    if json:
        output.document(found)
        return
    rows = [[name, *(_value(found[side][name]) for side in ("one", "other"))] for name in ("status", "input", "result")]
    rows = [row for row in rows if row[1] != row[2]]
    for node in found["nodes"]:
        name = output.line(instance_text(node["node"], node["path"], node["visit"]))
        rows.append([name, _told(node["one"]), _told(node["other"])])
    if not rows:
        output.write(f"branches {one} and {other} came to the same")
        return
    for text in output.table(["", f"BRANCH {one}", f"BRANCH {other}"], rows):
        output.write(text)


def _told(instance: dict[str, Any] | None) -> str:
    if instance is None:
        return "-"
    value = "" if instance["output"] is None else f" {_value(instance['output'])}"
    error = "" if instance["error"] is None else f": {output.line(instance['error']['message'], VALUE_CHARS_MAX)}"
    return f"{instance['status']}{value}{error}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return output.line(value, VALUE_CHARS_MAX)
    return output.line(output.json_text(value, compact=True), VALUE_CHARS_MAX)
