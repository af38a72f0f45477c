"""Answers: whether a JSON value fits a JSON Schema, and a description of what does not fit.

Owns: problems of values and of schemas, and defaults for what a value leaves out.
Never: fetches anything: a schema refers only to its own `$defs`.
Invariant: a value without problems is JSON and can be stored, whatever the schema.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.model import schemas, values
from holdfast.model.errors import HoldfastError, InvalidInput, UsageError
from holdfast.model.limits import (
    ANSWER_PROBLEM_LENGTH_MAX,
    ANSWER_PROBLEMS_MAX,
    ANSWER_SEARCHED_BYTES_MAX,
    QUOTED_LENGTH_MAX,
    SCHEMAS_COMPILED_MAX,
)
from holdfast.model.schemas import FORMAT_CHECKS, at, check_width, name_formats, resolved, unreadable

if TYPE_CHECKING:  # 25 ms, and most processes never check an answer
    import jsonschema_rs

Path = tuple[str | int, ...]

_VALUE: Final = "\0"
"""Placeholder for the value in the checker's messages, replaced by a shortened quotation."""


class Problem(NamedTuple):
    """One problem of a value, and where it is."""

    path: Path
    text: str

    def __str__(self) -> str:
        return _cut(f"{where(self.path)}: {self.text}" if self.path else self.text, ANSWER_PROBLEM_LENGTH_MAX)


def problems(schema: Any, value: bytes) -> list[str]:
    """The problems of a JSON value under a schema, one line each: `lines[2].price: "x" is not of type "number"`.

    None and {} accept all JSON. Under a schema that cannot be used, the reason is the one problem of every value.
    """
    return [str(problem) for problem in located(schema, value)]


def located(schema: Any, value: bytes, below: Path = ()) -> list[Problem]:
    """The same with separate places; only problems at the place `below` or inside it."""
    try:
        instance = values.plain(value)
    except InvalidInput as e:
        return [Problem((), e.message)]
    if schema is None or schema == {}:
        return []
    try:
        checker = _checker(_text(schema))
        if checker.is_valid(instance):
            return []
        found = itertools.chain.from_iterable(map(_explained, _errors(checker, instance, len(value))))
        inside = (problem for problem in found if problem.path[: len(below)] == below)
        return list(itertools.islice(dict.fromkeys(inside), ANSWER_PROBLEMS_MAX))
    except (HoldfastError, ValueError) as e:
        return [Problem((), f"the value cannot be checked: {_why_unusable(e)}")]


def schema_problem(schema: Any) -> str | None:
    """Why answers cannot be checked by this JSON Schema; None if they can."""
    if schema is None:
        return None
    try:
        _checker(_text(schema))
    except (HoldfastError, ValueError) as e:
        return _why_unusable(e)
    return None


def completed(schema: Any, value: bytes) -> bytes:
    """The value with the schema's defaults for absent properties; the same bytes if none is absent.

    A default is used if it fits itself and the whole value fits with it. A value that has problems is not changed.
    """
    if b'"default"' not in (text := _text(schema)) or problems(schema, value):
        return value
    whole = _EXACT.decode(value)
    used: set[str] = set()
    while fresh := list(_absent(schema, text, whole, used)):
        used.update(default.place for _, default in fresh)
        for holder, default in fresh:
            holder.setdefault(default.name, copy.deepcopy(default.value))
        if not any(isinstance(default.value, dict | list) for _, default in fresh):
            break  # only a default with parts can itself lack a property
    return _EXACTLY.encode(whole) if used and _checker(text).is_valid(whole) else value


def wanted(schema: Any, what: str) -> tuple[Any, Any]:
    """The type that an answer is decoded to, and its JSON Schema; `schema` is either of them. Raises UsageError if no
    answer could fit."""
    if schema is None:
        return Any, None
    annotation = Any if isinstance(schema, dict) else schema
    try:
        part = unreadable(annotation)
    except InvalidInput as e:
        raise UsageError(f"{what}: this cannot be the schema of an answer: {e.message}") from None
    if part is not None:
        raise UsageError(f"{what}: this cannot be the schema of an answer: a {part} cannot be made from JSON")
    found = schema_of(schema)
    wrong = schema_problem(found)
    if wrong is not None:
        raise UsageError(f"{what}: this cannot be the schema of an answer: {wrong}")
    return annotation, found


