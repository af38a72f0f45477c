"""Canonical form: when two JSON texts are the same value.

Owns: the form, which a JSON Schema defines: keys are sorted, absent properties have their `default`, whole numbers have
no fraction, what was a set is sorted and has nothing twice; the hash of a run's input; the schema of an input.
Never: decides whether a value fits its schema, or stores the form: bodies get the value as it was given.
Invariant: two values that decode to equal objects have one form; without a schema, values are compared as JSON.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from holdfast.model import schemas, values
from holdfast.model.definition import Param
from holdfast.model.errors import DefinitionError, HoldfastError
from holdfast.model.schemas import SET, is_of, resolved, with_types

Form = Callable[[Any, bool], Any]
"""Converts a decoded value to its form. The second argument: whether absent properties get their defaults (a default
itself is complete)."""

_EXACT_MAX: Final = 2**53
"""Up to here every whole number is a float and an int alike."""
_CHOICES_MAX: Final = 10_000
"""Parts of a schema that are compared with one value to find the alternative that was meant."""


def same(schema: Any, one: bytes, other: bytes) -> bool:
    """Whether two JSON texts are the same value under a schema; None: without a schema."""
    if one == other:
        return True
    form = _Forms(schema).of(schema)
    return _bytes(form, one) == _bytes(form, other)


def input_schema(annotation: Any, what: str) -> dict[str, Any] | None:
    """The JSON Schema of a workflow's input, with the defaults of its fields, also those that a factory makes.

    Each factory is called when the workflow is registered. If its results differ (an id, the time), it is not used as a
    default, and an omitted field stays absent. Raises DefinitionError if a factory fails or its result is not JSON.
    """
    schema = copy.deepcopy(schemas.schema_of(annotation))
    for info, part in with_types(annotation, schema) if schema is not None else ():
        for name, key, factory in _factories(info, part):
            made = _made(factory, f"{what}: the default of {name}")
            if made is not None and key in part.get("properties", {}):
                part["properties"][key].setdefault("default", made[0])
    return schema


class InputForm:
    """The form of the inputs of one version of a workflow."""

    def __init__(self, params: Sequence[Param]) -> None:
        self._forms = {p.name: _Forms(p.schema).of(p.schema) for p in params}
        self._defaults = {p.name: p.default for p in params if not p.required}

    def hash(self, given: bytes) -> str:
        """The hash of inputs by name, as JSON; those that are left out have their defaults."""
        inputs: dict[str, Any] = _decode(given)
        found = {name: _applied(self._forms.get(name), value) for name, value in inputs.items()}
        for name, default in self._defaults.items():
            if name not in found:
                found[name] = _applied(self._forms[name], _decode(_sorted(default)))
        return hashlib.blake2b(_sorted(found), digest_size=16).hexdigest()


# --- forms -------------------------------------------------------------------------------------------------------


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _EXACT_MAX else number


_decode: Final = msgspec.json.Decoder(float_hook=_number).decode
_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def _bytes(form: Form | None, data: bytes) -> bytes:
    return _sorted(_applied(form, _decode(data)))


def _applied(form: Form | None, value: Any) -> Any:
    return value if form is None else form(value, True)


class _Property(NamedTuple):
    form: Form | None
    has_default: bool
    default: Any


class _Forms:
    """The forms of one schema document. A definition is compiled once, so that one that contains itself ends."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._by_reference: dict[str, Form | None] = {}

    def of(self, schema: Any) -> Form | None:
        """The form of a part; None if that is the decoded value itself."""
        if not isinstance(schema, dict):
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str) and len(schema.keys() - {"default", "title", "description", "$defs"}) == 1:
            if reference not in self._by_reference:
                self._by_reference[reference] = lambda value, fill: self._later(reference, value, fill)
                self._by_reference[reference] = self._of(resolved(self._root, schema))
            return self._by_reference[reference]
        return self._of(resolved(self._root, schema))

    def _later(self, reference: str, value: Any, fill: bool) -> Any:
        """The form of a definition that is used inside itself."""
        form = self._by_reference[reference]
        return value if form is None else form(value, fill)

    def _of(self, about: dict[str, Any]) -> Form | None:
        forms = [
            self._of_object(about),
            self._of_array(about),
            _of_number(about),
            *map(self.of, about.get("allOf", ())),
        ]
        forms += [self._of_alternatives(about[keyword]) for keyword in ("anyOf", "oneOf") if keyword in about]
        needed = [form for form in forms if form is not None]
        if len(needed) < 2:
            return needed[0] if needed else None

        def each(value: Any, fill: bool) -> Any:
            for form in needed:
                value = form(value, fill)
            return value

        return each

    def _of_object(self, about: dict[str, Any]) -> Form | None:
        declared = about.get("properties", {})
        properties = {name: self._property(part) for name, part in declared.items()}
        others = self.of(about.get("additionalProperties"))
        if others is None and not any(p.form is not None or p.has_default for p in properties.values()):
            return None
        other = _Property(others, False, None)

        def of_object(value: Any, fill: bool) -> Any:
            if type(value) is not dict:
                return value
            found = {}
            for name, part in value.items():
                form = properties.get(name, other).form
                found[name] = part if form is None else form(part, fill)
            for name, known in properties.items() if fill else ():
                if known.has_default and name not in found:
                    found[name] = known.default if known.form is None else known.form(known.default, False)
            return found

        return of_object

    def _property(self, part: Any) -> _Property:
        about = resolved(self._root, part)
        default = _decode(_sorted(about.get("default")))
        return _Property(self.of(part), "default" in about, default)

    def _of_array(self, about: dict[str, Any]) -> Form | None:
        first = [self.of(part) for part in about.get("prefixItems", ())]
        rest = self.of(about.get("items"))
        is_set = about.get(SET) is True
        if not is_set and rest is None and not any(first):
            return None

        def of_array(value: Any, fill: bool) -> Any:
            if type(value) is not list:
                return value
            forms = first + [rest] * (len(value) - len(first))
            found = [part if form is None else form(part, fill) for form, part in zip(forms, value, strict=False)]
            return [_Sorted(part) for part in sorted({_sorted(part) for part in found})] if is_set else found

        return of_array

    def _of_alternatives(self, alternatives: Iterable[Any]) -> Form | None:
        known = [(part, self.of(part)) for part in alternatives]
        if not any(form is not None for _, form in known):
            return None

        def of_alternative(value: Any, fill: bool) -> Any:
            for part, form in known:
                if _Choice(self._root).fits(part, value):
                    return value if form is None else form(value, fill)
            return value

        return of_alternative


