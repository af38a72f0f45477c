"""An order: take the money, pick the goods, ship them; give the money back when something goes wrong.

    python examples/order.py
    holdfast run examples/order.py:fulfil
    holdfast run examples/order.py:fulfil --input '{"order": {"id": "43", "amount": 60, "items": ["unicorn"]}}'
    holdfast crashtest examples/order.py:fulfil

Shows a graph: functions wired by calling them, phases, a flaky service behind `Retry`, a map over the items, nodes that
run only `when` a condition holds, and `on_failure="compensate"`, which undoes what was done (the second command above
fails, and its journal shows the refund).

A crash may make any node run twice. `ctx.idempotency_key` is what keeps a customer from being charged twice: it is the
same for every attempt of a node, also after a crash. `idempotent=True` says that a node may simply be repeated.
`crashtest` tries every crash there is, and finds nothing to complain of.
"""

from dataclasses import dataclass

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


SAMPLE = Order("42", 1500, ["lamp", "desk", "chair"])
DONE: dict[str, str] = {}
"""Stands for the services outside, which answer a second call with the same key as they answered the first."""


class OutOfStock(Exception):
    """There is none left, and there will be none if we ask again."""


@hf.node
def refund(ctx: hf.SyncContext, receipt: str) -> None:
    """Undo a charge. A compensation gets the output of the node that it undoes."""
    ctx.log.info("paying %s back", DONE.setdefault(ctx.idempotency_key, receipt))


@hf.node(
    retry=hf.Retry(attempts=5, backoff=0.05, max_delay=1, on=(ConnectionError, TimeoutError)),
    timeout=20,
    compensate=refund,
)
async def charge(ctx: hf.Context, order: Order) -> str:
    """Take the money. The payment service is down for the first two calls, as such services are."""
    key = ctx.idempotency_key
    if ctx.attempt < 3:
        raise ConnectionError("the payment service does not answer")
    return DONE.setdefault(key, f"receipt-{order.id}")


@hf.node(idempotent=True)
async def check(order: Order) -> Decision:
    """Look at a large order more closely."""
    return Decision(approved=order.amount < 10_000, note=f"{order.amount} is a large order")


@hf.node(concurrency=2, idempotent=True)
def pick(item: str) -> str:
    """Fetch one item from the shelf. A sync body runs in a thread; at most two of these at once."""
    if item == "unicorn":
        raise OutOfStock(item)
    return f"box with a {item}"


@hf.node
async def ship(ctx: hf.Context, order: Order, boxes: list[str], receipt: str) -> str:
    """Hand the boxes over to the carrier."""
    label = f"{len(boxes)} boxes for order {order.id}, paid with {receipt}"
    return DONE.setdefault(ctx.idempotency_key, label)


@hf.workflow(on_failure="compensate")
def fulfil(order: Order = SAMPLE) -> dict[str, str | None]:
    """Fulfil an order. This function runs once, to build the graph; what it calls runs later, durably."""
    with hf.phase("payment"):
        receipt = charge(order)
    with hf.phase("packing", after="payment"):
        boxes = hf.map(pick, order.items, limit=8)
    with hf.when(order.amount > 1000):
        decision = check(order)
    with hf.when(hf.skipped(decision) | decision.approved):
        label = ship(order, boxes, receipt)
    return {"receipt": receipt, "label": hf.first(label, None)}


if __name__ == "__main__":
    print(hf.run(fulfil)["label"])
    print(hf.run(fulfil, order=Order("44", 90_000, ["castle"]))["label"])
    try:
        hf.run(fulfil, order=Order("43", 60, ["lamp", "unicorn"]))
    except hf.RunFailed as failure:
        print(failure.error.message, "(the charge was refunded)")
