"""Nursery: a process that has imported everything, and forks an engine's life in a few milliseconds.

Importing takes ten times as long as most of the lives that the supervisor ends. The nursery never opens a database and
has one thread, so what it forks is as good as a process that was started anew (`Nursery.start(fresh=True)` starts one).

One datagram each way over a socket: the order of a life comes with the file descriptor of its output, the nursery
answers with its pid, and later with its end. It ends its children and itself when the supervisor has gone.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

ROOT = str(Path(__file__).resolve().parents[2])
PATIENCE_SECONDS = 60.0
ORDER_BYTES_MAX = 1 << 20


# --- the supervisor's side ------------------------------------------------------------------------------------------


class Life:
    """One engine's process, from its start to its death."""

    def __init__(self, nursery: Nursery, pid: int, output: TextIO) -> None:
        self.pid = pid
        self.output = output
        self._nursery = nursery
        self.said = ""
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Only the nursery can be sure that this process is still the one with this pid."""
        self._nursery.send_signal(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Whether it stands still (SIGSTOP)."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def has_ended(self) -> bool:
        """Whether it lives no more; `wait` tells how it ended."""
        return not Path(f"/proc/{self.pid}").exists()

    def reads(self, marker: str) -> bool:
        """Read its output up to a line; False when it ended without."""
        return any(line.strip() == marker for line in self._lines())

    def read_until(self, marker: str) -> None:
        """Read its output up to a line that must come."""
        assert self.reads(marker), f"the process ended before it said {marker!r}: {self.said}"

    def _lines(self) -> Iterator[str]:
        for line in self.output:
            self.said += line
            yield line

    def wait(self) -> str:
        """Everything it said until its end; from then on there is a returncode: 0, or minus the signal."""
        self.said += self.output.read()
        self.output.close()
        self.returncode = self._nursery.end_of(self.pid)
        return self.said


class Nursery:
    """Starts lives; one of these is enough for all tests of a session."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES_MAX)
        self._socket.settimeout(PATIENCE_SECONDS)
        environment = {**os.environ, "PYTHONPATH": ROOT, "PYTHONHASHSEED": "random"}
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        self._ends: dict[int, int] = {}
        self._lives: list[Life] = []

    def start(self, *arguments: str, **environment: str) -> Life:
        """A life of flows.py with these arguments and this environment."""
        reader, writer = os.pipe()
        try:
            order = json.dumps({"arguments": arguments, "environment": environment}).encode()
            socket.send_fds(self._socket, [order], [writer])
            while "pid" not in (answer := self._receive()):
                self._note(answer)
        finally:
            os.close(writer)
        life = Life(self, answer["pid"], os.fdopen(reader))
        self._lives.append(life)
        return life

    def end_lives(self) -> None:
        """Kill those that nobody has waited for: a test that failed leaves nobody to the next one."""
        lives, self._lives = self._lives, []
        for life in lives:
            if life.returncode is None:
                life.kill()
                life.wait()

    def send_signal(self, pid: int, number: int) -> None:
        """Send a signal to a life, unless it has ended; it is sent when this returns."""
        self._socket.send(json.dumps({"signal": number, "to": pid}).encode())
        while "sent" not in (answer := self._receive()):
            self._note(answer)

    def end_of(self, pid: int) -> int:
        """How a life ended, which has closed its output already."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while pid not in self._ends:
            assert time.monotonic() < deadline, f"process {pid} does not end"
            self._note(self._receive())
        return self._ends.pop(pid)

    def _receive(self) -> dict[str, Any]:
        answer = self._socket.recv(4096)
        assert answer, "the nursery has died; its error is above"
        found: dict[str, Any] = json.loads(answer)
        return found

    def _note(self, answer: dict[str, Any]) -> None:
        self._ends[answer["ended"]] = answer["code"]

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=PATIENCE_SECONDS)


# --- the nursery's side ---------------------------------------------------------------------------------------------


def main(orders: socket.socket) -> None:
    from tests.crash import flows

    gc.collect()
    gc.freeze()  # or the first collection of every child would copy all pages
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    living: set[int] = set()
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _report_ends(orders, living)
        if orders in ready:
            try:
                order, fds, _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, 1)
            except ConnectionResetError:  # the supervisor has gone with something of ours unread
                break
            if not order:
                break
            _carry_out(json.loads(order), fds, orders, living, flows)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _carry_out(order: dict[str, Any], fds: list[int], orders: socket.socket, living: set[int], flows: Any) -> None:
    if "signal" in order:
        if order["to"] in living:  # nobody but us reaps it, so the pid is still its own
            os.kill(order["to"], order["signal"])
        orders.send(b'{"sent": true}')
        return
    pid = os.fork()
    if pid == 0:
        _live(flows, order, fds[0], orders)
    os.close(fds[0])
    living.add(pid)
    orders.send(json.dumps({"pid": pid}).encode())


def _report_ends(orders: socket.socket, living: set[int]) -> None:
    for pid in list(living):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            living.discard(pid)
            orders.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _live(flows: Any, order: dict[str, Any], output: int, orders: socket.socket) -> NoReturn:
    """In the child: become what was ordered, and never come back."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # also when the tests were told to ignore theirs, as everything is that a script starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
        orders.close()
        os.dup2(output, 1)
        os.close(output)
        os.environ.update(order["environment"])
        flows.main(order["arguments"])
        code = 0
    except SystemExit as e:
        code = int(e.code or 0)
    except BaseException:  # noqa: BLE001 - whatever it is, the supervisor sees the exit code and the traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
