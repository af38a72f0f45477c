"""`holdfast crashtest`: run a workflow under every crash and say what does not survive.

It is a verb of the command line, and lies here because the explorer may use everything and nothing may use the
explorer: the command line finds it by name, when it is asked for.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import inputs, output
from holdfast.cli.options import GivenInput, InputAssignments, Json, Quiet, Target
from holdfast.model.errors import UsageError
from holdfast.model.policies import seconds
from holdfast.testing.explorer import substitutes
from holdfast.testing.explorer.client import PEOPLE_TAKE
from holdfast.testing.explorer.report import Report
from holdfast.testing.explorer.search import explore
from holdfast.worker.loading import load_target

_EVERY_SECONDS = 0.2


def command(
    target: Target,
    given: GivenInput = None,
    assignments: InputAssignments = None,
    effects: Annotated[
        list[str] | None,
        typer.Option(
            "--effects",
            metavar="module.name|none",
            help="A callable or node whose calls count as effects; may be repeated. Without it each body counts.",
            show_default=False,
        ),
    ] = None,
    idempotent: Annotated[
        list[str] | None,
        typer.Option(
            "--idempotent", metavar="NAME", help="A node, step or callable that may be repeated.", show_default=False
        ),
    ] = None,
    fakes: Annotated[
        list[str] | None,
        typer.Option(
            "--fake",
            metavar="module:name=module:fake",
            help="Replace a callable that really waits.",
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="QUESTION=JSON",
            help="What people answer to a question; may be repeated.",
            show_default=False,
        ),
    ] = None,
    signals: Annotated[
        list[str] | None,
        typer.Option(
            "--signal", metavar="NAME=JSON", help="A signal that is sent; may be repeated.", show_default=False
        ),
    ] = None,
    resumes: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Whether somebody empties baskets and ends pauses.")
    ] = True,
    people_take: Annotated[
        str, typer.Option("--people-take", metavar="TIME", help="How long people take to answer; 0: not at all.")
    ] = PEOPLE_TAKE,
    depth: Annotated[int, typer.Option("--depth", min=1, max=4, help="Faults in one schedule.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which of two engines goes first; 0: in turn.")] = 0,
    replay: Annotated[str | None, typer.Option("--replay", metavar="TAPE", help="Run one schedule again.")] = None,
    schedules_max: Annotated[
        int | None, typer.Option("--max-schedules", min=1, help="Stop after this many.", show_default=False)
    ] = None,
    stop_at_first: Annotated[bool, typer.Option("--first", help="Stop at the first finding.")] = False,
    database: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="postgresql://...",
            help="Run it on this server, in a schema that is dropped at the end.",
            show_default="SQLite in memory",
        ),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Run a workflow under every crash and tell what does not survive.

    The real engine runs it with a virtual clock. At every write to the store and every effect the process dies before
    or after it, gets an error, or stands still past its lease and comes back; another engine goes on. The invariants
    are checked after every write, and the outcome is compared with the run that nothing disturbed. Nothing is kept.
    Somebody outside answers questions, sends signals and empties baskets, and asks again when nobody has answered.

    \b
    Examples:
      holdfast crashtest shop.py:fulfil --input @order.json
      holdfast crashtest shop.py:fulfil --effects shop.payments.charge --fake time:sleep=fakes:no_sleep
      holdfast crashtest approval.py:approve --answer 'Ship this order?={"approved": true}' --signal 'hurry="please"'
      holdfast crashtest shop.py:fulfil --depth 2 --max-schedules 20000
      holdfast crashtest shop.py:fulfil --replay 0/7.2
      holdfast crashtest shop.py:fulfil --db postgresql://me@localhost/test

    \b
    Exit codes: 0 safe, 1 something is unsafe, 2 wrong usage (also: the workflow cannot be explored as it is).
    """
    values = inputs.read(given, assignments or ())
    with output.only_json(json):
        _, workflow = load_target(target)
        inputs.keep_text(values, assignments or (), workflow.definition.params)
        progress = None if quiet or json or not sys.stderr.isatty() else _Progress()
        report = explore(
            workflow,
            effects=_effects(effects),
            idempotent=idempotent or (),
            fakes=dict(_fake(text) for text in fakes or ()),
            answers=dict(_given(text, "--answer") for text in answers or ()),
            signals=[_given(text, "--signal") for text in signals or ()],
            resumes=resumes,
            people_take=_duration(people_take),
            depth=depth,
            seed=seed,
            tape=replay,
            schedules_max=schedules_max,
            stop_at_first=stop_at_first,
            inputs=values,
            progress=progress,
            database=database,
        )
        if progress is not None:
            progress.clear()
        if json:
            output.document(report.as_json())
        else:
            _tell(report, target)
    if not report.suitable:
        return output.USAGE
    return output.OK if report.safe else output.FAILED


def _effects(names: list[str] | None) -> list[str] | None:
    if not names:
        return None
    return [] if names == ["none"] else names


def _fake(text: str) -> tuple[str, Any]:
    original, equals, fake = text.partition("=")
    if not equals or ":" not in original or ":" not in fake:
        raise UsageError(f"--fake {text!r}: write module:name=module:fake")
    return original, substitutes.find(fake)[1]


def _given(text: str, option: str) -> tuple[str, Any]:
    """`QUESTION=JSON`; a question may well contain an equals sign, JSON begins behind the first one that lets it."""
    for at in [i for i, character in enumerate(text) if character == "="]:
        with contextlib.suppress(msgspec.DecodeError):
            return text[:at], msgspec.json.decode(text[at + 1 :])
    raise UsageError(f'{option} {text!r}: write a name, an equals sign and JSON; text is JSON in quotes: name="text"')


def _duration(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return seconds(text)


def _tell(report: Report, target: str) -> None:
    lines = [output.clean(report.explain())]
    tapes = [finding.tape for finding in report.findings if finding.tape and finding.kind.name != "UNSUITABLE"]
    if tapes:
        lines += ["", f"to run one of them again: holdfast crashtest {target} ... --replay {tapes[0]}"]
    output.write("\n".join([*lines, f"{report.schedules_per_second:,.0f} schedules a second"]))


class _Progress:
    """One line on the terminal that is written over."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, schedules: int, ahead: int, findings: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_SECONDS
            of = f" of {ahead:,}" if ahead else ""
            sys.stderr.write(f"\r\x1b[K{schedules:,}{of} schedules, {findings} findings")
            sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
