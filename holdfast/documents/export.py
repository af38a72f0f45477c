"""Export: a definition as a document of kind `graph` that compiles to the same version.

Owns: the text of such a document, in YAML or JSON, and what it says of each node: everything that is not a default, so
that it does not depend on what handlers declare today. Conditions, lanes and labels are written on the nodes
themselves; routes and groups are not found again.
Never: exports what is not a graph.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.documents.names import RESERVED, Names
from holdfast.documents.printing import expression_text, value_text
from holdfast.model import handlers
from holdfast.model.definition import Definition, NodeDef, Param
from holdfast.model.errors import UsageError
from holdfast.model.expressions import Expr
from holdfast.model.schemas import schema_of

_OPTIONS: Final = ("timeout", "heartbeat", "delay", "on_crash", "priority", "concurrency", "idempotent", "compensate")
_MAP: Final = ("limit", "errors")
_LOOP: Final = ("max_visits", "at_limit")
_DEFAULTS: Final = NodeDef(id="")


def document_of(definition: Definition) -> dict[str, Any]:
    """A graph as the plain value of a document. Raises UsageError for what no document of kind `graph` can say."""
    if definition.kind != "graph":
        raise UsageError(f"{definition.name} is durable code, not a graph: there is nothing but its function to export")
    if definition.start or definition.milestones:
        raise UsageError(f"{definition.name} is a journey, which a document of kind graph cannot say")
    titles = _titles(definition.nodes)
    names = Names([p.name for p in definition.params], definition.variables, titles)
    by_id = {own: title for title, own in titles.items()}
    found: dict[str, Any] = {"kind": "graph", "name": definition.name}
    if definition.doc:
        found["description"] = definition.doc
    if definition.params:
        found["input"] = {param.name: _schema(param) for param in definition.params}
    if definition.variables:
        found["variables"] = {name: schema or {} for name, schema in definition.variables.items()}
    settings = msgspec.to_builtins(definition.settings)
    if settings:
        found["settings"] = settings
    if definition.tickets:
        found["tickets"] = {ticket: by_id[node] for ticket, node in definition.tickets.items()}
    if definition.phases:
        found["phases"] = msgspec.to_builtins(definition.phases)
    found["nodes"] = _nodes(definition.nodes, names, by_id)
    if definition.result is not None:
        found["result"] = value_text(definition.result, names)
    return found


def as_json(document: dict[str, Any]) -> str:
    """A document as JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_yaml(document: dict[str, Any]) -> str:
    """A document as YAML. Texts that could be read as something else stand in quotes."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _AMBIGUOUS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_plain else '"')

    Dumper.add_representer(str, text)
    written: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return written


_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_AMBIGUOUS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_WIDTH: Final = math.inf


def _titles(nodes: Sequence[NodeDef]) -> dict[str, str]:
    """What the nodes of a body are called in the document, to their ids."""
    for node in nodes:
        if node.id in RESERVED and not node.title:
            raise UsageError(
                f"the node {node.id!r} cannot be exported: documents reserve that id; give it another name"
            )
    return {node.title or node.id: node.id for node in nodes}


def _schema(param: Param) -> dict[str, Any]:
    schema = dict(param.schema or {})
    return schema if param.required else schema | {"default": param.default}


def _nodes(nodes: Sequence[NodeDef], names: Names, by_id: Mapping[str, str]) -> list[dict[str, Any]]:
    return [_node(node, names, by_id) for node in nodes]


def _node(node: NodeDef, names: Names, by_id: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"id": node.title or node.id}
    if node.kind == "call":
        found["handler"] = node.uses
        args = {name: value_text(expr, names) for name, expr in node.args.items()}
        for pointer, secret in node.secrets.items():
            _put(args, pointer, {"$secret": secret})
        if args:
            found["input"] = args
        if node.retry is not None:
            found["retry"] = msgspec.to_builtins(node.retry)
        handler = handlers.find(node.uses)
        if node.returns is not None and (handler is None or schema_of(handler.returns) != node.returns):
            found["returns"] = node.returns
    else:
        found[node.kind] = _scope(node, names, by_id)
    if node.when is not None:
        found["when"] = expression_text(node.when, names)
    if node.after:
        found["after"] = [by_id[name] for name in node.after]
    found |= {key: value for key, value in (("phase", node.phase), ("lane", node.lane), ("label", node.route)) if value}
    return found | _said(node, _OPTIONS)


def _scope(node: NodeDef, names: Names, by_id: Mapping[str, str]) -> dict[str, Any]:
    assert node.body is not None
    items: dict[str, Expr] = {name: ["param", node.id, name] for name in (node.item, *node.args)}
    own = _titles(node.body.nodes)
    inside = names.inside(node.title or node.id, node.id, items, own)
    found: dict[str, Any] = {}
    if node.kind == "map":
        found["over"] = expression_text(node.over, names)
    else:
        found["start"] = value_text(node.start, names)
        found["until"] = expression_text(node.until, inside.with_values({"result": node.body.result}))
    found["item"] = node.item
    found |= _said(node, _MAP if node.kind == "map" else _LOOP)
    if node.args:
        found["with"] = {name: value_text(expr, names) for name, expr in node.args.items()}
    if node.kind == "loop" and node.returns is not None:
        found["returns"] = node.returns
    found["nodes"] = _nodes(node.body.nodes, inside, {**by_id, **{name: title for title, name in own.items()}})
    found["result"] = value_text(node.body.result, inside)
    return found


def _said(node: NodeDef, fields: Sequence[str]) -> dict[str, Any]:
    """The fields that differ from what they are when nothing is said."""
    return {name: value for name in fields if (value := getattr(node, name)) != getattr(_DEFAULTS, name)}


def _put(value: Any, pointer: str, part: Any) -> None:
    """Put a part where a JSON pointer says."""
    *keys, last = (key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:])
    for key in keys:
        value = value[int(key) if isinstance(value, list) else key]
    value[int(last) if isinstance(value, list) else last] = part
