"""`holdfast graph`: a workflow, or a run with its statuses, as a graph in Mermaid or JSON.

Owns: the verb, which edges there are (data, condition, order), maps and loops as groups, conditions as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from holdfast.cli import databases, output
from holdfast.cli.options import Db, HandlerCode
from holdfast.cli.picture import Picture
from holdfast.cli.wording import waits_text
from holdfast.documents.registration import is_document, is_stored_definition
from holdfast.inspect.paths import pending_joins
from holdfast.inspect.wait_views import wait_view
from holdfast.model import definition as definitions
from holdfast.model import validation
from holdfast.model.definition import Definition, NodeDef
from holdfast.model.errors import CorruptJournal, UnknownRun, UsageError
from holdfast.model.expressions import Expr, nodes_of, operands
from holdfast.model.naming import is_undo
from holdfast.model.views import Wait
from holdfast.store.contract import Store
from holdfast.store.records.run_records import current_visits
from holdfast.store.row_types import RunRow
from holdfast.worker.targets import load_workflow

Address = tuple[str, ...]
"""Ids of the maps and loops around a node, then its own."""

INPUT: Address = ("input",)
"""The source of a condition that depends on the input alone."""

LABEL_CHARS_MAX = 80
CLASSES = {
    "completed": "fill:#d4f4dd,stroke:#2e8540",
    "failed": "fill:#fbdcdc,stroke:#c0392b",
    "running": "fill:#d6eaf8,stroke:#2471a3",
    "suspended": "fill:#fdf2d0,stroke:#b7950b",
    "scheduled": "fill:#eaf2f8,stroke:#7fb3d5",
    "skipped": "fill:#f2f3f4,stroke:#b2babb,stroke-dasharray:4 3",
    "cancelled": "fill:#f6ddcc,stroke:#a04000",
    "pending": "fill:#ffffff,stroke:#b2babb",
}
_RANK = ("failed", "running", "suspended", "scheduled", "cancelled", "completed", "skipped")


def graph(
    what: Annotated[str, typer.Argument(metavar="FILE:NAME|RUN", help="A workflow, or a run.")],
    form: Annotated[str, typer.Option("--format", "-f", metavar="mermaid|json", help="What to print.")] = "mermaid",
    code: HandlerCode = None,
    db: Db = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Draw a workflow as a Mermaid flowchart; in that of a run each node has its status as a class.

    \b
    Examples:
      holdfast graph shop.py:fulfil > fulfil.mmd
      holdfast graph order-42 --format json
    """
    if form not in {"mermaid", "json"}:
        raise UsageError(f"--format {form}: use mermaid or json")
    json = json or form == "json"
    definition = definition_of_code(what, code or ()) if names_code(what) else None
    if definition is not None:
        _print(definition, None, None, json)
        return
    try:
        with databases.reading(db) as store:
            row = databases.find_by_prefix(store, what)
            found = store.version(row.workflow, row.version)
            if found is None:
                raise CorruptJournal(
                    f"run {row.run_id} follows version {row.version} of {row.workflow}, which is not there"
                )
            definition = definitions.decode(found.definition)
            statuses, notes = of_run(store, row, definition)
    except UnknownRun as error:
        raise UnknownRun(f"{error.message}. A workflow is given as FILE.py:NAME") from None
    _print(definition, statuses, notes, json, row)


def names_code(what: str) -> bool:
    """True for a file or a module, False for the id of a run."""
    place = what.rpartition(":")[0] or what
    return is_document(what) or what.endswith(".py") or (":" in what and ("." in place or is_document(place)))


def definition_of_code(what: str, code: Sequence[str]) -> Definition:
    """The definition that a file, a document or a module on the command line names."""
    if not is_stored_definition(what):
        return load_workflow(what, code).workflow.definition
    return validation.load(Path(what).read_bytes())


def of_run(store: Store, row: RunRow, definition: Definition) -> tuple[dict[Address, str], dict[Address, str]]:
    """The status of each node of a run, with all items and rounds of a node as one; the progress of maps, and what
    nodes wait for."""
    picture = Picture(definition)
    found: dict[Address, set[str]] = {}
    notes: dict[Address, str] = {}
    rows, visits = store.nodes(row.run_no), current_visits(row)
    latest = {(n.node, n.path): n.visit for n in sorted(rows, key=lambda n: n.visit)} if definition.start else {}
    for node in rows:
        around, name = picture.place(node.node, node.path)
        address = (*around, name)
        visit = latest.get((node.node, node.path)) or visits.get(address[0], 1)
        if node.visit != visit and not is_undo(name):
            continue  # a newer visit has begun
        found.setdefault(address, set()).add(node.status)
    for line in picture.lines(row, store.open_nodes([row.run_no]), (), {}, row.created_at)[1:]:
        if "×" in line.label and line.total:
            notes[(line.label.split(" ×", 1)[0],)] = f"{line.done:g}/{line.total:g}"
    waits: dict[Address, list[Wait]] = {}
    for wait in store.open_waits([row.run_no]):
        around, name = picture.place(wait.node or "", wait.path or ".")
        waits.setdefault((*around, name), []).append(wait_view(row.run_id, row.workflow, wait))
    notes |= {(join,): f"(waits for {', '.join(paths)})" for join, paths in pending_joins(row, definition).items()}
    now = store.now() if waits else 0
    notes |= {address: f"({waits_text(found, now)})" for address, found in waits.items()}
    statuses = {address: next((s for s in _RANK if s in seen), "pending") for address, seen in found.items()}
    return statuses, notes


