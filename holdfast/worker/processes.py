"""Process bodies: where `process=True` bodies run, so that they use another core and can be killed.

Owns: the children (see child.py), their number, their end, and the frames that go through their pipes.
Never: forks, pickles, runs a body twice by itself.
Invariants: a child runs one body at a time; after a timeout, a cancel or a broken answer it is killed with everything
    it started, and never used again.
On crash: a child's pipe closes with the engine, and the child kills itself.

Each child has a thread here that starts it, talks to it and reaps it with plain blocking calls: that works on every
platform and event loop, and a child costs a process anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeAlias

import msgspec

from holdfast.model.errors import BodyDied, BodyEnded, NodeTimeout, Pended, TicketRaised, UsageError
from holdfast.model.events import ErrorInfo
from holdfast.model.handlers import CodeLocation, Handler

_ROOT = str(Path(__file__).resolve().parents[2])
# -P: whatever lies in the working directory is not imported by accident. Not -m: holdfast may be on the engine's
# sys.path alone.
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from holdfast.worker.child import main; main()"

_REAP_SECONDS = 5.0
"""How long the caller of a killed body waits for its process to be gone; only a hanging disk makes it longer."""

_Asked: TypeAlias = "tuple[bytes, str, asyncio.Future[Answer]]"


class BodyFailed(Exception):
    """A body in a child raised. The exception itself stays there; this is what the journal keeps of it."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


class ProcessBodies:
    """The pool. Used on the event loop that it was made on.

    value = await bodies.run(handler, b'{"n": 17}', timeout=60)
    """

    def __init__(self, processes: int | None = None) -> None:
        self._size = processes or os.cpu_count() or 1
        self._slots = asyncio.Semaphore(self._size)
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []
        self._running = 0
        self._closed = False

    @property
    def free(self) -> int:
        """How many more bodies would begin at once."""
        return self._size - self._running

    async def run(self, handler: Handler, args: bytes, timeout: float | None = None) -> bytes:
        """The body's encoded result; `args` is a JSON object by parameter name.

        Raises BodyFailed when the body raised, BodyEnded (with the encoded output) when it ended so, NodeTimeout
        after `timeout` seconds in a child (waiting for a free one does not count), BodyDied when the process ended
        under the body. When cancelled, the body is killed."""
        call = _frame(handler, args)
        async with self._slots:
            child = self._take()
            self._running += 1
            answer = child.ask(call, handler.name)
            try:
                await asyncio.wait([answer], timeout=timeout)
                if not answer.done():
                    raise NodeTimeout(f"{handler.name} ran longer than {timeout:g} seconds and was killed")
                return _value(await answer)
            finally:
                await self._give_back(child, answer)
                self._running -= 1

    async def close(self) -> None:
        """Kill every child, and with it the body that it still runs, and wait until they are gone."""
        self._closed = True
        children = list(self._children)
        for child in children:
            child.end()
        if children:
            await asyncio.wait([child.gone for child in children], timeout=_REAP_SECONDS)

    def _take(self) -> _Child:
        if self._closed:
            raise UsageError("the engine is closing and takes no more process bodies")
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            child.end()  # it died while nobody used it
        child = _Child()
        self._children.add(child)
        child.gone.add_done_callback(lambda _: self._children.discard(child))
        return child

    async def _give_back(self, child: _Child, answer: asyncio.Future[Answer]) -> None:
        answered = answer.done() and answer.exception() is None
        if answered and not self._closed:
            self._idle.append(child)
            return
        answer.cancel()  # what comes now is not wanted any more
        child.end()
        await asyncio.wait([child.gone], timeout=_REAP_SECONDS)  # the next attempt must not run beside this one


def _frame(handler: Handler, args: bytes) -> bytes:
    if handler.code.kind == "process":
        raise UsageError(
            f"{handler.name} has process=True, but it is defined in a notebook, a prompt or inside a function, where "
            "another process cannot find it. Move it to the top level of a file"
        )
    if handler.takes_ctx:
        raise UsageError(f"{handler.name} has process=True and takes a ctx, which does not reach another process")
    path = tuple(os.path.abspath(entry) for entry in sys.path)
    return msgspec.json.encode(Call(code=handler.code, handler=handler.name, args=msgspec.Raw(args), sys_path=path))


def _value(answer: Answer) -> bytes:
    if answer.error is not None:
        raise BodyFailed(answer.error)
    if answer.end is not None:
        raise answer.end.raised(answer.value)
    return bytes(answer.value)


