"""`holdfast export`: a workflow, or that of a run, as a document.

Owns: the verb, and compiling what it wrote back, to be sure that it is the same version.
"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import handlers as builtin_handlers
from holdfast.cli import databases, output
from holdfast.cli.commands.graphs import definition_of_code, names_code
from holdfast.cli.options import Db, HandlerCode
from holdfast.documents.compiling import Library
from holdfast.documents.export import as_json, as_yaml, document_of
from holdfast.documents.kinds import compile_source
from holdfast.documents.reading import read
from holdfast.model import handlers
from holdfast.model.definition import Definition, decode, handlers_of
from holdfast.model.errors import CorruptJournal, UnknownRun, UsageError

assert builtin_handlers.NAMES  # importing it registered them


def export(
    what: Annotated[str, typer.Argument(metavar="FILE:NAME|RUN", help="A workflow, or a run.")],
    kind: Annotated[str, typer.Option("--as", metavar="graph", help="The kind of the document.")] = "graph",
    form: Annotated[str, typer.Option("--format", "-f", metavar="yaml|json", help="What to print.")] = "yaml",
    code: HandlerCode = None,
    db: Db = None,
) -> int:
    """Write a workflow as a document that compiles to the same version: conditions and arguments become expressions.

    Its nodes name their handlers: load the code of these with --code where the document is used.

    \b
    Examples:
      holdfast export shop.py:fulfil > fulfil.yaml
      holdfast export order-42 --format json

    \b
    Exit codes: 0 written, 1 written but another version, 2 wrong usage.
    """
    if kind != "graph":
        raise UsageError(f"--as {kind}: use graph")
    if form not in {"yaml", "json"}:
        raise UsageError(f"--format {form}: use yaml or json")
    definition = definition_of_code(what, code or ()) if names_code(what) else _of_run(what, db)
    document = document_of(definition)
    text = as_yaml(document) if form == "yaml" else as_json(document)
    output.write(text.removesuffix("\n"))
    missing = sorted(name for name in handlers_of(definition.nodes) if handlers.find(name) is None)
    if missing:
        output.note(f"not checked: {', '.join(missing)} is not loaded; add --code FILE.py")
        return output.OK
    difference = _difference(text, form, definition)
    if difference:
        output.note(f"the document is not the same version: {difference}")
    return output.FAILED if difference else output.OK


def _of_run(run_id: str, db: str | None) -> Definition:
    try:
        with databases.reading(db) as store:
            row = databases.find_by_prefix(store, run_id)
            found = store.version(row.workflow, row.version)
            if found is None:
                wrong = f"run {row.run_id} follows version {row.version} of {row.workflow}, which is not there"
                raise CorruptJournal(wrong)
            return decode(found.definition)
    except UnknownRun as error:
        raise UnknownRun(f"{error.message}. A workflow is given as FILE.py:NAME") from None


def _difference(text: str, form: str, definition: Definition) -> str:
    """Why a document does not compile to a definition; empty when it does."""
    (source,) = read(text.encode(), f"export.{form}")
    compiled, problems = compile_source(source, Library())
    if compiled is None:
        return "; ".join(map(str, problems))
    if compiled.content_hash() == definition.content_hash():
        return ""
    before, after = ({node.id: node for node in d.nodes} for d in (definition, compiled))
    nodes = [name for name in before if before[name] != after.get(name)]
    where = f"in {', '.join(nodes)}" if nodes else "outside its nodes"
    return f"it differs {where}, by what the handlers declare and the graph does not use"
