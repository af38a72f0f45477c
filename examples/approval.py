"""An approval: a large order waits for a person, for days if need be, and the process may end meanwhile.

    python examples/approval.py
    holdfast run examples/approval.py:fulfil --run-id order-42
    holdfast inbox
    holdfast respond WAIT --input '{"approved": true}'
    holdfast crashtest examples/approval.py:fulfil --answer 'Ship this order?={"approved": true}'

Shows `hf.ask`: a node that asks a person. The run waits in a row of the database and costs no memory; `holdfast run`
exits with code 3 and says how to answer. An answer is checked against the type of `schema`, the first one wins, and it
may come from any process, whether an engine runs or not. Somebody is reminded every four hours, after a day the
question goes to the managers, and when two days have passed without an answer the default decides.
"""

import asyncio
import tempfile
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


SAMPLE = Order("42", 1500, ["lamp", "desk"])
DONE: dict[str, str] = {}
"""Stands for the services outside, which answer a second call with the same key as they answered the first."""


@hf.node
def refund(ctx: hf.SyncContext, receipt: str) -> None:
    """Undo a charge. A compensation gets the output of the node that it undoes."""
    DONE[ctx.idempotency_key] = receipt


@hf.node(retry=hf.Retry(attempts=5, backoff=0.5, max_delay=30, on=(ConnectionError, TimeoutError)), compensate=refund)
async def charge(ctx: hf.Context, order: Order) -> str:
    return DONE.setdefault(ctx.idempotency_key, f"receipt-{order.id}")


@hf.node(idempotent=True)
def pick(item: str) -> str:
    return f"box with a {item}"


@hf.node
def ship(ctx: hf.SyncContext, order: Order, boxes: list[str], receipt: str) -> str:
    return DONE.setdefault(ctx.idempotency_key, f"{len(boxes)} boxes, paid with {receipt}")


@hf.workflow(on_failure="compensate")
def fulfil(order: Order = SAMPLE) -> dict[str, str | None]:
    """Charge, pick, ask where the amount is large, ship."""
    with hf.phase("payment"):
        receipt = charge(order)
    boxes = hf.map(pick, order.items, limit=8)
    with hf.when(order.amount > 1000):
        ok = hf.ask(
            "Ship this order?",
            about=order,
            schema=Decision,
            basket="finance",
            remind="4h",
            escalate=hf.Escalate("1d", basket="managers"),
            deadline="2d",
            default=Decision(False, "nobody has answered"),
        )
    with hf.when(hf.skipped(ok) | ok.approved):
        label = ship(order, boxes, receipt)
    return {"receipt": receipt, "label": hf.first(label, None)}


async def decide(url: str, run_id: str, decision: Decision) -> None:
    """What somebody in finance does, in a program of their own."""
    async with hf.open(url, recover=False) as engine:
        for question in await engine.asked(basket="finance"):
            print(question.question, question.about)
            try:
                await engine.get(run_id).respond(question.wait_id, {"approved": "maybe"}, actor="ada")
            except hf.InvalidInput as problem:
                print("refused:", str(problem).partition(": ")[2])
            await engine.get(run_id).respond(question.wait_id, decision, actor="ada")
            try:
                await engine.get(run_id).respond(question.wait_id, Decision(False), actor="bob")
            except hf.Refused as refusal:
                print("refused:", str(refusal).partition("was ")[2])


def main(url: str) -> None:
    print(hf.run(fulfil, order=Order("41", 150, ["lamp"]), db=url)["label"])  # a small order asks nobody
    try:
        hf.run(fulfil, order=SAMPLE, run_id="order-42", db=url)
    except hf.RunSuspended as suspended:
        print(suspended.run_id, "waits for", ", ".join(wait.kind for wait in suspended.waits))
    asyncio.run(decide(url, "order-42", Decision(True, "gladly")))
    print(hf.run(fulfil, order=SAMPLE, run_id="order-42", db=url)["label"])  # the same run, which continues


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"sqlite:///{folder}/approval.db")
