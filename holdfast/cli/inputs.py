"""Inputs: the values of `--input` and `--set`, as the inputs of a run by name.

Owns: JSON on the command line, from a file or from stdin, and `key.inner=value`.
Never: checks the inputs against the workflow (the engine does, and lists the inputs).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.model.definition import Param
from holdfast.model.errors import UsageError
from holdfast.model.schemas import resolved
from holdfast.model.values import DuplicateKey, unique_keys

RESERVED = frozenset({"run_id", "priority", "timeout", "persistence"})
"""Names of options of `engine.start`."""


def read(given: str | None, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """The inputs: an object from `--input`, with the `--set` values put into it. Raises UsageError."""
    inputs = {} if given is None else parse(*source(given, "--input"))
    for assignment in assignments:
        put(inputs, assignment)
    for name in sorted(RESERVED & inputs.keys()):
        option = name.replace("_", "-")
        raise UsageError(f"{name!r} cannot be an input; it is an option of the command where there is one: --{option}")
    return inputs


def source(given: str, option: str) -> tuple[str, str]:
    """The text that an option names (itself, a file, stdin), and what to call it."""
    if given == "-":
        return sys.stdin.read(), f"{option} on stdin"
    if not given.startswith("@"):
        return given, option
    path, what = given[1:], f"{option} {given}"
    try:
        return Path(path).read_text("utf-8"), what
    except FileNotFoundError:
        raise UsageError(f"{what}: there is no file {Path(path).absolute()}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: the file is not UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}") from None


def parse(text: str, what: str) -> dict[str, Any]:
    """A JSON object. Raises UsageError that shows where it is wrong."""
    value = value_of(text, what)
    if not isinstance(value, dict):
        raise UsageError(
            f'{what} must be an object with values by name, such as {{"name": ...}}, and it is {_kind(value)}'
        )
    return value


def answer(text: str, what: str, schema: Any) -> Any:
    """A JSON value; if the schema allows only text, anything but a JSON string is taken as the text itself."""
    if not _only_text(schema):
        return value_of(text, what)
    try:
        value = value_of(text, what)
    except UsageError:
        return text.rstrip("\n")
    return value if isinstance(value, str) else text.rstrip("\n")


def _only_text(schema: Any) -> bool:
    choices = resolved(schema, schema).get("enum") or (None,)
    return _types(schema, schema) == {"string"} or all(isinstance(choice, str) for choice in choices)


def value_of(text: str, what: str) -> Any:
    """A JSON value. Raises UsageError that shows where it is wrong."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 10) : error.pos + 20]
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{what} is not JSON: {error.msg} at {place}, near {near!r}") from None
    except DuplicateKey as error:
        raise UsageError(f"{what}: {error}; keep one of them") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}") from None


def put(inputs: dict[str, Any], assignment: str) -> None:
    """`order.amount=10`: JSON if it is, else text."""
    key, equals, text = assignment.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise UsageError(f"--set {assignment!r}: write key=value, or outer.inner=value")
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=unique_keys)
    except DuplicateKey as error:
        raise UsageError(f"--set {assignment!r}: {error}; keep one of them") from None
    except (ValueError, RecursionError):
        value = text
    target = inputs
    for part in parts[:-1]:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {assignment!r}: {part} is {_kind(inner)}, so nothing can be set inside it")
        target = inner
    target[parts[-1]] = value


def keep_text(inputs: dict[str, Any], assignments: Sequence[str], params: Sequence[Param]) -> None:
    """Where the workflow declares text, `--set code=007` means the text, not the number."""
    schemas = {param.name: param.schema for param in params}
    for assignment in assignments:
        key, _, text = assignment.partition("=")
        *outer, last = key.split(".")
        target: Any = inputs
        schema: Any = {"properties": schemas}
        root = schemas.get((*outer, last)[0])
        for part in outer:
            schema = resolved(root, schema).get("properties", {}).get(part)
            target = target.get(part) if isinstance(target, dict) else None
        if isinstance(target, dict) and not isinstance(target.get(last), str):
            wanted = _types(resolved(root, schema).get("properties", {}).get(last), root)
            if "string" in wanted and not wanted & _JSON_TYPES.get(type(target.get(last)), frozenset()):
                target[last] = text


_JSON_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    type(None): frozenset({"null"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
}


def _types(schema: Any, root: Any) -> set[str]:
    """The JSON types that a schema allows at its top."""
    about = resolved(root, schema)
    options = [about, *about.get("anyOf", ())]
    return {str(kind) for option in options if (kind := resolved(root, option).get("type")) is not None}


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a bool"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
    return "an object"
