"""`holdfast respond`: answering a question."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from holdfast.cli import databases, forms, inputs, output, prompts, requests, settings
from holdfast.cli.options import Db, Json
from holdfast.cli.requests import Actor, OfRun, WaitId
from holdfast.model.errors import InvalidInput, UsageError
from holdfast.model.naming import instance_text
from holdfast.model.views import Wait, iso, wait_ended_by

ABOUT_LINES_MAX = 40
"""Of what a question is about; `holdfast show RUN --json` has all of it."""


def command(
    wait: WaitId,
    given: Annotated[
        str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The answer; else a form asks for it.")
    ] = None,
    actor: Actor = None,
    run: OfRun = None,
    db: Db = None,
    json: Json = False,
) -> int:
    """Answer a question that a run asks; `holdfast inbox` lists them.

    On a terminal, without --input, a form asks for the answer as its schema says. Works while an engine runs in another
    process, and with none running; needs no code of yours.

    \b
    Examples:
      holdfast respond w_7q2
      holdfast respond w_7q2 --input '{"approve": true}' --actor ada

    \b
    Exit codes: 0 answered, 1 the answer does not fit (the question stays open), or somebody else was first,
    2 wrong usage, 130 left without an answer.
    """
    url = settings.database_url(db)
    with databases.reading(db) as store:
        asked = databases.find_wait(store, wait, run)
    if asked.kind != "input":
        end = " ".join(("holdfast", *wait_ended_by(asked)))
        raise UsageError(f"{asked.wait_id} asks nothing (it is a wait of kind {asked.kind}); `{end}` ends it")
    answer = _answer(asked, given, json)
    who, wait_id = requests.whoever(actor), asked.wait_id
    try:
        requests.send(url, asked.run_id, lambda handle: handle.respond(wait_id, answer, actor=who))
    except InvalidInput as error:
        return output.complain(error.code, f"{error.message}. The question stays open", output.FAILED)
    requests.tell(url, asked.run_id, f"answered {wait_id} of run {asked.run_id}, as {who}", json=json)
    return output.OK


def _answer(asked: Wait, given: str | None, json: bool) -> Any:
    if given is not None:
        return inputs.answer(*inputs.source(given, "--input"), asked.schema)
    if not sys.stdin.isatty():
        raise UsageError(
            f"there is no terminal for a form; give the answer to {output.line(asked.question or '')!r} as "
            "--input JSON, --input @FILE, or --input - for stdin"
        )
    with _prompts_aside(json):
        show(asked)
        try:
            return forms.fill({} if asked.schema is None else asked.schema, prompts.ask, print)
        except (EOFError, KeyboardInterrupt):
            output.note("\nleft; nothing was sent, and the question stays open")
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def _prompts_aside(json: bool) -> Iterator[None]:
    """With --json, what the form says is not on stdout."""
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        yield


def show(asked: Wait) -> None:
    """The question as somebody sees it who is to answer it."""
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
    """What a question is about: an object line by line, anything else as JSON."""
    if value is None:
        return []
    if isinstance(value, str):
        return output.clean(value).splitlines()
    if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
        width = max((len(name) for name in value), default=0)
        return [output.line(f"{name:<{width}}  {_shown(part)}") for name, part in value.items()]
    return output.json_text(value).splitlines()


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else output.json_text(value, compact=True)
