"""The codec: what is stored, what comes back, and what is refused with its place."""

from __future__ import annotations

import json
import socket
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import HoldfastError, InvalidInput, NotSerialisable, ValueTooLarge
from holdfast.model.limits import INLINE_LIMIT_BYTES
from holdfast.model.schemas import schema_of
from holdfast.model.values import builtins, canonical, decoder, encode, plain


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass
class Line:
    sku: str
    count: int = 1


class Frozen(msgspec.Struct, frozen=True):
    lines: tuple[Line, ...]
    at: datetime


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="theName")
    at: datetime
    lines: list[Line] = []

    @pydantic.computed_field
    def shout(self) -> str:
        return self.name.upper()


class Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    inner: Model
    price: Decimal


class Point(NamedTuple):
    x: int
    y: int


class Typed(TypedDict):
    a: int


@dataclass
class Everything:
    when: datetime
    day: date
    clock: time
    span: timedelta
    price: Decimal
    key: UUID
    colour: Colour
    level: Level
    raw: bytes
    where: Path
    tags: set[str]
    pair: tuple[int, str]
    point: Point
    typed: Typed
    maybe: Line | None
    by_number: dict[int, Line]
    by_day: dict[date, int]
    model: Model
    models: list[Model] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)
    anything: Any = None


NOW = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
MODEL = Model(theName="ada", at=NOW, lines=[Line("a", 2)])
FULL = Everything(
    when=NOW,
    day=date(2026, 3, 4),
    clock=time(5, 6),
    span=timedelta(days=1, seconds=2),
    price=Decimal("1.10"),
    key=UUID(int=7),
    colour=Colour.RED,
    level=Level.LOW,
    raw=b"\x00\xff",
    where=Path("/tmp/x"),
    tags={"a"},
    pair=(1, "b"),
    point=Point(1, 2),
    typed={"a": 1},
    maybe=None,
    by_number={1: Line("a"), -2: Line("b")},
    by_day={date(2026, 3, 4): 1},
    model=MODEL,
    models=[MODEL],
    paths={"home": Path("/home")},
    anything={"x": [1, None, 2.5]},
)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (FULL, Everything),
        ([FULL], list[Everything]),
        (Frozen((Line("a"),), NOW), Frozen),
        (MODEL, Model),
        (Outer(inner=MODEL, price=Decimal("2.50")), Outer),
        (None, Optional[Model]),  # noqa: UP045 - both spellings occur
        (Path("a/b"), Path),
        (2**100, int),
        (b"", bytes),
        ({"a": {1: 2}}, dict[str, dict[int, int]]),
        ({Level.LOW: 1}, dict[Level, int]),
        (frozenset({1}), frozenset[int]),
    ],
)
def test_a_value_comes_back_by_its_annotation_and_encodes_the_same_again(value: Any, annotation: Any) -> None:
    data = encode(value, annotation, what="value")
    back = decoder(annotation)(data)
    assert back == value
    assert encode(back, annotation, what="value") == data


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
).filter(lambda v: "\\ud" not in json.dumps(v) or _has_no_surrogates(v))


