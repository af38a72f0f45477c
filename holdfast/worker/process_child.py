"""The child: a process that runs `process=True` bodies for an engine, one after the other.

Owns: the other end of the pipes of processes.py: loading the code, calling it, and answering.
Never: opens a store, sees a ctx, outlives its engine.
Invariants: one answer a call; what bodies print goes to stderr, never into the pipe; when the pipe from the engine
    closes, the child and everything it started are killed, whatever they are doing.

processes.py calls `main` in a new interpreter with a session of its own, and with the pipes as stdin and stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

import msgspec

from holdfast.model import handlers
from holdfast.model.current import current_body, here
from holdfast.model.errors import BodyEnded, MissingCode
from holdfast.model.handlers import Handler
from holdfast.model.values import encode
from holdfast.worker.binding import Binder
from holdfast.worker.failures import describe
from holdfast.worker.loading import load_code
from holdfast.worker.processes import Answer, Call, End, Known
from holdfast.worker.spawning import read_frame, write_frame

_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def main() -> None:
    """Serve calls until the engine closes its pipe."""
    calls, answers = take_pipes()
    faulthandler.enable(file=2)  # a body that crashes the interpreter leaves its line on stderr
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # The thread sees the end of the pipe while a body is busy in the main thread, where signals work as in a script.
    threading.Thread(target=_listen, args=(calls, inbox), name="holdfast-pipe", daemon=True).start()
    while True:
        frame = inbox.get()
        with killed_with_engine(calls.fileno()):
            answer = _answer(frame)
        write_frame(answers, answer)


# --- one call ------------------------------------------------------------------------------------------------------


def _answer(frame: bytes) -> bytes:
    try:
        answer = _answered(msgspec.json.decode(frame, type=Call))
    except BaseException as error:  # noqa: BLE001 - user code; SystemExit fails its node and does not end the child
        answer = Answer(ok=False, error=describe(error))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the body may have closed or replaced them
            stream.flush()
    return msgspec.json.encode(answer)


def _answered(call: Call) -> Answer:
    handler = _handler(call)
    end: End | None = None
    try:
        value = _invoke(handler, call.args, call.current)
    except BodyEnded as ended:  # an end like another, with a word about what follows
        value, end = ended.output, End.of(ended)
        if end.runs_again:
            return Answer(ok=True, value=msgspec.Raw(b"null"), end=end)
    return Answer(ok=True, value=msgspec.Raw(encode(value, handler.returns, what="result")), end=end)


def _handler(call: Call) -> Handler:
    if (handler := handlers.find(call.handler)) is not None:
        return handler
    sys.path[:] = call.sys_path
    load_code(call.code)
    if (handler := handlers.find(call.handler)) is None:
        raise MissingCode(f"{call.code.file or call.code.module} no longer has a node {call.handler}")
    return handler


def _invoke(handler: Handler, raw: msgspec.Raw, known: Known | None) -> Any:
    args, kwargs = Binder(handler).bind(_arguments(raw), bytes)
    token = current_body.set(handler.name)
    was_here = here.set(None if known is None else known.current)
    try:
        result = handler.fn(*args, **kwargs)
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    finally:
        here.reset(was_here)
        current_body.reset(token)


# --- the pipes -----------------------------------------------------------------------------------------------------


def take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Move the pipes away from stdin and stdout, and give bodies an empty stdin and stderr to print to."""
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    if sys.stderr is None:  # the engine has none
        os.dup2(empty, 2)
    os.close(empty)
    os.dup2(2, 1)
    if hasattr(os, "register_at_fork"):
        # A process that a body forks must not keep the pipe open: the engine would wait for a child that is dead.
        os.register_at_fork(after_in_child=_closer(calls.fileno(), answers.fileno()))
    return calls, answers


def _closer(*fds: int) -> Callable[[], None]:
    def close() -> None:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    return close


def _listen(calls: IO[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    with contextlib.suppress(OSError):
        while (frame := read_frame(calls)) is not None:
            inbox.put(frame)
    die()


@contextlib.contextmanager
def killed_with_engine(fd: int) -> Iterator[None]:
    """Let the kernel kill this process when the engine's end of a pipe closes that nothing is written to meanwhile.

    The thread that reads the pipe does that too, but it needs the GIL, and a body may sit in C code for hours without
    giving it away."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import fcntl
    import select

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp() if os.getpgrp() == os.getpid() else os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        watch = select.poll()
        watch.register(fd, 0)
        if watch.poll(0):  # it ended before we were listening
            die()
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def die() -> None:
    """End at once, with every process that bodies started."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
