"""Schemas: the JSON Schema of an annotation, and navigating both.

Owns: making the schema, with a keyword that marks sets; what a part of a schema refers to; the bound on how many parts
apply at once; which texts each format takes, so that what passes its schema can also be read into its type; whether
values of a type can be read from JSON at all.
Never: checks values (answers.py), fetches anything: a schema refers only to its own parts. Knows no formats that are
only texts (e-mail addresses, host names): the checker of schemas has those.
"""

from __future__ import annotations

import enum
import functools
import json
import pathlib
import sys
import typing
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.limits import SCHEMA_PARTS_MAX, SCHEMA_STEPS_MAX
from holdfast.model.values import decoder, encode, is_pydantic, plain, union_members

SET: Final = "x-holdfast-set"
"""Marks an array whose order means nothing, and in which nothing stands twice: it was made from a set."""

_REFERENCES_MAX: Final = 100
"""References in a row; a longer chain is a circle."""
_SAME_PLACE: Final = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
)
"""Keywords whose schemas apply to the value itself."""
_OTHER_FIELDS: Final = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames"})
_OTHER_ITEMS: Final = frozenset({"items", "additionalItems", "unevaluatedItems", "contains"})


def schema_of(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema of an annotation; None where nothing is known about it."""
    try:
        return _cached_schema(annotation)
    except TypeError as e:
        if "unhashable" not in str(e):
            raise
        return _make_schema(annotation)


def resolved(root: Any, schema: Any) -> dict[str, Any]:
    """A part of the schema `root`, merged with what it refers to inside `root`; {} if that cannot be resolved."""
    found: dict[str, Any] = {}
    for _ in range(_REFERENCES_MAX):
        if not isinstance(schema, dict):
            break
        found = schema | found
        reference = found.pop("$ref", None)
        if reference is None:
            return found
        schema = at(root, reference[1:]) if reference == "#" or str(reference).startswith("#/") else None
    return {}


def at(whole: Any, pointer: str) -> Any:
    """The part of a value that a JSON pointer names; None if there is none."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(whole, dict):
            whole = whole.get(key)
        elif isinstance(whole, list) and key.isdigit() and int(key) < len(whole):
            whole = whole[int(key)]
        else:
            return None
    return whole


def check_width(schema: Any) -> None:
    """Raise InvalidInput when more than SCHEMA_PARTS_MAX parts of a schema apply to one place of a value.

    A checker applies each of them, and follows every reference: 29 definitions, each `allOf` the next one twice, are
    2 KB and half a billion parts. What is followed here are the places that a value can have, each combination of
    parts once, so that a class which contains itself ends the search.
    """
    todo, seen, steps = [[schema]], set[tuple[int, ...]](), 0
    while todo:
        place = _applied(schema, todo.pop())
        steps += len(place)
        if len(place) > SCHEMA_PARTS_MAX or steps > SCHEMA_STEPS_MAX:
            raise InvalidInput(
                f"more than {SCHEMA_PARTS_MAX:,} of its parts apply to one place of a value; let fewer alternatives "
                "refer to the same definitions"
            )
        key = tuple(sorted(map(id, place)))
        if key not in seen:
            seen.add(key)
            todo += _inside(place)


def _applied(root: Any, given: list[Any]) -> list[dict[str, Any]]:
    """Every part that applies to the place to which the `given` ones apply, as often as it does, up to the limit."""
    found: list[dict[str, Any]] = []
    todo = list(given)
    while todo and len(found) <= SCHEMA_PARTS_MAX:
        part = todo.pop()
        if not isinstance(part, dict):
            continue
        found.append(part)
        for keyword in _SAME_PLACE & part.keys():
            inner = part[keyword]
            if keyword == "$ref":
                todo.append(at(root, inner[1:]) if isinstance(inner, str) and inner.startswith("#") else None)
            elif keyword == "dependentSchemas" and isinstance(inner, dict):
                todo += inner.values()
            else:
                todo += inner if isinstance(inner, list) else [inner]
    return found


def _inside(place: list[dict[str, Any]]) -> list[list[Any]]:
    """What applies to each place inside one: to each property and item that is named, and to all others."""
    fields: dict[str, list[Any]] = {}
    items: dict[int, list[Any]] = {}
    other_fields: list[Any] = []
    other_items: list[Any] = []
    for part in place:
        for name, inner in _mapping(part.get("properties")).items():
            fields.setdefault(name, []).append(inner)
        for number, inner in enumerate(_listed(part.get("prefixItems")) + _listed(part.get("items"))):
            items.setdefault(number, []).append(inner)
        other_fields += _mapping(part.get("patternProperties")).values()
        other_fields += [part[keyword] for keyword in _OTHER_FIELDS & part.keys()]
        other_items += [part[keyword] for keyword in _OTHER_ITEMS & part.keys()]
    named = [inner + other_fields for inner in fields.values()] + [inner + other_items for inner in items.values()]
    return [*named, other_fields, other_items]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def with_types(annotation: Any, schema: dict[str, Any]) -> Iterator[tuple[inspect.Type, dict[str, Any]]]:
    """Each type inside an annotation with the part of the schema that was made from it; a class that contains itself
    once. Nothing for an annotation that msgspec cannot inspect."""
    stack: list[tuple[inspect.Type, Any]] = list(_known(annotation, schema))
    definitions = schema.get("$defs", {})
    seen: set[tuple[Any, str]] = set()
    while stack:
        info, part = stack.pop()
        if not isinstance(part, dict):
            continue
        while isinstance(info, inspect.Metadata):
            info = info.type
        if reference := part.get("$ref"):
            visit = (getattr(info, "cls", None), reference)
            if visit in seen:
                continue
            seen.add(visit)
            part = definitions.get(reference.removeprefix("#/$defs/"), {})
        yield info, part
        stack.extend(_inner(info, part))


def is_of(kind: type, schema: dict[str, Any]) -> bool:
    """Whether the schema of an object was made from this class, and not from another member of the same union."""
    return str(schema.get("title")).partition("[")[0] == getattr(kind, "__name__", None)


def _inner(info: inspect.Type, schema: dict[str, Any]) -> Iterator[tuple[inspect.Type, Any]]:
    """The types inside a type, each with the schema that was made from it."""
    match info:
        case inspect.UnionType():
            # msgspec has its own order of `anyOf`: each member is paired with each alternative, and only pairs that fit
            # count.
            # A union of two kinds of texts does not get here; msgspec cannot inspect it.
            for alternative in schema.get("anyOf", ()):
                yield from ((member, alternative) for member in info.types)
                if "anyOf" in alternative:
                    yield info, alternative
        case inspect.CollectionType():
            yield info.item_type, schema.get("items")
        case inspect.TupleType():
            yield from zip(info.item_types, schema.get("prefixItems", ()), strict=False)
        case inspect.DictType():
            yield info.value_type, schema.get("additionalProperties")
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            if not is_of(info.cls, schema):
                return
            by_name = schema.get("properties", {})
            by_place = schema.get("prefixItems", ())
            yield from ((field.type, by_name.get(field.encode_name)) for field in info.fields)
            yield from zip((field.type for field in info.fields), by_place, strict=False)
        case inspect.CustomType() if isinstance(getattr(info.cls, "model_fields", None), dict):  # of pydantic
            if is_of(info.cls, schema):
                by_name = schema.get("properties", {})
                for name, field in info.cls.model_fields.items():  # type: ignore[attr-defined]  # never imported here
                    yield from _known(field.annotation, by_name.get(field.serialization_alias or field.alias or name))


def _known(annotation: Any, schema: Any) -> Iterator[tuple[inspect.Type, Any]]:
    try:
        yield inspect.type_info(annotation), schema
    except (TypeError, NotImplementedError):
        return


# --- the schema of an annotation ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _cached_schema(annotation: Any) -> dict[str, Any] | None:
    return _make_schema(annotation)


def _make_schema(annotation: Any) -> dict[str, Any] | None:
    if annotation is Any or annotation is object:
        return None
    try:
        schema = msgspec.json.schema(annotation, schema_hook=_schema_hook)
    except (TypeError, NotImplementedError, ValueError):
        members = union_members(annotation)
        parts = [schema_of(m) for m in members] if len(members) > 1 else []
        if not parts or None in parts:
            return None
        schema = {"anyOf": parts}
    schema = typing.cast(dict[str, Any], json.loads(json.dumps(schema, default=_schema_default)))
    return _finished(schema) or None


def _schema_hook(kind: Any) -> dict[str, Any]:
    if is_pydantic(kind):
        return typing.cast(dict[str, Any], kind.model_json_schema())
    if isinstance(kind, type) and issubclass(kind, pathlib.PurePath):
        return {"type": "string", "format": "path"}
    return {}


def _schema_default(value: Any) -> Any:
    """Encode a default inside a schema; one that cannot be stored becomes null."""
    if isinstance(value, enum.Enum):
        return value.value
    try:
        return plain(encode(value))
    except HoldfastError:
        return None


def _finished(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that was made from an annotation: the `$defs` of embedded schemas are at the top, where their `$ref`s
    point, and sets are marked as such."""
    definitions: dict[str, Any] = {}
    stack: list[Any] = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            inner = part.pop("$defs", None)
            if isinstance(inner, dict):
                definitions.update(inner)
                stack.extend(inner.values())
            if part.get("uniqueItems") is True:
                part[SET] = True
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    if definitions:
        schema["$defs"] = {sys.intern(name): definitions[name] for name in sorted(definitions)}
    return schema


# --- formats: texts that stand for an instant, a duration or bytes ------------------------------------------------


def _reads_as(kind: type) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return False
        return True

    return check


FORMAT_CHECKS: Final[dict[str, Callable[[str], bool]]] = {
    name: _reads_as(kind)
    for name, kind in (
        ("date-time", datetime),
        ("date", date),
        ("time", time),
        ("partial-time", time),
        ("duration", timedelta),
        ("uuid", UUID),
        ("decimal", Decimal),
        ("byte", bytes),
    )
}
"""Whether a text has a format. The codec decides: instants need no time zone, durations have no months."""

_OPEN: Final = {inspect.DateTimeType: "date-time", inspect.TimeType: "time", inspect.BytesType: "byte"}
"""Types for whose texts msgspec's schemas name no format."""


def name_formats(annotation: Any, schema: dict[str, Any]) -> None:
    """Add `format` to the schema of this annotation wherever the type implies one and the schema names none."""
    for info, part in with_types(annotation, schema):
        if (name := _OPEN.get(type(info))) and part.get("type") == "string":
            part.setdefault("format", name)


# --- whether values of a type can be read from JSON at all ----------------------------------------------------------


def unreadable(annotation: Any) -> str | None:
    """The part of a type that cannot be decoded from JSON; None if there is none. Raises InvalidInput if values cannot
    have this type at all."""
    decoder(annotation)
    found = [_unreadable(inspect.type_info(member), set()) for member in _members(annotation)]
    return None if None in found else found[0]


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union without None: one decodable member is enough, and None alone is not an answer."""
    members = tuple(member for member in union_members(annotation) if member is not type(None))
    return members or (annotation,)


def _unreadable(kind: inspect.Type, above: set[int]) -> str | None:
    """Depth first; a type inside itself is as readable as its other parts."""
    if id(kind) in above:
        return None
    above = above | {id(kind)}
    match kind:
        case inspect.CustomType():
            return None if _is_made_from_json(kind.cls) else kind.cls.__qualname__
        case inspect.UnionType():
            members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
            found = [_unreadable(member, above) for member in members]
            return None if None in found else found[0]
    return next((wrong for part in _parts(kind) if (wrong := _unreadable(part, above))), None)


def _parts(kind: inspect.Type) -> list[inspect.Type]:
    """The types that every value of a type consists of; an optional field need not be readable."""
    match kind:
        case inspect.CollectionType():
            return [kind.item_type]
        case inspect.TupleType():
            return list(kind.item_types)
        case inspect.DictType():
            return [kind.key_type, kind.value_type]
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return [field.type for field in kind.fields if field.required]
    return []


def _is_made_from_json(kind: type) -> bool:
    """Whether `values.decoder` makes values of a class: models, paths, and classes of plain JSON values."""
    if is_pydantic(kind) or issubclass(kind, pathlib.PurePath):
        return True
    try:
        return any(issubclass(plain, kind) for plain in (dict, list, str, int, float, bool))
    except TypeError:  # a protocol that cannot be asked
        return False
