"""`holdfast inbox`, `basket` and `baskets`: what waits for people, over all runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json
from holdfast.inspect.wait_views import baskets_json, views
from holdfast.model import texts
from holdfast.model.naming import instance_text
from holdfast.model.views import Wait, humanize_duration, iso
from holdfast.store.row_types import BasketRow

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most this many.")]
HEADERS = ("WAIT", "AGE", "RUN", "WORKFLOW", "NODE", "ASSIGNEE", "BASKET", "UNTIL", "ASKED")
_ON_RESUME = {"next": "what follows runs on resume", "same": "runs again on resume", "error": "failed"}


def inbox(
    basket: Annotated[
        str | None, typer.Option("--basket", metavar="NAME", help="Only what lies in this basket.")
    ] = None,
    assignee: Annotated[str | None, typer.Option("--assignee", metavar="NAME", help="Only of this person.")] = None,
    limit: Limit = 50,
    db: Db = None,
    json: Json = False,
) -> None:
    """List what people are asked, and what lies in baskets, oldest first.

    \b
    Examples:
      holdfast inbox --assignee ada
      holdfast inbox --basket finance --json | jq -r '.[].wait_id'
    """
    waits, now = _asked(db, basket, assignee, limit + 1)
    if json:
        output.document([wait.as_json() for wait in waits[:limit]])
        return
    if not waits:
        whose = f" of {assignee}" if assignee else ""
        where = f" in the basket {basket}" if basket else ""
        output.note(output.line(f"nothing waits for an answer{whose}{where}"))
        return
    _print(waits[:limit], now)
    if len(waits) > limit:
        output.note(f"… and more; --limit {limit * 2} shows them")
    kinds = {wait.kind for wait in waits[:limit]}
    ways = ["`holdfast respond WAIT` answers"] * ("input" in kinds)
    ways += ["`holdfast resume RUN --wait WAIT` takes out of a basket"] * ("basket" in kinds)
    output.note("; ".join(ways))


def basket(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A basket.", show_default=False)],
    limit: Limit = 50,
    db: Db = None,
    json: Json = False,
) -> None:
    """List what lies in one basket, oldest first.

    \b
    Examples:
      holdfast basket errors
      holdfast basket errors --json | jq -r '.[].run_id'
    """
    inbox(basket=name, assignee=None, limit=limit, db=db, json=json)


def baskets(db: Db = None, json: Json = False) -> None:
    """List the baskets in which something lies: questions, and nodes that wait to be resumed.

    \b
    Example:
      holdfast baskets
    """
    rows: list[BasketRow] = []
    shown: list[dict[str, object]] = []
    now = 0
    try:
        with databases.reading(db) as store:
            rows, shown, now = store.baskets(), baskets_json(store), store.now()
    except databases.NoDatabase as error:
        output.note(f"holdfast: {output.clean(error.message)}")
    if json:
        output.document(shown)
        return
    if not rows:
        output.note("every basket is empty")
        return
    cells = [
        (output.line(b.basket), f"{b.questions:,}", f"{b.pended:,}", humanize_duration(now - b.since)) for b in rows
    ]
    for text in output.table(("BASKET", "QUESTIONS", "PENDED", "OLDEST"), cells):
        output.write(text)


def _asked(db: str | None, basket: str | None, assignee: str | None, limit: int) -> tuple[list[Wait], int]:
    """What people are asked, and what time it is."""
    for what, name in (("--basket", basket), ("--assignee", assignee)):
        if name is not None:
            texts.name(name, what)
    try:
        with databases.reading(db) as store:
            return views(store.asked(basket=basket, assignee=assignee, limit=limit)), store.now()
    except databases.NoDatabase as error:
        output.note(f"holdfast: {output.clean(error.message)}")
        return [], 0


def _print(waits: Sequence[Wait], now: int) -> None:
    """A table without the columns that are empty throughout."""
    rows = [_cells(wait, now) for wait in waits]
    used = [i for i in range(len(HEADERS)) if any(row[i] for row in rows)]
    for text in output.table([HEADERS[i] for i in used], [[row[i] for i in used] for row in rows]):
        output.write(text)


def _cells(wait: Wait, now: int) -> tuple[str, ...]:
    since = 0 if wait.since is None else int(wait.since.timestamp() * 1_000_000)
    cells = (
        wait.wait_id,
        humanize_duration(now - since),
        wait.run_id,
        wait.workflow,
        instance_text(wait.node or "", wait.path or "."),
        wait.assignee or "",
        wait.basket or "",
        "" if wait.until is None else iso(wait.until),
        wait.question or _pended(wait),
    )
    return tuple(output.line(cell) for cell in cells)


def _pended(wait: Wait) -> str:
    error = (wait.error or {}).get("message")
    return f"failed: {error}" if error else _ON_RESUME.get(wait.mode or "", "")
