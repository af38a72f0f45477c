"""`holdfast list`, `events`, `why` and `engines`: what a database has, read without an engine."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json, Limit, RunIdPrefix, source_of_words
from holdfast.cli.progress import UNFINISHED
from holdfast.cli.wording import waits_text
from holdfast.inspect import run_views
from holdfast.inspect.inspector import Inspector
from holdfast.inspect.vocabulary import events_as
from holdfast.inspect.wait_views import hold_of, shown_status, wait_view
from holdfast.inspect.why import why as reason_of
from holdfast.model import capabilities
from holdfast.model.errors import UsageError
from holdfast.model.limits import SECOND
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.views import EventView, Wait, humanize_duration, iso_or_none
from holdfast.store.clocks import clock_of
from holdfast.store.contract import Store
from holdfast.store.liveness import Life, Locks, life_of
from holdfast.store.row_types import EngineRow, RunRow

VALUE_WIDTH = 60
"""Columns of a value in a line about an event."""
EVENT_WIDTH = 160
CODE_SHOWN = 3
"""Names of code that the table of engines shows without --wide."""
NOT_SHOWN = frozenset(
    ["fingerprints", "code", "input_hash", "captured", "digest", "kinds", "frames", "trace", "call", "settings"]
)
"""Fields of events that are for machines; `--json` prints them."""

Wide = Annotated[bool, typer.Option("--wide", "-w", help="List all code that each engine has loaded.")]


# --- runs -----------------------------------------------------------------------------------------------------------


def list_runs(
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", help="Only runs of this status (may be repeated), or `unfinished`.", show_default=False
        ),
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only runs of this workflow.")] = None,
    limit: Limit = 50,
    form: Annotated[str, typer.Option("--output", "-o", metavar="table|json|id", help="What to print.")] = "table",
    db: Db = None,
    json: Json = False,
) -> None:
    """List runs, newest first.

    \b
    Examples:
      holdfast list --status failed --limit 10
      holdfast list --status unfinished -o id | xargs holdfast cancel
    """
    if form not in {"table", "json", "id"}:
        raise UsageError(f"-o {form}: use table, json or id")
    wanted = _statuses(status)
    form = "json" if json else form
    rows: list[RunRow] = []
    shown: list[dict[str, Any]] = []
    waits: dict[int, str] = {}
    statuses: dict[int, str] = {}
    try:
        with databases.reading(db) as store:
            rows = store.runs(status=wanted, workflow=workflow, limit=limit)
            if form == "table":
                waits = _waits(store, rows)
                statuses = {row.run_no: shown_status(store, row) for row in rows}
            shown = run_views.runs_json(store, rows) if form == "json" else []
    except databases.NoDatabase as error:
        output.note(f"holdfast: {output.clean(error.message)}")
    if form == "json":
        output.document(shown)
    elif form == "id":
        for row in rows:
            output.write(output.line(row.run_id))
    elif rows:
        cells = [_run_cells(row, statuses[row.run_no], waits) for row in rows]
        for text in output.table(("RUN", "STATUS", "CREATED", "TOOK", "WORKFLOW"), cells, colour=1):
            output.write(text)
    else:
        output.note("no runs")


def _statuses(given: list[str] | None) -> list[str] | None:
    """The statuses to list, checked; None: any."""
    if not given:
        return None
    known = [status.value for status in RunStatus]
    wanted = [part for text in given for part in text.split(",")]
    for word in wanted:
        if word not in known and word != "unfinished":
            raise UsageError(f"--status {word}: use {', '.join(known)} or unfinished")
    return [s for s in known if s in wanted or ("unfinished" in wanted and s in UNFINISHED)]


def _waits(store: Store, rows: list[RunRow]) -> dict[int, str]:
    """What suspended runs wait for, by their numbers."""
    runs = {row.run_no: row for row in rows if row.status == RunStatus.SUSPENDED}
    found: dict[int, list[Wait]] = {}
    for wait in store.open_waits(list(runs)) if runs else ():
        row = runs[wait.run_no]
        found.setdefault(wait.run_no, []).append(wait_view(row.run_id, row.workflow, wait))
    now = store.now() if found else 0
    return {number: waits_text(waits, now) for number, waits in found.items()}


def _run_cells(row: RunRow, status: str, waits: dict[int, str]) -> tuple[str, ...]:
    took = "" if row.finished_at is None else (row.finished_at - (row.started_at or row.created_at)) / SECOND
    hold = hold_of(row)
    waits_for = waits.get(row.run_no, "") if hold is None else f"on hold: {hold}"
    return (
        output.line(row.run_id),
        status,
        iso_or_none(row.created_at) or "",
        took if isinstance(took, str) else output.duration(took),
        output.line(f"{row.workflow}  {waits_for}".rstrip()),
    )


def why(run: RunIdPrefix, db: Db = None, json: Json = False) -> None:
    """Explain what a run waits for, since when, what will wake it, and if nothing will, why.

    \b
    Examples:
      holdfast why order-42
      holdfast why order-42 --json | jq .moves
    """
    with databases.reading(db) as store:
        found = reason_of(store, databases.find_by_prefix(store, run), store.now())
    if json:
        output.document(found.as_json())
        return
    width = max(40, min(output.terminal_width(), 120))
    for text in textwrap.wrap(output.line(found.why), width, break_long_words=False, break_on_hyphens=False):
        output.write(text)


# --- events ---------------------------------------------------------------------------------------------------------


def events(
    run: RunIdPrefix,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the run until it has ended.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this sequence number.")] = 0,
    branch: Annotated[int | None, typer.Option("--branch", help="Only the events of this branch.")] = None,
    source: Annotated[
        str | None, typer.Option("--as", help="In the words of another design of engines: s0, s2 or s3.")
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Print the journal of a run; with --json one event per line.

    \b
    Examples:
      holdfast events order-42 --after 10
      holdfast events order-42 --follow --json | jq .type
      holdfast events order-42 --branch 1
      holdfast events order-42 --as s0
    """
    if branch is not None and follow:
        raise UsageError("--follow follows the current branch; omit --branch")
    if source is not None and (follow or branch is not None):
        raise UsageError("--as prints the journal of the current branch as it is now; omit --follow and --branch")
    with databases.reading(db) as store:
        row = databases.find_by_prefix(store, run)
        if source is not None:
            for event in events_as(source_of_words(source), databases.journal(store, row.run_no, 0)):
                if event.seq > after:
                    _print_event(event, json)
            return
        if branch is not None:
            for event in Inspector(store, clock_of(store)).branch_events(row, branch, after):
                _print_event(event, json)
            return
        if not follow:
            for event in databases.journal(store, row.run_no, after):
                _print_event(event, json)
            return
        if row.status not in RUN_TERMINAL and databases.owner(store, row) is None:
            output.note(f"no engine drives this run now; `holdfast resume {output.line(row.run_id)}` continues it")
        for event in databases.follow(store, row.run_no, after):
            _print_event(event, json)
            output.flush()


