"""Change hints: how an engine learns that another process has written to the server.

Owns: comparing two snapshots of a server (`Changes`); one connection that listens, and the thread that reads it and
reconnects when it dies (`Listener`).
Never: is relied on. An engine that is woken polls, and would have polled soon anyway; a notification that is sent while
the listener is not connected is lost.
Invariants: `wake` is called after every connect, for what was missed before it. The notification is part of the
transaction that writes (`pg_notify` in the statements), so that an engine that polls then finds the change. Commits of
steps do not notify: the server lets only one notifying transaction end at a time. A transaction of another process that
has ended since the last snapshot is reported once; one of our own whose number was not recorded yet counts as another
process's: a hint too many, never one too few.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import asyncpg

from holdfast.model.errors import HoldfastError
from holdfast.store.postgres.driver_internals import Raw
from holdfast.store.postgres.postgres_address import Address
from holdfast.store.postgres.postgres_connections import LOST, Connections, describe

ALIVE_SECONDS: Final = 15.0
"""How often an idle connection is tested: it can die without a message."""

AGAIN_SECONDS: Final = 1.0
"""How long to wait before reconnecting."""

CLOSE_SECONDS: Final = 1.0
"""How long closing waits for the thread, which holds no resource that others need."""

ANSWER_SECONDS: Final = 5.0

log = logging.getLogger("holdfast.store")


class Listener:
    """Calls `wake` in a thread of its own, soon after another process has written something that needs an owner."""

    def __init__(self, where: Address, wake: Callable[[], None]) -> None:
        self._channel = where.schema
        self._wake = wake
        self._connections = Connections(where._replace(connections=1), ANSWER_SECONDS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdfast-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop calling `wake`."""
        self._closing.set()
        self._connections.close()
        self._thread.join(CLOSE_SECONDS)

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                with self._connections.lend() as connection:
                    connection.wait(self._hear(connection.raw))
            except (*LOST, asyncpg.PostgresError, asyncpg.InterfaceError, HoldfastError) as error:
                log.debug("not listening any more, connecting again: %s", describe(error))
                self._closing.wait(AGAIN_SECONDS)

    async def _hear(self, raw: Raw) -> None:
        """Listen until the connection dies, or is given up."""
        heard = asyncio.Event()

        def told(*_: Any) -> None:
            heard.set()

        raw.add_termination_listener(told)
        await raw.add_listener(self._channel, told)
        heard.set()
        while True:
            try:
                async with asyncio.timeout(ALIVE_SECONDS):
                    await heard.wait()
            except TimeoutError:
                await raw.execute("SELECT 1")
                continue
            heard.clear()
            if raw.is_closed():
                raise ConnectionResetError("the server has ended the connection")
            self._wake()


class _Moment(NamedTuple):
    """A snapshot, written `xmin:xmax:xip,xip,...`: every transaction below xmin has ended, none from xmax on has begun,
    and of those between the listed ones are still in progress."""

    xmin: int
    xmax: int
    under_way: frozenset[int]

    def has_ended(self, transaction: int) -> bool:
        return transaction < self.xmax and transaction not in self.under_way


def _moment(snapshot: str) -> _Moment:
    xmin, xmax, under_way = snapshot.split(":")
    return _Moment(int(xmin), int(xmax), frozenset(map(int, under_way.split(","))) if under_way else frozenset())


class Changes:
    """Whether another process has written since the last snapshot. Transactions of other databases of the same server
    count as well: the hint is cheap, and the engine that follows it finds nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = _Moment(0, 0, frozenset())
        self._own: set[int] = set()

    def add_own(self, transaction: int) -> None:
        """Record a transaction as our own."""
        with self._lock:
            self._own.add(transaction)

    def look(self, snapshot: str) -> bool:
        """True if a transaction of another process has ended between the last snapshot and this one."""
        now = _moment(snapshot)
        with self._lock:
            before, self._seen = self._seen, now
            ended = (now.xmax - len(now.under_way)) - (before.xmax - len(before.under_way))
            own = [one for one in self._own if now.has_ended(one)]
            new_of_ours = sum(not before.has_ended(one) for one in own)
            self._own.difference_update(own)
            return ended != new_of_ours
