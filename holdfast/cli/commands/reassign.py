"""`holdfast reassign` and `move`: handing a question or a pended node on."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import databases, requests, settings
from holdfast.cli.options import Db, Json
from holdfast.cli.requests import Actor, OfRun, WaitId
from holdfast.model.errors import UsageError


def reassign(
    wait: WaitId,
    to: Annotated[str | None, typer.Option("--to", metavar="NAME", help="Who is asked from now on.")] = None,
    basket: Annotated[str | None, typer.Option("--basket", metavar="NAME", help="Where it lies from now on.")] = None,
    actor: Actor = None,
    run: OfRun = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Hand a question or a pended node on: to somebody else, into another basket, or both.

    \b
    Examples:
      holdfast reassign w_7q2 --to bob
      holdfast reassign w_7q2 --to bob --basket second_look
    """
    if not to and not basket:
        raise UsageError("say where it goes: --to NAME, --basket NAME, or both")
    _hand_on(wait, to, basket, actor, run, db, json)


def move(
    wait: WaitId,
    basket: Annotated[str, typer.Argument(metavar="BASKET", help="Where it lies from now on.", show_default=False)],
    actor: Actor = None,
    run: OfRun = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Move a question or a pended node into another basket.

    \b
    Example:
      holdfast move w_7q2 second_look
    """
    if not basket:
        raise UsageError("a basket has a name")
    _hand_on(wait, None, basket, actor, run, db, json)


def _hand_on(
    wait: str, to: str | None, basket: str | None, actor: str | None, run: str | None, db: str | None, json: bool
) -> None:
    url = settings.database_url(db)
    with databases.reading(db) as store:
        asked = databases.find_wait(store, wait, run)
    who, wait_id = requests.whoever(actor), asked.wait_id
    requests.send(url, asked.run_id, lambda handle: handle.reassign(wait_id, assignee=to, basket=basket, actor=who))
    changes = [f"from {asked.assignee or 'nobody'} to {to}"] * bool(to)
    changes += [f"from {'no basket' if asked.basket is None else asked.basket} into {basket}"] * bool(basket)
    requests.tell(url, asked.run_id, f"moved {wait_id} of run {asked.run_id} {', '.join(changes)}", json=json)