def _print_event(event: EventView, json: bool) -> None:
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
    output.write(f"{text}  {output.line(about, EVENT_WIDTH)}".rstrip() if about else text.rstrip())


def brief(data: dict[str, Any]) -> str:
    """The data of an event in a few words."""
    parts = []
    for name, value in data.items():
        if name in NOT_SHOWN or value in (None, "", [], {}):
            continue
        if name == "error" and isinstance(value, dict):
            value = value.get("message", "")
        if name == "about" and isinstance(value, dict) and "question" in value:
            value = value["question"]
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        parts.append(f"{name}={output.line(text, VALUE_WIDTH)}")
    return " ".join(parts)


# --- engines --------------------------------------------------------------------------------------------------------


def engines(wide: Wide = False, db: Db = None, json: Json = False) -> None:
    """List the engines of a database: whether each is alive, how many runs it drives, and what it can run.

    `alive` has renewed its lease in time; `late` has not, although its process is alive; `dead` is gone, and the next
    engine takes its runs over. A process with `threads lost` has so many threads in bodies that did not stop that it
    starts no sync bodies until some of them end or it is restarted.

    \b
    Examples:
      holdfast engines --db postgresql://app@db.example/app
      holdfast engines --json
    """
    with databases.reading(db) as store:
        now, loads, locks = store.now(), store.loads(), Locks.of(store)
        found = [_engine_json(row, life_of(row, now, locks), loads, now) for row in store.engines()]
    if json:
        output.document(found)
        return
    if not found:
        output.note("no engine is running: `holdfast worker FILE.py` starts one")
        return
    headers = ("ENGINE", "LIFE", "SEEN", "RUNS", "QUEUES", "PROCESS", "CODE")
    for text in output.table(headers, [_engine_cells(engine, wide) for engine in found], colour=1):
        output.write(text)


def _engine_json(row: EngineRow, life: Life, loads: dict[str, int], now: int) -> dict[str, Any]:
    offer = capabilities.decode(row.can_run)
    renewed_at = row.expires_at - int(offer.lease_seconds * SECOND)
    return {
        "engine": row.engine,
        "host": row.host,
        "pid": row.pid,
        "life": life,
        "started_at": iso_or_none(row.started_at),
        "renewed_at": iso_or_none(renewed_at),
        "expires_at": iso_or_none(row.expires_at),
        "silent_seconds": max(0.0, (now - renewed_at) / SECOND),
        "runs": loads.get(row.engine, 0),
        "concurrency": offer.concurrency,
        "queues": None if offer.queues is None else list(offer.queues),
        "handlers": sorted(offer.handlers),
        "lost_threads": offer.lost_threads,
    }


def _engine_cells(engine: dict[str, Any], wide: bool) -> tuple[str, ...]:
    limit = "" if engine["concurrency"] is None else f"/{engine['concurrency']}"
    code = [name for name in engine["handlers"] if "." in name] or engine["handlers"]
    more = "" if wide or len(code) <= CODE_SHOWN else f" and {len(code) - CODE_SHOWN} more"
    lost = f", {engine['lost_threads']} threads lost" if engine["lost_threads"] else ""
    return (
        output.line(engine["engine"]),
        engine["life"],
        f"{humanize_duration(int(engine['silent_seconds'] * SECOND))} ago",
        f"{engine['runs']}{limit}",
        "all" if engine["queues"] is None else output.line(", ".join(engine["queues"])),
        output.line(f"{engine['pid']} on {engine['host']}") + lost,
        output.line((", ".join(code[: None if wide else CODE_SHOWN]) + more) or "only its own runs"),
    )