def _print(
    definition: Definition,
    statuses: dict[Address, str] | None,
    notes: dict[Address, str] | None,
    json: bool,
    row: RunRow | None = None,
) -> None:
    if not json:
        output.write(output.clean(mermaid(definition, statuses, notes)))
        return
    shown = as_json(definition, statuses, notes)
    if row is not None:
        shown |= {"run_id": row.run_id, "version": row.version, "status": row.status}
    output.document(shown)


# --- edges -----------------------------------------------------------------------------------------------------------


class Edge(NamedTuple):
    """From one node to another: `data`, `condition` or `order`; in a journey `path`, from a unit to the next one."""

    source: Address
    target: Address
    kind: str
    label: str = ""


def edges(definition: Definition) -> list[Edge]:
    """Every edge, each pair and kind once."""
    if definition.start:
        return _ways(definition)
    found: dict[tuple[Address, Address, str], Edge] = {}
    _collect(definition.nodes, (), [], found)
    return list(found.values())


def _ways(definition: Definition) -> list[Edge]:
    """The ways of a journey, those to its end too."""
    found: list[Edge] = []
    for unit in definition.nodes:
        if unit.next:
            found.append(Edge((unit.id,), (unit.next,), "path"))
        found += [Edge((unit.id,), (target,), "path", name) for name, target in unit.branches.items()]
    return found


def _collect(
    nodes: Sequence[NodeDef], around: Address, outer: list[dict[str, Address]], found: dict[Any, Edge]
) -> None:
    scopes = [{n.id: (*around, n.id) for n in nodes}, *outer]

    def add(expr: Expr, target: Address, kind: str, label: str = "") -> None:
        for name in nodes_of(expr) if kind != "order" else [expr]:
            source = next((scope[name] for scope in scopes if name in scope), None)
            if source is not None and source != target[: len(source)]:
                found.setdefault((source, target, kind), Edge(source, target, kind, label))

    for node in nodes:
        here = (*around, node.id)
        for expr in (*node.args.values(), node.over, node.start):
            add(expr, here, "data")
        if node.when is not None:
            condition = node.route or text_of(node.when)
            add(node.when, here, "condition", condition)
            if not nodes_of(node.when):
                found[INPUT, here, "condition"] = Edge(INPUT, here, "condition", condition)
        for name in node.after:
            add(name, here, "order")
        if node.body is not None:
            _collect(node.body.nodes, here, scopes, found)


def as_json(
    definition: Definition, statuses: Mapping[Address, str] | None = None, notes: Mapping[Address, str] | None = None
) -> dict[str, Any]:
    """Nodes and edges as data; `path` of a node is its id inside the maps and loops around it, `a/b`. With statuses
    each node has its own, and a note on its progress or its wait."""
    nodes: list[dict[str, Any]] = []

    def visit(members: Sequence[NodeDef], around: Address) -> None:
        for node in members:
            here = (*around, node.id)
            shown: dict[str, Any] = {"id": "/".join(here), "kind": node.kind, "uses": node.uses or None}
            shown["title"] = node.title or node.id
            shown["inside"] = "/".join(around) or None
            shown["phase"] = node.phase
            shown["when"] = None if node.when is None else text_of(node.when)
            shown["delay"] = node.delay
            if statuses is not None:
                shown["status"] = statuses.get(here, "pending")
                shown["note"] = (notes or {}).get(here)
            nodes.append(shown)
            if node.body is not None:
                visit(node.body.nodes, here)

    visit(definition.nodes, ())
    drawn = [
        {"from": "/".join(e.source), "to": "/".join(e.target), "kind": e.kind, "label": e.label or None}
        for e in edges(definition)
    ]
    return {"workflow": definition.name, "nodes": nodes, "edges": drawn}


def mermaid(
    definition: Definition, statuses: Mapping[Address, str] | None = None, notes: Mapping[Address, str] | None = None
) -> str:
    """A Mermaid flowchart; with statuses each node has its status as a class."""
    drawing = _Mermaid(statuses, notes or {})
    drawing.phases(definition)
    found = edges(definition)
    if any(edge.source is INPUT for edge in found):
        drawing.lines.append('  input(["input"])')
    if definition.start:
        drawing.lines.append('  end_of_run(["end"])')
    for edge in found:
        drawing.edge(edge)
    drawing.classes()
    return "\n".join(["flowchart TD", *drawing.lines])


