"""Export: a graph as a document, which is the same version and gives the same journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import handlers as builtin_handlers
from holdfast.authoring.document_workflows import DocumentWorkflow
from holdfast.documents import registration
from holdfast.documents.compiling import Library
from holdfast.documents.export import as_json, as_yaml, document_of
from holdfast.documents.kinds import compile_source
from holdfast.documents.reading import read
from holdfast.model.definition import Definition, Settings
from holdfast.model.errors import UsageError
from tests.documents.loaded import EXAMPLES, graphs_of
from tests.engine.kit import url
from tests.property.graphs import definitions

assert builtin_handlers.NAMES
FORMS = {"yaml": as_yaml, "json": as_json}


def compiled(text: str, form: str) -> Definition:
    (source,) = read(text.encode(), f"exported.{form}")
    definition, problems = compile_source(source, Library())
    assert problems == []
    assert definition is not None
    return definition


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_the_same_version_as_its_document(path: Path) -> None:
    for definition in graphs_of(path):
        for form, write in FORMS.items():
            found = compiled(write(document_of(definition)), form)
            assert found == definition
            assert found.content_hash() == definition.content_hash()


def as_authored(definition: Definition) -> Definition:
    """The same with the constants and settings that authoring and documents produce: `["const", [1, 2]]` for
    `["list", 1, 2]`, and settings of its own."""
    result = [["size", ["const", [1, 2]]] if e == ["size", ["list", 1, 2]] else e for e in definition.result]
    return msgspec.structs.replace(definition, result=result, settings=Settings())


@given(definition=definitions(), form=st.sampled_from(sorted(FORMS)))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_random_definition_is_the_same_version_as_its_document(definition: Definition, form: str) -> None:
    definition = as_authored(definition)
    found = compiled(FORMS[form](document_of(definition)), form)
    assert found.content_hash() == definition.content_hash()


@hf.node(inline=True)
def export_pick(line: str, shelf: int = 3) -> str:
    return line


@hf.node(name="export.review", inline=True, timeout=9, retry=hf.Retry(attempts=2, backoff=1))
def export_review(output: Any) -> Any:
    return {"score": output["score"] + 3, "kind": "b"}


@hf.workflow
def export_child(n: int) -> Any:
    return export_pick(hf.text("{}", n))


@hf.workflow(variables={"seen": bool}, tickets={"again": "export_pick"}, timeout="2h", priority=4)
def export_all(lines: list[str], score: int = 0, note: str | None = None) -> Any:
    """A graph with everything in it."""
    first = export_pick("{{ not a template }} {}")
    with hf.phase("one"):
        each = hf.map(export_pick, lines, shelf=7, limit=2)
    with hf.phase("two", after="one"):
        child = export_child(hf.size(each))
        best = hf.loop(export_review, {"score": score, "kind": "a"}, until=lambda r: r["score"] >= 8)
    with hf.when(~hf.skipped(first) & (hf.var("seen") | (score < 9))), hf.route(best["kind"]) as kind:
        with kind("a"):
            one = export_pick.after(child)(first)
        with kind("b"):
            two = export_pick.options(timeout=3, priority=2)(first)
        with kind.otherwise():
            three = export_pick.delayed("1s")(first)
    with hf.routes(lines) as to, to("eu"):
        export_pick.named("in_eu")(hf.if_else(hf.is_none(note), "none", note))
    return {"first": hf.first(one, two, three), "each": each, "child": child, "0": [1, "{{"]}


@pytest.mark.parametrize("form", FORMS)
def test_graph_with_everything_in_it_is_the_same_version_as_its_document(form: str) -> None:
    text = FORMS[form](document_of(export_all.definition))
    assert compiled(text, form) == export_all.definition


# --- the same journal ------------------------------------------------------------------------------------------------


_PASSING = {"code", "elapsed", "until", "due"}


def _lasting(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in _PASSING and not key.endswith("_at")}


async def journal(workflow: Any, folder: Path, **inputs: Any) -> list[Any]:
    """What a run records, without where its code was loaded from and without instants."""
    folder.mkdir()
    async with hf.open(url(folder / "runs.db")) as engine:
        run = await engine.start(workflow, run_id="r", **inputs)
        assert (await run.result(timeout=60))["each"] == inputs["lines"]
        return [(e.seq, e.type, e.node, e.path, _lasting(e.data)) for e in await run.events()]


async def test_graph_and_its_document_give_the_same_journal(tmp_path: Path) -> None:
    document = compiled(as_yaml(document_of(export_all.definition)), "yaml")
    loaded = DocumentWorkflow(registration.registered(document, "export_all.yaml"))
    of_python = await journal(export_all, tmp_path / "python", lines=["eu", "us"])
    of_document = await journal(loaded, tmp_path / "document", lines=["eu", "us"])
    assert of_document == of_python
    assert {"ScopeOpened", "NodeSkipped", "ChildStarted", "RunCompleted"} <= {kind for _, kind, *_ in of_python}


def test_durable_code_is_not_exported() -> None:
    @hf.workflow(name="export_code")
    async def code(ctx: hf.Context) -> int:
        return 1

    with pytest.raises(UsageError, match="export_code is durable code, not a graph"):
        document_of(code.definition)


def test_node_with_a_reserved_id_is_not_exported() -> None:
    @hf.workflow(name="export_reserved")
    def graph(n: int) -> Any:
        return export_pick.named("vars")("a")

    with pytest.raises(UsageError, match="the node 'vars' cannot be exported"):
        document_of(graph.definition)
