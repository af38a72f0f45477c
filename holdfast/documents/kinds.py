"""Kinds: the kinds of documents there are, each with its shape and its compiler.

Owns: which kind a document is, checking and compiling it, and the JSON Schemas that are published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from holdfast.documents import dag, graph, graph_shape, journey, step_list
from holdfast.documents.compiling import Compiler, Library
from holdfast.documents.findings import Findings
from holdfast.documents.reading import Source
from holdfast.documents.shapes import Shape, shown
from holdfast.model.definition import Definition
from holdfast.model.problems import Problem, choices, name_problem


class Kind(NamedTuple):
    """One kind of document."""

    shape: Shape
    compile: Callable[[Compiler], Definition | None]


KINDS: Final[dict[str, Kind]] = {
    "dag": Kind(dag.SHAPE, dag.compile_dag),
    "journey": Kind(journey.SHAPE, journey.compile_journey),
    "steps": Kind(step_list.SHAPE, step_list.compile_steps),
    "graph": Kind(graph_shape.SHAPE, graph.compile_graph),
}


def schema_of_kind(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of document."""
    parts: dict[str, Any] = {}
    found = KINDS[kind].shape.schema(parts)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Holdfast workflow of kind {kind}",
        **found,
        "$defs": parts,
    }


def schema_of_documents() -> dict[str, Any]:
    """The JSON Schema of a document of any kind."""
    parts: dict[str, Any] = {}
    options = []
    for name in KINDS:
        whole = schema_of_kind(name)
        parts |= {f"{name}_{part}": _renamed(schema, name) for part, schema in whole["$defs"].items()}
        options.append(
            {"if": {"properties": {"kind": {"const": name}}}, "then": _renamed({"$ref": whole["$ref"]}, name)}
        )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Holdfast workflow",
        "type": "object",
        "required": ["kind", "name"],
        "properties": {"kind": {"enum": list(KINDS)}},
        "allOf": options,
        "$defs": parts,
    }


def _renamed(schema: Any, prefix: str) -> Any:
    if isinstance(schema, dict):
        return {
            key: f"#/$defs/{prefix}_{value.removeprefix('#/$defs/')}" if key == "$ref" else _renamed(value, prefix)
            for key, value in schema.items()
        }
    return [_renamed(item, prefix) for item in schema] if isinstance(schema, list) else schema


def name_of(source: Source) -> str:
    """The name of a document, if it has one."""
    name = source.value.get("name") if isinstance(source.value, dict) else None
    return name if isinstance(name, str) else ""


def compile_source(source: Source, library: Library) -> tuple[Definition | None, list[Problem]]:
    """The definition of a document, or every problem of it."""
    findings = Findings(source)
    value = source.value
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict):
        hint = "a document begins with `kind: graph` and `name: ...`"
        findings.add("bad_value", (), f"{shown(value)} is not a workflow", hint)
    elif not isinstance(kind, str) or kind not in KINDS:
        known = " or ".join(KINDS)
        if "kind" not in value:
            findings.add("missing_key", (), "the document has no 'kind'", f"add `kind: ...`, which is {known}")
        else:
            hint = choices(kind, KINDS, "kinds") if isinstance(kind, str) else f"write {known}"
            findings.add("bad_value", ("kind",), f"{shown(kind)} is not a kind of document", hint)
    else:
        KINDS[kind].shape.check(value, (), findings)
        if isinstance(value.get("name"), str) and (wrong := name_problem(value["name"])) is not None:
            hint = "use up to 200 characters, none of them '.', '@', '#' or '~'"
            findings.add("bad_name", ("name",), f"the name {wrong}", hint)
        if findings.codes() <= {"unknown_key"}:  # the rest of the document can be compiled, and has problems of its own
            compiler = Compiler(source, library, findings)
            return KINDS[kind].compile(compiler), findings.listed()
    return None, findings.listed()
