"""What `@hf.node` promises: handlers by name, arguments by parameter, and where a call is a call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import holdfast.api  # noqa: F401 - it says which context a direct call of a function is given
from holdfast.authoring.node_decorator import Node, node
from holdfast.authoring.workflows import workflow
from holdfast.model import handlers
from holdfast.model.current import BodyContext, current_body
from holdfast.model.definition import Definition, NodeDef
from holdfast.model.errors import InvalidInput, TraceError, UsageError
from holdfast.model.policies import Retry
from holdfast.testing import context

if TYPE_CHECKING:
    from somewhere import Unknown


class Context(BodyContext):
    """Stands for the worker's."""

    run_id: str


@dataclass
class Order:
    id: str
    amount: int = 1


@node
def refund(receipt: str) -> None: ...


@node(retry=Retry(attempts=2))
def refund_maybe(receipt: str | None) -> None: ...


@node(
    retry=Retry(attempts=5, on=(ConnectionError,)),
    timeout="20s",
    heartbeat=timedelta(seconds=5),
    on_crash="ask",
    compensate=refund_maybe,
    concurrency=3,
    priority=2,
    idempotent=True,
)
async def charge(ctx: Context, order: Order, times: int = 3) -> str:
    return f"{ctx.run_id}:{order.id}:{times}"


@node(compensate=refund)
def plain(order, note="n"):  # an author without annotations
    return (order, note)


@node
def gather(first: int, *rest: int, sep: str = ",", **named: int) -> str:
    return sep.join(map(str, (first, *rest, *named.values())))


_numbers = itertools.count()


def graph_of(build: Any, **options: Any) -> Definition:
    """The definition of a workflow with this function."""
    return workflow(name=f"under_test_{next(_numbers)}", **options)(build).definition


def only(definition: Definition) -> NodeDef:
    (found,) = definition.nodes
    return found


def test_a_call_in_a_graph_becomes_a_node_with_the_options_of_its_function() -> None:
    found = only(graph_of(lambda order: charge(order)))
    assert found.id == "charge"
    assert found.uses == f"{__name__}.charge"
    assert found.args == {"order": ["input", "order"], "times": 3}
    assert found.retry == Retry(attempts=5, on=("ConnectionError",))
    assert (found.timeout, found.heartbeat, found.on_crash) == (20.0, 5.0, "ask")
    assert (found.concurrency, found.priority, found.idempotent) == (3, 2, True)
    assert found.returns == {"type": "string"}


def test_the_compensation_is_stored_by_name_with_its_retry_and_whether_it_takes_none() -> None:
    found = only(graph_of(lambda order: charge(order)))
    assert found.compensate == f"{__name__}.refund_maybe"
    assert found.compensate_retry == Retry(attempts=2)
    assert found.compensate_accepts_none
    strict = only(graph_of(lambda order: plain(order)))
    assert strict.compensate == f"{__name__}.refund"
    assert not strict.compensate_accepts_none


def test_ids_are_the_functions_name_and_then_numbered_in_order_of_calls() -> None:
    def build(order: Order) -> Any:
        charge(order)
        charge.named("charge_3")(order)
        charge(order)
        return charge(order)

    assert [n.id for n in graph_of(build).nodes] == ["charge", "charge_3", "charge_2", "charge_4"]


def test_two_nodes_of_one_explicit_id_are_refused_with_the_line() -> None:
    def build(order: Order) -> Any:
        charge.named("again")(order)
        charge.named("again")(order)

    with pytest.raises(TraceError, match=r"test_nodes.py:\d+: two nodes are called 'again'"):
        graph_of(build)


def test_after_orders_without_data() -> None:
    def build(order: Order) -> Any:
        first = charge(order)
        second = plain(order)
        return charge.after(first, second).after(first).named("last")(order)

    assert graph_of(build).nodes[-1].after == ("charge", "plain")


