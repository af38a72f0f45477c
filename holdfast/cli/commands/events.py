"""`holdfast events`: the journal of a run."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json, RunIdPrefix
from holdfast.inspect import branch_views
from holdfast.model.errors import UsageError
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.views import EventView
from holdfast.store.records.journal import History, Plans


def command(
    run: RunIdPrefix,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin behind this sequence number.")] = 0,
    branch: Annotated[int | None, typer.Option("--branch", help="Only the line of history of this branch.")] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Print the journal of a run; with --json one event a line.

    \b
    Examples:
      holdfast events order-42 --after 10
      holdfast events order-42 --follow --json | jq .type
      holdfast events order-42 --branch 1
    """
    if branch is not None and follow:
        raise UsageError("--follow goes with the current branch; leave --branch out")
    with databases.reading(db) as store:
        row = databases.find_by_prefix(store, run)
        if branch is not None:
            for event in branch_views.event_views(store, History(store, Plans(store), row), branch, after):
                _print(event, json)
            return
        if not follow:
            for event in databases.journal(store, row.run_no, after):
                _print(event, json)
            return
        if row.status not in RUN_TERMINAL and databases.owner(store, row) is None:
            output.note(f"nobody drives this run now; `holdfast resume {output.line(row.run_id)}` goes on with it")
        for event in databases.follow(store, row.run_no, after):
            _print(event, json)
            output.flush()


def _print(event: EventView, json: bool) -> None:
    view = event.as_json()
    if json:
        output.write(output.json_text(view, compact=True))
        return
    node = "" if event.node is None else instance_text(event.node, event.path or ".", event.visit)
    clock = view["at"][11:23]
    text = f"{event.seq:>6}  {clock}  {event.type:<20} {output.line(node)}"
    about = brief(event.data)
    if event.unknown:
        about = f"(not known to this version of Holdfast) {about}".rstrip()
    output.write(f"{text}  {output.line(about, 160)}".rstrip() if about else text.rstrip())


def brief(data: dict[str, Any]) -> str:
    """An event's data in a few words."""
    skipped = {
        "fingerprints",
        "code",
        "input_hash",
        "captured",
        "digest",
        "kinds",
        "frames",
        "trace",
        "call",
        "settings",
    }
    parts = []
    for name, value in data.items():
        if name in skipped or value in (None, "", [], {}):
            continue
        if name == "error" and isinstance(value, dict):
            value = value.get("message", "")
        if name == "about" and isinstance(value, dict) and "question" in value:
            value = value["question"]
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        parts.append(f"{name}={output.line(text, 60)}")
    return " ".join(parts)
