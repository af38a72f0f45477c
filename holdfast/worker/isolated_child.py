"""Isolated child: a process that runs the bodies of suspects for an engine, one after the other.

Owns: the other end of isolated.py: loading the code, and running a body with the ordinary executor, activation, memory
and ctx against a port that speaks over the pipe.
Never: opens a store, outlives its engine.
Invariants: the engine gets one message about a body's end, with its last command. When the pipe from the engine
closes, the process and everything it started are killed, whatever they are doing.

isolated.py calls `main` in a new interpreter with a session of its own, and with the pipes as stdin and stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec

from holdfast.engine import crash_points
from holdfast.engine.ports import Attempt, Done, settle
from holdfast.engine.slots import Granted
from holdfast.model import commands as cmd
from holdfast.model import handlers
from holdfast.model.errors import HoldfastError, Suspended
from holdfast.model.handlers import Handler
from holdfast.model.limits import ISOLATED_PROGRESS_SECONDS, ISOLATED_THREADS_SECONDS
from holdfast.model.plans import compile_definition
from holdfast.model.values import encode
from holdfast.worker import wire
from holdfast.worker.activation import Activation
from holdfast.worker.executor import LocalExecutor
from holdfast.worker.isolated_processes import LIFE_FD
from holdfast.worker.loading import StartedWhileImporting, load_code
from holdfast.worker.process_child import die, killed_with_engine, take_pipes
from holdfast.worker.spawning import read_frame, write_frame


def main() -> None:
    """Run bodies until the engine closes its pipe."""
    orders, words = take_pipes()
    faulthandler.enable(file=2)  # a body that crashes the interpreter leaves its line on stderr
    crash_points.die_at(None)  # which is for the engine
    _offer_to_out_of_memory_killer()
    # Who stops a service may send the signal to all of its processes; the engine leaves its bodies in order. (A
    # handler, because one that is ignored would be ignored by everything that the body starts, too.)
    signal.signal(signal.SIGTERM, lambda *_: None)
    with _killed_with_engine():
        _Pipe(orders, words).serve()


@contextlib.contextmanager
def _killed_with_engine() -> Iterator[None]:
    life = os.environ.pop(LIFE_FD, "")
    if not life:
        yield
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: os.close(int(life)))
    os.set_inheritable(int(life), False)
    with killed_with_engine(int(life)):
        yield


def _offer_to_out_of_memory_killer() -> None:
    """Let the kernel end this process rather than the engine: then it is known which body used the memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


