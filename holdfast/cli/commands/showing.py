"""`holdfast show`: one run; a failed one starts with the failure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, output, wording
from holdfast.cli.options import Db, Json, RunIdPrefix, source_of_words
from holdfast.cli.picture import ENDED, TALLIED, Line, Picture, bar, fit
from holdfast.cli.progress import SYMBOLS
from holdfast.inspect import run_views
from holdfast.inspect.paths import Paths, execution_paths, pending_joins, process_info
from holdfast.inspect.run_views import BranchView
from holdfast.inspect.vocabulary import run_as
from holdfast.inspect.wait_views import hold_of, only_outside_moves, shown_status, waits_of
from holdfast.model import definition as definitions
from holdfast.model import events as ev
from holdfast.model.errors import CorruptJournal
from holdfast.model.expressions import follow
from holdfast.model.limits import SECOND
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.views import iso_or_none
from holdfast.store.contract import Store
from holdfast.store.records.journal import History, Plans, event_at
from holdfast.store.records.run_records import (
    cancel_asked,
    creation_of,
    input_of,
    of_current_branch,
    result_of,
    terminal_event,
    variables_of,
)
from holdfast.store.row_types import RunRow

VALUE_CHARS_MAX = 400
NODES_MAX = 60
INPUT_CHARS_MAX = 500
"""Characters of an input that a command to paste contains."""
ARGUMENTS_MAX = 10


def show(
    run: RunIdPrefix,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every node, however many there are.")] = False,
    paths: Annotated[
        bool, typer.Option("--paths", help="The run as execution paths: the step and the basket of each.")
    ] = False,
    phases: Annotated[
        bool, typer.Option("--phases", help="The phases (the steps of a document), each with its nodes and outputs.")
    ] = False,
    branch: Annotated[int | None, typer.Option("--branch", help="Show this branch; else the current one.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--as", help="JSON in the words of another design of engines: s0 to s4, or process_info."),
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Show one run: its state and nodes; a failed one starts with the failure.

    \b
    Examples:
      holdfast show order-42
      holdfast show order-42 --paths
      holdfast show order --json | jq .result
      holdfast show order-42 --branch 1
      holdfast show order-42 --as process_info
    """
    with databases.reading(db) as store:
        shown: Store = store
        row = databases.find_by_prefix(store, run)
        if branch is not None:
            past = BranchView(store, History(store, Plans(store), row), branch)
            shown, row = past.as_store(), past.row
        if phases:
            _print_phases(run_views.phases_json(shown, row), json)
            return
        if source == "process_info":
            output.document(process_info(shown, row))
            return
        if source is not None:
            output.document(run_as(source_of_words(source), run_views.run_json(shown, row)))
            return
        if paths:
            _print_paths(execution_paths(shown, row), json)
            return
        if json:
            output.document(run_views.run_json(shown, row))
            return
        for text in describe(shown, row, sys.maxsize if everything else NODES_MAX, hints=branch is None):
            output.write(text)


def _print_phases(found: list[dict[str, Any]], json: bool) -> None:
    if json:
        output.document(found)
        return
    for phase in found:
        output.write(f"{output.line(phase['phase'])}  {phase['status']}")
        for node in phase["nodes"]:
            gave = "" if node["output"] is None else _value(node["output"])
            output.write(f"  {SYMBOLS[node['status']]} {output.line(node['node'])}  {node['status']}  {gave}".rstrip())


def variables(run: RunIdPrefix, db: Db = None, json: Json = False) -> None:
    """Print the variables of a run: those that are set, and the declared type of each.

    \b
    Examples:
      holdfast vars order-42
      holdfast vars order-42 --json | jq .verified
    """
    with databases.reading(db) as store:
        row = databases.find_by_prefix(store, run)
        found = variables_of(store, row)
        if json:
            output.document(found)
            return
        declared = Plans(store).of_run(row).definition.variables
        cells = [
            [output.line(name), output.line(_type_name(schema)), _value(found[name]) if name in found else "not set"]
            for name, schema in declared.items()
        ]
        for text in output.table(("VARIABLE", "TYPE", "VALUE"), cells):
            output.write(text)


def _type_name(schema: Any) -> str:
    kind = schema.get("type", "any") if isinstance(schema, dict) else "any"
    return kind if isinstance(kind, str) else " or ".join(kind)


