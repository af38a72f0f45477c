"""Listening: hearing at once that somebody has written something that wants an owner.

Owns: one connection that listens, and the thread that waits at it and connects again when it dies.
Never: is relied on. Whoever is woken looks for himself, and would have looked soon anyway; what is told while nobody is
connected is never told again.
Invariants: `wake` is called after every connection, for what was missed before it. It is told in the transaction that
writes, so that whoever looks finds it (`pg_notify` in the statements). Commits of steps do not tell: the server lets
only one transaction that tells anything end at a time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from holdfast.model.errors import HoldfastError
from holdfast.store.postgres_connections import LOST, Address, Connections, Raw, describe

ALIVE_SECONDS: Final = 15.0
"""How often a connection over which nothing comes is asked whether it is still one: it can die without a word."""

AGAIN_SECONDS: Final = 1.0
"""How long to wait before connecting again."""

CLOSE_SECONDS: Final = 1.0
"""How long closing waits for the thread; it holds nothing that anybody needs."""

ANSWER_SECONDS: Final = 5.0

log = logging.getLogger("holdfast.store")


class Listener:
    """Calls `wake` in a thread of its own, soon after others have written something that wants an owner."""

    def __init__(self, where: Address, wake: Callable[[], None]) -> None:
        self._channel = where.schema
        self._wake = wake
        self._connections = Connections(where._replace(connections=1), ANSWER_SECONDS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdfast-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wakes nobody any more."""
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
        """Until the connection dies, or is given up."""
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
