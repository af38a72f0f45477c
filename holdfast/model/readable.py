"""Readable: whether values of a type can be read from JSON at all.

Owns: saying so before somebody is asked for one; what a value is read into is `values.decoder`.
"""

from __future__ import annotations

import pathlib
from typing import Any

from msgspec import inspect

from holdfast.model.values import decoder, is_pydantic, union_members


def unreadable(annotation: Any) -> str | None:
    """The part of a type that no JSON value can become; None when there is none. Raises InvalidInput when it is no type
    for values at all."""
    decoder(annotation)
    found = [_unreadable(inspect.type_info(member), set()) for member in _members(annotation)]
    return None if None in found else found[0]


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, of which one is enough; that nothing is allowed as well does not make it an answer."""
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
    """What every value of a type consists of; a field that may be left out need not be readable."""
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
    """As `values.decoder` makes them: a model, a path, or something that a plain JSON value is already."""
    if is_pydantic(kind) or issubclass(kind, pathlib.PurePath):
        return True
    try:
        return any(issubclass(plain, kind) for plain in (dict, list, str, int, float, bool))
    except TypeError:  # a protocol that cannot be asked
        return False
