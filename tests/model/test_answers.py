"""Answers: what a schema takes, what it refuses and in which words, and defaults for what is left out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Required, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import answers, schemas
from holdfast.model.answers import completed, located, problems, resolved, schema_of, schema_problem, where
from holdfast.model.limits import ANSWER_PROBLEM_LENGTH_MAX, ANSWER_PROBLEMS_MAX, ANSWER_SEARCHED_BYTES_MAX
from holdfast.model.values import decoder, encode, plain

ORDER = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]},
        },
        "colour": {"enum": ["red", "green", "blue", "black", "white"]},
    },
    "required": ["approved"],
    "additionalProperties": False,
}


def wrong(schema: Any, value: Any) -> list[str]:
    return problems(schema, json.dumps(value).encode())


# --- problems ------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_all_problems_are_told_at_once_each_with_its_place() -> None:
    value = {"approved": "yes", "lines": [{"price": 1}, {}, {"price": "x"}], "colour": "pink", "more": 1}
    assert wrong(ORDER, value) == [
        'approved: "yes" is not of type "boolean"',
        'lines[1]: "price" is a required property',
        'lines[2].price: "x" is not of type "number"',
        'colour: "pink" is not one of "red", "green", "blue", "black", "white"',
        "Additional properties are not allowed ('more' was unexpected)",
    ]


def test_a_right_value_has_no_problems() -> None:
    assert wrong(ORDER, {"approved": True, "lines": [{"price": 1.5}], "colour": "red"}) == []


def test_the_top_level_has_no_prefix() -> None:
    assert wrong({"type": "boolean"}, "yes") == ['"yes" is not of type "boolean"']


@pytest.mark.parametrize("schema", [None, {}, True])
def test_no_schema_takes_everything(schema: Any) -> None:
    assert wrong(schema, {"any": ["thing", None]}) == []


@pytest.mark.parametrize("schema", [None, {}, {"type": "string"}])
@pytest.mark.parametrize("value", [b"", b"{", b"yes", b"1e999", b'"\xff"', b'"\\ud800"'])
def test_what_is_not_json_is_one_problem_whatever_the_schema(schema: Any, value: bytes) -> None:
    assert len(problems(schema, value)) == 1


def test_problems_are_bounded_in_number_and_length_and_quote_shortly() -> None:
    found = wrong({"items": {"type": "integer"}}, ["x" * 500] * 100)
    assert len(found) == ANSWER_PROBLEMS_MAX
    assert found[0].startswith('[0]: "xxx')
    assert found[0].endswith('… is not of type "integer"')
    (long,) = wrong({"properties": {"a": {}}, "additionalProperties": False}, {"k" * 5000: 1})
    assert len(long) == ANSWER_PROBLEM_LENGTH_MAX


def test_of_a_long_answer_the_first_problem_is_told() -> None:
    value = ["x"] * ANSWER_SEARCHED_BYTES_MAX
    assert wrong({"items": {"type": "integer"}}, value) == ['[0]: "x" is not of type "integer"']


def test_the_same_problem_is_told_once() -> None:
    assert len(wrong({"allOf": [{"type": "string"}, {"type": "string"}]}, 1)) == 1


def test_only_problems_at_or_below_a_place_can_be_asked_for() -> None:
    value = json.dumps({"lines": [{"price": "x"}, {"price": "y"}]}).encode()
    assert [p.path for p in located(ORDER, value, below=("lines", 1))] == [("lines", 1, "price")]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("a", "b"), "a.b"),
        (("lines", 2, "price"), "lines[2].price"),
        ((0, "a"), "[0].a"),
        (("a b", "c.d", "e"), '["a b"]["c.d"].e'),
    ],
)
def test_places_are_written_as_people_write_them(path: tuple[str | int, ...], text: str) -> None:
    assert where(path) == text


@pytest.mark.parametrize(
    ("name", "right", "not_right"),
    [
        ("date-time", "2026-11-15T10:00:00Z", "tomorrow"),
        ("date", "2026-11-15", "2026-13-15"),
        ("time", "10:00:00", "noon"),
        ("duration", "PT1H", "an hour"),
        ("uuid", "12345678-1234-5678-1234-567812345678", "1234"),
        ("email", "ann@example.org", "ann"),
        ("uri", "https://example.org", "example"),
        ("decimal", "1.50", "much"),
        ("byte", "eHg=", "***"),
    ],
)
def test_formats_are_checked(name: str, right: str, not_right: str) -> None:
    schema = {"type": "object", "properties": {"it": {"type": "string", "format": name}}}
    assert wrong(schema, {"it": right}) == []
    assert wrong(schema, {"it": not_right}) == [f'it: "{not_right}" is not a "{name}"']


def test_alternatives_are_explained_by_the_one_that_was_meant() -> None:
    line = {"type": "object", "properties": {"qty": {"type": "integer"}}, "required": ["sku"]}
    optional = {"anyOf": [{"type": "null"}, line]}
    assert sorted(wrong(optional, {"qty": "x"})) == [
        '"sku" is a required property',
        'qty: "x" is not of type "integer"',
    ]
    assert wrong(optional, 3) == ['3 is not of types "null", "object"']
    tagged = [{"properties": {"kind": {"const": k}, k: {"type": "integer"}}, "required": [k]} for k in ("dog", "cat")]
    assert wrong({"oneOf": tagged}, {"kind": "cat"}) == ['"cat" is a required property']
    assert wrong({"oneOf": tagged}, {"kind": "cow"}) == [
        '{"kind":"cow"} fits no alternative (kind: "dog" was expected; kind: "cat" was expected)'
    ]
    assert wrong({"oneOf": [{"const": 1}, {"const": 2}]}, 3) == ["3 is not one of 1, 2"]
    assert wrong({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 3) == [
        "3 fits 2 alternatives, but must fit exactly one"
    ]


def test_what_is_forbidden_is_said_to_be() -> None:
    assert wrong({"properties": {"a": False}}, {"a": 3}) == ["a: 3 is not allowed"]


def test_a_value_nested_deep_is_checked_or_refused_and_breaks_nothing() -> None:
    schema = {"type": "array", "items": {"$ref": "#"}}
    for depth in (100, 900, 100_000):
        assert isinstance(problems(schema, b"[" * depth + b"1" + b"]" * depth)[0], str)


def test_a_schema_that_goes_in_circles_is_refused_with_the_reason() -> None:
    circle = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    (told,) = wrong(circle, 1)
    assert "parts apply to one place of a value" in told


def test_a_pattern_that_never_ends_does_end() -> None:
    assert len(wrong({"pattern": "^(a+)+(?=b)$"}, "a" * 40 + "!")) == 1


def test_compiled_schemas_are_kept_and_bounded() -> None:
    answers._checker.cache_clear()
    for _ in range(3):
        wrong(dict(ORDER), {})
    assert answers._checker.cache_info().misses == 1
    assert answers._checker.cache_info().maxsize is not None


def test_the_checker_is_not_loaded_until_it_is_needed() -> None:
    code = "import sys, holdfast.model.answers, holdfast.cli.forms; print('jsonschema_rs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# --- schemas that cannot be used -----------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server with a schema, and what it was asked for."""
    asked: list[str] = []

    class Schemas(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Schemas) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", asked
        http.shutdown()
        thread.join()


