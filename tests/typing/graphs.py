"""What a type checker sees in graphs: a node is called without its ctx and gives its result, not a coroutine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_type

import holdfast as hf


@dataclass
class Order:
    id: str
    amount: int
    items: list[str]


@dataclass
class Decision:
    approved: bool
    note: str = ""


@dataclass
class Receipt:
    number: str
    amount: int


@hf.node
async def charge(ctx: hf.Context, order: Order) -> Receipt:
    return Receipt(f"{order.id}{ctx.idempotency_key}", order.amount)


@hf.node(retry=hf.Retry(attempts=3, on=(ConnectionError,)), timeout="20s")
async def notify(order: Order, urgent: bool = False) -> None: ...


@hf.node
def pick(item: str, shelf: int = 0) -> str:
    return f"{item}{shelf}"


@hf.node(concurrency=4)
def weigh(ctx: hf.SyncContext, item: str) -> float:
    return float(len(item) + ctx.attempt)


@hf.node(inline=True)
def double(number: int) -> int:
    return 2 * number


@hf.node
async def refund(receipt: Receipt | None) -> None: ...


@hf.node(compensate=refund)
async def reserve(order: Order) -> Receipt:
    return Receipt(order.id, 0)


def step(number: int) -> int:
    return double(number)


@hf.workflow
def child(order: Order, note: str = "") -> Receipt:
    return charge(order)


@hf.workflow(on_failure="compensate", variables={"verified": bool}, persistence="lazy", timeout="1h")
def shop(order: Order) -> dict[str, Any]:
    with hf.phase("payment"):
        receipt = assert_type(charge(order), Receipt)
    assert_type(receipt.amount, int)
    assert_type(notify(order, urgent=True), None)
    assert_type(weigh("lamp"), float)
    assert_type(double(receipt.amount), int)
    assert_type(pick.named("pick_first")("lamp", shelf=3), str)
    assert_type(pick.after(receipt)("lamp"), str)
    boxes = assert_type(hf.map(pick, order.items, limit=8, shelf=2), list[str])
    assert_type(boxes[0], str)
    assert_type(hf.map(weigh, order.items), list[float])
    grown = assert_type(hf.loop(double, start=1, until=lambda n: n > 100, max_visits=20, at_limit="take"), int)
    assert_type(hf.loop(step, 1, lambda n: n > 100), int)
    with hf.when(order.amount > 1000):
        extra = reserve(order)
    with hf.when(hf.skipped(extra) | (extra.amount == 0)):
        label = pick("label")
    with hf.route(order.id) as by_id:
        with by_id("42"):
            first = double(1)
        with by_id.otherwise():
            second = double(2)
    with hf.routes(order.items) as by_item, by_item("lamp"):
        double(3)
    assert_type(hf.first(first, second), int)
    assert_type(hf.first(label, None), str | None)
    assert_type(hf.any_of(first, second), int)
    assert_type(hf.some(first, second, n=2), list[int])
    assert_type(hf.size(boxes), int)
    assert_type(hf.text("{} boxes", hf.size(boxes)), str)
    assert_type(hf.contains(boxes, "lamp"), bool)
    assert_type(hf.is_none(receipt), bool)
    assert_type(hf.starts_with(label, "a"), bool)
    assert_type(hf.ends_with(label, "a"), bool)
    assert_type(hf.if_else(first > 1, "a", label), str)
    assert_type(hf.failed(label), bool)
    assert_type(child(order, note="quick"), Receipt)
    ok = assert_type(hf.ask("Ship?", about=order, schema=Decision, basket="finance", deadline="2d"), Decision)
    with hf.when(hf.skipped(ok) | ok.approved):
        pick(ok.note)
    assert_type(hf.ask("How many?", schema=int, assignee=order.id, default=1, deadline=60, named="how_many"), int)
    assert_type(hf.ask("Anything?", remind="1d", escalate=[hf.Escalate("2d", basket="managers")], after=ok), Any)
    assert_type(hf.receive("paid", schema=Receipt, deadline="1d", default=receipt), Receipt)
    assert_type(hf.receive(hf.text("paid-{}", order.id)), Any)
    nap = hf.sleep("1h", after=receipt)
    double.after(nap)(hf.var("verified"))
    return {"receipt": receipt, "grown": grown}


without_ctx: Callable[[Order], Receipt] = charge
assert_type(shop.name, str)


@hf.workflow
def wrong(order: Order) -> None:
    charge("42")  # type: ignore[arg-type]
    charge(order, 1)  # type: ignore[call-arg]
    pick(item=1)  # type: ignore[arg-type]
    charge(order).colour  # type: ignore[attr-defined]  # noqa: B018
    hf.map(pick, [1, 2])  # type: ignore[arg-type]
    child()  # type: ignore[call-arg]
    hf.Retry(attempt=3)  # type: ignore[call-arg]
    hf.loop(double, start="one", until=lambda n: n > 1)  # type: ignore[arg-type]
    hf.ask("Ship?", schema=Decision).colour  # type: ignore[attr-defined]  # noqa: B018
    hf.ask("Ship?", dedline="2d")  # type: ignore[call-overload]


@hf.node
async def reviews(order: Order) -> Receipt:
    if not order.items:
        return hf.ticket("reject")
    if order.amount > 1000:
        return hf.pend("second_look", output=Receipt(order.id, 0), ticket="reject")
    if order.amount > 100:
        hf.pend("retry_queue", rerun=True, error=ConnectionError("down"))
    if order.amount < 0:
        hf.goto("reviews", output=Receipt(order.id, 0))
    return Receipt(order.id, order.amount)


@hf.workflow(tickets={"reject": "refund"}, max_visits=5)
def journey(order: Order) -> Receipt:
    receipt = assert_type(reviews(order), Receipt)
    refund(receipt)
    return receipt