_Sorted = msgspec.Raw
"""A member of a set, which is encoded already in order to be sorted."""


def _of_number(about: dict[str, Any]) -> Form | None:
    """A whole number that is too large to be equal as an int and as a float is converted to its declared type."""
    kinds = about.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "number" not in kinds or "integer" in kinds:
        return None

    def of_number(value: Any, _fill: bool) -> Any:
        if type(value) is int and abs(value) >= _EXACT_MAX:
            return float(value)
        return value

    return of_number


class _Choice:
    """Which alternative of a schema a value was written for: the first one whose types, tags and required properties it
    has. A value that fits none has no form of its own."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _CHOICES_MAX

    def fits(self, schema: Any, value: Any) -> bool:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0:
            return schema is True
        about = resolved(self._root, schema)
        if "const" in about and about["const"] != value:
            return False
        if "enum" in about and value not in about["enum"]:
            return False
        kinds = about.get("type")
        if kinds is not None and not any(
            _is_a(kind, value) for kind in (kinds if isinstance(kinds, list) else [kinds])
        ):
            return False
        for keyword in ("anyOf", "oneOf"):
            if keyword in about and not any(self.fits(part, value) for part in about[keyword]):
                return False
        if not all(self.fits(part, value) for part in about.get("allOf", ())):
            return False
        if isinstance(value, dict):
            return self._object_fits(about, value)
        return not isinstance(value, list) or self._array_fits(about, value)

    def _object_fits(self, about: dict[str, Any], value: dict[str, Any]) -> bool:
        if not value.keys() >= set(about.get("required", ())):
            return False
        properties, others = about.get("properties", {}), about.get("additionalProperties", True)
        return all(self.fits(properties.get(name, others), part) for name, part in value.items())

    def _array_fits(self, about: dict[str, Any], value: list[Any]) -> bool:
        first, rest = about.get("prefixItems", []), about.get("items", True)
        parts = [*first, *[rest] * (len(value) - len(first))]
        return len(value) >= about.get("minItems", 0) and all(map(self.fits, parts, value))


_IS_A: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def _is_a(kind: Any, value: Any) -> bool:
    return type(value) in _IS_A.get(kind, ())


# --- default factories -------------------------------------------------------------------------------------------


def _factories(info: inspect.Type, schema: dict[str, Any]) -> Iterable[tuple[str, str, Callable[[], Any]]]:
    """The fields of a class whose default is made by a call: name, key in JSON, and the factory."""
    if isinstance(info, inspect.StructType | inspect.DataclassType) and is_of(info.cls, schema):
        for field in info.fields:
            if field.default_factory is not msgspec.NODEFAULT:
                yield field.name, field.encode_name, field.default_factory
    elif isinstance(info, inspect.CustomType) and values.is_pydantic(info.cls):
        for name, about in info.cls.model_fields.items():  # type: ignore[attr-defined]  # pydantic is not imported
            takes_data = getattr(about, "default_factory_takes_validated_data", False)
            if about.default_factory is not None and not takes_data:
                yield name, about.serialization_alias or about.alias or name, about.default_factory


def _made(factory: Callable[[], Any], what: str) -> tuple[Any] | None:
    """The result of a factory, as JSON; None if it differs from call to call."""
    try:
        one, other = (values.canonical(factory(), what=what) for _ in range(2))
    except HoldfastError as e:
        raise DefinitionError(e.message) from None
    except Exception as e:  # noqa: BLE001 - the user's factory may raise anything
        raise DefinitionError(f"{what} could not be made: {type(e).__name__}: {e}") from None
    return (values.plain(one),) if one == other else None
