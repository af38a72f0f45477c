"""What goes between bodies: converted by annotation, made from stored bytes, bounded, and named when it cannot be."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast.model.limits import INLINE_LIMIT_BYTES
from tests.engine.kit import check_file, types, url


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    qty: int = 1


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Customer(pydantic.BaseModel):
    name: str
    born: date


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


seen: dict[str, Any] = {}


@hf.node(inline=True)
def take_dataclass(value: Order) -> Order:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_struct(value: Point) -> Point:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_pydantic(value: Customer) -> Customer:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_datetime(value: datetime) -> datetime:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_timedelta(value: timedelta) -> timedelta:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_decimal(value: Decimal) -> Decimal:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_uuid(value: uuid.UUID) -> uuid.UUID:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_enum(value: Colour) -> Colour:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_path(value: Path) -> Path:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_bytes(value: bytes) -> bytes:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_optional(value: Order | None) -> Order | None:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_list(value: list[Order]) -> list[Order]:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_dict(value: dict[str, Decimal]) -> dict[str, Decimal]:
    seen["value"] = value
    return value


@hf.node(inline=True)
def take_models(value: list[Customer]) -> list[Customer]:
    seen["value"] = value
    return value


KEY = uuid.UUID("12345678-1234-5678-1234-567812345678")
MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)

CASES = [
    (take_dataclass, Order, Order("a", [Line("x", 2)])),
    (take_struct, Point, Point(1, 2)),
    (take_pydantic, Customer, Customer(name="ada", born=date(1815, 12, 10))),
    (take_datetime, datetime, MOMENT),
    (take_timedelta, timedelta, timedelta(hours=1, microseconds=5)),
    (take_decimal, Decimal, Decimal("10.10")),
    (take_uuid, uuid.UUID, KEY),
    (take_enum, Colour, Colour.BLUE),
    (take_path, Path, Path("/a/b")),
    (take_bytes, bytes, b"\x00\xff"),
    (take_optional, Order | None, None),
    (take_optional, Order | None, Order("a")),
    (take_list, list[Order], [Order("a"), Order("b", [Line("y")])]),
    (take_dict, dict[str, Decimal], {"a": Decimal("0.1")}),
    (take_models, list[Customer], [Customer(name="bob", born=date(2000, 1, 1))]),
]


@pytest.mark.parametrize(("node", "annotation", "value"), CASES, ids=lambda c: getattr(c, "base_id", None))
async def test_inputs_and_results_have_the_type_of_their_annotation(db: Path, node, annotation, value) -> None:
    def flow(value):
        return node(value)

    flow.__annotations__ = {"value": annotation, "return": annotation}
    workflow = hf.workflow(name=f"take_{node.base_id}")(flow)
    async with hf.open(url(db)) as engine:
        run = await engine.start(workflow, value=value)
        result = await run.result()
    assert (result, type(result)) == (value, type(value))
    assert (seen["value"], type(seen["value"])) == (value, type(value))
    assert value is None or isinstance(value, str | int | bytes | enum.Enum) or seen["value"] is not value


async def test_plain_json_inputs_are_converted_as_well(db: Path) -> None:
    @hf.workflow
    def plain(value: Order):
        return take_dataclass(value)

    async with hf.open(url(db)) as engine:
        run = await engine.start(plain, value={"id": "a", "lines": [{"sku": "x"}]})
        assert await run.result() == Order("a", [Line("x", 1)])


async def test_without_an_annotation_a_body_gets_plain_json_types(db: Path) -> None:
    got: list[Any] = []

    @hf.node(inline=True)
    def bare(value):
        got.append(value)
        return value

    @hf.workflow
    def untyped(value: Order):
        return bare(value)

    async with hf.open(url(db)) as engine:
        run = await engine.start(untyped, value=Order("a", [Line("x")]))
        assert await run.result() == {"id": "a", "lines": [{"sku": "x", "qty": 1}]}
    assert got == [{"id": "a", "lines": [{"sku": "x", "qty": 1}]}]


async def test_a_body_never_receives_an_object_that_another_body_made(db: Path) -> None:
    made: list[Order] = []
    got: list[Order] = []

    @hf.node(inline=True)
    def make() -> Order:
        made.append(Order("a", [Line("x")]))
        return made[-1]

    @hf.node(inline=True)
    def spoil(order: Order) -> int:
        order.lines.append(Line("spoilt"))
        got.append(order)
        return 1

    @hf.node(inline=True)
    def look(order: Order, after: int) -> Order:
        got.append(order)
        return order

    @hf.workflow
    def shared():
        order = make()
        return look(order, spoil(order))

    async with hf.open(url(db)) as engine:
        run = await engine.start(shared)
        result = await run.result()
        assert result == Order("a", [Line("x")])
        made[0].lines.clear()
        result.lines.clear()
        assert await run.result() == Order("a", [Line("x")])
    assert got[1].lines == [Line("x")]
    assert len({id(o) for o in [*made, *got, result]}) == 4


async def test_changing_an_input_after_start_changes_nothing(db: Path) -> None:
    order = Order("a", [Line("x")])

    @hf.workflow
    def quiet(value: Order):
        return take_dataclass(value)

    async with hf.open(url(db)) as engine:
        run = await engine.start(quiet, value=order)
        order.lines.append(Line("late"))
        assert await run.result() == Order("a", [Line("x")])


async def test_a_step_returns_what_was_committed_also_the_first_time(db: Path) -> None:
    made: list[Order] = []
    checks: list[bool] = []

    def make() -> Order:
        made.append(Order("a", [Line("x")]))
        return made[-1]

    @hf.workflow
    async def code(ctx: hf.Context) -> Order:
        found = await ctx.step(make)
        checks.append(found is not made[0] and found == made[0])
        return found

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(code)).result() == Order("a", [Line("x")])
    assert checks == [True]


class Socket:
    pass


@pytest.mark.parametrize("kind", ["async", "sync", "inline", "step"])
async def test_a_result_that_cannot_be_stored_fails_its_node_with_type_and_path(db: Path, kind: str) -> None:
    def make():
        return {"conns": [1, {"main": Socket()}]}

    async def make_async():
        return make()

    @hf.workflow(name=f"bad_{kind}")
    async def code(ctx: hf.Context) -> Any:
        return await ctx.step(make)

    node = hf.node(make_async) if kind == "async" else hf.node(inline=kind == "inline")(make)

    @hf.workflow(name=f"bad_graph_{kind}")
    def graph():
        return node.named("bad")()

    async with hf.open(url(db)) as engine:
        run = await engine.start(code if kind == "step" else graph)
        with pytest.raises(hf.RunFailed, match=r"conns\[1\]\.main.*Socket") as caught:
            await run.result()
        assert caught.value.error.code == "not_serialisable"
        again = await engine.start(code if kind == "step" else graph)
        with pytest.raises(hf.RunFailed):
            await again.result()
    check_file(db)


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, {1: "one"}, "\ud800", {"k": {2.5: 1}}])
async def test_a_value_that_json_would_change_is_refused_and_does_not_wedge_the_run(db: Path, value: Any) -> None:
    @hf.node(inline=True)
    def odd():
        return value

    @hf.workflow
    def returns_odd():
        return odd()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed) as caught:
            await (await engine.start(returns_odd)).result()
        assert caught.value.error.node == "odd"
    check_file(db)


async def test_a_value_of_exactly_the_limit_is_kept_and_one_byte_more_fails(db: Path) -> None:
    @hf.node(inline=True)
    def big(size: int) -> str:
        return "x" * (size - 2)  # and two quotes

    @hf.node(inline=True)
    def length(text: str) -> int:
        return len(text)

    @hf.workflow
    def bounded(size: int):
        return length(big(size))

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(bounded, size=INLINE_LIMIT_BYTES)).result() == INLINE_LIMIT_BYTES - 2
        run = await engine.start(bounded, size=INLINE_LIMIT_BYTES + 1)
        with pytest.raises(hf.RunFailed, match="1,000,001 bytes") as caught:
            await run.result()
        assert (caught.value.error.code, caught.value.error.node) == ("value_too_large", "big")
    check_file(db)


async def test_an_input_over_the_limit_is_refused_and_writes_nothing(db: Path) -> None:
    @hf.workflow
    async def takes(ctx: hf.Context, text: str) -> int:
        return len(text)

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(takes, text="x" * (INLINE_LIMIT_BYTES - 2))).result() == INLINE_LIMIT_BYTES - 2
        with pytest.raises(hf.HoldfastError, match="bytes"):
            await engine.start(takes, text="x" * (INLINE_LIMIT_BYTES - 1))
        assert len(await engine.list()) == 1


async def test_a_result_over_the_limit_is_read_from_the_parts_below_it(db: Path) -> None:
    @hf.node(inline=True)
    def big(n: int) -> str:
        return "x" * 600_000

    @hf.workflow
    def both():
        return [big.named("a")(1), big.named("b")(2)]

    async with hf.open(url(db)) as engine:
        run = await engine.start(both)
        assert await run.result() == ["x" * 600_000] * 2
        assert (await run.events())[-1].data["result"] is None
    check_file(db)


async def test_one_bad_run_does_not_stop_the_others_in_its_group(db: Path) -> None:
    @hf.node(inline=True)
    def give(i: int) -> Any:
        if i % 3 == 0:
            return {"bad": Socket()}
        if i % 3 == 1:
            raise RuntimeError("no")
        return i

    @hf.workflow
    def many(i: int):
        return give(i)

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(many, i=i) for i in range(60)]
        for i, run in enumerate(runs):
            if i % 3 == 2:
                assert await run.result() == i
            else:
                with pytest.raises(hf.RunFailed):
                    await run.result()
    check_file(db)


async def test_an_expression_that_cannot_be_evaluated_fails_the_run_and_leaves_the_others_alone(db: Path) -> None:
    @hf.node(inline=True)
    def text() -> Any:
        return "a"

    @hf.node(inline=True)
    def number() -> Any:
        return 1

    @hf.workflow
    def adds():
        return text() + number()

    @hf.workflow
    def good():
        return number()

    async with hf.open(url(db)) as engine:
        bad, fine = await engine.start(adds), await engine.start(good)
        assert await fine.result() == 1
        with pytest.raises(hf.RunFailed):
            await bad.result(timeout=30)
        assert await bad.status() == "failed"
    check_file(db)


async def test_an_argument_that_does_not_fit_its_annotation_fails_its_node_by_name(db: Path) -> None:
    @hf.node(inline=True)
    def text() -> Any:
        return "a"

    @hf.node
    async def wants_number(n: int) -> int:
        return n

    @hf.workflow
    def mistyped():
        return wants_number(text())

    async with hf.open(url(db)) as engine:
        run = await engine.start(mistyped)
        with pytest.raises(hf.RunFailed, match="argument n of") as caught:
            await run.result()
        assert (caught.value.error.code, caught.value.error.node) == ("invalid_input", "wants_number")
        assert types(await run.events()).count("NodeFailed") == 1
