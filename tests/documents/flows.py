"""Handlers that the documents of these tests name."""

from __future__ import annotations

from typing import Any

import holdfast as hf


@hf.node(name="double")
def double(x: int, label: str = "") -> int:
    return 2 * x


@hf.node(name="add")
def add(a: int, b: int) -> int:
    return a + b


@hf.node(name="refund")
def refund(receipt: str) -> None:
    """Nothing to do."""


@hf.node(name="charge", retry=hf.Retry(5), timeout=20, compensate=refund)
def charge(order: dict[str, Any]) -> str:
    return f"receipt-{order['id']}"


@hf.node(name="everything")
def everything(**given: Any) -> dict[str, Any]:
    return given


@hf.node(name="takes_input")
def takes_input(_input: dict[str, Any], left: int) -> list[Any]:
    return [_input, left]


@hf.node(name="count_up")
def count_up(value: int) -> int:
    return value + 1
