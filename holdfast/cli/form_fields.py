"""Form fields: what one line of a form expects, in words, and the value of the line that is typed.

Owns: the kinds of entries (yes or no, numbers, texts, choices, JSON) and which one a schema asks for.
Never: checks an entry against its schema, asks or shows anything (see forms).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cli.output import cut, json_text, line
from holdfast.model.errors import InvalidInput
from holdfast.model.schemas import resolved
from holdfast.model.values import DuplicateKey, plain, unique_keys

NOTHING: Final[Any] = object()
"""Omitted; null is a value."""

SHOWN_WIDTH: Final = 60
"""Columns of a default or a choice."""

ALTERNATIVES: Final = frozenset({"anyOf", "oneOf", "allOf"})
FIXED: Final = frozenset({"enum", "const"})


def shown(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) and value else json_text(value, compact=True)


@dataclass(frozen=True)
class Entry:
    """One line of a form."""

    expects: str
    read: Callable[[str], Sequence[Any]]
    """The values that a line may mean, the likeliest first; ValueError with what is wrong if there is none."""
    choices: tuple[str, ...] = ()
    show: Callable[[Any], str] = shown
    """A default, as it would be typed."""
    only: Any = NOTHING
    """The only possible value, if it need not be asked for."""


def entry_for(root: Any, about: dict[str, Any]) -> Entry:
    """How a field is asked for in one line."""
    alternatives = [resolved(root, part) for keyword in ("anyOf", "oneOf") for part in about.get(keyword, ())]
    if FIXED & about.keys():
        return _choice([(shown(value), value) for value in about.get("enum") or [about.get("const")]])
    if alternatives and all("const" in part for part in alternatives):
        return _choice([(str(part.get("title", shown(part["const"]))), part["const"]) for part in alternatives])
    types = {kind for part in alternatives or [about] for kind in _types(part)}
    match sorted(types):
        case ["boolean"]:
            return _YES_NO
        case ["integer"] | ["number"] | ["integer", "number"]:
            return Entry(_number_wanted(about), _read_number)
        case ["string"] if not alternatives:
            return Entry(_TEXTS.get(about.get("format", ""), "text"), _read_text)
        case _ if "string" in types or not types:
            return Entry("JSON or text", _read_either)
    return JSON


def _types(about: dict[str, Any]) -> list[str]:
    """The JSON types of a schema; "object" if only the shape is given."""
    if isinstance(found := about.get("type"), list):
        return found
    if found is None and (_SHAPES & about.keys()):
        return ["object"]
    return [] if found is None else [found]


_SHAPES: Final = frozenset({"properties", "required", "additionalProperties", "prefixItems", "items", *ALTERNATIVES})

_TEXTS: Final = {
    "date": "a date, as 2030-12-31",
    "date-time": "a date and time, as 2030-12-31T18:30:00Z",
    "time": "a time, as 18:30:00",
    "partial-time": "a time, as 18:30:00",
    "duration": "a duration, as PT1H30M or P2D",
    "email": "an e-mail address",
    "uri": "an address, as https://example.org",
    "uuid": "a UUID",
    "decimal": "a number",
    "byte": "base64",
}


def _number_wanted(about: dict[str, Any]) -> str:
    noun = "a whole number" if about.get("type") == "integer" else "a number"
    match about.get("minimum"), about.get("maximum"):
        case None, None:
            return noun
        case low, None:
            return f"{noun}, at least {low}"
        case None, high:
            return f"{noun}, at most {high}"
        case low, high:
            return f"{noun} from {low} to {high}"


def _choice(options: Sequence[tuple[str, Any]]) -> Entry:
    """One of a list; numbers stand for themselves, everything else has a number in the list."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for _, value in options):
        return Entry(f"one of {line(', '.join(label for label, _ in options), SHOWN_WIDTH)}", _read_number)

    def read(text: str) -> list[Any]:
        named = [value for label, value in options if label.casefold() == text.casefold()]
        numbered = [options[int(text) - 1][1]] if text.isdecimal() and 1 <= int(text) <= len(options) else []
        if found := named or numbered:
            return found
        raise ValueError(f"{_quoted(text)} is not on the list: give a number from 1 to {len(options)}")

    def show(value: Any) -> str:
        return next((label for label, option in options if option == value), shown(value))

    # A single text is a tag and needs no question; a single `true` is one that must be confirmed.
    alone = options[0][1] if len(options) == 1 else None
    only = alone if isinstance(alone, str) else NOTHING
    return Entry("one of the list", read, tuple(label for label, _ in options), show, only)


def read_yes_no(text: str) -> list[Any]:
    if text.casefold() in ("y", "yes", "true"):
        return [True]
    if text.casefold() in ("n", "no", "false"):
        return [False]
    raise ValueError(f"{_quoted(text)} is neither yes nor no")


def _read_number(text: str) -> list[Any]:
    try:
        value = plain(text)
    except InvalidInput:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_quoted(text)} is not a number")
    return [value]


def _read_text(text: str) -> list[Any]:
    if not text:
        raise ValueError('an answer is needed ("" is the empty text)')
    return ["" if text == '""' else text]


def _read_json(text: str) -> list[Any]:
    try:
        value = plain(text)
    except InvalidInput as e:
        raise ValueError(e.message) from None
    json.loads(text, object_pairs_hook=unique_keys)
    return [value]


def _read_either(text: str) -> list[Any]:
    try:
        return [*_read_json(text), text]
    except DuplicateKey:
        raise
    except ValueError:
        return _read_text(text)


_YES_NO: Final = Entry("yes/no", read_yes_no)
JSON: Final = Entry("JSON, on one line", _read_json)


def _quoted(text: str) -> str:
    readable = text.encode(errors="backslashreplace").decode()  # a terminal may send bytes that are not text
    return cut(json_text(readable, compact=True), SHOWN_WIDTH)
