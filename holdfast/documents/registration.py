"""Registration: documents as workflows that are loaded in this process.

Owns: reading files and directories together, so that their documents can name each other; registering what they define;
which code a document's runs need: the files of its Python handlers, not the document itself, which may be gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.documents import findings
from holdfast.documents.compiling import Library
from holdfast.documents.findings import Findings
from holdfast.documents.kinds import compile_source, name_of
from holdfast.documents.places import Unreadable
from holdfast.documents.reading import Source, read_file
from holdfast.model import handlers
from holdfast.model.definition import Definition, handlers_of
from holdfast.model.errors import UsageError
from holdfast.model.handlers import CodeLocation, Parameter, RegisteredWorkflow
from holdfast.model.problems import Problem

SUFFIXES = (".yaml", ".yml", ".json")


class Checked(NamedTuple):
    """One document, or a file that is none."""

    file: str
    name: str
    definition: Definition | None
    problems: list[Problem]


def is_document(place: str) -> bool:
    """Whether a place on the command line names documents: a file in YAML or JSON, or a directory."""
    return place.endswith(SUFFIXES) or Path(place).is_dir()


def is_stored_definition(what: str) -> bool:
    """Whether a file is a definition as databases store it; a document in JSON has a `kind`."""
    if not what.endswith(".json"):
        return False
    try:
        return not (isinstance(found := json.loads(Path(what).read_bytes()), dict) and "kind" in found)
    except FileNotFoundError:
        raise UsageError(f"there is no file {Path(what).absolute()}") from None
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}") from None
    except (ValueError, RecursionError):
        return False


def files_of(places: Iterable[str]) -> list[str]:
    """The files that the places name; of a directory its YAML and JSON files. Raises UsageError when there is none."""
    found: dict[str, None] = {}
    for place in places:
        folder = Path(place)
        if not folder.is_dir():
            found[place] = None
            continue
        inside = sorted(str(file) for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not inside:
            raise UsageError(f"there is no document in {folder.absolute()}: its files end in {', '.join(SUFFIXES)}")
        found |= dict.fromkeys(inside)
    return list(found)


def check(places: Sequence[str], *, has_code: bool = True) -> tuple[list[Checked], Library]:
    """Read and compile all documents of some files and directories; also the handlers that are not loaded."""
    sources: list[Source] = []
    checked: list[Checked] = []
    for file in files_of(places):
        try:
            sources += read_file(Path(file), file)
        except Unreadable as e:
            checked.append(Checked(file, "", None, [findings.of_text(e, file)]))
    named: dict[str, Source] = {}
    for source in sources:
        named.setdefault(name_of(source), source)
    library = Library({name: source.value for name, source in named.items() if name}, has_code=has_code)
    for source in sources:
        name = name_of(source)
        definition, problems = compile_source(source, library)
        if name and named[name] is not source:
            twice = Findings(source)
            wrong = f"two documents are called {name!r}; the other one is in {named[name].name}"
            twice.add("duplicate_id", ("name",), wrong, "give one of them another name")
            definition, problems = None, [*problems, *twice.listed()]
        checked.append(Checked(source.name, name, definition, problems))
    return checked, library


def load(places: Sequence[str]) -> list[RegisteredWorkflow]:
    """Register the workflows of documents. Raises DefinitionError with every problem, UsageError for a missing file."""
    checked, _ = check(places)
    problems = [problem for document in checked for problem in document.problems]
    if problems:
        raise findings.error(problems, ", ".join(dict.fromkeys(document.file for document in checked)))
    found = []
    for document in checked:
        assert document.definition is not None
        found.append(registered(document.definition, str(Path(document.file).resolve())))
    for workflow in found:
        _refuse_rival(workflow)
    for workflow in found:
        handlers.register_workflow(
            workflow.definition.name,
            lambda workflow=workflow: workflow,  # type: ignore[misc]  # bound now, not when it is called
            is_strict=workflow.definition.settings.on_code_change == "fail",
        )
    return found


def registered(definition: Definition, file: str) -> RegisteredWorkflow:
    """A definition that came from a document, as a workflow that is loaded here."""
    parts: dict[str, CodeLocation] = {}
    for name in sorted(handlers_of(definition.nodes)):
        handler = handlers.find(name)
        if handler is not None and not name.startswith("holdfast."):
            parts.setdefault(handler.code.file or handler.code.module, handler.code)
    code = CodeLocation(kind="document", file=file, name=definition.name, parts=tuple(parts.values()))
    params = tuple(Parameter(p.name, Any, p.required) for p in definition.params)
    variables = dict.fromkeys(definition.variables, Any)
    return RegisteredWorkflow(definition=definition, code=code, params=params, returns=Any, variables=variables)


def _refuse_rival(workflow: RegisteredWorkflow) -> None:
    """Refuse a document whose name another workflow of this process has with other content."""
    name, file = workflow.definition.name, workflow.code.file
    if name not in handlers.workflow_names():
        return
    other = handlers.find_workflow(name)
    if (
        other is None
        or other.code.file == file
        or other.definition.content_hash() == workflow.definition.content_hash()
    ):
        return
    raise UsageError(f"two workflows are called {name!r}: in {other.code.file} and in {file}; rename one of them")
