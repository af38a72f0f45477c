"""YAML text: the values of its documents, and the places of their parts.

A plain scalar is null, true, false, a number or text, as YAML 1.2 says: `yes`, `12:30` and `2024-05-01` are text. What
two readers of YAML take for different values is refused: tags, merge keys, duplicate keys, keys that are not text,
`0x10`, `010`, `.nan`. Aliases may repeat at most as many values as the document itself has.

Owns: which scalars mean what, and all that our documents refuse of YAML.
Invariant: one pass over libyaml's events, without recursion; a text is refused at the event that shows why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from yaml import YAMLError
from yaml.cyaml import CParser
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from holdfast.documents.places import (
    TOO_DEEP,
    TOO_MANY,
    BadNumber,
    Place,
    Pointer,
    Unreadable,
    integer,
    real,
    short,
)
from holdfast.model.limits import DOCUMENT_DEPTH_MAX, DOCUMENT_VALUES_MAX

Read = tuple[Any, Callable[[dict[Any, Any]], dict[Pointer, Place]]]

_NUMBER: Final = re.compile(r"[-+]?(?:(0|[1-9][0-9]*)|(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)")
_AMBIGUOUS: Final = re.compile(r"[-+]?(?:0[0-9_]+|0x[0-9a-fA-F]+|0o[0-7]+|\.inf|\.Inf|\.INF|\.nan|\.NaN|\.NAN)")
_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMERIC: Final = frozenset("+-.0123456789")
_NO_KEY: Final = object()


def read(text: str) -> list[Read]:
    """The value of each document that is not empty, and what finds places in it. Raises Unreadable."""
    try:
        return _documents(text)
    except YAMLError as e:
        raise _refused(e, text) from None
    except RecursionError:
        raise Unreadable(*TOO_DEEP) from None


def _documents(text: str) -> list[Read]:
    next_event = CParser(text).get_event
    found: list[Read] = []
    number = 0
    while True:
        event = next_event()
        if type(event) is StreamEndEvent:
            return found
        if type(event) is DocumentStartEvent:
            if event.tags:
                _refuse(event, "the document defines tags", "remove the line %TAG")
            value = _value(next_event)
            if value is not None:
                found.append((value, partial(places, text, number)))
            number += 1


def _value(next_event: Callable[[], Any]) -> Any:
    """The value of one document, up to its end."""
    top: list[Any] = []
    here: Any = top
    is_map = False
    key: Any = _NO_KEY
    stack: list[tuple[Any, bool, Any, str | None, int]] = []
    anchors: dict[str, tuple[Any, int]] = {}
    """The value of each anchor, and how many values that is."""
    anchor: str | None = None
    own = repeated = began = 0
    scalars: dict[str, Any] = {}
    while True:
        event = next_event()
        kind = type(event)
        if kind is ScalarEvent:
            own += 1
            text = event.value
            if event.tag is not None:
                _refuse_tag(event)
            if is_map and key is _NO_KEY:
                key = text
                if text in here or event.implicit[0]:
                    _check_key(event, text, here)
                continue
            if not event.implicit[0]:
                value = text
            elif text in scalars:
                value = scalars[text]
            else:
                value = scalars[text] = _scalar(event, text)
            if event.anchor is not None:
                anchors[event.anchor] = value, 1
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            own += 1
            _check_container(event, own, len(stack), is_map and key is _NO_KEY)
            stack.append((here, is_map, key, anchor, began))
            is_map = kind is MappingStartEvent
            here, key, anchor, began = {} if is_map else [], _NO_KEY, event.anchor, own
            continue
        elif kind is AliasEvent:
            value, size = _aliased(event, anchors, is_map and key is _NO_KEY)
            repeated += size
            if repeated > DOCUMENT_VALUES_MAX:
                _refuse(event, *_BOMB)
        elif kind is DocumentEndEvent:
            if repeated > own:
                _refuse(event, *_BOMB)
            return top[0] if top else None
        else:  # the end of a list or an object
            value = here
            if anchor is not None:
                anchors[anchor] = value, own - began + 1
            here, is_map, key, anchor, began = stack.pop()
        if is_map:
            here[key] = value
            key = _NO_KEY
        else:
            here.append(value)


_BOMB: Final = ("aliases repeat more values than the document itself has", "write the values out, or use hf.map")


def _scalar(event: Any, text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    match = _NUMBER.fullmatch(text)
    try:
        if match is not None and match[1] is not None:
            return integer(text)
        if match is not None and not _AMBIGUOUS.fullmatch(text):
            return real(text)
    except BadNumber as e:
        _refuse(event, e.message, e.hint)
    if _AMBIGUOUS.fullmatch(text):
        hint = f'write "{text[:20]}" for a text, or the number in decimal digits'
        _refuse(event, f"{short(text)} is a number for some readers of YAML and text for others", hint)
    return text


def _check_key(event: Any, text: str, here: dict[str, Any]) -> None:
    if text in here:
        _refuse(event, f"the key {short(text)} occurs twice in one object", "keep one of them")
    if text == "<<":
        _refuse(event, "merge keys (<<) are not part of YAML 1.2", "write the keys out")
    if (text in _WORDS or text[0] in _NUMERIC) and not isinstance(_scalar(event, text), str):
        shown = text or "an empty key"
        _refuse(event, f"{shown} is not text, and a key is", f'put it in quotes: "{text[:20]}"')


def _check_container(event: Any, count: int, depth: int, is_key: bool) -> None:
    if event.tag is not None:
        _refuse_tag(event)
    if is_key:
        hint = 'keys are text; put quotes around a template: "{{ ... }}"'
        _refuse(event, "a list or an object cannot be a key", hint)
    if count > DOCUMENT_VALUES_MAX:
        _refuse(event, *TOO_MANY)
    if depth >= DOCUMENT_DEPTH_MAX:
        _refuse(event, *TOO_DEEP)


def _aliased(event: Any, anchors: dict[str, tuple[Any, int]], is_key: bool) -> tuple[Any, int]:
    if is_key:
        _refuse(event, "an alias cannot be a key", "write the key itself")
    if event.anchor not in anchors:
        _refuse(event, f"the alias *{event.anchor} is not defined above", "write the value itself")
    return anchors[event.anchor]


def _refuse_tag(event: Any) -> NoReturn:
    _refuse(event, f"the tag {short(event.tag)} is not supported", "remove it; types follow from the value itself")


def _refuse(event: Any, message: str, hint: str) -> NoReturn:
    mark = event.start_mark
    raise Unreadable(message, hint, mark.line + 1, mark.column + 1)


# --- errors of the parser --------------------------------------------------------------------------------------------

_HINTS: Final = (
    ("mapping values are not allowed", "put quotes around a text that contains ': ', and check the indentation"),
    ("expected key", "check the indentation and the quotes of this line and of the one above"),
    ("expected '-' indicator", "check the indentation of this line"),
    ("expected ':'", "put ': ' behind the key, and quotes around a text that begins with a special character"),
    ("expected ',' or", "close the bracket, and separate items by commas"),
    ("unexpected end of stream", "close the quote or bracket that is open"),
    ("cannot start any token", "put quotes around this text"),
    ("while scanning an anchor", "put quotes around a text that begins with '&'"),
    ("while scanning an alias", "put quotes around a text that begins with '*'"),
)


def _refused(error: Any, text: str) -> Unreadable:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).strip()
    context = getattr(error, "context", None)
    message = f"this is not YAML: {problem}" + (f" {context}" if context else "")
    hint = next((hint for part, hint in _HINTS if part in message), "check this line and the one above")
    if mark is None:
        return Unreadable(message, hint)
    lines = text.split("\n")
    if mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        hint = "indent with spaces, not with tabs"
    return Unreadable(message, hint, min(mark.line, len(lines) - 1) + 1, mark.column + 1)


# --- places ----------------------------------------------------------------------------------------------------------


def places(text: str, number: int, tree: dict[Any, Any]) -> dict[Pointer, Place]:
    """The places of the parts of the document of this number that `tree` names."""
    next_event = CParser(text).get_event
    while number >= 0:
        if type(next_event()) is DocumentStartEvent:
            number -= 1
    found: dict[Pointer, Place] = {}
    stack: list[tuple[dict[Any, Any] | None, Pointer, bool, int]] = []
    branch: dict[Any, Any] | None = {"": tree}
    pointer: Pointer = ()
    is_map, index = False, -1
    key: Any = _NO_KEY
    key_mark: Any = None
    while True:
        event = next_event()
        kind = type(event)
        if kind is DocumentEndEvent:
            return found
        if kind not in _STARTS:
            branch, pointer, is_map, index = stack.pop()
            key = _NO_KEY
            continue
        if is_map and key is _NO_KEY and kind is ScalarEvent:
            key, key_mark = event.value, event.start_mark
            continue
        index += 1
        step = key if is_map else index
        below = (pointer, branch[""]) if not stack and branch is not None else None
        if below is None and branch is not None and step in branch:
            below = (*pointer, step), branch[step]
        if below is not None:
            found[below[0]] = _place(event, key_mark if is_map else event.start_mark)
        key = _NO_KEY
        if kind is MappingStartEvent or kind is SequenceStartEvent:
            stack.append((branch, pointer, is_map, index))
            pointer, branch = below if below is not None else (pointer, None)
            is_map, index = kind is MappingStartEvent, -1


_STARTS: Final = frozenset({ScalarEvent, AliasEvent, MappingStartEvent, SequenceStartEvent})
assert MappingEndEvent not in _STARTS


def _place(event: Any, key_mark: Any) -> Place:
    mark, end = event.start_mark, event.end_mark
    inside = 0
    if type(event) is ScalarEvent:
        inside = -1 if mark.line != end.line else 0 if event.implicit[0] else 1
    return Place(mark.line + 1, mark.column + 1, key_mark.line + 1, key_mark.column + 1, inside)