class _Mermaid:
    def __init__(self, statuses: Mapping[Address, str] | None, notes: Mapping[Address, str]) -> None:
        self.lines: list[str] = []
        self._statuses = statuses
        self._notes = notes
        self._names: dict[Address, str] = {}

    def phases(self, definition: Definition) -> None:
        for number, phase in enumerate(definition.phases, 1):
            self.lines.append(f'  subgraph phase{number}["{label(phase.name)}"]')
            self._nodes([n for n in definition.nodes if n.phase == phase.name], (), "    ")
            self.lines.append("  end")
        self._nodes([n for n in definition.nodes if n.phase is None], (), "  ")

    def _nodes(self, nodes: Sequence[NodeDef], around: Address, indent: str) -> None:
        for node in nodes:
            here = (*around, node.id)
            name = self._names[here] = f"n{len(self._names) + 1}"
            note = self._notes.get(here, "")
            if node.body is None:
                shape = ('{{"', '"}}') if node.uses.startswith("holdfast.") else ('["', '"]')
                title = name_of(node)
                if node.delay:
                    title = f"{title}, {output.duration(node.delay)} later"
                self.lines.append(f"{indent}{name}{shape[0]}{label(title, note)}{shape[1]}")
                continue
            self.lines.append(f'{indent}subgraph {name}["{label(_scope_title(node), note)}"]')
            self._nodes(node.body.nodes, here, indent + "  ")
            self.lines.append(f"{indent}end")

    def edge(self, edge: Edge) -> None:
        source = "input" if edge.source is INPUT else self._names[edge.source]
        target = self._names.get(edge.target, "end_of_run")
        match edge.kind:
            case "path" if edge.label:
                self.lines.append(f'  {source} -- "{label(edge.label)}" --> {target}')
            case "data" | "path":
                self.lines.append(f"  {source} --> {target}")
            case "condition":
                self.lines.append(f'  {source} -. "{label(edge.label)}" .-> {target}')
            case _:
                self.lines.append(f'  {source} -. "after" .-> {target}')

    def classes(self) -> None:
        if self._statuses is None:
            return
        by_status: dict[str, list[str]] = {}
        for address, name in self._names.items():
            by_status.setdefault(self._statuses.get(address, "pending"), []).append(name)
        for status, names in by_status.items():
            self.lines.append(f"  classDef {status} {CLASSES.get(status, CLASSES['pending'])}")
            self.lines.append(f"  class {','.join(names)} {status}")


def name_of(node: NodeDef) -> str:
    """The id of a node; beside what the author of a document calls it, where that is another one."""
    return f"{node.title} ({node.id})" if node.title else node.id


def _scope_title(node: NodeDef) -> str:
    if node.kind == "map":
        return f"{name_of(node)}: for each of {text_of(node.over)}"
    return f"{name_of(node)}: until {text_of(node.until)}, at most {node.max_visits} times"


def label(text: str, note: str = "") -> str:
    """Text as a Mermaid label, escaped so that it can neither end the label nor be markup."""
    text = text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
    if note:
        text = f"{text} {note}"
    return "".join(c if c.isalnum() or c in " _-.,:/()=+*…×✗↻" else f"#{ord(c)};" for c in text)


_INFIX = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "sub": "-", "mul": "*",
    "div": "/", "mod": "%", "and": "and", "or": "or",
}  # fmt: skip


def text_of(expr: Expr) -> str:
    """An expression in Python-like notation."""
    if not isinstance(expr, list) or not expr:
        return _constant(expr)
    match expr:
        case ["input" | "node" | "var", str(name)]:
            return name
        case ["param", _, name]:
            return str(name)
        case ["get", of, key]:
            return f"{text_of(of)}[{key}]" if isinstance(key, int) else f"{text_of(of)}.{key}"
        case ["const", value]:
            return _constant(value)
        case ["not", inner]:
            return f"not {_bracketed(inner)}"
        case ["list", *items]:
            return "[" + ", ".join(text_of(x) for x in items) + "]"
        case ["contains", whole, item]:
            return f"{text_of(item)} in {text_of(whole)}"
        case [str(op), *inner] if op in _INFIX:
            return f" {_INFIX[op]} ".join(_bracketed(x) for x in inner)
    return f"{expr[0]}({', '.join(text_of(x) for x in operands(expr))})"


def _bracketed(expr: Expr) -> str:
    return f"({text_of(expr)})" if isinstance(expr, list) and expr and expr[0] in {"and", "or"} else text_of(expr)


def _constant(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return f"'{value}'"
    return str(value) if not isinstance(value, list | dict) else "…"
