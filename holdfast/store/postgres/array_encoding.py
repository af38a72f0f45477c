"""Arrays for PostgreSQL: columns of a group, in the form in which the server reads them.

Owns: the binary form of `bigint[]`, `text[]` and `bytea[]`.
Why: asyncpg asks of every element whether it is an array itself, twice for a text, which took more time than everything
else that our process does to write a commit. Ours are flat, and a column is encoded as a whole.
Never: decodes one. No statement of ours answers with an array.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NoReturn

import asyncpg

from holdfast.store.postgres.driver_internals import Raw, set_array_encoder

_TYPES: Final = {"bigint": (20, 1016, "_int8"), "text": (25, 1009, "_text"), "bytea": (17, 1001, "_bytea")}
"""The number of each type, the number of its array, and what the catalogue calls that one. They never change."""
_NULL: Final = b"\xff\xff\xff\xff"
"""The length -1."""
_size: Final = struct.Struct(">i").pack
_sized_long: Final = struct.Struct(">iq").pack
SHORT: Final = 16
"""Up to here numbers are laid out one by one: the commit of one run has a dozen columns of one to three."""


def install(connection: Raw) -> None:
    """Encode the arrays that are sent over this connection here."""
    for name, encode in (("bigint", bigints), ("text", texts), ("bytea", byteas)):
        _, oid, catalogued = _TYPES[name]
        set_array_encoder(connection, oid, catalogued, encode, _refuse)


def bigints(values: Collection[int | None]) -> bytes:
    header = _header("bigint", len(values))
    if len(values) <= SHORT or None in values:
        return header + b"".join([_NULL if value is None else _sized_long(8, value) for value in values])
    numbers = array("q", values)  # type: ignore[type-var]  # there is no None among them
    if sys.byteorder == "little":
        numbers.byteswap()
    halves = array("i", numbers.tobytes())
    places = array("i", _size(8)) * (3 * len(numbers))  # of each number its length, its high half and its low half
    places[1::3], places[2::3] = halves[0::2], halves[1::2]
    return header + places.tobytes()


def texts(values: Collection[str | None]) -> bytes:
    return _header("text", len(values)) + b"".join(map(_text, values))


def byteas(values: Collection[bytes | None]) -> bytes:
    sized = [_NULL if value is None else _size(len(value)) + value for value in values]
    return _header("bytea", len(values)) + b"".join(sized)


@lru_cache(maxsize=4096)
def _text(value: str | None) -> bytes:
    """Names of nodes, types and statuses come again and again."""
    if value is None:
        return _NULL
    encoded = value.encode()
    return _size(len(encoded)) + encoded


@lru_cache(maxsize=4096)
def _header(name: str, length: int) -> bytes:
    """One dimension, counted from 1; whether there is a null among them the server sees for itself."""
    return struct.pack(">iiiii", 1, 0, _TYPES[name][0], length, 1)


def _refuse(_: bytes) -> NoReturn:
    raise asyncpg.InterfaceError("a statement of ours answers with an array, which nobody decodes")
