"""Targets: the workflow that a person names: in a Python file, in a module, or in a document.

Owns: `hf.load`, what `FILE.py:NAME`, `FILE.yaml:NAME` and `DIRECTORY:NAME` mean, and which files of code were loaded
for it (trust.py remembers them).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.authoring.document_workflows import DocumentWorkflow
from holdfast.authoring.workflows import Workflow
from holdfast.documents import registration
from holdfast.model.errors import UsageError
from holdfast.model.problems import choices
from holdfast.worker.loading import load_place, load_target, source_files, workflows_in


class Target(NamedTuple):
    """A workflow, and the files of the code that was loaded for it."""

    workflow: Workflow[..., object]
    files: set[str]


def load(path: str | os.PathLike[str]) -> DocumentWorkflow:
    """The workflow of a document: `hf.load("flow.yaml")`, or `hf.load("flow.yaml:diamond")` where the file has several;
    of a directory, `hf.load("flows:main")`, all documents are loaded, so that they can name each other.

    Its Python handlers must be imported before. Raises DefinitionError that lists every problem with its line.
    """
    place, name = _split(os.fspath(path))
    return _chosen([DocumentWorkflow(found) for found in registration.load([place])], place, name)


def load_workflow(target: str, code: Sequence[str] = ()) -> Target:
    """The workflow that a command names, once the code of its handlers is loaded."""
    files = load_places(code)
    place, name = _split(target)
    if registration.is_document(place):
        return Target(_chosen([DocumentWorkflow(found) for found in registration.load([place])], place, name), files)
    module, workflow = load_target(target)
    return Target(workflow, files | source_files(module))


def load_workflows(target: str) -> list[Target]:
    """The workflow that a command names, or all of the file, module or directory that it names."""
    place, name = _split(target)
    if name:
        return [load_workflow(target)]
    if registration.is_document(place):
        found = [DocumentWorkflow(one) for one in registration.load([place])]
        if not found:
            _chosen(found, place, name)  # raises
        return [Target(one, set()) for one in found]
    module = load_place(place)
    there = list(workflows_in(module).values())
    if not there:
        raise UsageError(f"{place} has no workflow: put @hf.workflow on a function at its top level")
    return [Target(one, source_files(module)) for one in there]


def load_places(places: Sequence[str]) -> set[str]:
    """Load files, modules, documents and directories of them, code first; the files of code that were loaded."""
    documents = [place for place in places if registration.is_document(place)]
    files = {file for place in places if place not in documents for file in source_files(load_place(place))}
    if documents:
        registration.load(documents)
    return files


def _split(target: str) -> tuple[str, str]:
    if target.endswith((".py", *registration.SUFFIXES)) or Path(target).is_dir():
        return target, ""
    place, colon, name = target.rpartition(":")
    return (place, name) if colon else (target, "")


def _chosen(found: Sequence[DocumentWorkflow], place: str, name: str) -> DocumentWorkflow:
    by_name = {workflow.name: workflow for workflow in found}
    if not by_name:
        raise UsageError(f"{place} has no document: one begins with `kind: graph` and `name: ...`")
    if name and name not in by_name:
        raise UsageError(f"{place} has no workflow {name!r}; {choices(name, by_name, 'workflows')}")
    if not name and len(by_name) > 1:
        raise UsageError(f"{place} has several workflows, so name one: " + ", ".join(f"{place}:{n}" for n in by_name))
    return by_name[name] if name else found[0]
