"""`holdfast validate` and `schema`: check workflows in Python, in documents and as stored definitions.

Owns: both verbs, which notes a valid workflow gets, and how problems are printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast import handlers as builtin_handlers
from holdfast.cli import output
from holdfast.cli.options import HandlerCode, Json
from holdfast.documents import kinds, registration
from holdfast.model import definition as definitions
from holdfast.model import handlers, validation
from holdfast.model.errors import DefinitionError, HoldfastError, TraceError, UsageError
from holdfast.model.plans import compile_definition
from holdfast.model.problems import choices
from holdfast.model.validation import Problem
from holdfast.worker.loading import load_file, load_target, workflows_in
from holdfast.worker.targets import load_places

assert builtin_handlers.NAMES  # importing it registered them


class Verdict(msgspec.Struct):
    """What was found about one workflow."""

    workflow: str
    problems: list[Problem]
    warnings: list[str] = []
    nodes: int = 0


def validate(
    what: Annotated[
        list[str],
        typer.Argument(metavar="FILE|DIRECTORY...", help="Python (FILE.py[:NAME]), YAML or JSON; may be repeated."),
    ],
    code: HandlerCode = None,
    json: Json = False,
) -> int:
    """Check workflows and list every problem, with its place and a hint.

    Documents are read together, so that they can name each other. Without --code their Python handlers are not checked.

    \b
    Examples:
      holdfast validate shop.py
      holdfast validate flows/ --code handlers.py
      holdfast validate flow.yaml --json

    \b
    Exit codes: 0 no problems, 1 problems, 2 wrong usage.
    """
    with output.only_json(json):
        load_places(code or ())
        documents = [place for place in what if _is_document(place)]
        verdicts = list(_of_documents(documents, has_code=bool(code))) if documents else []
        for place in what:
            if place not in documents:
                verdicts += _of_stored(place) if place.endswith(".json") else _of_code(place)
        ok = not any(verdict.problems for verdict in verdicts)
        if json:
            output.document({"ok": ok, "workflows": [_as_json(v) for v in verdicts]})
        else:
            for verdict in verdicts:
                _print_verdict(verdict)
    return output.OK if ok else output.FAILED


def _is_document(place: str) -> bool:
    return registration.is_document(place) and not registration.is_stored_definition(place)


def _of_documents(places: Sequence[str], *, has_code: bool) -> Iterator[Verdict]:
    checked, library = registration.check(places, has_code=has_code)
    if not checked:
        raise UsageError(f"there is no document in {', '.join(places)}: one begins with `kind: graph` and `name: ...`")
    for document in checked:
        verdict = Verdict(document.name or document.file, document.problems)
        if document.definition is not None:
            verdict.nodes = len(document.definition.nodes)
            verdict.warnings = _nothing_undone(document.definition)
            needed = definitions.handlers_of(document.definition.nodes)
            if unchecked := sorted(name for name in needed if name in library.unchecked):
                listed = ", ".join(unchecked[:5]) + (" and more" if len(unchecked) > 5 else "")
                verdict.warnings.append(f"not checked: the handlers {listed}; name their code with --code FILE.py")
        yield verdict


def schema(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="The kind of document; else one schema for all.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON Schema of documents, by which editors complete and check them.

    \b
    Examples:
      holdfast schema > holdfast.schema.json
      holdfast schema dag
    """
    if kind is not None and kind not in kinds.KINDS:
        raise UsageError(f"there is no kind {kind!r} of documents; {choices(kind, kinds.KINDS, 'kinds')}")
    output.document(kinds.schema_of_documents() if kind is None else kinds.schema_of_kind(kind))


def _of_stored(what: str) -> Iterator[Verdict]:
    data = Path(what).read_bytes()
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
    except UsageError as error:  # a decorator that refuses is a problem of the definition
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
_CODE = "correct the code that the message names, and validate it again"


def _as_problem(error: HoldfastError, hint: str) -> Problem:
    return Problem(code=error.code, message=error.message, hint=hint)


def _warnings(workflow: Any) -> list[str]:
    """Parameters and results without an annotation: their values are plain JSON types."""
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
    """A warning if `on_failure='compensate'` has nothing to undo."""
    if definition.settings.on_failure != "compensate" or definition.kind == "code":  # which steps it makes is not known
        return []
    nodes = list(definition.nodes)
    while nodes:
        node = nodes.pop()
        if node.compensate is not None:
            return []
        nodes += node.body.nodes if node.body is not None else ()
    return ["on_failure='compensate' undoes nothing here: no node of its graph has compensate=..."]


def _print_verdict(verdict: Verdict) -> None:
    name = output.line(verdict.workflow)
    if not verdict.problems:
        about = output.count(verdict.nodes, "node")
        output.write(f"{output.paint('✓', 'green')} {name}: {about}, no problems")
    else:
        count = output.count(len(verdict.problems), "problem")
        output.write(f"{output.paint('✗', 'red')} {name}: {count}")
    for problem in verdict.problems:
        code = "" if problem.file else f"  {problem.code}: "  # editors find `FILE:LINE:COLUMN:` at the beginning
        output.write(f"{code}{output.clean(problem)}")
    for warning in verdict.warnings:
        output.write(f"  {output.paint('note', 'yellow')}: {output.line(warning)}")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    problems = [msgspec.structs.asdict(problem) for problem in verdict.problems]
    return {"workflow": verdict.workflow, "problems": problems, "warnings": verdict.warnings}
