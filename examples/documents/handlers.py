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
