"""Captures: the small parts of values that rules keep, so that they decide without loading a value.

Owns: what a captured value is called, a condition by those names, making captures of a value, and the bound on them.
Never: finds out which captures a definition needs (plans.py), or where they are held (references.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.errors import ValueTooLarge
from holdfast.model.expressions import CHOOSING, Expr, Wanted, chain, follow, part_of, pointer, wanted_of
from holdfast.model.limits import CAPTURED_BYTES_MAX

Capture = tuple[str, tuple[str | int, ...], Wanted]
"""The name of a captured value, the keys it is read by, and what of it is kept."""


def by_captures(expr: Expr) -> Expr:
    """A condition whose chains are replaced by ["captured", kind, scope or node, name], so that evaluating it need not
    find out again and again what they are called. What `first` and `some` choose from stays: it is chosen by node."""
    if not isinstance(expr, list) or expr[0] in CHOOSING or expr[0] == "const":
        return expr
    wanted, below = wanted_of(expr)
    link = chain(below)
    if link is not None:
        (kind, *names), keys = link
        name = wanted + pointer(keys)
        match kind:
            case "node":
                return ["captured", kind, names[0], name]
            case "param":
                return ["captured", kind, names[0], f"{names[1]}:{name}"]
        return ["captured", kind, "", f"{names[0]}:{name}"]
    match expr:
        case ["get", whole, key]:
            return ["get", by_captures(whole), key]
        case [("size" | "count") as op, ["if", condition, yes, no]]:  # what is captured of either is its size
            return by_captures(["if", condition, [op, yes], [op, no]])
    return [expr[0], *(by_captures(e) for e in expr[1:])]


def reading(expr: Expr, keys: tuple[str | int, ...], wanted: Wanted) -> Expr:
    """The expression that a capture of `expr` stands for."""
    for key in keys:
        expr = ["get", expr, key]
    return [{"#": "size", "@": "count"}[wanted], expr] if wanted else expr


_plain = msgspec.json.Decoder().decode


def capture(value: Any, keys: tuple[str | int, ...], wanted: Wanted) -> Any:
    """The part of a plain JSON value that rules keep, or the size of that part."""
    return part_of(follow(value, keys), wanted)


def captured(data: bytes, captures: tuple[Capture, ...], what: str) -> dict[str, Any]:
    """All captures of one encoded value. Raises ValueTooLarge if they exceed the bound."""
    if not captures:
        return {}
    value = _plain(data)
    found = {name: capture(value, keys, wanted) for name, keys, wanted in captures}
    check_size(found, what)
    return found


def check_size(found: dict[str, Any], what: str) -> None:
    """Raise ValueTooLarge if captured values exceed CAPTURED_BYTES_MAX."""
    size = len(msgspec.json.encode(found))
    if size > CAPTURED_BYTES_MAX:
        names = ", ".join(sorted(found))
        raise ValueTooLarge(
            f"conditions read {names or 'the whole'} of {what}: {size:,} bytes, the limit is {CAPTURED_BYTES_MAX:,}; "
            "let them read a field or a size instead"
        )
