"""Formats: texts in JSON that stand for something else, such as an instant, a duration or bytes.

Owns: which texts each format of a JSON Schema takes, so that what passes its schema can also be read into its type; and
naming the format where a schema made from an annotation leaves it open.
Never: knows formats that are only texts (e-mail addresses, host names); whoever checks schemas has those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect


def _reads_as(kind: type) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return False
        return True

    return check


CHECKS: Final[dict[str, Callable[[str], bool]]] = {
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
"""Whether a text is of a format. The codec decides: instants need no time zone, durations have no months."""

_OPEN: Final = {inspect.DateTimeType: "date-time", inspect.TimeType: "time", inspect.BytesType: "byte"}
"""Types whose texts msgspec's schemas say nothing about."""


def name_open_ones(annotation: Any, schema: dict[str, Any]) -> None:
    """Put `format` into the schema of this annotation wherever its type says more about a text than the schema does."""
    try:
        stack: list[tuple[inspect.Type, Any]] = [(inspect.type_info(annotation), schema)]
    except (TypeError, NotImplementedError):
        return  # a type that msgspec cannot look into
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
                continue  # a class that contains itself
            seen.add(visit)
            part = definitions.get(reference.removeprefix("#/$defs/"), {})
        if name := _OPEN.get(type(info)):
            if part.get("type") == "string":
                part.setdefault("format", name)
        else:
            stack.extend(_parts(info, part))


def _parts(info: inspect.Type, schema: dict[str, Any]) -> Iterator[tuple[inspect.Type, Any]]:
    """The types inside a type, each with the schema that was made from it."""
    match info:
        case inspect.UnionType():
            # The order of `anyOf` is msgspec's own: each member meets each alternative, and only what fits counts.
            # Two kinds of texts in one union do not get here; msgspec cannot look into those.
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
            if str(schema.get("title")).partition("[")[0] != getattr(info.cls, "__name__", None):
                return  # another member of the same union
            by_name = schema.get("properties", {})
            by_place = schema.get("prefixItems", ())
            yield from ((field.type, by_name.get(field.encode_name)) for field in info.fields)
            yield from zip((field.type for field in info.fields), by_place, strict=False)
