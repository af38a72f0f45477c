"""Documents as texts: compiled, run, and their problems as lines."""

from __future__ import annotations

from typing import Any

from holdfast.authoring.document_workflows import DocumentWorkflow
from holdfast.documents.compiling import Library
from holdfast.documents.kinds import compile_source, name_of
from holdfast.documents.reading import read
from holdfast.documents.registration import registered
from holdfast.model.definition import Definition
from holdfast.testing import harness
from tests.documents import flows

assert flows.double


def definition_of(text: str, *, has_code: bool = True) -> Definition:
    """The definition of the first document of a text, which has no problems."""
    sources = read(text.encode(), "flow.yaml")
    library = Library({name_of(source): source.value for source in sources}, has_code=has_code)
    definition, problems = compile_source(sources[0], library)
    assert definition is not None, "\n".join(map(str, problems))
    return definition


def problems_of(text: str, *, has_code: bool = True) -> list[str]:
    """The problems of the first document of a text, as they are printed."""
    sources = read(text.encode(), "flow.yaml")
    library = Library({name_of(source): source.value for source in sources}, has_code=has_code)
    definition, problems = compile_source(sources[0], library)
    assert (definition is None) == bool(problems)
    return [str(problem).removeprefix("flow.yaml:") for problem in problems]


async def result_of(text: str, **inputs: Any) -> Any:
    """What a run of a document gives."""
    workflow = DocumentWorkflow(registered(definition_of(text), "flow.yaml"))
    async with harness() as h:
        run = await h.start(workflow, **inputs)
        return await run.result()
