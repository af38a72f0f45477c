"""Places: where a part of a document stands, and what a text that cannot be read is refused with.

Owns: pointers, lines and columns, `Unreadable`, and which numbers a document may hold.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from holdfast.model.limits import DOCUMENT_DEPTH_MAX, DOCUMENT_INTEGER_MAX, DOCUMENT_VALUES_MAX

Pointer = tuple[str | int, ...]
"""The keys and indices that lead to a part of a document."""

TOO_DEEP: Final = (f"values are nested deeper than {DOCUMENT_DEPTH_MAX}", "flatten them")
TOO_MANY: Final = (f"the file has more than {DOCUMENT_VALUES_MAX:,} values", "split it into several files")


class Place(NamedTuple):
    """Where a part of a document is; lines and columns count from 1."""

    line: int
    column: int
    key_line: int
    key_column: int
    """The key that leads to it; of an item of a list the item itself."""
    inside: int
    """Characters between its beginning and that of its text: 1 for a quoted one, -1 when the text has several lines."""


class Unreadable(Exception):
    """What is wrong with a text, where, and what to write instead."""

    def __init__(self, message: str, hint: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.line = line
        self.column = column


class BadNumber(Exception):
    """A number that a document may not hold."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(message)
        self.text = text
        self.message = message
        self.hint = "write it as text, in quotes"


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """The line and the column of a character, from 1."""
    before = text[:offset]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def short(text: str) -> str:
    """A text as it is quoted in a message."""
    return repr(text) if len(text) <= 40 else repr(text[:37] + "...")


def integer(text: str) -> int:
    """A whole number of at most 64 bits. Raises BadNumber."""
    if len(text) > 20 or abs(value := int(text)) > DOCUMENT_INTEGER_MAX:
        raise BadNumber(text, f"the number {short(text)} does not fit into 64 bits")
    return value


def real(text: str) -> float:
    """A finite number. Raises BadNumber."""
    value = float(text)
    if not math.isfinite(value):
        raise BadNumber(text, f"the number {short(text)} is too large")
    return value