@pytest.mark.parametrize("wrong", [3, "charge"])
def test_after_takes_only_what_a_node_returned(wrong: Any) -> None:
    with pytest.raises(TraceError, match="takes what a node call returned"):
        graph_of(lambda order: charge.after(wrong)(order))


def test_after_an_input_is_refused() -> None:
    with pytest.raises(TraceError, match="an input is always there"):
        graph_of(lambda order: charge.after(order)(order))


def test_variadic_arguments_are_stored_and_bound_again() -> None:
    found = only(graph_of(lambda n: gather(n, 2, n, sep=";", x=4)))
    assert found.args == {"first": ["input", "n"], "*": ["list", 2, ["input", "n"]], "sep": ";", "x": 4}
    handler = handlers.find(found.uses)
    assert handler is not None
    positional, keyword = handler.call_arguments({"first": 1, "*": [2, 3], "sep": ";", "x": 4})
    assert handler.fn(*positional, **keyword) == "1;2;3;4"


def test_positional_only_parameters_are_passed_by_position() -> None:
    @node
    def divide(a: int, b: int, /, *, digits: int = 2) -> float:
        return round(a / b, digits)

    found = only(graph_of(lambda n: divide(n, 3)))
    assert found.args == {"a": ["input", "n"], "b": 3, "digits": 2}
    positional, keyword = divide.handler.call_arguments({"a": 10, "b": 3, "digits": 1})
    assert divide.fn(*positional, **keyword) == 3.3


def test_arguments_without_a_variadic_parameter_go_by_name() -> None:
    assert plain.handler.call_arguments({"note": 1, "order": 2}) == ([], {"note": 1, "order": 2})


def test_a_wrong_call_is_refused_with_the_line_and_the_parameter() -> None:
    with pytest.raises(TraceError, match=r"test_nodes.py:\d+: charge\(\): missing a required argument: 'order'"):
        graph_of(lambda order: charge())
    with pytest.raises(TraceError, match="unexpected keyword argument 'amount'"):
        graph_of(lambda order: charge(order, amount=1))


def test_a_constant_that_does_not_fit_its_parameter_is_refused_while_tracing() -> None:
    with pytest.raises(TraceError, match=r"charge\(times\): expected int, got str"):
        graph_of(lambda order: charge(order, times="three"))


