"""Which spellings of a JSON value are the same value under a schema."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import schemas, values
from holdfast.model.canonical import InputForm, input_schema, same
from holdfast.model.definition import Param
from holdfast.model.errors import DefinitionError
from holdfast.model.schemas import SET


@dataclass
class Line:
    item: str
    price: float
    tags: set[str] = field(default_factory=set)
    parts: list[Line] = field(default_factory=list)


class Card(msgspec.Struct, tag="card"):
    number: str
    limit: float = 100.0


class Cash(msgspec.Struct, tag="cash"):
    coins: frozenset[float] = frozenset()


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)
    pay: Card | Cash | None = None
    weights: dict[str, float] = field(default_factory=lambda: {"net": 1.0})
    size: tuple[int, float] = (1, 2.5)
    kind: Literal["new", "old"] = "new"


class Model(pydantic.BaseModel):
    line: Line | None = None
    names: list[str] = pydantic.Field(default_factory=lambda: ["x"])


@dataclass
class Job:
    token: str = field(default_factory=lambda: str(uuid.uuid4()))
    model: Model = field(default_factory=Model)
    tags: set[str] = field(default_factory=lambda: {"b", "a"})


FLOATS = st.one_of(
    st.integers(-(2**60), 2**60).map(float), st.floats(allow_nan=False, allow_infinity=False, width=32), st.just(0.5)
)
TEXTS = st.sampled_from(["a", "b", "c", "ä", ""])
LINES = st.recursive(
    st.builds(Line, TEXTS, FLOATS, st.sets(TEXTS)),
    lambda inner: st.builds(Line, TEXTS, FLOATS, st.sets(TEXTS), st.lists(inner, max_size=2)),
    max_leaves=3,
)
PAYS = st.one_of(st.none(), st.builds(Card, TEXTS, FLOATS), st.builds(Cash, st.frozensets(FLOATS, max_size=3)))
ORDERS = st.builds(
    Order,
    TEXTS,
    st.lists(LINES, max_size=2),
    PAYS,
    st.one_of(st.just({"net": 1.0}), st.dictionaries(TEXTS, FLOATS, max_size=2)),
    st.tuples(st.integers(-5, 5), FLOATS),
    st.sampled_from(["new", "old"]),
)
FORM = InputForm([Param(name="order", required=True, schema=input_schema(Order, "order"))])


def hashed(data: bytes) -> str:
    return FORM.hash(b'{"order":' + data + b"}")


def respelled(value: Any, chance: random.Random) -> Any:
    """JSON that reads as an equal object: another order, defaults left out, whole floats as ints."""
    match value:
        case set() | frozenset():
            members = [respelled(part, chance) for part in value]
            chance.shuffle(members)
            return members
        case list() | tuple():
            return [respelled(part, chance) for part in value]
        case dict():
            return shuffled({name: respelled(part, chance) for name, part in value.items()}, chance)
        case float() if value.is_integer() and chance.random() < 0.5:
            return int(value)
        case Line() | Order() | Card() | Cash():
            return shuffled(_object(value, chance), chance)
    return value


def _object(value: Any, chance: random.Random) -> dict[str, Any]:
    """The fields of an object; of those that have their default some are left out."""
    tag = {"type": type(value).__name__.lower()} if isinstance(value, msgspec.Struct) else {}
    bare = Order("") if isinstance(value, Order) else Line("", 0.5) if isinstance(value, Line) else None
    bare = bare or (Card("") if isinstance(value, Card) else Cash())
    required = {"id", "item", "price", "number"}
    names = value.__struct_fields__ if tag else [f.name for f in dataclasses.fields(value)]
    kept = (n for n in names if n in required or getattr(value, n) != getattr(bare, n) or chance.random() < 0.5)
    return tag | {name: respelled(getattr(value, name), chance) for name in kept}


def shuffled(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    items = list(value.items())
    chance.shuffle(items)
    return dict(items)


@given(ORDERS, st.randoms(use_true_random=False))
def test_every_spelling_of_an_equal_value_has_one_hash(order: Order, chance: random.Random) -> None:
    spelled = json.dumps(respelled(order, chance), indent=chance.choice([None, 1])).encode()
    assert values.decoder(Order)(spelled) == order
    assert hashed(spelled) == hashed(values.encode(order))


@given(ORDERS, ORDERS)
def test_values_that_differ_have_other_hashes(one: Order, other: Order) -> None:
    assert (hashed(values.encode(one)) == hashed(values.encode(other))) == (one == other)


@pytest.mark.parametrize(
    ("annotation", "spellings"),
    [
        (float, ["1", "1.0", "1e0", "10e-1"]),
        (float, ["9007199254740993", "9007199254740992.0"]),
        (Any, ['{"a":1,"b":[2]}', '{ "b": [2.0], "a": 1 }']),
        (set[str], ['["a","b"]', '["b","a"]', '["b","a","a"]']),
        (dict[str, frozenset[int]], ['{"a":[1,2],"b":[]}', '{"b":[],"a":[2,1]}']),
        (list[set[str]], ['[["a","b"]]', '[["b","a"]]']),
        (set[str] | None, ['["a","b"]', '["b","a"]']),
        (set[str] | str, ['["a","b"]', '["b","a"]']),
    ],
)
def test_spellings_of_one_value(annotation: Any, spellings: list[str]) -> None:
    schema = schemas.schema_of(annotation)
    for one, other in itertools.pairwise(spellings):
        assert same(schema, one.encode(), other.encode())


@pytest.mark.parametrize(
    ("annotation", "one", "other"),
    [
        (list[str], '["a","b"]', '["b","a"]'),
        (Any, '["a","b"]', '["b","a"]'),
        (int, "9007199254740993", "9007199254740992"),
        (Any, "1", '"1"'),
        (Any, "null", "{}"),
        (bool, "true", "1"),
    ],
)
def test_values_that_only_look_alike(annotation: Any, one: str, other: str) -> None:
    assert not same(schemas.schema_of(annotation), one.encode(), other.encode())


def test_sets_are_marked_in_the_schema_of_an_annotation() -> None:
    schema = schemas.schema_of(Line)
    assert schema is not None
    assert schema["$defs"]["Line"]["properties"]["tags"][SET] is True
    assert SET not in schema["$defs"]["Line"]["properties"]["parts"]


def test_a_default_of_a_factory_is_in_the_schema_of_an_input_and_one_that_changes_is_not() -> None:
    schema = input_schema(Job, "job")
    assert schema is not None
    properties = schema["$defs"]["Job"]["properties"]
    assert "default" not in properties["token"]
    assert properties["tags"]["default"] == ["a", "b"]
    assert properties["model"]["default"] == {"line": None, "names": ["x"]}
    assert properties["model"]["properties"]["names"]["default"] == ["x"]
    assert schema == input_schema(Job, "job")


def test_a_factory_that_makes_no_json_is_refused_with_the_field() -> None:
    @dataclass
    class Wrong:
        lock: Any = field(default_factory=object)

    @dataclass
    class Broken:
        count: int = field(default_factory=lambda: 1 // 0)

    with pytest.raises(DefinitionError, match="input 'x': the default of lock"):
        input_schema(Wrong, "input 'x'")
    with pytest.raises(DefinitionError, match="input 'x': the default of count could not be made: ZeroDivisionError"):
        input_schema(Broken, "input 'x'")


def test_a_default_that_would_contain_itself_for_ever_is_filled_in_once() -> None:
    schema = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A", "default": {}}}}},
    }
    assert same(schema, b"{}", b"{ }")
