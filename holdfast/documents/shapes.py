"""Shapes: what a document may consist of, declared once for the check and for the JSON Schema.

A shape checks a plain value and adds every problem with its pointer; its `schema` is what editors complete and check
by. A record knows its keys, so that an unknown one gets a suggestion.

Owns: the kinds of shapes. The shape of each kind of document stands beside its compiler (graph.py, dag.py).
Never: resolves a name or compiles an expression; the compilers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.documents.findings import Findings
from holdfast.documents.places import Pointer
from holdfast.model import answers, texts
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import DELAY_SECONDS_MAX, TITLE_LENGTH_MAX
from holdfast.model.policies import seconds
from holdfast.model.problems import choices, near

Schema = dict[str, Any]


class Shape:
    """What a value may be; this one takes everything."""

    words = "any value"
    """What it is, as in "is not ..."."""
    hint = ""

    name = ""

    def __init__(self, doc: str = "") -> None:
        self.doc = doc

    @property
    def part(self) -> str:
        """Its name in JSON Schemas, where a reference is a part of an address."""
        return self.name.replace(" ", "_")

    def schema(self, parts: dict[str, Schema]) -> Schema:
        """The JSON Schema; shapes that have a name are put into `parts` and referred to."""
        return {}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        """Add what is wrong with a value."""

    def refuse(self, value: Any, at: Pointer, findings: Findings) -> None:
        """Add that a value is something else."""
        findings.add("bad_value", at, f"{shown(value)} is not {self.words}", self.hint or "write one")


def shown(value: Any) -> str:
    """A value as it is quoted in a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if len(value) > 60:
            return repr(value[:57] + "...")
    return repr(value)


class Text(Shape):
    """A text that is not empty."""

    words = "a text"

    def __init__(self, doc: str = "", *, example: str = "", length_max: int = 0, empty: bool = False) -> None:
        super().__init__(doc)
        self.hint = f"write {self.words}" + (f", such as {example}" if example else "")
        self._max = length_max
        self._empty = empty

    def schema(self, parts: dict[str, Schema]) -> Schema:
        found: Schema = {"type": "string"} if self._empty else {"type": "string", "minLength": 1}
        return found | ({"maxLength": self._max} if self._max else {})

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not str:
            quoted = isinstance(value, bool | int | float)
            hint = f'put it in quotes: "{shown(value)}"' if quoted else self.hint
            findings.add("bad_value", at, f"{shown(value)} is not {self.words}", hint)
        elif not value and not self._empty:
            findings.add("bad_value", at, "the text is empty", self.hint)
        elif self._max and len(value) > self._max:
            findings.add("bad_value", at, f"the text is longer than {self._max} characters", "write a shorter one")


class Expression(Text):
    """An expression in CEL."""

    words = "an expression"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"type": ["string", "boolean"]}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not bool:
            super().check(value, at, findings)


class Choice(Shape):
    """One of a few texts."""

    def __init__(self, names: Sequence[str], doc: str = "") -> None:
        super().__init__(doc)
        self._names = tuple(names)
        self.words = ", ".join(names[:-1]) + f" or {names[-1]}"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"enum": list(self._names)}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if value not in self._names:
            hint = near(value, self._names) if isinstance(value, str) else ""
            findings.add("bad_value", at, f"{shown(value)} is not {self.words}", hint or f"write {self.words}")


class Flag(Shape):
    """True or false."""

    words = "true or false"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"type": "boolean"}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not bool:
            self.refuse(value, at, findings)


class Whole(Shape):
    """A whole number."""

    def __init__(self, doc: str = "", *, least: int | None = None) -> None:
        super().__init__(doc)
        self._least = least
        self.words = "a whole number" if least is None else f"a whole number from {least} on"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"type": "integer"} | ({} if self._least is None else {"minimum": self._least})

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not int or (self._least is not None and value < self._least):
            self.refuse(value, at, findings)


class Number(Shape):
    """A number."""

    def __init__(self, doc: str = "", *, least: float, most: float | None = None) -> None:
        super().__init__(doc)
        self._least = least
        self._most = most
        self.words = f"a number from {least:g} {'on' if most is None else f'to {most:g}'}"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"type": "number", "minimum": self._least} | ({} if self._most is None else {"maximum": self._most})

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        is_number = type(value) in (int, float) and value >= self._least
        if not is_number or (self._most is not None and value > self._most):
            self.refuse(value, at, findings)


class Duration(Shape):
    """A time: seconds, or text such as `90s`, `1h30m`, `2d`."""

    words = "a time"
    hint = "write seconds, or a number with a unit: 90s, 1h30m, 2d"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        text = {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d|w)\s*)+$"}
        return {"anyOf": [{"type": "number", "minimum": 0}, text]}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) not in (int, float, str) or not _is_time(value):
            self.refuse(value, at, findings)


def _is_time(value: Any) -> bool:
    try:
        return 0 <= seconds(value) <= DELAY_SECONDS_MAX
    except HoldfastError:
        return False


class JsonSchema(Shape):
    """A JSON Schema, or the name of a type."""

    words = "a JSON Schema"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"type": "object"}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not dict:
            hint = f"write {{type: {value}}}" if value in _TYPES else "write an object, such as {type: string}"
            findings.add("bad_value", at, f"{shown(value)} is not {self.words}", hint)
        elif (wrong := answers.schema_problem(value)) is not None:
            findings.add("bad_schema", at, f"this is not a JSON Schema: {wrong}", "write one such as {type: string}")