def test_constants_of_all_kinds_are_stored_as_json() -> None:
    def build(order: Order) -> Any:
        plain(Order("1", 2), note=[datetime(2026, 1, 2, tzinfo=UTC), {"a": (1, 2)}])
        return plain([order, {"deep": [order.id]}], note={"x": order.amount})

    first, second = graph_of(build).nodes
    assert first.args == {
        "order": ["const", {"id": "1", "amount": 2}],
        "note": ["const", ["2026-01-02T00:00:00Z", {"a": [1, 2]}]],
    }
    deep = ["dict", "deep", ["list", ["get", ["input", "order"], "id"]]]
    assert second.args["order"] == ["list", ["input", "order"], deep]
    assert second.args["note"] == ["dict", "x", ["get", ["input", "order"], "amount"]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"plain\(order\) cannot be stored.*<class 'object'>"),
        (float("nan"), "nan is not a JSON number"),
        ({"f": charge}, "cannot be stored"),
        (charge, "is the function charge: call it"),
        (len, "is the function len: call it"),
    ],
)
def test_what_cannot_be_stored_in_a_definition_is_refused(value: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        graph_of(lambda n: plain(value))


def test_a_reference_inside_an_object_is_refused_with_the_way_out() -> None:
    with pytest.raises(TraceError, match="a reference inside a Order; pass a dict of references"):
        graph_of(lambda n: plain(Order(id=n)))


def test_a_default_that_only_python_can_hold_is_left_to_the_function() -> None:
    sentinel = object()

    @node
    def lenient(x: int, y: Any = sentinel) -> bool:
        return y is sentinel

    assert only(graph_of(lambda n: lenient(n))).args == {"x": ["input", "n"]}


def test_outside_tracing_a_node_is_its_function() -> None:
    assert plain(1, note=2) == (1, 2)
    assert asyncio.run(charge(Order("7"))) == f"{context().run_id}:7:3"  # typed for graphs
    assert charge.fn.__name__ == "charge"


def test_inside_a_body_a_direct_call_is_refused_and_names_the_durable_one() -> None:
    token = current_body.set("shop.checkout")
    try:
        with pytest.raises(UsageError, match=r"inside the body of shop.checkout.*ctx.step\(charge, order, times\)"):
            charge(Order("1"))
    finally:
        current_body.reset(token)


def test_the_handler_knows_kind_parameters_and_result() -> None:
    handler = charge.handler
    assert handlers.find(charge.name) is handler
    assert (handler.kind, handler.takes_ctx, handler.returns) == ("async", True, str)
    assert [(p.name, p.annotation, p.required) for p in handler.params] == [
        ("order", Order, True),
        ("times", int, False),
    ]
    assert plain.handler.kind == "sync"
    assert [p.annotation for p in plain.handler.params] == [Any, Any]


def test_inline_and_process_bodies_are_marked() -> None:
    assert node(inline=True)(top_level).handler.kind == "inline"
    assert node(process=True)(top_level).handler.kind == "process"


def top_level(x: int) -> int:
    return x


async def top_level_async(x: int) -> int:
    return x


def with_ctx(ctx: Context, x: int) -> int:
    return x


def test_impossible_combinations_are_refused() -> None:
    for options, fn in [
        ({"inline": True}, top_level_async),
        ({"inline": True, "process": True}, top_level),
        ({"process": True}, top_level_async),
        ({"process": True}, with_ctx),
        ({"process": True}, lambda x: x),
        ({"compensate": top_level}, top_level),
        ({"on_crash": "again"}, top_level),
        ({"priority": "high"}, top_level),
        ({"priority": 10**12}, top_level),
        ({"retry": 3}, top_level),
        ({"name": "holdfast.mine"}, top_level),
    ]:
        with pytest.raises(UsageError):
            node(**options)(fn)
    with pytest.raises(InvalidInput, match="not a duration"):
        node(timeout="soon")


def test_what_is_not_a_function_of_a_module_is_refused() -> None:
    class Shop:
        def pay(self, x: int) -> int:
            return x

    def numbers() -> Iterator[int]:
        yield 1

    for wrong, message in [
        (Shop.pay, "is a method"),
        (Shop, "takes a function"),
        (numbers, "streams"),
        (charge, "already"),
    ]:
        with pytest.raises(UsageError, match=message):
            node(wrong)


def test_a_node_may_be_given_its_handlers_name() -> None:
    paid = node(name="shop.v2.pay")(top_level)
    assert paid.name == "shop.v2.pay"
    assert only(graph_of(lambda n: paid(n))).id == "pay"


def test_an_annotation_for_type_checkers_only_gives_a_warning_and_plain_values() -> None:
    @node
    def late(x: Unknown, y: int) -> None: ...

    with pytest.warns(UserWarning, match="annotation 'Unknown' of parameter 'x'"):
        params = late.signature.params
    assert [p.annotation for p in params] == [Any, int]


def test_text_annotations_of_a_function_inside_a_function_are_resolved() -> None:
    @dataclass
    class Local:
        x: int

    @node
    def take(value: Local) -> list[Local]: ...

    assert take.signature.params[0].annotation is Local
    assert take.handler.returns == list[Local]


def test_a_first_parameter_called_ctx_without_annotation_is_the_context() -> None:
    @node
    def quiet(ctx, x):  # an author without annotations
        return x

    @node
    def other(ctx: int) -> int:
        return ctx

    assert quiet.handler.takes_ctx
    assert [p.name for p in quiet.handler.params] == ["x"]
    assert not other.handler.takes_ctx


def test_configured_nodes_leave_the_original_alone() -> None:
    assert isinstance(charge.named("x").after(), Node)
    assert charge.explicit_id == ""