def _print_paths(found: Paths, json: bool) -> None:
    if json:
        output.document(found.as_json())
        return
    cells = []
    for path in found.paths:
        first = "resumed first" if path.name == found.pend_path else ""
        plain = (path.name, path.status, path.step, path.response or "", path.basket or "", first)
        cells.append([output.line(cell) for cell in plain])
    for text in output.table(("PATH", "STATUS", "STEP", "RESPONSE", "BASKET", ""), cells):
        output.write(text)


def describe(store: Store, row: RunRow, nodes_max: int, *, hints: bool = True) -> list[str]:
    """A run in lines, with the commands that act on it."""
    damage: list[str] = []

    def found(read: Callable[[Store, RunRow], Any]) -> Any:
        try:
            return read(store, row)
        except CorruptJournal as error:  # everything else is still shown
            damage.append(error.message)
            return None

    terminal = found(terminal_event) if row.status in RUN_TERMINAL else None
    created: ev.RunCreated | None = found(creation_of)
    given = found(input_of)
    completed = terminal if isinstance(terminal, ev.RunCompleted) else None
    result = found(lambda store, row: result_of(store, row, completed)) if completed is not None else None
    lines = [*_head(store, row)]
    doctor = wording.command("doctor", row.run_id, store.url) + " --deep"
    for what in dict.fromkeys(damage):
        lines.append(output.paint(f"damaged   {output.line(what)}; `{doctor}` shows all damage", "red"))
    if isinstance(terminal, ev.RunFailed):
        lines += ["", *_failure(store, row, terminal)]
    if isinstance(terminal, ev.RunCancelled) and terminal.reason:
        lines.append(f"reason    {output.line(terminal.reason)}")
    if isinstance(terminal, ev.RunCancelled):
        lines += wording.other_lines(terminal)
    lines += _being_cancelled(row)
    now = store.now()
    for wait in sorted(waits_of(store, row), key=lambda wait: wait.kind != "pause"):
        lines.append(f"waits     {wording.wait_line(wait, now, of_run=row.run_id)}")
    lines += _joins(store, row)
    lines += ["", f"input     {_value(given)}"]
    if result is not None:
        lines.append(f"result    {_value(msgspec.json.decode(result))}")
    lines += ["", *_nodes(store, row, nodes_max)]
    hint = _hint(store, row, created) if hints else []
    return [*lines, "", *hint] if hint else lines


def _joins(store: Store, row: RunRow) -> list[str]:
    version = store.version(row.workflow, row.version)
    if version is None or row.status in RUN_TERMINAL:
        return []
    pending = pending_joins(row, definitions.decode(version.definition))
    texts = (f"{join} waits for {', '.join(paths)}" for join, paths in pending.items())
    return [f"join      {output.line(text)}" for text in texts]


def _head(store: Store, row: RunRow) -> list[str]:
    shown = shown_status(store, row)
    status = output.paint(f"{SYMBOLS[shown]} {shown}", output.STATUS_COLOURS[shown])
    took = ""
    if row.started_at is not None:
        end = row.finished_at or store.now()
        took = f"  {output.duration((end - row.started_at) / SECOND)}"
    lines = [f"run {output.line(row.run_id)}  {output.line(row.workflow)} v{row.version}  {status}{took}"]
    lines.append(f"created   {iso_or_none(row.created_at)}")
    if row.finished_at is not None:
        lines.append(f"finished  {iso_or_none(row.finished_at)}")
    if row.branch > 1:
        lines.append(f"branch    {row.branch}; `{wording.command('branches', row.run_id, store.url)}` lists them")
    if row.recoveries:
        lines.append(f"crashes   {output.count(row.recoveries, 'recovery', 'recoveries')} in a row without progress")
    owner = databases.owner(store, row)
    if owner is not None and row.status not in RUN_TERMINAL:
        lines.append(f"driven by {owner.engine} (pid {owner.pid} on {output.line(owner.host)})")
    return lines


def _being_cancelled(row: RunRow) -> list[str]:
    asked = cancel_asked(row)
    if asked is None:
        return []
    reason, actor = (output.line(text) for text in asked)
    by = f" by {actor}" if actor else ""
    return [f"ending    being cancelled{by}{': ' + reason if reason else ''}"]


def _failure(store: Store, row: RunRow, terminal: ev.RunFailed) -> list[str]:
    error = terminal.error
    lines = []
    place, comma, attempt = wording.failed_place(error).partition(", attempt ")
    lines.append(output.paint(f"✗ {place or 'the run'} failed{comma}{attempt}", "red"))
    lines += [f"  {text}" for text in output.clean(error.message).splitlines()]
    lines += [f"    {output.line(frame)}" for frame in error.frames]
    for name, value in _arguments(store, row, error):
        lines.append(f"  {output.line(name)} = {_value(value)}")
    return lines + wording.other_lines(terminal)


