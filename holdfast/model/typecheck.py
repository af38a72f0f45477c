"""Type check: whether the value at the start of a reference can fit the parameter at its end.

Owns: comparing the JSON Schemas at both ends of a reference, if both are known and the answer is obvious.
Never: guesses; a schema it cannot read fits everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.model.definition import Definition, NodeDef
from holdfast.model.expressions import AFFIXES, COMPARISONS, Expr, chain
from holdfast.model.handlers import Handler, first_parameter, inputs_taken
from holdfast.model.schemas import schema_of
from holdfast.model.secret_names import escaped

Types = frozenset[str]
"""JSON types a value may have; empty: anything."""

ANYTHING: Final[Types] = frozenset()
_BOOLEAN: Final = COMPARISONS | AFFIXES | {"and", "or", "not", "is_none", "contains", "skipped", "failed"}
_OF_CONSTANT: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def mismatches(definition: Definition, find: Callable[[str], Handler | None]) -> Iterator[tuple[str, str, str]]:
    """(node, field, message) for every argument whose type cannot be that of the parameter."""
    inputs = {p.name: p.schema for p in definition.params}
    stack: list[tuple[NodeDef, dict[str, Any], str]] = []
    outputs = {n.id: _output(n) for n in definition.nodes}
    stack += [(n, outputs, "") for n in definition.nodes]
    wanted: dict[str, dict[str, Types]] = {}
    while stack:
        node, visible, prefix = stack.pop()
        if node.kind == "call":
            if node.uses not in wanted:
                wanted[node.uses] = _parameters(find(node.uses))
            expected = wanted[node.uses]
            for name, expr in node.args.items():
                want = expected.get(name, ANYTHING)
                if f"/{escaped(name)}" in node.secrets:
                    continue
                got = _types_of(expr, visible, inputs, definition.variables) if want else ANYTHING
                if want and got and not _fits(got, want):
                    yield prefix + node.id, f"args.{name}", f"takes {_words(want)}, and gets {_words(got)}"
            continue
        if node.kind == "map":
            got = _types_of(node.over, visible, inputs, definition.variables)
            if got and "array" not in got:
                yield prefix + node.id, "over", f"goes over a list, and gets {_words(got)}"
        if node.body is not None:
            inner = visible | {n.id: _output(n) for n in node.body.nodes}
            stack += [(n, inner, f"{prefix}{node.id}/") for n in node.body.nodes]


def compensation_mismatch(undo: Handler, undone: Handler) -> str | None:
    """Why a compensation cannot take what it is given of the node that it undoes: the output, or one of the inputs."""
    given = {p.name: p.annotation for p in undone.params if p.name in inputs_taken(undo.params, undone.params)}
    first = first_parameter(undo.params)
    if first is not None:
        given[first.name] = undone.returns
    for name, want in _parameters(undo).items():
        got = types_of_schema(schema_of(given[name])) if want and name in given else ANYTHING
        if got and not _fits(got, want):
            return f"its parameter {name} takes {_words(want)}, and gets {_words(got)}"
    return None


def _output(node: NodeDef) -> Any:
    if node.kind == "map":
        return {"type": "array"}
    return node.returns


def _parameters(handler: Handler | None) -> dict[str, Types]:
    if handler is None:
        return {}
    return {p.name: types_of_schema(schema_of(p.annotation)) for p in handler.params if not p.variadic}


def _types_of(expr: Expr, outputs: dict[str, Any], inputs: dict[str, Any], variables: dict[str, Any]) -> Types:
    if expr is None:
        return frozenset({"null"})
    if not isinstance(expr, list):
        return frozenset({_OF_CONSTANT[type(expr)]}) if type(expr) in _OF_CONSTANT else ANYTHING
    match expr:
        case ["const", value]:
            return _types_of(value, {}, {}, {}) if not isinstance(value, list | dict) else _container(value)
        case ["list", *_]:
            return frozenset({"array"})
        case ["dict", *_]:
            return frozenset({"object"})
        case [op, *_] if op in _BOOLEAN:
            return frozenset({"boolean"})
        case ["if", _, yes, no]:
            either = [_types_of(x, outputs, inputs, variables) for x in (yes, no)]
            return either[0] | either[1] if all(either) else ANYTHING
        case ["text", *_]:
            return frozenset({"string"})
    link = chain(expr)
    if link is None:
        return ANYTHING
    leaf, keys = link
    source = {"input": inputs, "node": outputs, "var": variables}.get(leaf[0], {}).get(leaf[1])
    return types_of_schema(_below(source, keys))


def _container(value: Any) -> Types:
    return frozenset({"array" if isinstance(value, list) else "object"})


def _below(schema: Any, keys: tuple[str | int, ...]) -> Any:
    """The schema of a field of a value with this schema; None where it is not known."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    for key in keys:
        here = _resolve(schema, definitions)
        if not isinstance(here, dict):
            return None
        if isinstance(key, str) and isinstance(here.get("properties"), dict):
            schema = here["properties"].get(key)
        elif isinstance(key, int) and isinstance(here.get("items"), dict) and "prefixItems" not in here:
            schema = here["items"]
        else:
            return None
    if isinstance(schema, dict) and definitions and "$defs" not in schema:
        return schema | {"$defs": definitions}
    return schema


def types_of_schema(schema: Any) -> Types:
    """The JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, dict):
        return ANYTHING
    definitions = schema.get("$defs", {})
    found: set[str] = set()
    stack, budget = [schema], 100
    while stack:
        part = _resolve(stack.pop(), definitions)
        budget -= 1
        if not isinstance(part, dict) or budget < 0:
            return ANYTHING
        if isinstance(part.get("anyOf"), list):
            stack.extend(part["anyOf"])
        elif isinstance(part.get("enum"), list):
            found |= {_OF_CONSTANT.get(type(v), "null") for v in part["enum"]}
        elif isinstance(part.get("type"), str):
            found.add(part["type"])
        elif isinstance(part.get("type"), list):
            found |= set(part["type"])
        else:
            return ANYTHING
    return frozenset(found)


def _resolve(schema: Any, definitions: dict[str, Any]) -> Any:
    for _ in range(20):
        if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
            return schema
        schema = definitions.get(schema["$ref"].removeprefix("#/$defs/"))
    return None


def _fits(got: Types, want: Types) -> bool:
    """Whether some value of the one is a value of the other; every whole number is a number."""
    if "number" in want:
        want = want | {"integer"}
    if "number" in got:
        got = got | {"integer"}
    return bool(got & want)


def _words(types: Types) -> str:
    return " or ".join(sorted(types))