def schema_of(annotation: Any) -> Any:
    """The JSON Schema of the type of an answer. A dict is a schema already; None if nothing is known."""
    if annotation is None or isinstance(annotation, dict):
        return annotation
    try:
        return _cached_schema(annotation)
    except TypeError as e:
        if "unhashable" not in str(e):
            raise
        return _schema_with_formats(annotation)


def where(path: Iterable[str | int]) -> str:
    """A place as people write it: `lines[2].price`."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{_quoted(step)}]"
        for step in path
    )
    return "".join(steps).removeprefix(".")


# --- saying what is wrong ----------------------------------------------------------------------------------------


def _errors(
    checker: jsonschema_rs.Validator, instance: Any, size_bytes: int
) -> Iterable[jsonschema_rs.ValidationError]:
    if size_bytes <= ANSWER_SEARCHED_BYTES_MAX:
        return checker.iter_errors(instance)
    import jsonschema_rs

    try:
        checker.validate(instance)
    except jsonschema_rs.ValidationError as first:
        return [first]
    return []


def _explained(error: jsonschema_rs.ValidationError) -> Iterator[Problem]:
    """An error of the checker as problems; of alternatives, those of the one that was meant."""
    path = tuple(error.instance_path)
    kind = error.kind
    if kind.name in ("anyOf", "oneOf"):
        yield from _of_alternatives(error, path, kind.value)
    elif kind.name == "enum":
        yield Problem(path, f"{_quoted(error.instance)} is not one of {_listed(kind.value)}")
    elif kind.name == "falseSchema":
        yield Problem(path, f"{_quoted(error.instance)} is not allowed")
    else:
        yield Problem(path, error.message.replace(_VALUE, _quoted(error.instance)))


def _of_alternatives(
    error: jsonschema_rs.ValidationError, path: Path, alternatives: list[list[jsonschema_rs.ValidationError]]
) -> Iterator[Problem]:
    quoted = _quoted(error.instance)
    if not all(alternatives):
        fitting = sum(1 for errors in alternatives if not errors)
        yield Problem(path, f"{quoted} fits {fitting} alternatives, but must fit exactly one")
        return
    meant = [errors for errors in alternatives if not any(_is_another_kind(e, path) for e in errors)]
    if len(meant) == 1:
        for inner in meant[0]:
            yield from _explained(inner)
    elif all(errors[0].kind.name == "type" and tuple(errors[0].instance_path) == path for errors in alternatives):
        types = itertools.chain.from_iterable(errors[0].kind.value for errors in alternatives)
        yield Problem(path, f"{quoted} is not of types {_listed(dict.fromkeys(types))}")
    elif all(errors[0].kind.name == "const" for errors in alternatives):
        yield Problem(path, f"{quoted} is not one of {_listed(errors[0].kind.value for errors in alternatives)}")
    else:
        telling = (
            next((e for e in errors if _is_another_kind(e, path)), errors[0]) for errors in meant or alternatives
        )
        firsts = (next(_explained(inner)) for inner in telling)
        reasons = "; ".join(str(Problem(first.path[len(path) :], first.text)) for first in firsts)
        yield Problem(path, f"{quoted} fits no alternative ({reasons})")


def _is_another_kind(error: jsonschema_rs.ValidationError, path: Path) -> bool:
    """Whether an alternative was not meant at all: it expects another type, or another tag in one of its properties."""
    depth = len(error.instance_path) - len(path)
    return (error.kind.name == "type" and depth == 0) or (
        depth <= 1 and (error.kind.name == "const" or (error.kind.name == "enum" and len(error.kind.value) == 1))
    )


def _why_unusable(error: Exception) -> str:
    import jsonschema_rs

    if not isinstance(error, jsonschema_rs.ValidationError):
        return _cut(str(error), ANSWER_PROBLEM_LENGTH_MAX)
    if error.kind.name == "$ref":
        rule = "only the schema's own #/$defs/... can be referred to"
        return _cut(f"{rule}: {error.message}", ANSWER_PROBLEM_LENGTH_MAX)
    return "; ".join(str(problem) for problem in _explained(error))


def _quoted(value: Any) -> str:
    return _cut(msgspec.json.encode(value).decode(), QUOTED_LENGTH_MAX)


def _listed(options: Iterable[Any]) -> str:
    return ", ".join(map(_quoted, options))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# --- compiled schemas --------------------------------------------------------------------------------------------


def _text(schema: Any) -> bytes:
    return values.encode(schema, what="the schema")


@functools.lru_cache(maxsize=SCHEMAS_COMPILED_MAX)
def _checker(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs

    check_width(values.plain(schema))
    return jsonschema_rs.validator_for(
        schema.decode(), formats=FORMAT_CHECKS, validate_formats=True, retriever=_refuse, mask=_VALUE
    )


@functools.lru_cache(maxsize=SCHEMAS_COMPILED_MAX)
def _part_checkers(schema: bytes) -> jsonschema_rs.ValidatorMap:
    """A checker for each part of a schema, by its pointer."""
    import jsonschema_rs

    return jsonschema_rs.validator_map_for(
        schema.decode(), formats=FORMAT_CHECKS, validate_formats=True, retriever=_refuse
    )


def _refuse(_uri: str) -> Any:
    raise LookupError("nothing is fetched")


@functools.lru_cache(maxsize=SCHEMAS_COMPILED_MAX)
def _cached_schema(annotation: Any) -> Any:
    return _schema_with_formats(annotation)


def _schema_with_formats(annotation: Any) -> Any:
    schema = copy.deepcopy(schemas.schema_of(annotation))
    if schema is not None:
        name_formats(annotation, schema)
    return schema


# --- defaults ----------------------------------------------------------------------------------------------------

# Numbers keep their digits on the way through.
_EXACT: Final = msgspec.json.Decoder(float_hook=Decimal)
_EXACTLY: Final = msgspec.json.Encoder(decimal_format="number")


class _Default(NamedTuple):
    place: str
    """Of the property in the schema, as a pointer."""
    name: str
    value: Any


def _absent(schema: Any, text: bytes, whole: Any, used: set[str]) -> Iterator[tuple[dict[str, Any], _Default]]:
    """Objects that lack a property, and its default.

    The checker reports which parts of the schema apply to which objects. A place that was `used` before is omitted:
    a default may itself lack a property, and a class that contains itself would never end.
    """
    known: dict[str, list[_Default]] = {}
    own_address = str(schema.get("$id", "")).removesuffix("#")
    for found in _checker(_telling(text)).evaluate(whole).annotations():
        base, _, place = found["schemaLocation"].rpartition("#")
        if not (place.endswith("/properties") and isinstance(found["annotations"], list)):
            continue
        if base and base != own_address:
            continue  # a schema inside the schema, with an address of its own
        if place not in known:
            known[place] = [default for default in _defaults(schema, text, place) if default.place not in used]
        if known[place]:
            holder = at(whole, found["instanceLocation"])
            yield from ((holder, default) for default in known[place] if default.name not in holder)


@functools.lru_cache(maxsize=SCHEMAS_COMPILED_MAX)
def _telling(schema: bytes) -> bytes:
    """The schema rewritten so that the checker reports where its `properties` apply: it does not report them beside
    `additionalProperties`."""

    def reworded(part: Any) -> Any:
        if isinstance(part, list):
            return [reworded(item) for item in part]
        if not isinstance(part, dict):
            return part
        beside = isinstance(part.get("properties"), dict)
        return {
            "unevaluatedProperties" if beside and name == "additionalProperties" else name: reworded(inner)
            for name, inner in part.items()
        }

    return _EXACTLY.encode(reworded(_EXACT.decode(schema)))


def _defaults(schema: Any, text: bytes, place: str) -> Iterator[_Default]:
    """The defaults of the properties at a place in the schema, if they fit themselves."""
    for name, part in at(schema, place).items():
        about = resolved(schema, part)
        if "default" not in about:
            continue
        pointer = f"{place}/{_escaped(name)}"
        checker = _part_checkers(text).get(f"#{pointer}")
        if checker is not None and checker.is_valid(about["default"]):
            yield _Default(pointer, name, about["default"])


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