def _has_no_surrogates(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(json_values)
def test_any_json_value_survives_encode_decode_encode(value: Any) -> None:
    data = encode(value, what="value")
    assert plain(data) == value
    assert encode(plain(data), what="value") == data
    assert json.loads(data) == value


@given(st.recursive(st.floats() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_what_is_accepted_never_changes_silently(value: Any) -> None:
    try:
        data = encode(value)
    except NotSerialisable as e:
        assert "is not a JSON number" in e.message  # noqa: PT017 - either outcome is right, each is checked
    else:
        assert repr(plain(data)) == repr(json.loads(json.dumps(value)))


def test_without_an_annotation_values_are_plain_json_types() -> None:
    data = encode({"at": NOW, "tags": (1, 2), "order": Line("a"), "p": Path("x"), "c": Colour.RED})
    assert plain(data) == {
        "at": "2026-03-04T05:06:07.000089Z",
        "tags": [1, 2],
        "order": {"sku": "a", "count": 1},
        "p": "x",
        "c": "red",
    }
    assert decoder(Any)(data) == decoder(object)(data) == plain(data)


def test_a_whole_number_is_taken_for_a_float() -> None:
    assert decoder(float)(b"1") == 1.0


def test_dict_subclasses_are_stored_as_objects() -> None:
    assert encode([OrderedDict(a=1), defaultdict(int, b=2)]) == b'[{"a":1},{"b":2}]'


def _cycle() -> list[Any]:
    inner: dict[str, Any] = {}
    inner["again"] = inner
    return [1, inner]


@dataclass
class Holder:
    items: Any


class Handle:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Holder([1, 2, 3, {"handle": Handle()}]), r"^result\.items\[3\]\.handle: <class '.*Handle'> cannot be stored"),
        (Handle(), r"^result: <class '.*Handle'>"),
        ({"a b": Handle()}, r"^result\['a b'\]: "),
        ({"a": [Frozen((Line(Handle()),), NOW)]}, r"^result\.a\[0\]\.lines\[0\]\.sku: "),
        (float("nan"), r"^result: nan is not a JSON number"),
        ({"x": [None, float("-inf")]}, r"^result\.x\[1\]: -inf is not a JSON number"),
        (Line("a", float("inf")), r"^result\.count: inf is not"),
        (Model.model_construct(name=float("nan"), at=NOW), r"^result\.name: nan"),
        ("a\ud800b", r"^result: the text 'a\\ud800b' has a lone surrogate"),
        ({"k": ["\udfff"]}, r"^result\.k\[0\]: the text"),
        ({"\ud800": 1}, r"^result: the key .* has a lone surrogate"),
        (_cycle(), r"^result\[1\]\.again: <class 'dict'> contains itself"),
        ({(1, 2): 3}, r"^result: the key \(1, 2\) is <class 'tuple'>"),
        ({None: 3}, r"^result: the key None is <class 'NoneType'>"),
        ({1: 2}, r"^result: the key 1 is <class 'int'> and would become text.*dict\[int"),
        ({"a": [{2.5: 1}]}, r"^result\['a'\]\[0\]: the key 2.5"),
        ({float("nan"): 1}, r"^result: the key nan"),
        ({"1": 1, 1: 2}, r"^result: the key 1"),
        (Holder({3: 4}), r"^result\.items: the key 3"),
        (ValueError("x"), r"^result: <class 'ValueError'>"),
        ((i for i in [1]), r"^result: <class 'generator'>"),
        (len, r"^result: <class 'builtin_function_or_method'>"),
        (int, r"^result: <class 'type'>"),
        (1 + 2j, r"^result: <class 'complex'>"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_type_and_path(value: Any, message: str) -> None:
    with pytest.raises(NotSerialisable, match=message):
        encode(value, what="result")


def test_a_socket_is_named_with_its_class() -> None:
    with (
        socket.socket() as handle,
        pytest.raises(NotSerialisable, match=r"result\.items\[0\]: <class 'socket.socket'>"),
    ):
        encode({"items": [handle]}, what="result")


def test_number_keys_are_kept_where_the_annotation_says_so_at_any_depth() -> None:
    value = {"a": [FULL]}
    assert decoder(dict[str, list[Everything]])(encode(value, dict[str, list[Everything]])) == value
    with pytest.raises(NotSerialisable, match=r"the key"):
        encode(value)


def test_text_keys_that_look_like_numbers_are_fine() -> None:
    assert plain(encode({"1": {"-2.5": [("x",)]}, "true": 1, "nan": 2})) == {
        "1": {"-2.5": [["x"]]},
        "true": 1,
        "nan": 2,
    }


def test_a_very_deep_value_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotSerialisable, match="nested deeper"):
        encode(deep, what="result")
    with pytest.raises(InvalidInput, match="too deep"):
        plain(b"[" * 100_000 + b"]" * 100_000)


def test_the_limit_is_inclusive_and_the_error_names_both_sizes() -> None:
    exactly = "x" * (INLINE_LIMIT_BYTES - 2)
    assert len(encode(exactly)) == INLINE_LIMIT_BYTES
    with pytest.raises(ValueTooLarge, match=r"result has 1,000,001 bytes as JSON; at most 1,000,000"):
        encode(exactly + "x", what="result")
    assert encode([1, 2, 3], limit=7) == b"[1,2,3]"
    with pytest.raises(ValueTooLarge):
        encode([1, 2, 3], limit=6)


@pytest.mark.parametrize(
    ("annotation", "data", "message"),
    [
        (Line, b'{"sku": 1}', "sku: expected str, got int"),
        (list[Line], b'[{"sku": "a"}, {"sku": "a", "count": "2"}]', r"\[1\].count: expected int, got str"),
        (Line, b"{}", "object missing required field sku"),
        (int, b"1.5", "expected int, got float"),
        (int, b'"1"', "expected int, got str"),
        (Model, b'{"theName": "a", "at": "never"}', "at"),
        (list[Path], b'["a", 1]', r"\[1\]: expected str, got int"),
        (Colour, b'"blue"', "invalid enum value 'blue'"),
        (Handle, b"{}", "a Handle cannot be made from JSON"),
        (dict[str, int], b"{", "this is not JSON"),
        (Any, b"NaN", "this is not JSON"),
        (Any, b"", "this is not JSON"),
        (Any, b'"\xff"', "this is not JSON"),
        (Any, b"1 2", "this is not JSON"),
        (Line | Frozen, b"[]", "fits none of its members"),
    ],
)
def test_a_mismatch_is_invalid_input_with_the_field(annotation: Any, data: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        decoder(annotation)(data)


@dataclass
class Short:
    code: str


def test_unions_that_are_ambiguous_take_the_first_member_that_fits() -> None:
    assert decoder(Line | Short)(b'{"code": "x"}') == Short("x")
    assert decoder(Line | Short)(b'{"sku": "x"}') == Line("x")
    assert decoder(Path | str)(b'"x"') == Path("x")
    assert decoder(str | Path)(b'"x"') == "x"
    assert decoder(Model | int)(b"3") == 3


def test_decoders_are_made_once_per_annotation() -> None:
    assert decoder(list[Line]) is decoder(list[Line])
    assert decoder(Line | Short) is not decoder(Short | Line)


def test_an_annotation_that_cannot_be_read_says_why() -> None:
    with pytest.raises(InvalidInput, match="cannot be read from JSON"):
        decoder(list[Path | str])


def test_an_iterable_is_read_as_a_list() -> None:
    assert decoder(Iterable[int])(b"[1,2]") == [1, 2]


def test_canonical_bytes_do_not_depend_on_the_order_of_sets_and_keys() -> None:
    assert canonical({"b": 1, "a": {"z", "y", "x"}}) == canonical({"a": {"x", "y", "z"}, "b": 1})
    with pytest.raises(HoldfastError):
        canonical(Handle())


def test_builtins_gives_plain_types() -> None:
    assert builtins((Line("a"),)) == [{"sku": "a", "count": 1}]
    assert builtins(None) is None
    assert builtins(NOW) == "2026-03-04T05:06:07.000089Z"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Any, None),
        (object, None),
        (int, {"type": "integer"}),
        (Path, {"type": "string", "format": "path"}),
        (None, {"type": "null"}),
        (list[int] | None, {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),
        (Path | str, {"anyOf": [{"type": "string", "format": "path"}, {"type": "string"}]}),
        (Handle, None),
    ],
)
def test_schemas_of_annotations(annotation: Any, expected: Any) -> None:
    assert schema_of(annotation) == expected


def test_the_schema_of_models_inside_others_has_all_definitions_at_the_top() -> None:
    schema = schema_of(list[Outer])
    assert schema is not None
    assert {"Model", "Line"} <= schema["$defs"].keys()
    assert all("$defs" not in part for part in schema["$defs"].values())
    json.dumps(schema)


def test_a_schema_with_a_default_that_is_no_json_can_still_be_stored() -> None:
    json.dumps(schema_of(Everything))
