"""JSON text: a value, and the places of its parts.

Owns: what our documents refuse of JSON as Python reads it: duplicate keys, NaN, huge numbers, half of a surrogate pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from holdfast.documents.places import (
    TOO_DEEP,
    TOO_MANY,
    BadNumber,
    Place,
    Pointer,
    Unreadable,
    integer,
    line_and_column,
    real,
    short,
)
from holdfast.model.limits import DOCUMENT_DEPTH_MAX, DOCUMENT_VALUES_MAX

_scanstring: Final[Callable[[str, int], tuple[str, int]]] = getattr(json.decoder, "scanstring")  # noqa: B009 - typeshed has no such name
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TOKEN: Final = re.compile(rf"{_STRING.pattern}|[\[{{\]}}]", re.DOTALL)


def read(text: str) -> tuple[Any, Callable[[dict[Any, Any]], dict[Pointer, Place]]]:
    """The value of a text, and what finds places in it. Raises Unreadable."""
    _check_size(text)
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=integer, parse_float=real
        )
    except json.JSONDecodeError as e:
        hint = "check the comma, the quote or the bracket before it"
        raise Unreadable(f"this is not JSON: {e.msg}", hint, e.lineno, e.colno) from None
    except _Repeated as e:
        at = places(text, {}, e.key)[(e.key,)]
        raise Unreadable(f"the key {short(e.key)} occurs twice in one object", "keep one of them", *at[2:4]) from None
    except BadNumber as e:
        raise Unreadable(e.message, e.hint, *line_and_column(text, max(text.find(e.text), 0))) from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(text)
    return value, lambda tree: places(text, tree)


class _Repeated(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Repeated(key)
        found[key] = value
    return found


def _constant(text: str) -> NoReturn:
    raise BadNumber(text, f"{text} is not a number in JSON")


def _check_size(text: str) -> None:
    """Refuse a deep nesting before the parser recurses into it, and more values than a document may have."""
    if text.count(",") > DOCUMENT_VALUES_MAX:
        raise Unreadable(*TOO_MANY)
    if text.count("[") + text.count("{") <= DOCUMENT_DEPTH_MAX:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        bracket = match.group()
        if bracket in "[{":
            depth += 1
            if depth > DOCUMENT_DEPTH_MAX:
                raise Unreadable(*TOO_DEEP, *line_and_column(text, match.start()))
        elif bracket in "]}":
            depth -= 1


def _refuse_surrogates(text: str) -> None:
    """An escape such as \\ud800 alone is no character; it could not be stored."""
    for match in _STRING.finditer(text):
        if re.search("[\ud800-\udfff]", json.loads(match.group())):
            hint = "write the character itself, or both halves of the pair"
            raise Unreadable("half of a surrogate pair is not text", hint, *line_and_column(text, match.start()))


def places(text: str, tree: dict[Any, Any], repeated: str | None = None) -> dict[Pointer, Place]:
    """The places of the parts that `tree` names. With `repeated` the place of that key where it stands for the second
    time in one object, as that of `(repeated,)`."""
    found: dict[Pointer, Place] = {}
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)

    def skip(at: int) -> int:
        match = _SPACE.match(text, at)
        return match.end() if match else at

    def visit(at: int, branch: dict[Any, Any] | None, pointer: Pointer, key_at: int) -> int:
        if branch is not None:
            inside = 1 if text[at] == '"' else 0
            found[pointer] = Place(*line_and_column(text, at), *line_and_column(text, key_at), inside)
        if text[at] not in "[{" or (not branch and repeated is None):
            return int(decoder.raw_decode(text, at)[1])
        is_object, number, seen = text[at] == "{", 0, set[str | int]()
        at = skip(at + 1)
        while text[at] not in "]}":
            key: str | int = number
            began = at
            if is_object:
                key, at = _scanstring(text, at + 1)
                at = skip(skip(at) + 1)
                if key == repeated and key in seen:
                    found.setdefault((key,), Place(*line_and_column(text, began), *line_and_column(text, began), 1))
                seen.add(key)
            at = skip(visit(at, branch.get(key) if branch else None, (*pointer, key), began))
            number += 1
            if text[at] == ",":
                at = skip(at + 1)
        return at + 1

    start = skip(0)
    visit(start, tree, (), start)
    return found
