"""`holdfast validate`: every problem of a definition, at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import output
from holdfast.cli.options import Json
from holdfast.model import definition as definitions
from holdfast.model import handlers, validation
from holdfast.model.errors import DefinitionError, HoldfastError, TraceError, UsageError
from holdfast.model.plans import compile_definition
from holdfast.model.validation import Problem
from holdfast.worker.loading import load_file, load_target, workflows_in


class Verdict(msgspec.Struct):
    """What was found about one workflow."""

    workflow: str
    problems: list[Problem]
    warnings: list[str] = []
    nodes: int = 0


def command(
    what: Annotated[str, typer.Argument(metavar="FILE.py[:NAME]|FILE.json", help="Code, or a definition as JSON.")],
    json: Json = False,
) -> int:
    """Check workflows and name every problem, with the node, the field and what to do.

    \b
    Examples:
      holdfast validate shop.py
      holdfast validate fulfil.json --json

    \b
    Exit codes: 0 no problems, 1 problems, 2 wrong usage.
    """
    with output.only_json(json):
        verdicts = list(_of_json(what) if what.endswith(".json") else _of_code(what))
        ok = not any(verdict.problems for verdict in verdicts)
        if json:
            output.document({"ok": ok, "workflows": [_as_json(v) for v in verdicts]})
        else:
            for verdict in verdicts:
                _tell(verdict)
    return output.OK if ok else output.FAILED


def _of_json(what: str) -> Iterator[Verdict]:
    try:
        data = Path(what).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no file {Path(what).absolute()}") from None
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}") from None
    try:
        definition = definitions.read(data)
    except DefinitionError as error:
        hint = "`workflow.definition.encode()` writes a workflow of your code as JSON"
        yield Verdict(Path(what).stem, [_as_problem(error, hint)])
        return
    problems = validation.check(definition)
    yield Verdict(definition.name, problems, [] if problems else _nothing_undone(definition), len(definition.nodes))


def _of_code(what: str) -> Iterator[Verdict]:
    try:
        if what.endswith(".py"):
            found = {w.name: w for w in workflows_in(load_file(what)).values()}
        else:
            workflow = load_target(what)[1]
            found = {workflow.name: workflow}
    except UsageError as error:  # a decorator that refuses is a problem of the definition, and so is told as one
        if isinstance(error.__cause__, DefinitionError):
            yield Verdict(what, _problems(error.__cause__))
            return
        raise
    if not found:
        raise UsageError(f"{what} has no workflow: put @hf.workflow on a function at its top level")
    for name, workflow in found.items():
        yield _check(name, workflow)


def _check(name: str, workflow: Any) -> Verdict:
    try:
        definition = workflow.definition
    except HoldfastError as error:
        return Verdict(name, _problems(error))
    return Verdict(name, [], _warnings(workflow) + _nothing_undone(definition), len(definition.nodes))


def _problems(error: HoldfastError) -> list[Problem]:
    listed = [p for p in getattr(error, "problems", ()) if isinstance(p, Problem)]
    return listed or [_as_problem(error, _GRAPHS if isinstance(error, TraceError) else _CODE)]


_GRAPHS = "the function only describes the graph: hf.when, hf.route, hf.map, hf.loop and nodes deal with values"
_CODE = "mend the code that the message is about, and validate it again"


def _as_problem(error: HoldfastError, hint: str) -> Problem:
    return Problem(code=error.code, message=error.message, hint=hint)


def _warnings(workflow: Any) -> list[str]:
    """Where nothing says what a value is: it arrives as plain JSON types."""
    registered = workflow.registered
    found = [f"the input {p.name} has no annotation" for p in registered.params if p.annotation is Any]
    for name in sorted(compile_definition(registered.definition, 0).handlers):
        handler = handlers.find(name)
        if handler is None or name.startswith("holdfast."):
            continue
        short = name.rsplit(".", 1)[-1]
        found += [f"{short}({p.name}) has no annotation" for p in handler.params if p.annotation is Any]
        if handler.returns is Any:
            found.append(f"{short} has no annotation for its result")
    return [f"{text}: its value is plain JSON types" for text in found]


def _nothing_undone(definition: definitions.Definition) -> list[str]:
    """Where whoever wrote it may think that failing undoes something."""
    if definition.settings.on_failure != "compensate" or definition.kind == "code":  # which steps it makes is not known
        return []
    nodes = list(definition.nodes)
    while nodes:
        node = nodes.pop()
        if node.compensate is not None:
            return []
        nodes += node.body.nodes if node.body is not None else ()
    return ["on_failure='compensate' undoes nothing here: no node of its graph has compensate=..."]


def _tell(verdict: Verdict) -> None:
    name = output.line(verdict.workflow)
    if not verdict.problems:
        about = output.count(verdict.nodes, "node")
        output.write(f"{output.paint('✓', 'green')} {name}: {about}, no problems")
    else:
        count = output.count(len(verdict.problems), "problem")
        output.write(f"{output.paint('✗', 'red')} {name}: {count}")
    for problem in verdict.problems:
        output.write(f"  {problem.code}: {output.clean(problem)}")
    for warning in verdict.warnings:
        output.write(f"  {output.paint('note', 'yellow')}: {output.line(warning)}")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    problems = [msgspec.structs.asdict(problem) for problem in verdict.problems]
    return {"workflow": verdict.workflow, "problems": problems, "warnings": verdict.warnings}