def test_nothing_is_ever_fetched(server: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = server
    (tmp_path / "s.json").write_text('{"type": "string"}')
    schemas: list[dict[str, Any]] = [
        {"$ref": f"{address}/s.json"},
        {"$id": f"{address}/base.json", "properties": {"a": {"$ref": "s.json"}}},
        {"$schema": f"{address}/meta.json"},
        {"$ref": f"file://{tmp_path}/s.json"},
    ]
    for schema in schemas:
        why = schema_problem(schema)
        assert why is not None
        assert why.startswith("only the schema's own #/$defs/... can be referred to")
        assert problems(schema, b'"text"') == [f"the value cannot be checked: {why}"]
        assert completed({**schema, "default": 1}, b"{}") == b"{}"
    assert asked == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"type": "text"}}}, 'properties.a.type: "text" is not one of "array", "boolean",'),
        ({"properties": {"a": {"pattern": "("}}}, "properties.a.pattern"),
        ({"required": "a"}, 'required: "a" is not of type "array"'),
        ({"$ref": "#/$defs/Missing"}, "/$defs/Missing"),
        ({"enum": object()}, "cannot be stored as JSON"),
        ([], '[] is not of types "boolean", "object"'),
        ("string", '"string" is not of types'),
    ],
)
def test_a_schema_that_is_none_is_told_with_the_place(schema: Any, why: str) -> None:
    assert why in str(schema_problem(schema))
    assert len(problems(schema, b"1")) == 1


