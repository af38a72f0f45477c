"""Driver internals: every private name of asyncpg and of asyncio that the PostgreSQL driver uses.

Owns: these names, the check at each open that the installed versions have them and that they do what the driver needs,
and the binary form of `bigint[]`, `text[]` and `bytea[]`.
Never: used by other packages. A release of asyncpg may change any name, so pyproject.toml has an upper bound. Never
decodes an array: no statement returns one.

- `asyncio.events._get_running_loop`, `_set_running_loop`, `asyncio.tasks._enter_task`, `_leave_task`: run the event
  loop of a connection inside a thread whose own loop is running (`run_blocking`). "Extending asyncio" documents them
  for authors of event loops. Without them a store could not be used from async code.
- `asyncpg.Connection._get_statement`, `_config`: prepare a statement so that `fetch` finds it (`prepare`); the public
  `prepare` keeps its statement to itself. Without them a process that is suspended in the middle of a transaction
  could hold its locks without a time limit.
- `asyncpg.Connection._protocol.get_settings().add_python_codec`: encode a whole array in one call
  (`set_array_encoder`); the public `set_type_codec` refuses arrays. Without it a commit takes a sixth longer.
"""

from __future__ import annotations

import asyncio
import platform
import struct
import sys
from array import array
from asyncio import events, tasks
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import asyncpg
from asyncpg.protocol import protocol

from holdfast.model.errors import StoreError
from holdfast.store.sql_files import load

SUPPORTED: Final = "asyncpg>=0.30,<0.33"
"""The versions that the tests have seen; pyproject.toml says the same."""

if TYPE_CHECKING:
    Raw = asyncpg.Connection[asyncpg.Record]
else:
    Raw = asyncpg.Connection
"""A connection of asyncpg, as distinct from ours, which adds an event loop to it."""

_T = TypeVar("_T")
_REQUIRED: Final[tuple[tuple[Any, str, tuple[str, ...]], ...]] = (
    (events, "asyncio.events", ("_get_running_loop", "_set_running_loop")),
    (tasks, "asyncio.tasks", ("_enter_task", "_leave_task")),
    (asyncpg.Connection, "asyncpg.Connection", ("_config", "_get_statement", "_protocol")),
    (protocol.Protocol, "asyncpg.protocol.Protocol", ("get_settings",)),
    (protocol.ConnectionSettings, "asyncpg.protocol.ConnectionSettings", ("add_python_codec",)),
)
_SELF_TEST: Final = load("postgres")["self_test"]
_NUMBERS: Final = (1, None, -(2**63), *range(100))
_TEXTS: Final = ("", None, "ä€😀")
_BYTES: Final = (b"", None, bytes(range(256)))
_ARRAYS_AS_TEXT: Final = [
    ",".join("-" if value is None else str(value) for value in values)
    for values in (_NUMBERS, _TEXTS, [None if value is None else value.hex() for value in _BYTES])
]


def run_blocking(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` on an idle event loop and return its result, also where this thread is running another loop. That one
    is blocked meanwhile: for as long as `loop` runs, this thread has no other running loop and no other task."""
    running = events._get_running_loop()
    if running is None:
        return loop.run_until_complete(work)
    task = tasks.current_task(running)
    if task is not None:
        tasks._leave_task(running, task)
    events._set_running_loop(None)
    try:
        return loop.run_until_complete(work)
    finally:
        events._set_running_loop(running)
        if task is not None:
            tasks._enter_task(running, task)


async def prepare(connection: Raw, statements: Iterable[str]) -> None:
    """Prepare statements so that `fetch` finds them prepared. Behind a pooler nothing is kept prepared."""
    if connection._config.statement_cache_size:  # type: ignore[attr-defined]
        for statement in statements:
            await connection._get_statement(statement, None)  # type: ignore[attr-defined]


def set_array_encoder(
    connection: Raw, oid: int, name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Let `encode` produce the binary form of arrays of this type, over this connection."""
    settings = connection._protocol.get_settings()  # type: ignore[attr-defined]
    try:
        settings.add_python_codec(oid, name, "pg_catalog", [], "scalar", encode, decode, "binary")
    except TypeError as error:
        raise _unsupported(f"add_python_codec takes other arguments ({error})") from error


def check_names() -> None:
    """Raise StoreError if the installed Python or asyncpg lacks one of the names. Costs microseconds."""
    missing = [f"{where}.{name}" for owner, where, names in _REQUIRED for name in names if not hasattr(owner, name)]
    if missing:
        raise _unsupported(f"it lacks {', '.join(missing)}")


async def self_test(connection: Raw) -> None:
    """Raise StoreError unless the names do what this module needs of them: three round trips over a new connection."""
    try:
        _test_nested_loop()
        await prepare(connection, [_SELF_TEST])
        (found,) = await connection.fetch(_SELF_TEST, _NUMBERS, _TEXTS, _BYTES, _SELF_TEST)
    except (AttributeError, TypeError, RuntimeError) as error:
        raise _unsupported(f"{type(error).__name__}: {error}") from error
    *arrays, prepared = found
    if arrays != _ARRAYS_AS_TEXT:
        raise _unsupported("an array does not reach the server as it was sent")
    if prepared > 1:
        raise _unsupported("`fetch` does not find a statement that was prepared")


def _test_nested_loop() -> None:
    """Run a loop inside the running one, and check that the outer one is as it was."""
    outer, task = asyncio.get_running_loop(), asyncio.current_task()
    inner = asyncio.SelectorEventLoop()
    try:
        seen = run_blocking(inner, _where())
    finally:
        inner.close()
    if seen[0] is not inner or seen[1] is task or (asyncio.get_running_loop(), asyncio.current_task()) != (outer, task):
        raise RuntimeError("an event loop does not run inside another one")


async def _where() -> tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]:
    return asyncio.get_running_loop(), asyncio.current_task()


def _unsupported(reason: str) -> StoreError:
    return StoreError(
        f"Holdfast's PostgreSQL driver does not work with asyncpg {asyncpg.__version__} on Python "
        f"{platform.python_version()}: {reason}. Install a version that it was tested with: pip install '{SUPPORTED}'"
    )


_TYPES: Final = {"bigint": (20, 1016, "_int8"), "text": (25, 1009, "_text"), "bytea": (17, 1001, "_bytea")}
"""The OID of each type, the OID of its array, and the array's name in the catalog. They never change."""
_NULL: Final = b"\xff\xff\xff\xff"
"""The length -1."""
_size: Final = struct.Struct(">i").pack
_sized_long: Final = struct.Struct(">iq").pack
SHORT: Final = 16
"""Up to this length numbers are encoded one by one: the commit of one run has a dozen columns of one to three."""


def install_array_encoders(connection: Raw) -> None:
    """Encode the arrays that are sent over this connection here, a column at a time. asyncpg checks of every element
    whether it is an array itself, twice for a text, which took more time than everything else that our process does to
    write a commit."""
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
    """Encode a text. Names of nodes, types and statuses recur, so the result is cached."""
    if value is None:
        return _NULL
    encoded = value.encode()
    return _size(len(encoded)) + encoded


@lru_cache(maxsize=4096)
def _header(name: str, length: int) -> bytes:
    """One dimension, counted from 1; the server finds out itself whether there is a null."""
    return struct.pack(">iiiii", 1, 0, _TYPES[name][0], length, 1)


def _refuse(_: bytes) -> NoReturn:
    raise asyncpg.InterfaceError("a statement returned an array, which this driver does not decode")
