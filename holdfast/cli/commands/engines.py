"""`holdfast engines`: who drives runs here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json
from holdfast.engine import offers
from holdfast.engine.leases import life_of
from holdfast.engine.telling import in_words
from holdfast.engine.times import iso_or_none
from holdfast.store.api import EngineRow


def command(
    wide: Annotated[bool, typer.Option("--wide", "-w", help="List all code that each engine has loaded.")] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """List the engines of a database: whether they live, how many runs each has, and what it can run.

    `alive` has renewed its lease in time; `late` has not, though its process lives; `dead` is gone, and the next engine
    takes its runs over.

    \b
    Examples:
      holdfast engines --db postgresql://app@db.example/app
      holdfast engines --json
    """
    with databases.reading(db) as store:
        now, loads = store.now(), store.loads()
        found = [_engine_json(row, loads, now) for row in store.engines()]
    if json:
        output.document(found)
        return
    if not found:
        output.note("no engine is running: `holdfast worker FILE.py` starts one")
        return
    headers = ("ENGINE", "LIFE", "SEEN", "RUNS", "QUEUES", "PROCESS", "CODE")
    for text in output.table(headers, [_cells(engine, wide) for engine in found], colour=1):
        output.write(text)


def _engine_json(row: EngineRow, loads: dict[str, int], now: int) -> dict[str, Any]:
    offer = offers.decode(row.can_run)
    renewed_at = row.expires_at - int(offer.lease_seconds * 1_000_000)
    return {
        "engine": row.engine,
        "host": row.host,
        "pid": row.pid,
        "life": life_of(row, now),
        "started_at": iso_or_none(row.started_at),
        "renewed_at": iso_or_none(renewed_at),
        "expires_at": iso_or_none(row.expires_at),
        "silent_seconds": max(0.0, (now - renewed_at) / 1_000_000),
        "runs": loads.get(row.engine, 0),
        "concurrency": offer.concurrency,
        "queues": None if offer.queues is None else list(offer.queues),
        "handlers": sorted(offer.handlers),
    }


def _cells(engine: dict[str, Any], wide: bool) -> tuple[str, ...]:
    limit = "" if engine["concurrency"] is None else f"/{engine['concurrency']}"
    code = [name for name in engine["handlers"] if "." in name] or engine["handlers"]
    shown = ", ".join(code) if wide else ", ".join(code[:3]) + (f" and {len(code) - 3} more" if len(code) > 3 else "")
    return (
        output.line(engine["engine"]),
        engine["life"],
        f"{in_words(int(engine['silent_seconds'] * 1_000_000))} ago",
        f"{engine['runs']}{limit}",
        "all" if engine["queues"] is None else output.line(", ".join(engine["queues"])),
        output.line(f"{engine['pid']} on {engine['host']}"),
        output.line(shown or "its own runs only"),
    )
