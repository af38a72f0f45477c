"""References: fields are checked, operators build expressions, and what cannot be data says what to use instead."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from holdfast.authoring.refs import Ref, expression, type_of
from holdfast.authoring.tracing import Trace
from holdfast.model.errors import TraceError

T = TypeVar("T")


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: str
    amount: int
    lines: list[Line] = field(default_factory=list)
    by_sku: dict[str, Line] = field(default_factory=dict)
    first: Line | None = None
    price: Decimal = Decimal(0)
    at: datetime | None = None

    @property
    def total(self) -> int:
        return self.amount


class Renamed(msgspec.Struct, rename="camel"):
    given_name: str


class Model(pydantic.BaseModel):
    plain: int
    aliased: str = pydantic.Field(alias="theAlias")


class Typed(TypedDict):
    name: str
    extra: NotRequired[Line]


@dataclass
class Box(Generic[T]):
    inside: T


def ref(annotation: Any = Any) -> Any:
    return Ref(["node", "n"], annotation, Trace("w", {}).top)


N = ["node", "n"]


def test_fields_and_items_build_chains_with_the_types_below() -> None:
    order = ref(Order)
    assert expression(order.id) == ["get", N, "id"]
    assert expression(order.lines[0].count) == ["get", ["get", ["get", N, "lines"], 0], "count"]
    assert type_of(order.lines[0].count) is int
    assert type_of(order.by_sku["a"]) is Line
    assert type_of(order.first.sku) is str
    assert expression(order.lines[-1]) == ["get", ["get", N, "lines"], -1]


@pytest.mark.parametrize(
    ("annotation", "read", "key"),
    [
        (Renamed, lambda r: r.given_name, "givenName"),
        (Model, lambda r: r.plain, "plain"),
        (Model, lambda r: r.aliased, "theAlias"),
        (Typed, lambda r: r["name"], "name"),
        (Typed, lambda r: r.name, "name"),
        (Box[int], lambda r: r.inside, "inside"),
        (Line | None, lambda r: r.sku, "sku"),
        (Line | Order, lambda r: r.amount, "amount"),
        (NewType("Alias", Line), lambda r: r.sku, "sku"),
        (Any, lambda r: r.whatever, "whatever"),
        (dict[str, Any], lambda r: r["whatever"], "whatever"),
    ],
)
def test_a_field_is_read_under_its_name_in_json(annotation: Any, read: Callable[[Any], Any], key: str) -> None:
    assert expression(read(ref(annotation))) == ["get", N, key]


@pytest.mark.parametrize(
    ("annotation", "read", "message"),
    [
        (Order, lambda r: r.amont, r"Order has no field 'amont'; did you mean 'amount'"),
        (Order, lambda r: r.total, "has no field 'total'"),
        (Typed, lambda r: r["nam"], "did you mean 'name'"),
        (Renamed, lambda r: r.givenName, "did you mean 'given_name'"),
        (Model, lambda r: r.theAlias, "Model has no field 'theAlias'"),
        (str, lambda r: r.upper(), "use methods and properties of a value in a node"),
        (list[int], lambda r: r.append(1), r"hf.map\(fn, x\)"),
        (dict[str, int], lambda r: r.items(), r'use \["items"\]'),
        (Any, lambda r: r[1:2], "take slices in a node"),
        (Any, lambda r: r[r], "an index must be a constant"),
        (Any, lambda r: r[True], "not a field name or an index"),
    ],
)
def test_an_unknown_field_is_refused_with_the_line_and_a_hint(
    annotation: Any, read: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TraceError, match=rf"test_refs.py:\d+: .*{message}"):
        read(ref(annotation))


def test_a_reference_has_no_public_attribute_of_its_own() -> None:
    assert [name for name in dir(Ref) if not name.startswith(("__", "_hf_"))] == []


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: x == 1, ["eq", N, 1]),
        (lambda x: x != None, ["ne", N, None]),  # noqa: E711 - the operator is the point
        (lambda x: x > 1, ["gt", N, 1]),
        (lambda x: x <= 2, ["le", N, 2]),
        (lambda x: x > 2, ["gt", N, 2]),
        (lambda x: x >= 2, ["ge", N, 2]),
        (lambda x: (x < 1) & (x == 2), ["and", ["lt", N, 1], ["eq", N, 2]]),
        (lambda x: True & x, ["and", True, N]),
        (lambda x: x | False, ["or", N, False]),
        (lambda x: False | x, ["or", False, N]),
        (lambda x: ~x, ["not", N]),
        (lambda x: x + 1, ["add", N, 1]),
        (lambda x: 1 + x, ["add", 1, N]),
        (lambda x: x - 1, ["sub", N, 1]),
        (lambda x: 1 - x, ["sub", 1, N]),
        (lambda x: 2 * x, ["mul", 2, N]),
        (lambda x: x * 2, ["mul", N, 2]),
        (lambda x: x / 2, ["div", N, 2]),
        (lambda x: 2 / x, ["div", 2, N]),
        (lambda x: x % 2, ["mod", N, 2]),
        (lambda x: 2 % x, ["mod", 2, N]),
        (lambda x: x == [1, x], ["eq", N, ["list", 1, N]]),
        (lambda x: x == [1, 2], ["eq", N, ["const", [1, 2]]]),
    ],
)
def test_operators_build_expressions(build: Callable[[Any], Any], expected: Any) -> None:
    assert expression(build(ref())) == expected


@pytest.mark.parametrize(
    ("use", "instead"),
    [
        (bool, "hf.when"),
        (lambda x: 1 if x else 2, "hf.when"),
        (lambda x: 1 < x < 5, r"& \| ~"),
        (lambda x: x and x, r"& \| ~"),
        (len, "hf.size"),
        (iter, "hf.map"),
        (lambda x: list(x), "hf.map"),
        (lambda x: [*x], "hf.map"),
        (lambda x: 1 in x, "hf.contains"),
        (lambda x: x in [1, 2], "hf.when"),
        (lambda x: f"{x}", "hf.text"),
        (str, "hf.text"),
        (lambda x: f"{x:>5}", "hf.text"),
        (lambda x: x.__await__(), "not awaited"),
        (hash, "dictionary key"),
        (lambda x: {x: 1}, "dictionary key"),
        (lambda x: {x}, "dictionary key"),
        (lambda x: x(), "cannot be called"),
        (int, "in a node"),
        (float, "in a node"),
        (math.floor, "in a node"),
        (abs, "in a node"),
        (lambda x: -x, "in a node"),
        (lambda x: x**2, "in a node"),
        (lambda x: x // 2, "in a node"),
        (lambda x: [1, 2][x], "in a node"),
        (lambda x: setattr(x, "a", 1), "cannot be changed"),
        (lambda x: x.__setitem__(1, 2), "cannot be changed"),
        (copy.deepcopy, "cannot be copied"),
        (Path, "open files in a node"),
    ],
)
def test_what_cannot_be_data_raises_with_the_line_and_the_way_to_write_it(
    use: Callable[[Any], Any], instead: str
) -> None:
    with pytest.raises(TraceError, match=rf"^[\w.]+:\d+: .*({instead})"):
        use(ref())


@pytest.mark.parametrize(
    "build",
    [
        lambda o: o.price > 5,
        lambda o: o.price == Decimal("1.0"),
        lambda o: o.amount > Decimal(3),
        lambda o: o.price + 1,
        lambda o: o.at < "2026",
    ],
)
def test_types_that_are_stored_as_text_are_not_compared_as_text(build: Callable[[Any], Any]) -> None:
    with pytest.raises(TraceError, match=r"is stored as text and cannot be (compared|computed)"):
        build(ref(Order))


def test_a_decimal_may_be_compared_with_none() -> None:
    assert expression(ref(Order).price == None) == ["eq", ["get", N, "price"], None]  # noqa: E711 - the operator


def test_a_reference_can_be_shown_in_a_debugger() -> None:
    assert repr(ref().x) == "<reference ['get', ['node', 'n'], 'x']>"
