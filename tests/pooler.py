"""A transaction pooler before a PostgreSQL server, as PgBouncer is one: every transaction may meet another session.

It speaks as much of the protocol as a driver needs. A client has a session from the first message of a transaction to
its end, which the server tells; then that session goes to whoever asks next, in turn. Nothing is reset in between.
"""

from __future__ import annotations

import queue
import select
import socket
import struct
import threading
from contextlib import suppress
from urllib.parse import quote

from tests.servers import PostgresServer

SESSIONS = 3
_SSL, _CANCEL, _VERSION_3 = 80877103, 80877102, 196608
_KNOWN = {"user", "database", "application_name", "client_encoding"}
"""What such a pooler takes from a client; whatever else it wants of its session it cannot have."""


class Pooler:
    """Listens on a port of its own, with a few sessions for however many clients."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._idle: queue.Queue[socket.socket] = queue.Queue()
        self._greeting = b""
        for _ in range(SESSIONS):
            self._idle.put(self._session())
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, direct: str) -> str:
        """The way through the pooler to an address of the server."""
        port = self._listener.getsockname()[1]
        host = f"host={quote(str(self._server.directory))}&"
        return direct.replace("@/", f"@127.0.0.1:{port}/").replace(host, "statement_cache_size=0&")

    def close(self) -> None:
        _end(self._listener)
        while not self._idle.empty():
            _end(self._idle.get())

    def _session(self) -> socket.socket:
        """A session of the server; what it says first is what every client is told."""
        session = socket.socket(socket.AF_UNIX)
        session.connect(str(self._server.socket))
        said = b"user\0postgres\0database\0postgres\0\0"
        session.sendall(struct.pack("!ii", len(said) + 8, _VERSION_3) + said)
        self._greeting = b""
        while not self._greeting.endswith(b"Z\0\0\0\x05I"):
            self._greeting += _message(session)
        return session

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # answers are many small messages
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session: socket.socket | None = None
        with suppress(OSError):
            if self._greets(client):
                while True:
                    wires = [client] if session is None else [client, session]
                    for wire in select.select(wires, [], [])[0]:
                        said = _message(wire)
                        if wire is session:
                            client.sendall(said)
                            if said == b"Z\0\0\0\x05I":
                                self._idle.put(session)
                                session = None
                        elif said[:1] == b"X":
                            raise ConnectionResetError
                        else:
                            if session is None:
                                session = self._idle.get()
                            session.sendall(said)
        _end(client)
        if session is not None:  # in the middle of something: nobody gets such a session
            _end(session)
            with suppress(OSError):
                self._idle.put(self._session())

    def _greets(self, client: socket.socket) -> bool:
        size, code = struct.unpack("!ii", _exactly(client, 8))
        if code == _SSL:
            client.sendall(b"N")
            return self._greets(client)
        if code == _CANCEL:
            return False
        wanted = _exactly(client, size - 8).split(b"\0")[:-2:2]
        strange = {name.decode() for name in wanted} - _KNOWN
        if strange:
            said = f"SFATAL\0C08P01\0Munsupported startup parameter: {min(strange)}\0\0".encode()
            client.sendall(b"E" + struct.pack("!i", len(said) + 4) + said)
            return False
        client.sendall(self._greeting)
        return True


def _message(wire: socket.socket) -> bytes:
    head = _exactly(wire, 5)
    return head + _exactly(wire, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(wire: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = wire.recv(size - len(found))
        if not more:
            raise ConnectionResetError
        found += more
    return found


def _end(wire: socket.socket) -> None:
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
    wire.close()
