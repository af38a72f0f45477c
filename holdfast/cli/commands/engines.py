"""`holdfast engines`: who drives runs here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json
from holdfast.model import capabilities
from holdfast.model.views import humanize_duration, iso_or_none
from holdfast.store.liveness import Life, Locks, life_of
from holdfast.store.row_types import EngineRow


def command(
    wide: Annotated[bool, typer.Option("--wide", "-w", help="List all code that each engine has loaded.")] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """List the engines of a database: whether they live, how many runs each has, and what it can run.

    `alive` has renewed its lease in time; `late` has not, though its process lives; `dead` is gone, and the next engine
    takes its runs over. A process with `threads lost` has given up so many threads, to bodies that did not stop, that
    it starts no sync bodies until some of them end or it is restarted.

    \b
    Examples:
      holdfast engines --db postgresql://app@db.example/app
      holdfast engines --json
    """
    with databases.reading(db) as store:
        now, loads = store.now(), store.loads()
        locks = Locks.of(store)
        found = [_engine_json(row, life_of(row, now, locks), loads, now) for row in store.engines()]
    if json:
        output.document(found)
        return
    if not found:
        output.note("no engine is running: `holdfast worker FILE.py` starts one")
        return
    headers = ("ENGINE", "LIFE", "SEEN", "RUNS", "QUEUES", "PROCESS", "CODE")
    for text in output.table(headers, [_cells(engine, wide) for engine in found], colour=1):
        output.write(text)


def _engine_json(row: EngineRow, life: Life, loads: dict[str, int], now: int) -> dict[str, Any]:
    offer = capabilities.decode(row.can_run)
    renewed_at = row.expires_at - int(offer.lease_seconds * 1_000_000)
    return {
        "engine": row.engine,
        "host": row.host,
        "pid": row.pid,
        "life": life,
        "started_at": iso_or_none(row.started_at),
        "renewed_at": iso_or_none(renewed_at),
        "expires_at": iso_or_none(row.expires_at),
        "silent_seconds": max(0.0, (now - renewed_at) / 1_000_000),
        "runs": loads.get(row.engine, 0),
        "concurrency": offer.concurrency,
        "queues": None if offer.queues is None else list(offer.queues),
        "handlers": sorted(offer.handlers),
        "lost_threads": offer.lost_threads,
    }


def _cells(engine: dict[str, Any], wide: bool) -> tuple[str, ...]:
    limit = "" if engine["concurrency"] is None else f"/{engine['concurrency']}"
    code = [name for name in engine["handlers"] if "." in name] or engine["handlers"]
    shown = ", ".join(code) if wide else ", ".join(code[:3]) + (f" and {len(code) - 3} more" if len(code) > 3 else "")
    lost = f", {engine['lost_threads']} threads lost" if engine["lost_threads"] else ""
    return (
        output.line(engine["engine"]),
        engine["life"],
        f"{humanize_duration(int(engine['silent_seconds'] * 1_000_000))} ago",
        f"{engine['runs']}{limit}",
        "all" if engine["queues"] is None else output.line(", ".join(engine["queues"])),
        output.line(f"{engine['pid']} on {engine['host']}") + lost,
        output.line(shown or "its own runs only"),
    )
