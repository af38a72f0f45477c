"""`holdfast inbox`, `baskets`, `basket`, `respond`, `reassign` and `move`: what waits for people, over all runs."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

import typer

from holdfast.cli import configuration, databases, forms, inputs, output
from holdfast.cli.commands.requesting import actor_name, send, show_outcome
from holdfast.cli.options import Actor, Db, Json, Limit, OfRun, WaitId
from holdfast.inspect.wait_views import baskets_json, views
from holdfast.model import texts
from holdfast.model.errors import InvalidInput, UsageError
from holdfast.model.limits import SECOND
from holdfast.model.naming import instance_text
from holdfast.model.views import Wait, humanize_duration, iso, wait_ended_by
from holdfast.store.row_types import BasketRow

ABOUT_LINES_MAX = 40
"""Lines of what a question is about; `holdfast show RUN --json` prints all of it."""
HEADERS = ("WAIT", "AGE", "RUN", "WORKFLOW", "NODE", "ASSIGNEE", "BASKET", "UNTIL", "ASKED")
_ON_RESUME = {"next": "what follows runs on resume", "same": "runs again on resume", "error": "failed"}


def inbox(
    basket: Annotated[str | None, typer.Option("--basket", metavar="NAME", help="Only from this basket.")] = None,
    assignee: Annotated[str | None, typer.Option("--assignee", metavar="NAME", help="Only of this person.")] = None,
    limit: Limit = 50,
    db: Db = None,
    json: Json = False,
) -> None:
    """List open questions and the contents of baskets, oldest first.

    \b
    Examples:
      holdfast inbox --assignee ada
      holdfast inbox --basket finance --json | jq -r '.[].wait_id'
    """
    for option, name in (("--basket", basket), ("--assignee", assignee)):
        if name is not None:
            texts.name(name, option)
    waits: list[Wait] = []
    now = 0
    try:
        with databases.reading(db) as store:
            waits, now = views(store.asked(basket=basket, assignee=assignee, limit=limit + 1)), store.now()
    except databases.NoDatabase as error:
        output.note(f"holdfast: {output.clean(error.message)}")
    if json:
        output.document([wait.as_json() for wait in waits[:limit]])
        return
    if not waits:
        whose = f" of {assignee}" if assignee else ""
        where = f" in basket {basket}" if basket else ""
        output.note(output.line(f"nothing waits for an answer{whose}{where}"))
        return
    rows = [_cells(wait, now) for wait in waits[:limit]]
    used = [i for i in range(len(HEADERS)) if any(row[i] for row in rows)]  # without the columns that are empty
    for text in output.table([HEADERS[i] for i in used], [[row[i] for i in used] for row in rows]):
        output.write(text)
    if len(waits) > limit:
        output.note(f"… and more; --limit {limit * 2} shows them")
    kinds = {wait.kind for wait in waits[:limit]}
    ways = ["`holdfast respond WAIT` answers"] * ("input" in kinds)
    ways += ["`holdfast resume RUN --wait WAIT` takes a node out of its basket"] * ("basket" in kinds)
    output.note("; ".join(ways))


def _cells(wait: Wait, now: int) -> tuple[str, ...]:
    since = 0 if wait.since is None else int(wait.since.timestamp() * SECOND)
    error = (wait.error or {}).get("message")
    cells = (
        wait.wait_id,
        humanize_duration(now - since),
        wait.run_id,
        wait.workflow,
        instance_text(wait.node or "", wait.path or "."),
        wait.assignee or "",
        wait.basket or "",
        "" if wait.until is None else iso(wait.until),
        wait.question or (f"failed: {error}" if error else _ON_RESUME.get(wait.mode or "", "")),
    )
    return tuple(output.line(cell) for cell in cells)


def basket(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A basket.", show_default=False)],
    limit: Limit = 50,
    db: Db = None,
    json: Json = False,
) -> None:
    """List the contents of one basket, oldest first.

    \b
    Examples:
      holdfast basket errors
      holdfast basket errors --json | jq -r '.[].run_id'
    """
    inbox(basket=name, assignee=None, limit=limit, db=db, json=json)


def baskets(db: Db = None, json: Json = False) -> None:
    """List the baskets that are not empty: how many questions and suspended nodes each has.

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


# --- handing on -----------------------------------------------------------------------------------------------------


