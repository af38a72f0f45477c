"""Python handlers that the documents in this folder name."""

from __future__ import annotations

from typing import Any

import holdfast as hf


@hf.node(name="double", idempotent=True)
def double(x: int) -> int:
    return 2 * x


@hf.node(name="add", idempotent=True)
def add(a: int, b: int) -> int:
    return a + b


@hf.node(name="refund", idempotent=True)
def refund(receipt: str) -> None:
    """Undo a charge; the payment service ignores a receipt that it has refunded before."""


@hf.node(name="charge", retry=hf.Retry(attempts=5, backoff=0.5), timeout=20, compensate=refund, idempotent=True)
def charge(ctx: hf.SyncContext, order: dict[str, Any]) -> str:
    """The payment service honours the key, so that a repeated attempt charges once."""
    return f"receipt-{order['id']}"


@hf.node(name="pick", idempotent=True)
def pick(line: str, shelf: str) -> str:
    return f"{line} from {shelf}"


@hf.node(name="ship", idempotent=True)
def ship(order: dict[str, Any], boxes: list[str], receipt: str) -> str:
    return f"label-{order['id']}-{len(boxes)}"


# --- of the journey claim.yaml -------------------------------------------------------------------------------------


@hf.node(name="register", idempotent=True)
def register(ctx: hf.SyncContext, amount: int) -> None:
    ctx.vars["status"] = "open" if amount > 0 else "empty"


@hf.node(name="check", idempotent=True)
def check(ctx: hf.SyncContext, what: str) -> str:
    return f"{what} is fine"


@hf.node(name="look_again", idempotent=True)
def look_again(ctx: hf.SyncContext) -> None:
    """The first time a person should look; the checks are then made once more."""
    if ctx.vars["checks"] == 0:
        hf.pend("second_look")


@hf.node(name="decide", idempotent=True)
def decide(ctx: hf.SyncContext) -> str:
    ctx.vars["checks"] = ctx.vars["checks"] + 1
    return "again" if ctx.vars["checks"] < 2 else "pay"


@hf.node(name="save_claim", idempotent=True)
def save_claim() -> None:
    """The application saves its own data here."""


@hf.node(name="pay", idempotent=True)
def pay(ctx: hf.SyncContext, amount: int) -> str:
    ctx.vars["status"] = "paid"
    return f"paid {amount}"


@hf.node(name="close", idempotent=True)
def close(ctx: hf.SyncContext) -> None:
    if ctx.vars["status"] != "paid":
        ctx.vars["status"] = "rejected"