def _arguments(store: Store, row: RunRow, error: ev.ErrorInfo) -> list[tuple[str, Any]]:
    """The arguments of the failed attempt, read from the events that its start refers to."""
    if error.node is None:
        return []
    started = [
        event
        for event in store.events(row.run_no, types=("NodeStarted",))
        if event.node == error.node and event.path == (error.path or ".")
    ]
    if not started:
        return []
    found: list[tuple[str, Any]] = []
    try:
        inputs = event_at(store, row, started[-1].seq).inputs
    except CorruptJournal:
        return []
    for name, seq, pointer in inputs[:ARGUMENTS_MAX]:
        try:
            event = event_at(store, row, seq)
        except CorruptJournal:
            continue
        whole = getattr(event, "input", None) or getattr(event, "output", None)
        if whole is None:
            continue
        value = msgspec.json.decode(whole)
        for key in pointer.split("/")[1:]:
            text = key.replace("~1", "/").replace("~0", "~")
            value = follow(value, (int(text),) if isinstance(value, list) and text.isdigit() else (text,))
        found.append((name, value))
    return found


def _nodes(store: Store, row: RunRow, nodes_max: int) -> list[str]:
    version = store.version(row.workflow, row.version)
    if version is None:
        return []
    picture = Picture(definitions.decode(version.definition))
    picture.see(of_current_branch(row, store.events(row.run_no, types=TALLIED)))
    waits = store.open_waits([row.run_no])
    now = row.finished_at or store.now()
    drawn = picture.lines(row, store.open_nodes([row.run_no]), waits, {}, now)[1:]
    return [text for line in fit(drawn, nodes_max) if (text := node_text(line, row.status in RUN_TERMINAL))]


def node_text(line: Line, over: bool) -> str:
    """A line of the picture as text. A node that never began in a run that has ended is `not reached`."""
    status = "not reached" if over and line.status not in ENDED else line.status
    name = output.pad("  " * (line.depth - 1) + SYMBOLS.get(line.status, " ") + " " + output.line(line.label), 28)
    full = "".join(bar(line.done, line.total, 10)) + " " if line.done is not None and line.total else ""
    painted = output.paint(output.pad(status, 11), output.STATUS_COLOURS.get(line.status, ""))
    about = output.line(" ".join(part for part in (line.numbers, line.detail) if part))
    return f"{name} {painted} {output.duration(line.seconds):>7}  {full}{about}".rstrip()


def _hint(store: Store, row: RunRow, created: ev.RunCreated | None) -> list[str]:
    """Commands for a run that has failed, was cancelled, waits, or that no engine drives."""
    url = store.url
    if row.status in ("failed", "cancelled"):
        option = wording.database_option(url)
        known = [(what, shlex.join(["holdfast", *verb, *option])) for what, verb in run_views.ways_on(store, row)]
        again = _again(created, url) if created is not None and row.status == "failed" else ""
        known += [("run it again", again)] if again else []
        if not known:
            return []
        known.append(("read its journal", wording.command("events", row.run_id, url)))
        return ["what you can do:", *(f"  {what}: {output.line(command)}" for what, command in known)]
    waits = only_outside_moves(store, row, store.now()) if hold_of(row) is None else None
    if waits:
        ways = wording.wait_commands(waits, wording.database_option(url), alone=len(waits) == 1)
        return [f"to continue: {ways[0]}"] if len(ways) == 1 else ["to continue:", *(f"  {way}" for way in ways)]
    if row.status not in RUN_TERMINAL and (hold_of(row) is not None or databases.owner(store, row) is None):
        what = "it is on hold" if hold_of(row) is not None else "no engine drives it now"
        return [f"{what}; to continue: {wording.command('resume', row.run_id, url)}"]
    return []


def _again(created: ev.RunCreated, url: str) -> str:
    code = created.code if isinstance(created.code, dict) else {}
    if not code.get("file"):
        return ""
    given = bytes(created.input).decode()
    if len(given) > INPUT_CHARS_MAX:
        given = "…"
    target = f"{code['file']}:{code.get('name', '')}"
    return shlex.join(["holdfast", "run", target, "--input", output.line(given), *wording.database_option(url)])


def _value(value: Any) -> str:
    return output.line(output.json_text(value, compact=True), VALUE_CHARS_MAX)
