"""Drawing: a definition as a graph, in Mermaid or JSON.

Owns: which edges there are (data, condition, order), maps and loops as groups, conditions as text.
Pure: a definition and statuses in, text or data out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.cli import output
from holdfast.model.definition import Definition, NodeDef
from holdfast.model.expressions import Expr, nodes_of, operands

Address = tuple[str, ...]
"""Ids of the maps and loops around a node, then its own."""

INPUT: Address = ("input",)
"""Where a condition comes from that looks at nothing but the run's input."""

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


class Edge(NamedTuple):
    """From one node to another: `data`, `condition` or `order`."""

    source: Address
    target: Address
    kind: str
    label: str = ""


def edges(definition: Definition) -> list[Edge]:
    """Every edge, each pair and kind once."""
    found: dict[tuple[Address, Address, str], Edge] = {}
    _collect(definition.nodes, (), [], found)
    return list(found.values())


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
    each node has its own, and a note on how far it is or what it waits for."""
    nodes: list[dict[str, Any]] = []

    def visit(members: Sequence[NodeDef], around: Address) -> None:
        for node in members:
            here = (*around, node.id)
            shown: dict[str, Any] = {"id": "/".join(here), "kind": node.kind, "uses": node.uses or None}
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
                put_off = f"{node.id}, {output.duration(node.delay)} later" if node.delay else node.id
                self.lines.append(f"{indent}{name}{shape[0]}{label(put_off, note)}{shape[1]}")
                continue
            self.lines.append(f'{indent}subgraph {name}["{label(_scope_title(node), note)}"]')
            self._nodes(node.body.nodes, here, indent + "  ")
            self.lines.append(f"{indent}end")

    def edge(self, edge: Edge) -> None:
        source = "input" if edge.source is INPUT else self._names[edge.source]
        target = self._names[edge.target]
        match edge.kind:
            case "data":
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


def _scope_title(node: NodeDef) -> str:
    if node.kind == "map":
        return f"{node.id}: for each of {text_of(node.over)}"
    return f"{node.id}: until {text_of(node.until)}, at most {node.max_visits} times"


def label(text: str, note: str = "") -> str:
    """Text inside a Mermaid label: nothing in it can end the label or be markup."""
    text = text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
    if note:
        text = f"{text} {note}"
    return "".join(c if c.isalnum() or c in " _-.,:/()=+*…×✗↻" else f"#{ord(c)};" for c in text)


_INFIX = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "sub": "-", "mul": "*",
    "div": "/", "mod": "%", "and": "and", "or": "or",
}  # fmt: skip


def text_of(expr: Expr) -> str:
    """An expression as people would write it."""
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