@pytest.mark.parametrize("schema", [None, {}, True, ORDER, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_a_schema_that_can_be_used_has_no_problem(schema: Any) -> None:
    assert schema_problem(schema) is None


def test_parts_of_a_schema_are_found_through_references() -> None:
    root = {"$defs": {"A": {"$ref": "#/$defs/B", "title": "a"}, "B": {"type": "string", "title": "b"}}}
    assert resolved(root, {"$ref": "#/$defs/A", "default": "x"}) == {"type": "string", "title": "a", "default": "x"}
    assert resolved(root, {"$ref": "#"}) == root
    for unknown in ({"$ref": "#/$defs/C"}, {"$ref": "#anchor"}, {"$ref": "https://example.org"}, True, None):
        assert resolved(root, unknown) == {}
    circle = {"$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert resolved(circle, {"$ref": "#/$defs/A"}) == {}


# --- defaults ------------------------------------------------------------------------------------------------------

LINES = {
    "$ref": "#/$defs/Order",
    "$defs": {
        "Line": {"type": "object", "properties": {"sku": {"type": "string"}, "qty": {"$ref": "#/$defs/Count"}}},
        "Count": {"type": "integer", "default": 1},
        "Order": {
            "type": "object",
            "properties": {
                "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
                "extra": {"anyOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}], "default": None},
                "options": {
                    "type": "object",
                    "default": {},
                    "properties": {"a/b~c": {"default": [1]}, "none": {"type": "string"}},
                },
                "by_name": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Line"}},
            },
        },
    },
}


@pytest.mark.smoke
def test_defaults_fill_in_what_is_absent_everywhere() -> None:
    value = {"lines": [{"sku": "a"}, {"qty": 5}], "extra": {"sku": "b"}, "by_name": {"c": {}}}
    assert plain(completed(LINES, json.dumps(value).encode())) == {
        "lines": [{"sku": "a", "qty": 1}, {"qty": 5}],
        "extra": {"sku": "b", "qty": 1},
        "by_name": {"c": {"qty": 1}},
        "options": {"a/b~c": [1]},
    }


def test_nothing_is_invented_where_there_is_no_default() -> None:
    assert plain(completed(LINES, b"{}")) == {"extra": None, "options": {"a/b~c": [1]}}


def test_defaults_of_a_schema_with_an_address_are_taken_and_those_of_one_inside_it_are_not() -> None:
    schema: dict[str, Any] = {"$id": "https://example.org/a", "properties": {"n": {"default": 1}, "b": {"$id": "b"}}}
    schema["properties"]["b"]["properties"] = {"n": {"default": 2}}
    assert completed(schema, b'{"b":{}}') == b'{"b":{},"n":1}'


@pytest.mark.parametrize("schema", [None, {}, True, ORDER, LINES])
def test_the_bytes_stay_when_nothing_is_absent(schema: Any) -> None:
    value = b'{ "extra":null,"options" : {"a/b~c":1},  "approved":true }'
    assert completed(schema, value) is value


def test_a_default_that_is_not_right_is_left_out() -> None:
    schema = {"properties": {"a": {"type": "integer", "default": None}, "b": {"type": "integer", "default": 2}}}
    assert completed(schema, b"{}") == b'{"b":2}'


def test_defaults_do_not_make_a_right_value_wrong() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {}}, "dependentRequired": {"a": ["b"]}}
    assert completed(schema, b"{}") == b"{}"
    assert completed(schema, b'{"b":0}') == b'{"b":0,"a":1}'


def test_a_value_with_problems_stays_as_it_is() -> None:
    assert completed({"properties": {"a": {"default": 1}}, "required": ["b"]}, b"{}") == b"{}"


def test_defaults_of_the_alternative_that_applies_are_taken() -> None:
    tagged = [{"properties": {"kind": {"const": k}, k: {"default": 1}}, "required": ["kind"]} for k in ("dog", "cat")]
    assert completed({"oneOf": tagged}, b'{"kind":"cat"}') == b'{"kind":"cat","cat":1}'


def test_a_default_that_contains_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#", "default": {}}, "n": {"default": 1}}}
    assert plain(completed(schema, b"{}")) == {"next": {}, "n": 1}


def test_numbers_keep_their_digits_when_something_is_filled_in() -> None:
    schema = {"properties": {"b": {"default": 0.5}}}
    value = b'{"a":12345678901234567.890,"c":1.0,"d":123456789012345678901234567890}'
    assert completed(schema, value) == value[:-1] + b',"b":0.5}'


def test_a_schema_is_not_changed_by_the_answers_that_it_completes() -> None:
    schema = {"properties": {"a": {"default": {}, "properties": {"b": {"default": 1}}}}}
    before = encode(schema)
    assert completed(schema, b"{}") == b'{"a":{"b":1}}'
    assert encode(schema) == before


# --- schemas of annotations ----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1
    shipped: datetime | None = None
    inner: list[Line] = field(default_factory=list)


@dataclass
class Parcel:
    at: str
    lines: list[Line]


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lines: tuple[Line, ...]
    at: datetime
    colour: Colour = Colour.RED


class Dog(msgspec.Struct, tag=True):
    born: date


class Cat(msgspec.Struct, tag=True):
    born: datetime


class Noted(msgspec.Struct, tag=True):
    born: str


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="theName", min_length=2)
    at: datetime
    price: Decimal
    line: Line | None = None


class Review(TypedDict, total=False):
    stars: Required[Annotated[int, msgspec.Meta(ge=1, le=5)]]
    text: str


class Pair(NamedTuple):
    a: int
    b: datetime


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    inside: T


NOW = datetime(2026, 11, 15, 10, 30, tzinfo=UTC)
LINE = Line("a", Decimal("1.50"))

EXAMPLES: list[tuple[Any, Any, list[Any]]] = [
    (bool, True, ["yes", 1, None]),
    (int, 3, ["3", 1.5, True]),
    (float, 1.5, ["x", None]),
    (str, "x", [1, None]),
    (str | None, None, [1]),
    (int | str, 3, [1.5, []]),
    (datetime, NOW, ["tomorrow", "2026-11-15", 3]),
    (datetime, NOW.replace(tzinfo=None), ["now"]),
    (datetime | None, NOW, ["now", 3]),
    (date, NOW.date(), ["today", "2026-11-31"]),
    (time, time(10, 30), ["noon"]),
    (timedelta, timedelta(days=-2, seconds=3.5), ["2 days", "P1Y"]),
    (Decimal, Decimal("1.50"), ["much", []]),
    (UUID, UUID(int=5), ["5"]),
    (bytes, b"\x00\xff", ["***"]),
    (Path, Path("a/b"), [3]),
    (Colour, Colour.BLUE, ["green", None]),
    (Literal["a", "b", 3], 3, ["c", 4]),
    (list[int], [1, 2], [["x"], {}, 1]),
    (list[datetime], [NOW], [["now"]]),
    (set[int], {1, 2}, [["x"]]),
    (tuple[int, datetime], (1, NOW), [[1], [1, "now"], [1, "x", 2]]),
    (dict[str, datetime], {"a": NOW}, [{"a": "now"}, []]),
    (Line, LINE, [{"sku": "a"}, {"sku": "a", "price": "x"}, {"sku": "a", "price": "1", "shipped": "now"}]),
    (Line, Line("a", Decimal(1), inner=[LINE]), [{"sku": "a", "price": "1", "inner": [{"sku": 1, "price": "1"}]}]),
    (Line | None, None, ["x"]),
    (Parcel, Parcel("home", [LINE]), [{"at": 3, "lines": []}, {"at": "x", "lines": [{}]}]),
    (Frozen, Frozen((LINE,), NOW), [{"lines": [], "at": "now"}, {"lines": [], "at": NOW.isoformat(), "x": 1}]),
    (Dog | Cat, Cat(NOW), [{"type": "Cat", "born": "2026-11-15"}, {"type": "Cow"}, {}]),
    (Dog | Cat | None, Dog(NOW.date()), [{"type": "Dog", "born": "now"}, 3]),
    (Cat | Noted, Noted("long ago"), [{"type": "Cat", "born": "long ago"}]),
    (Noted | Cat | Dog, Noted("long ago"), [{"type": "Cat", "born": "long ago"}]),
    (Box[datetime], Box(NOW), [{"inside": "now"}, {}]),
    (
        Model,
        Model(theName="xy", at=NOW, price=Decimal("1.5"), line=LINE),
        [{"name": "xy", "at": "2026-11-15T10:00:00Z", "price": 1}, {"theName": "x", "at": NOW.isoformat(), "price": 1}],
    ),
    (Review, {"stars": 5}, [{}, {"stars": 6}, {"stars": 1, "text": 3}]),
    (Pair, Pair(1, NOW), [[1, "now"], [1], {}]),
]


@pytest.mark.parametrize(("annotation", "value", "not_right"), EXAMPLES, ids=lambda v: str(v)[:40])
def test_a_value_is_right_under_the_schema_of_its_annotation_and_wrong_ones_are_not(
    annotation: Any, value: Any, not_right: list[Any]
) -> None:
    schema = schema_of(annotation)
    assert schema_problem(schema) is None
    assert problems(schema, encode(value, annotation)) == []
    for other in not_right:
        assert wrong(schema, other), other


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("annotation", [annotation for annotation, _, _ in EXAMPLES], ids=str)
def test_what_is_right_can_be_read_into_its_annotation(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(_mutated([encode(v, a) for a, v, _ in EXAMPLES] + [json.dumps(w).encode() for w in WRONG]))
    if not problems(schema_of(annotation), value):
        decoder(annotation)(value)


WRONG = [value for _, _, not_right in EXAMPLES for value in not_right]


def _mutated(examples: list[bytes]) -> st.SearchStrategy[bytes]:
    """Values of one kind where those of another are wanted, and parts of them in each other's places."""
    plains = [plain(value) for value in examples]
    parts = [part for value in plains if isinstance(value, dict) for part in value.values()]

    def changed(value: Any) -> st.SearchStrategy[Any]:
        if not isinstance(value, dict) or not value:
            return st.just(value)
        return st.tuples(st.sampled_from(sorted(value)), st.sampled_from([*parts, *plains])).map(
            lambda change: {**value, change[0]: change[1]}
        )

    return st.sampled_from(plains).flatmap(changed).map(lambda value: json.dumps(value).encode())


def test_a_dict_is_a_schema_already_and_none_is_none() -> None:
    assert schema_of(ORDER) is ORDER
    assert schema_of(None) is None
    assert schema_of(Any) is None
    assert schema_of(type(None)) == {"type": "null"}


def test_schemas_of_definitions_stay_as_they_are() -> None:
    assert schema_of(datetime) == {"type": "string", "format": "date-time"}
    assert schemas.schema_of(datetime) == {"type": "string"}


def test_a_text_beside_an_instant_stays_any_text() -> None:
    assert wrong(schema_of(str | datetime), "tomorrow") == []


def test_defaults_are_filled_in_also_where_nothing_else_is_allowed() -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "default": 3}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    assert answers.completed(schema, b'{"ok":true}') == b'{"ok":true,"n":3}'
    assert answers.problems(schema, b'{"ok":true,"m":1}') != []