class _Pipe:
    """What the engine says, and the words for it."""

    def __init__(self, orders: IO[bytes], words: IO[bytes]) -> None:
        self._words = words
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[wire.ToProcess] = queue.SimpleQueue()
        self._body: _Body | None = None
        threading.Thread(target=self._listen, args=(orders,), name="holdfast-pipe", daemon=True).start()

    def say(self, message: wire.FromProcess) -> None:
        with self._lock:
            write_frame(self._words, wire.encode(message))

    def _listen(self, orders: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            while (frame := read_frame(orders)) is not None:
                self._inbox.put(wire.to_process(frame))
                body = self._body
                if body is not None:
                    with contextlib.suppress(RuntimeError):  # its loop is closed: the message is too late
                        body.loop.call_soon_threadsafe(self._deliver, body)
        die()

    def _deliver(self, body: _Body) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                body.received(self._inbox.get_nowait())

    def serve(self) -> None:
        alone = threading.active_count()
        while True:
            order = self._inbox.get()
            if not isinstance(order, wire.RunBody):
                continue  # about a body that has ended
            try:
                handler = _load(order)  # here, because a script may start a loop of its own when it is imported
            except HoldfastError as e:
                self.say(wire.CannotRun(e.message))
                continue
            asyncio.run(self._run(order, handler))
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # the body may have closed or replaced them
                    stream.flush()
            deadline = time.monotonic() + ISOLATED_THREADS_SECONDS
            while threading.active_count() > alone and time.monotonic() < deadline:
                time.sleep(0.005)
            if threading.active_count() > alone:
                die()  # something of the body is left; a body after it must not answer for that
            self.say(wire.Idle())

    async def _run(self, order: wire.RunBody, handler: Handler) -> None:
        body = self._body = _Body(self, order)
        with _log_lines(self, order.log_level):
            body.start(order, handler)
            self._deliver(body)
            await body.over
            await body.executor.stop(0.0)
        self._body = None


@contextlib.contextmanager
def _log_lines(pipe: _Pipe, level: int) -> Iterator[None]:
    """Hand what the body writes with ctx.log to the engine, whose program has decided where log lines go."""
    node_log = logging.getLogger("holdfast.node")
    handler = _LogLines(pipe)
    node_log.addHandler(handler)
    node_log.propagate = False
    node_log.setLevel(level)
    try:
        yield
    finally:
        node_log.removeHandler(handler)


class _LogLines(logging.Handler):
    def __init__(self, pipe: _Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        extra = {name: getattr(record, name) for name in ("run_id", "node", "path", "attempt") if hasattr(record, name)}
        self._pipe.say(wire.Logged(record.levelno, self.format(record), extra))


def _load(order: wire.RunBody) -> Handler:
    """The handler, imported as the engine found it. Raises UsageError or MissingCode."""
    if handlers.find(order.handler) is None:
        sys.path[:] = order.sys_path
        for code in order.codes:
            # A script that starts its runs when it is imported has by then defined what its bodies see in the engine.
            with contextlib.suppress(StartedWhileImporting):
                load_code(code)
    handler = handlers.find(order.handler)
    if handler is None:
        code = order.codes[0]
        raise HoldfastError(f"{code.file or code.module} does not define {order.handler} when it is imported")
    return handler


# --- one body ------------------------------------------------------------------------------------------------------


class _Executor(LocalExecutor):
    """The ordinary executor, for one body, whose process is given back as soon as it only waits."""

    def _activation(self, attempt: Attempt) -> Activation:
        activation = super()._activation(attempt)
        activation.releases_process = True
        return activation


class _Place:
    """A place in the engine that a step of the body holds or waits for."""

    def __init__(self, pipe: _Pipe, number: int) -> None:
        self._pipe = pipe
        self._number = number

    def release(self) -> None:
        self._pipe.say(wire.PlaceReleased(self._number))


class _Body:
    """A body in this process, and the port through which it speaks to its run."""

    def __init__(self, pipe: _Pipe, order: wire.RunBody) -> None:
        self.loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self.loop.create_future()
        self.executor = _Executor(grace_seconds=order.grace_seconds, secrets=self, permissions=order.permissions)
        self.executor.open(self.loop, lambda lost: None)  # they end with the process
        self.run_id, self.run_no = order.run_id, order.run_no
        self.store_id, self.key_epoch = order.store_id, order.key_epoch
        self.compensates = order.compensates
        self._pipe = pipe
        self._order = order
        self._numbers = itertools.count(1)
        self._done: dict[int, Done] = {}
        self._replies: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._answers = 0
        self._has_gone = False
        self._last: Any = None
        self._progress: Any = None

    def start(self, order: wire.RunBody, handler: Handler) -> None:
        attempt = Attempt(
            port=self,
            plan=compile_definition(order.workflow, order.version),
            definition=order.definition,
            handler=handler,
            node=order.node,
            path=order.path,
            visit=order.visit,
            attempt=order.attempt,
            failures=order.failures,
            memory_seq=order.memory_seq,
            has_memory=order.has_memory,
            args=dict(order.args),
            captures=order.captures,  # type: ignore[arg-type]  # what is wanted of each is one of a few texts
        )
        self.executor.start(attempt)
        self._say_progress()

    # --- what the engine says --------------------------------------------------------------------------------------

    def received(self, message: wire.ToProcess) -> None:
        instance = (self.run_no, self._order.node, self._order.path)
        match message:
            case wire.Answered():
                self._answers += 1
                self.executor.answer(*instance, message.wait_id, message.outcome, message.value)
            case wire.Settled():
                done = self._done.pop(message.id)
                done(message.answer, Suspended() if message.refused else None)
            case wire.Replied():
                reply, error = self._replies.pop(message.id), message.error
                settle(reply, message.value, None if error is None else error.raised())
            case wire.Cancel():
                self.executor.cancel(*instance, message.grace_seconds)
            case wire.Leave():
                self.executor.leave(*instance, message.reason)
            case wire.RunBody():
                raise AssertionError("the engine sends one body at a time")

    # --- what the body asks of its run (RunPort) ---------------------------------------------------------------------

    def submit(self, command: Any, done: Done | None = None) -> None:
        if self._has_gone:  # the last word: it goes with the news that the body has gone
            self._last = command
            return
        number = None if done is None else next(self._numbers)
        if number is not None and done is not None:
            self._done[number] = done
        parked = self.executor.all_parked(self.run_no, self._order.node, self._order.path)
        self._pipe.say(wire.Submitted(wire.pack(command), number, parked, self._answers))

    def body_exited(self, key: tuple[str, str], evicted: bool) -> None:
        self._has_gone = True
        self.loop.call_soon(self._say_end)

    def _say_end(self) -> None:
        self._pipe.say(wire.Ended(None if self._last is None else wire.pack(self._last)))
        settle(self.over, None, None)

    def _say_progress(self) -> None:
        """Say now and then how far the body is; a body may call ctx.progress a thousand times a second."""
        if self._has_gone:
            return
        self.loop.call_later(ISOLATED_PROGRESS_SECONDS, self._say_progress)
        progress = self.executor.progress(self.run_no).get((self._order.node, self._order.path))
        if progress != self._progress and progress is not None:
            self._progress = progress
            self._pipe.say(wire.Progress(*progress))

    async def _ask(self, question: Any) -> msgspec.Raw:
        number = next(self._numbers)
        reply: asyncio.Future[msgspec.Raw] = self.loop.create_future()
        self._replies[number] = reply
        self._pipe.say(wire.Asked(number, question))
        return await reply

    def load(self, located: Any) -> bytes:
        return bytes(located)  # the engine has sent the values

    async def load_slowly(self, located: Any) -> bytes:
        return bytes(located)

    def cannot_read(self, error: Exception) -> None:
        assert isinstance(error, HoldfastError)
        self._pipe.say(wire.CannotRead(wire.ErrorText.of(error)))

    async def flushed(self) -> None:
        await self._ask(wire.Flushed())

    @property
    def may_begin(self) -> bool:
        return False  # only the engine knows

    async def until_it_may_begin(self) -> None:
        await self._ask(wire.MayBegin())

    async def memory(self, node: str, path: str, since: int, args: Iterable[Any]) -> Sequence[tuple[str, bytes]]:
        return msgspec.json.decode(await self._ask(wire.Memory()), type=list[tuple[str, bytes]])

    def is_suspended(self, node: str, path: str) -> bool:
        return False  # not known here; to suspend the node once more changes nothing

    def variable(self, name: str) -> bytes | None:
        return self._order.variables.get(name)

    def now(self) -> int:
        return time.time_ns() // 1000 + self._order.clock_offset

    async def order_child(
        self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        found = handlers.find_workflow(workflow)
        annotations = {} if found is None else {p.name: p.annotation for p in found.params}
        data = {n: encode(v, annotations.get(n, Any), what=f"input {n}") for n, v in inputs.items()}
        return wire.unpack_child(await self._ask(wire.OrderChild(workflow, data, run_id, detached)))

    async def order_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        reply = await self._ask(wire.OrderSignal(run_id, name, payload, signal_id))
        return msgspec.json.decode(reply, type=str)

    async def value(self, name: str, workflow: str) -> str:
        """The value of a secret (SecretValues)."""
        return msgspec.json.decode(await self._ask(wire.SecretWanted(name)), type=str)

    def step_place(
        self, handler: str, concurrency: int, priority: int, inside: Sequence[str], granted: Granted
    ) -> _Place:
        number = next(self._numbers)
        reply: asyncio.Future[msgspec.Raw] = self.loop.create_future()
        reply.add_done_callback(lambda done: granted(done.exception()))  # type: ignore[arg-type]  # one of ours
        self._replies[number] = reply
        self._pipe.say(wire.PlaceWanted(number, handler, concurrency, priority, tuple(inside)))
        return _Place(self._pipe, number)

    def follow_child(self, run_id: str) -> None:
        self._pipe.say(wire.Follow(run_id))