_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")


class ListOf(Shape):
    """A list of values of one shape."""

    def __init__(self, item: Shape, doc: str = "", *, least: int = 0) -> None:
        super().__init__(doc)
        self._item = item
        self._least = least
        self.words = "a list"

    def schema(self, parts: dict[str, Schema]) -> Schema:
        found: Schema = {"type": "array", "items": self._item.schema(parts)}
        return found | ({"minItems": self._least} if self._least else {})

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not list:
            hint = f"write [{value}]" if isinstance(value, str) and "\n" not in value else "write a list: [a, b]"
            findings.add("bad_value", at, f"{shown(value)} is not a list", hint)
            return
        if len(value) < self._least:
            findings.add("bad_value", at, "the list is empty", f"write at least {self._least} of them")
        check = self._item.check
        for index, item in enumerate(value):
            check(item, (*at, index), findings)


class MapOf(Shape):
    """An object whose keys the author chooses."""

    words = "an object"

    def __init__(self, item: Shape, doc: str = "", *, names: str = "", identifiers: bool = False) -> None:
        super().__init__(doc)
        self._item = item
        self._names = names
        self._identifiers = identifiers

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return {"type": "object", "additionalProperties": self._item.schema(parts)}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not dict:
            findings.add("bad_value", at, f"{shown(value)} is not an object", "write keys and values: {a: 1}")
            return
        for key, item in value.items():
            if self._names and (wrong := _name_problem(key, self._identifiers)):
                hint = "use letters, digits and _"
                findings.add("bad_name", (*at, key), f"the name of {self._names} {wrong}", hint, is_key=True)
            self._item.check(item, (*at, key), findings)


def _name_problem(name: str, identifier: bool) -> str:
    if identifier and not name.isidentifier():
        return f"{shown(name)} is not an identifier"
    try:
        texts.name(name, "")
    except HoldfastError:
        return f"{shown(name)} is empty, too long, or has characters that are not text"
    return ""


class Record(Shape):
    """An object with known keys."""

    words = "an object"

    def __init__(self, name: str, doc: str, fields: Mapping[str, Shape], required: Sequence[str] = ()) -> None:
        super().__init__(doc)
        self.name = name
        self.fields = dict(fields)
        self.required = tuple(required)

    def schema(self, parts: dict[str, Schema]) -> Schema:
        if self.part not in parts:
            parts[self.part] = {}
            properties = {key: described(shape, parts) for key, shape in self.fields.items()}
            found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
            if self.required:
                found["required"] = list(self.required)
            parts[self.part] = ({"description": self.doc} if self.doc else {}) | found
        return {"$ref": f"#/$defs/{self.part}"}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not dict:
            hint = "write an object with " + ", ".join(list(self.required) or list(self.fields)[:4])
            findings.add("bad_value", at, f"{shown(value)} is not an object", hint)
            return
        fields = self.fields
        for key, part in value.items():
            shape = fields.get(key)
            if shape is None:
                hint = choices(key, list(fields), "keys")
                findings.add("unknown_key", (*at, key), f"unknown key {shown(key)} in {self.name}", hint, is_key=True)
            else:
                shape.check(part, (*at, key), findings)
        for key in self.required:
            if key not in value:
                doc = fields[key].doc
                hint = f"add `{key}: ...`" + (f" ({doc[0].lower()}{doc[1:].rstrip('.')})" if doc else "")
                findings.add("missing_key", at, f"the {self.name} has no {key!r}", hint)


class OneOf(Shape):
    """One of several records, told apart by a key that only it has."""

    words = "an object"

    def __init__(self, name: str, options: Mapping[str, Record], doc: str = "") -> None:
        super().__init__(doc)
        self.name = name
        self.options = dict(options)

    def schema(self, parts: dict[str, Schema]) -> Schema:
        if self.part not in parts:
            parts[self.part] = {}
            parts[self.part] = {"anyOf": [record.schema(parts) for record in self.options.values()]}
        return {"$ref": f"#/$defs/{self.part}"}

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        if type(value) is not dict:
            findings.add("bad_value", at, f"{shown(value)} is not an object", f"write one with {self._keys()}")
            return
        for key, record in self.options.items():
            if key in value:
                record.check(value, at, findings)
                return
        close = next((hint for key in value if (hint := near(key, self.options))), "")
        wrong = f"this {self.name} has none of the keys {self._keys()}"
        findings.add("missing_key", at, wrong, close or f"add {next(iter(self.options))!r}")

    def _keys(self) -> str:
        names = list(self.options)
        return ", ".join(names[:-1]) + f" or {names[-1]}"


class Lazy(Shape):
    """A shape that is defined later: nodes contain nodes."""

    def __init__(self, find: Callable[[], Shape], doc: str = "") -> None:
        super().__init__(doc)
        self._find = find

    def schema(self, parts: dict[str, Schema]) -> Schema:
        return self._find().schema(parts)

    def check(self, value: Any, at: Pointer, findings: Findings) -> None:
        self._find().check(value, at, findings)


def described(shape: Shape, parts: dict[str, Schema]) -> Schema:
    """The JSON Schema of a field, with the sentence that editors show."""
    found = shape.schema(parts)
    return {"description": shape.doc, **found} if shape.doc and "description" not in found else found


TITLE: Final = Text(length_max=TITLE_LENGTH_MAX)
