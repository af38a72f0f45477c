"""Texts: what people write beside values: names of people, baskets and signals, questions, reasons.

Owns: whether something is a text that can be stored, found again and shown, checked before it goes anywhere.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import UsageError
from holdfast.model.limits import NAME_LENGTH_MAX, TEXT_LENGTH_MAX

_QUOTED_LENGTH_MAX = 60


def name(value: Any, what: str) -> str:
    """The name of somebody or something, as it stands in an index: not empty."""
    return _checked(value, what, "a name", NAME_LENGTH_MAX, may_be_empty=False)


def actor(value: Any, what: str) -> str:
    """The name of whoever does something; nobody need say who they are."""
    return _checked(value, f"{what}: actor", "a name", NAME_LENGTH_MAX, may_be_empty=True)


def question(value: Any, what: str) -> str:
    """A text that says something."""
    return _checked(value, what, "a text", TEXT_LENGTH_MAX, may_be_empty=False)


def reason(value: Any, what: str) -> str:
    """A text that may be left empty."""
    return _checked(value, f"{what}: reason", "a text", TEXT_LENGTH_MAX, may_be_empty=True)


def is_name(value: Any) -> bool:
    """Whether this can be the name of anything at all, or the beginning of one."""
    return isinstance(value, str) and bool(value) and len(value) <= NAME_LENGTH_MAX and _can_be_stored(value)


def _checked(value: Any, what: str, kind: str, length_max: int, *, may_be_empty: bool) -> str:
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise UsageError(f"{what} is {kind}, not {_quoted(value)}")
    if len(value) > length_max:
        raise UsageError(f"{what} has {len(value):,} characters, and at most {length_max:,} are taken")
    if not _can_be_stored(value):
        raise UsageError(f"{what}: {_quoted(value)} has characters that cannot be stored (a lone surrogate, or NUL)")
    return value


def _can_be_stored(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _quoted(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _QUOTED_LENGTH_MAX else f"{shown[:_QUOTED_LENGTH_MAX]}…"
