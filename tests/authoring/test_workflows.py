"""What `@hf.workflow` promises: graphs, durable code, inputs by name, children, one name for one workflow."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import Workflow, workflow
from holdfast.model import handlers
from holdfast.model.current import BodyContext, current_body
from holdfast.model.definition import Settings, decode
from holdfast.model.errors import DefinitionError, TraceError, UsageError


class Context(BodyContext):
    """Stands for the worker's."""


@dataclass
class Order:
    id: str
    amount: int


@node
def charge(order: Order) -> str: ...


@node
def ship(order: Order, receipt: str) -> int: ...


@workflow
def fulfil(order: Order, note: str = "hello") -> dict[str, Any]:
    """Charge and ship."""
    receipt = charge(order)
    label = ship(order, receipt)
    return {"receipt": receipt, "label": label, "note": note}


@workflow(variables={"seen": list[str]}, timeout="1h")
async def research(ctx: Context, topic: str, depth: int = 2) -> Order: ...


@workflow
def parent(order: Order):  # an unannotated result is Any
    child = fulfil(order, note="from above")
    follow = fulfil.named("later").after(child)(order=order, run_id="fixed", detached=True)
    return [child, follow]


def test_a_plain_function_is_traced_into_a_graph() -> None:
    d = fulfil.definition
    assert (d.name, d.kind, d.doc) == ("fulfil", "graph", "Charge and ship.")
    assert [n.id for n in d.nodes] == ["charge", "ship"]
    assert d.nodes[1].args == {"order": ["input", "order"], "receipt": ["node", "charge"]}
    assert d.result == ["dict", "receipt", ["node", "charge"], "label", ["node", "ship"], "note", ["input", "note"]]
    assert [(p.name, p.required, p.default) for p in d.params] == [("order", True, None), ("note", False, "hello")]
    assert decode(d.encode()) == d


def test_an_async_function_with_ctx_is_durable_code_in_one_node() -> None:
    d = research.definition
    (body,) = d.nodes
    assert (d.kind, body.id, body.uses) == ("code", "research", f"{__name__}.research")
    assert body.args == {"topic": ["input", "topic"], "depth": ["input", "depth"]}
    assert d.result == ["node", "research"]
    assert d.settings == Settings(timeout=3600.0)
    assert d.variables == {"seen": {"type": "array", "items": {"type": "string"}}}
    handler = handlers.find(body.uses)
    assert handler is not None
    assert (handler.kind, handler.takes_ctx, handler.returns) == ("async", True, Order)


def test_a_registered_workflow_says_where_its_code_is_and_what_it_returns() -> None:
    found = handlers.find_workflow("research")
    assert found is research.registered
    assert found.code.name == "research"
    assert found.code.file == __file__
    assert found.returns is Order
    assert found.variables == {"seen": list[str]}


def test_the_type_of_an_unannotated_result_is_that_of_the_reference_or_null() -> None:
    @workflow
    def typed(order: Order):  # the point of the test
        return charge(order)

    assert typed.registered.returns == str | None


def test_a_workflow_is_traced_once_also_by_many_threads() -> None:
    runs: list[int] = []

    @workflow
    def counted(order: Order) -> str:
        runs.append(1)
        return charge(order)

    together = threading.Barrier(8)
    seen: list[int] = []

    def use() -> None:
        together.wait()
        seen.append(id(counted.definition))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    assert len(set(seen)) == 1


def test_decorating_does_not_trace() -> None:
    @workflow
    def explosive() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _ = explosive.definition


def test_a_workflow_called_in_a_graph_is_a_child_node() -> None:
    child, follow = parent.definition.nodes
    assert (child.id, child.uses) == ("fulfil", "holdfast.child")
    assert child.args == {"workflow": "fulfil", "inputs": ["dict", "order", ["input", "order"], "note", "from above"]}
    assert (follow.id, follow.after) == ("later", ("fulfil",))
    assert follow.args == {
        "workflow": "fulfil",
        "inputs": ["dict", "order", ["input", "order"]],
        "run_id": "fixed",
        "detached": True,
    }


def test_a_child_is_not_traced_with_its_parent() -> None:
    @workflow
    def itself(n: int):  # recursive
        return itself(n)

    assert itself.definition.nodes[0].uses == "holdfast.child"


