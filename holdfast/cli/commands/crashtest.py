"""`holdfast crashtest`: run a workflow under every crash and report what does not survive."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import inputs, output
from holdfast.cli.options import GivenInput, HandlerCode, InputAssignments, Json, Quiet, Target, unset_option
from holdfast.cli.output import StatusLine
from holdfast.model.errors import UsageError
from holdfast.model.policies import seconds
from holdfast.testing.explorer import substitutes
from holdfast.testing.explorer.client import PEOPLE_TAKE
from holdfast.testing.explorer.report import Report
from holdfast.testing.explorer.search import explore
from holdfast.worker.targets import load_workflow


def crashtest(
    target: Target,
    given: GivenInput = None,
    assignments: InputAssignments = None,
    code: HandlerCode = None,
    effects: Annotated[
        list[str] | None,
        unset_option(
            "--effects",
            metavar="module.name|none",
            help="A callable or node whose calls count as effects; may be repeated. Without it each body counts.",
        ),
    ] = None,
    idempotent: Annotated[
        list[str] | None,
        unset_option("--idempotent", metavar="NAME", help="A node, step or callable that may be repeated."),
    ] = None,
    fakes: Annotated[
        list[str] | None,
        unset_option("--fake", metavar="module:name=module:fake", help="Replace a callable that really waits."),
    ] = None,
    answers: Annotated[
        list[str] | None,
        unset_option("--answer", metavar="QUESTION=JSON", help="The answer to a question; may be repeated."),
    ] = None,
    signals: Annotated[
        list[str] | None,
        unset_option("--signal", metavar="NAME=JSON", help="A signal that is sent; may be repeated."),
    ] = None,
    resumes: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Whether the simulated operator empties baskets and ends pauses."),
    ] = True,
    people_take: Annotated[
        str, typer.Option("--people-take", metavar="TIME", help="How long an answer takes; 0: no time.")
    ] = PEOPLE_TAKE,
    depth: Annotated[int, typer.Option("--depth", min=1, max=4, help="Faults in one schedule.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The order of two engines; 0: in turn.")] = 0,
    replay: Annotated[str | None, typer.Option("--replay", metavar="TAPE", help="Run one schedule again.")] = None,
    schedules_max: Annotated[int | None, unset_option("--max-schedules", min=1, help="Stop after this many.")] = None,
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
    """Run a workflow under every crash and report what does not survive.

    The real engine runs it with a virtual clock. At every write to the store and every effect the process dies before
    or after it, gets an error, or stops past its lease and comes back; another engine takes over. The invariants are
    checked after every write, and the outcome is compared with that of an undisturbed run. Nothing is kept. A simulated
    operator answers questions, sends signals and empties baskets, and repeats a request that was not applied.

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
        workflow, _ = load_workflow(target, code or ())
        inputs.keep_text(values, assignments or (), workflow.definition.params)
        line = StatusLine(silent=quiet or json)
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
            progress=lambda done, ahead, findings: line.show(_progress_text(done, ahead, findings)),
            database=database,
        )
        line.clear()
        if json:
            output.document(report.as_json())
        else:
            _print_report(report, target)
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
    """`QUESTION=JSON`. A question may contain an equals sign: JSON begins after the first one that makes it valid."""
    for at in [i for i, character in enumerate(text) if character == "="]:
        with contextlib.suppress(msgspec.DecodeError):
            return text[:at], msgspec.json.decode(text[at + 1 :])
    raise UsageError(f'{option} {text!r}: write a name, an equals sign and JSON; text is JSON in quotes: name="text"')


def _duration(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return seconds(text)


def _print_report(report: Report, target: str) -> None:
    lines = [output.clean(report.explain())]
    tapes = [finding.tape for finding in report.findings if finding.tape and finding.kind.name != "UNSUITABLE"]
    if tapes:
        lines += ["", f"to run one of them again: holdfast crashtest {target} ... --replay {tapes[0]}"]
    output.write("\n".join([*lines, f"{report.schedules_per_second:,.0f} schedules per second"]))


def _progress_text(done: int, ahead: int, findings: int) -> str:
    return f"{done:,}{f' of {ahead:,}' if ahead else ''} schedules, {findings} findings"