class _Child:
    """One spawned process, and the thread that talks to it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._lock = threading.Lock()  # over `_process` and its reaping: a reaped pid may be somebody else's
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        threading.Thread(target=self._serve, name="holdfast-child", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether an idle child can take a call."""
        with self._lock:
            if self._ended or self._process is None or self._process.stdout is None:
                return False
            if hasattr(select, "poll"):
                # Its pipe is quiet while it lives, and ends before the process can be waited for.
                pipe = select.poll()
                pipe.register(self._process.stdout, select.POLLIN)
                return not pipe.poll(0)
            return self._process.poll() is None

    def ask(self, call: bytes, name: str) -> asyncio.Future[Answer]:
        """Send a call, one at a time; its answer, or BodyDied with the body's `name`."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._asked.put((call, name, answer))
        return answer

    def end(self) -> None:
        """Kill the process, with everything that its body started. `gone` is set when it is reaped."""
        with self._lock:
            self._ended = True
            self._kill()
        self._asked.put(None)

    def _kill(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

    # --- in the child's thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            call, name, answer = asked
            del asked  # an idle child keeps no value alive
            try:
                reply = self._exchange(call)
            except (OSError, EOFError, MemoryError, msgspec.DecodeError) as error:
                died = BodyDied(f"the process of {name} {self._cause(error)}")
                self._tell(answer.set_exception, answer, died)
                break
            self._tell(answer.set_result, answer, reply)
            del call, answer, reply
        self._reap()
        self._tell(self.gone.set_result, self.gone, None)

    def _exchange(self, call: bytes) -> Answer:
        process = self._process or self._spawn()
        assert process.stdin is not None
        assert process.stdout is not None
        write_frame(process.stdin, call)
        reply = read_frame(process.stdout)
        if reply is None:
            raise EOFError
        return msgspec.json.decode(reply, type=Answer)

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a group of its own to kill, and no Ctrl-C that is meant for the engine
        )
        with self._lock:
            self._process = process
            if self._ended:
                self._kill()
        return process

    def _reap(self) -> int | None:
        """End what is left, and the exit status; None when no process was started."""
        with self._lock:
            self._ended = True
            if self._process is None:
                return None
            self._kill()  # also what the body started and left behind; a status that is there already stays
            status = self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            return status

    def _cause(self, error: Exception) -> str:
        status = self._reap()
        if status is None:
            return f"could not be started: {error}"
        if isinstance(error, msgspec.DecodeError):
            return f"answered with something that is not an answer ({error}), and was killed"
        if status >= 0:
            return f"ended with exit status {status} before the body did; what it wrote to stderr may say why"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = "; the usual reason is that the machine ran out of memory" if name == "SIGKILL" else ""
        return f"was ended by {name} before the body was done{hint}"

    def _tell(self, set_outcome: Callable[[Any], None], future: asyncio.Future[Any], outcome: Any) -> None:
        def tell() -> None:
            if not future.done():
                set_outcome(outcome)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(tell)


# --- what goes through the pipes -----------------------------------------------------------------------------------

_LENGTH = struct.Struct(">Q")


class Call(msgspec.Struct, frozen=True):
    """What the engine asks a child for."""

    code: CodeLocation
    handler: str
    args: msgspec.Raw
    """The arguments by parameter name, as one JSON object."""
    sys_path: tuple[str, ...]


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a body ended that did not just return: with a ticket, or in a basket."""

    target: str | None = None
    ticket: str | None = None
    basket: str | None = None
    rerun: bool = False
    error: str | None = None

    @classmethod
    def of(cls, ended: BodyEnded) -> End:
        if not isinstance(ended, Pended):
            return cls(ended.target, ended.ticket)
        error = None if ended.error is None else str(ended.error)
        return cls(ended.target, ended.ticket, ended.basket, ended.rerun, error)

    @property
    def runs_again(self) -> bool:
        return self.rerun or self.error is not None

    def raised(self, output: msgspec.Raw) -> BodyEnded:
        if self.basket is None:
            return TicketRaised(target=self.target, ticket=self.ticket, output=output)
        return Pended(
            self.basket, rerun=self.rerun, error=self.error, output=output, target=self.target, ticket=self.ticket
        )


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the body returned, or how it failed."""

    ok: bool
    value: msgspec.Raw = msgspec.Raw(b"")
    error: ErrorInfo | None = None
    end: End | None = None


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next frame; None when the other side is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    data = pipe.read(size)
    return data if len(data) == size else None
