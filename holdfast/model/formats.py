"""Formats: texts in JSON that stand for something else, such as an instant, a duration or bytes.

Owns: which texts each format of a JSON Schema takes, so that what passes its schema can also be read into its type; and
naming the format where a schema made from an annotation leaves it open.
Never: knows formats that are only texts (e-mail addresses, host names); whoever checks schemas has those.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from holdfast.model.schemas import with_types


def _reads_as(kind: type) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return False
        return True

    return check


CHECKS: Final[dict[str, Callable[[str], bool]]] = {
    name: _reads_as(kind)
    for name, kind in (
        ("date-time", datetime),
        ("date", date),
        ("time", time),
        ("partial-time", time),
        ("duration", timedelta),
        ("uuid", UUID),
        ("decimal", Decimal),
        ("byte", bytes),
    )
}
"""Whether a text is of a format. The codec decides: instants need no time zone, durations have no months."""

_OPEN: Final = {inspect.DateTimeType: "date-time", inspect.TimeType: "time", inspect.BytesType: "byte"}
"""Types whose texts msgspec's schemas say nothing about."""


def name_open_ones(annotation: Any, schema: dict[str, Any]) -> None:
    """Put `format` into the schema of this annotation wherever its type says more about a text than the schema does."""
    for info, part in with_types(annotation, schema):
        if (name := _OPEN.get(type(info))) and part.get("type") == "string":
            part.setdefault("format", name)