def test_a_workflow_called_elsewhere_says_how_to_run_it() -> None:
    with pytest.raises(UsageError, match=r"hf.run\(fulfil, order=..., note=...\)"):
        fulfil(Order("1", 2))
    token = current_body.set("shop.checkout")
    try:
        with pytest.raises(UsageError, match=r"await ctx.child\(fulfil, order=..., note=...\)"):
            fulfil(Order("1", 2))
    finally:
        current_body.reset(token)


async def no_ctx(order: Order) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator(ctx: Context) -> AsyncIterator[int]:
    yield 1


class Shop:
    def method(self, order: Order) -> None: ...


def reserved(order: Order, run_id: str) -> None: ...


def variadic(*orders: Order) -> None: ...


def sync_ctx(ctx: Context, order: Order) -> None: ...


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (no_ctx, "async workflow without ctx"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (Shop.method, "is a method"),
        (reserved, "run_id cannot be an input"),
        (fulfil, "is a workflow already"),
        (Shop, "takes a function"),
    ],
)
def test_what_cannot_be_a_workflow_is_refused_at_decoration(fn: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workflow(fn)


@pytest.mark.parametrize(("fn", "message"), [(variadic, "inputs have names"), (sync_ctx, "a graph is traced without")])
def test_what_cannot_be_a_workflow_is_refused_at_first_use(fn: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ = workflow(fn).definition


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_failure": "pend:"}, "the basket is a name"),
        ({"on_failure": f"pend:{'x' * 201}"}, "at most 200"),
        ({"on_failure": "shrug"}, "'shrug' is not 'fail'"),
        ({"persistence": "interval:soon"}, "interval:10s"),
        ({"timeout": -1}, "above 0"),
        ({"timeout": 1e300}, "at most 1,000 years"),
        ({"concurrency": 0}, "above 0"),
        ({"max_recoveries": 0}, "above 0"),
        ({"on_code_change": "panic"}, "'panic' is not"),
        ({"priority": "high"}, "'high' is not a whole number"),
        ({"priority": 10**12}, "is not between -1000000000 and 1000000000"),
    ],
)
def test_wrong_settings_are_refused_at_decoration(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as refused:
        workflow(**options)
    (field,) = options
    assert str(refused.value).startswith(f"@hf.workflow: {field}: ")


def test_a_workflow_name_with_a_dot_is_refused() -> None:
    with pytest.raises(UsageError, match="contains a dot"):
        workflow(name="shop.fulfil")(sync_ctx)


def test_a_second_workflow_of_the_same_name_with_other_content_is_refused() -> None:
    @workflow(name="twin")
    def one(order: Order) -> str:
        return charge(order)

    @workflow(name="twin")
    def two(order: Order) -> int:
        return ship(order, "r")

    assert one.definition.name == "twin"
    with pytest.raises(DefinitionError, match=r"two workflows are called 'twin': .*one .*two"):
        _ = two.definition


def test_a_second_workflow_of_the_same_name_with_the_same_content_is_the_same() -> None:
    @workflow(name="equal")
    def one(order: Order) -> str:
        return charge(order)

    @workflow(name="equal")
    def two(order: Order) -> str:
        return charge(order)

    assert one.definition == two.definition


def test_the_same_function_again_replaces_the_former() -> None:
    def cell(n: int) -> Workflow[..., Any]:
        @workflow
        def notebook(order: Order) -> str:
            return charge.named(f"charge_{n}")(order)

        return notebook

    first, second = cell(1), cell(2)
    assert first.definition.nodes[0].id == "charge_1"
    assert second.definition.nodes[0].id == "charge_2"
    assert handlers.find_workflow("notebook") is second.registered


def test_obvious_type_mismatches_are_found_while_tracing() -> None:
    @workflow
    def wrong(order: Order) -> int:
        return ship(order, ship(order, "r"))

    with pytest.raises(DefinitionError, match=r"args.receipt: takes string, and gets integer"):
        _ = wrong.definition


def test_a_reference_of_another_workflow_is_refused() -> None:
    leaked: list[Any] = []

    @workflow
    def leaking(order: Order) -> str:
        leaked.append(charge(order))
        return "x"

    @workflow
    def using(order: Order) -> int:
        return ship(order, leaked[0])

    _ = leaking.definition
    with pytest.raises(TraceError, match="belongs to the workflow 'leaking'"):
        _ = using.definition
