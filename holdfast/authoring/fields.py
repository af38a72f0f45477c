"""Fields: the parts of a value, from its annotation.

Owns: the fields of dataclasses, Structs, pydantic models and TypedDicts with their JSON names, the type of an item.
Never: raises; the caller knows the line (see refs.py).
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import functools
import inspect
import types
import typing
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.model.values import is_pydantic, union_members

UNORDERED: Final = (decimal.Decimal, datetime.datetime, datetime.time, datetime.timedelta, bytes)
"""Types whose JSON text neither orders nor compares like the value."""


class Field(NamedTuple):
    """One field: its key in JSON and its type."""

    key: str
    annotation: Any


class Shape(NamedTuple):
    """What is known about the names below a value. `fields` None: anything may be there."""

    fields: dict[str, Field] | None
    title: str
    by_key: bool
    """Read with ["key"], not with a dot."""


ANYTHING: Final = Shape(None, "Any", False)


def shape(annotation: Any) -> Shape:
    """The fields of an annotation. A union knows those of all its members."""
    members = [m for m in union_members(annotation) if m is not type(None)]
    shapes = [_shape_of_one(m) for m in members]
    if not shapes or any(s.fields is None for s in shapes):
        return next((s for s in shapes if s.fields is None and s.by_key), ANYTHING)
    fields: dict[str, Field] = {}
    for s in reversed(shapes):
        fields |= s.fields or {}
    return Shape(fields, " | ".join(s.title for s in shapes), all(s.by_key for s in shapes))


def item(annotation: Any, key: str | int | None = None) -> Any:
    """The type of `value[key]`, or of each item when no key is given; Any where it is not known."""
    members = [m for m in union_members(annotation) if m is not type(None)]
    found = [_item_of_one(m, key) for m in members]
    return found[0] if len(found) == 1 else Any


def without_none(annotation: Any) -> tuple[Any, ...]:
    """The members of an annotation other than None, without Annotated around them."""
    return tuple(_bare(m) for m in union_members(annotation) if m is not type(None))


def title(annotation: Any) -> str:
    """A type as people write it."""
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def compares_as_text(annotation: Any) -> type | None:
    """The type among the members of an annotation whose stored form must not be compared, if there is one."""
    for member in without_none(annotation):
        if isinstance(member, type) and issubclass(member, UNORDERED):
            return member
    return None


@functools.lru_cache(maxsize=1024)
def _known_fields(kind: type) -> dict[str, Field] | None:
    """The fields of a class that is stored as an object; None for any other class."""
    if issubclass(kind, msgspec.Struct):
        return {f.name: Field(f.encode_name, f.type) for f in msgspec.structs.fields(kind)}
    if is_pydantic(kind):
        return {
            name: Field(f.serialization_alias or f.alias or name, f.annotation)
            for name, f in kind.model_fields.items()  # type: ignore[attr-defined]  # pydantic is not imported here
        }
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        return {f.name: Field(f.name, hints.get(f.name, Any)) for f in dataclasses.fields(kind)}
    if typing.is_typeddict(kind):
        return {name: Field(name, annotation) for name, annotation in _hints(kind).items()}
    return None


_SCALARS: Final = (
    *(str, int, float, bool, bytes, datetime.date, datetime.time, datetime.timedelta),
    *(decimal.Decimal, list, tuple, set, frozenset),
)


def _shape_of_one(annotation: Any) -> Shape:
    annotation = _bare(annotation)
    kind = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return ANYTHING
    fields = _known_fields(kind)
    if fields is not None:
        return Shape(fields, kind.__name__, typing.is_typeddict(kind))
    if issubclass(kind, collections.abc.Mapping):
        return Shape(None, title(annotation), True)
    if issubclass(kind, _SCALARS):
        return Shape({}, title(annotation), False)
    return ANYTHING


def _item_of_one(annotation: Any, key: str | int | None) -> Any:
    annotation = _bare(annotation)
    kind = typing.get_origin(annotation) or annotation
    args = typing.get_args(annotation)
    if not isinstance(kind, type):
        return Any
    fields = _known_fields(kind)
    if fields is not None:
        return fields[key].annotation if isinstance(key, str) and key in fields else Any
    if issubclass(kind, tuple):
        if len(args) == 2 and args[1] is Ellipsis:
            return _known(args[0])
        return _known(args[key]) if isinstance(key, int) and -len(args) <= key < len(args) else Any
    if issubclass(kind, collections.abc.Mapping):
        return _known(args[1]) if len(args) == 2 else Any
    if issubclass(kind, collections.abc.Iterable) and len(args) == 1:
        return _known(args[0])
    return str if kind is str else Any


def _known(annotation: Any) -> Any:
    return Any if isinstance(annotation, typing.TypeVar) else annotation


def _bare(annotation: Any) -> Any:
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = annotation.__origin__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12 on
            annotation = annotation.__value__
        elif typing.get_origin(annotation) in (typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating the user's annotations may raise anything
        return {n: (Any if isinstance(a, str) else a) for n, a in inspect.get_annotations(kind).items()}


def list_of(annotation: Any) -> Any:
    """`list[R]`, also for an R that is known only now."""
    return types.GenericAlias(list, (annotation,))