def reassign(
    wait: WaitId,
    to: Annotated[str | None, typer.Option("--to", metavar="NAME", help="The new assignee.")] = None,
    basket: Annotated[str | None, typer.Option("--basket", metavar="NAME", help="The new basket.")] = None,
    actor: Actor = None,
    run: OfRun = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Reassign a question or a suspended node: to another person, to another basket, or both.

    \b
    Examples:
      holdfast reassign w_7q2 --to bob
      holdfast reassign w_7q2 --to bob --basket second_look
    """
    if not to and not basket:
        raise UsageError("name the new place: --to NAME, --basket NAME, or both")
    _reassign(wait, to, basket, actor, run, db, json)


def move(
    wait: WaitId,
    basket: Annotated[str, typer.Argument(metavar="BASKET", help="The new basket.", show_default=False)],
    actor: Actor = None,
    run: OfRun = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Move a question or a suspended node into another basket.

    \b
    Example:
      holdfast move w_7q2 second_look
    """
    if not basket:
        raise UsageError("the name of a basket cannot be empty")
    _reassign(wait, None, basket, actor, run, db, json)


def _reassign(
    wait: str, to: str | None, basket: str | None, actor: str | None, run: str | None, db: str | None, json: bool
) -> None:
    url = configuration.database_url(db)
    with databases.reading(db) as store:
        asked = databases.find_wait(store, wait, run)
    who, wait_id = actor_name(actor), asked.wait_id
    send(url, asked.run_id, lambda handle: handle.reassign(wait_id, assignee=to, basket=basket, actor=who))
    changes = [f"from {asked.assignee or 'no assignee'} to {to}"] * bool(to)
    changes += [f"from {'no basket' if asked.basket is None else f'basket {asked.basket}'} into {basket}"] * bool(
        basket
    )
    show_outcome(url, asked.run_id, f"moved {wait_id} of run {asked.run_id} {', '.join(changes)}", json=json)


# --- answering ------------------------------------------------------------------------------------------------------


def respond(
    wait: WaitId,
    given: Annotated[
        str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The answer; else a form asks for it.")
    ] = None,
    actor: Actor = None,
    run: OfRun = None,
    db: Db = None,
    json: Json = False,
) -> int:
    """Answer a question of a run; `holdfast inbox` lists them.

    On a terminal, without --input, a form asks for the answer according to its schema. Works with and without a running
    engine, and needs no code of yours.

    \b
    Examples:
      holdfast respond w_7q2
      holdfast respond w_7q2 --input '{"approve": true}' --actor ada

    \b
    Exit codes: 0 answered, 1 the answer does not fit (the question stays open), or another answer was first,
    2 wrong usage, 130 interrupted without an answer.
    """
    url = configuration.database_url(db)
    with databases.reading(db) as store:
        asked = databases.find_wait(store, wait, run)
    if asked.kind != "input":
        end = " ".join(("holdfast", *wait_ended_by(asked)))
        raise UsageError(f"{asked.wait_id} is not a question (it is a wait of kind {asked.kind}); `{end}` ends it")
    answer = _answer(asked, given, json)
    who, wait_id = actor_name(actor), asked.wait_id
    try:
        send(url, asked.run_id, lambda handle: handle.respond(wait_id, answer, actor=who))
    except InvalidInput as error:
        return output.complain(error.code, f"{error.message}. The question stays open", output.FAILED)
    show_outcome(url, asked.run_id, f"answered {wait_id} of run {asked.run_id}, as {who}", json=json)
    return output.OK


def _answer(asked: Wait, given: str | None, json: bool) -> Any:
    if given is not None:
        return inputs.answer(*inputs.source(given, "--input"), asked.schema)
    if not sys.stdin.isatty():
        raise UsageError(
            f"there is no terminal for a form; give the answer to {output.line(asked.question or '')!r} as "
            "--input JSON, --input @FILE, or --input - for stdin"
        )
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():  # stdout is for JSON alone
        print_question(asked)
        try:
            return forms.fill({} if asked.schema is None else asked.schema, forms.prompt, print)
        except (EOFError, KeyboardInterrupt):
            output.note("\ninterrupted; no answer was sent, and the question stays open")
            raise KeyboardInterrupt from None


def print_question(asked: Wait) -> None:
    """Print a question above its form."""
    node = instance_text(asked.node or "?", asked.path or ".")
    whom = [f"for {asked.assignee}"] * bool(asked.assignee) + [f"basket {asked.basket}"] * bool(asked.basket)
    until = [f"until {iso(asked.until)}"] if asked.until is not None else []
    about = [f"run {asked.run_id}", asked.workflow, node, *whom, *until]
    print(output.paint(output.line("  ·  ".join(about)), "dim"))
    print(output.paint(output.clean(asked.question or ""), "bold"))
    lines = _about(asked.about)
    for text in lines[:ABOUT_LINES_MAX]:
        print(f"  {text}")
    if len(lines) > ABOUT_LINES_MAX:
        print(f"  … {len(lines) - ABOUT_LINES_MAX:,} more lines; `holdfast show {output.line(asked.run_id)} --json`")
    print()


def _about(value: Any) -> list[str]:
    """What a question is about: a flat object line by line, anything else as JSON."""
    if value is None:
        return []
    if isinstance(value, str):
        return output.clean(value).splitlines()
    if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
        width = max((len(name) for name in value), default=0)
        texts_of = {n: v if isinstance(v, str) else output.json_text(v, compact=True) for n, v in value.items()}
        return [output.line(f"{name:<{width}}  {text}") for name, text in texts_of.items()]
    return output.json_text(value).splitlines()
