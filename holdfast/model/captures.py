"""Captures: the few values that rules read of inputs and outputs, taken out when a value is made.

Owns: how a capture is cut out of a value, and its bound.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.errors import ValueTooLarge
from holdfast.model.expressions import Wanted, follow, part_of
from holdfast.model.graph import Capture
from holdfast.model.limits import CAPTURED_BYTES_MAX

_plain = msgspec.json.Decoder().decode


def capture(value: Any, keys: tuple[str | int, ...], wanted: Wanted) -> Any:
    """What rules keep of a plain JSON value: a part of it, or the size of that part."""
    return part_of(follow(value, keys), wanted)


def captured(data: bytes, captures: tuple[Capture, ...], what: str) -> dict[str, Any]:
    """All captures of one encoded value; more than fits a row is `ValueTooLarge`, with what reads it."""
    if not captures:
        return {}
    value = _plain(data)
    found = {name: capture(value, keys, wanted) for name, keys, wanted in captures}
    check_size(found, what)
    return found


def check_size(found: dict[str, Any], what: str) -> None:
    size = len(msgspec.json.encode(found))
    if size > CAPTURED_BYTES_MAX:
        names = ", ".join(sorted(found))
        raise ValueTooLarge(
            f"conditions read {names or 'the whole'} of {what}: {size:,} bytes, the limit is {CAPTURED_BYTES_MAX:,}; "
            "let them read a field or a size instead"
        )
