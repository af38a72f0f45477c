"""Process bodies: where `process=True` bodies run, so that they use another core and can be killed.

Owns: the children (see process_child.py and spawning.py), their number, and what is sent to them and back.
Never: forks, pickles, runs a body twice by itself.
Invariants: a child runs one body at a time; after a timeout, a cancel or a broken answer it is killed with everything
    it started, and never used again.
On crash: a child's pipe closes with the engine, and the child kills itself.
"""

from __future__ import annotations

import asyncio
import os
import select
from queue import SimpleQueue
from typing import TypeAlias

import msgspec

from holdfast.engine.ports import settle
from holdfast.model.current import Current
from holdfast.model.errors import BodyDied, BodyEnded, NodeTimeout, Pended, TicketRaised, UsageError
from holdfast.model.events import ErrorInfo
from holdfast.model.handlers import CodeLocation, Handler
from holdfast.model.limits import PROCESS_REAP_SECONDS
from holdfast.worker.spawning import Spawned, absolute_sys_path, read_frame, write_frame

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

    async def run(
        self, handler: Handler, args: bytes, timeout: float | None = None, current: Current | None = None
    ) -> bytes:
        """The body's encoded result; `args` is a JSON object by parameter name, `current` what the body may know about
        itself.

        Raises BodyFailed when the body raised, BodyEnded (with the encoded output) when it ended so, NodeTimeout
        after `timeout` seconds in a child (waiting for a free one does not count), BodyDied when the process ended
        under the body. When cancelled, the body is killed."""
        call = _frame(handler, args, current)
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
            await asyncio.wait([child.gone for child in children], timeout=PROCESS_REAP_SECONDS)

    def _take(self) -> _Child:
        if self._closed:
            raise UsageError("the engine is closing and takes no more process bodies")
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            child.end()  # it died while it was idle
        child = _Child()
        self._children.add(child)
        child.gone.add_done_callback(lambda _: self._children.discard(child))
        return child

    async def _give_back(self, child: _Child, answer: asyncio.Future[Answer]) -> None:
        answered = answer.done() and answer.exception() is None
        if answered and not self._closed:
            self._idle.append(child)
            return
        answer.cancel()  # a late answer is dropped
        child.end()
        await asyncio.wait([child.gone], timeout=PROCESS_REAP_SECONDS)  # the next attempt must not run beside this one


def _frame(handler: Handler, args: bytes, current: Current | None) -> bytes:
    if handler.code.kind == "process":
        raise UsageError(
            f"{handler.name} has process=True, but it is defined in a notebook, a prompt or inside a function, where "
            "another process cannot find it. Move it to the top level of a file"
        )
    if handler.takes_ctx:
        raise UsageError(f"{handler.name} has process=True and takes a ctx, which does not reach another process")
    return msgspec.json.encode(
        Call(
            code=handler.code,
            handler=handler.name,
            args=msgspec.Raw(args),
            sys_path=absolute_sys_path(),
            current=None if current is None else Known.of(current),
        )
    )


def _value(answer: Answer) -> bytes:
    if answer.error is not None:
        raise BodyFailed(answer.error)
    if answer.end is not None:
        raise answer.end.raised(answer.value)
    return bytes(answer.value)


class _Child(Spawned):
    """One spawned process, and the thread that talks to it."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        super().__init__("holdfast.worker.process_child")

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
        super().end()
        self._asked.put(None)

    # --- in the child's thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            call, name, answer = asked
            del asked  # an idle child keeps no value alive
            try:
                reply = self._exchange(call)
            except (OSError, EOFError, MemoryError, msgspec.DecodeError) as error:
                died = BodyDied(f"the process of {name} {self._cause(error)}")
                self._tell(settle, answer, None, died)
                break
            self._tell(settle, answer, reply, None)
            del call, answer, reply

    def _exchange(self, call: bytes) -> Answer:
        process = self._process or self._spawn()
        assert process.stdin is not None
        assert process.stdout is not None
        write_frame(process.stdin, call)
        reply = read_frame(process.stdout)
        if reply is None:
            raise EOFError
        return msgspec.json.decode(reply, type=Answer)


# --- what goes through the pipes -----------------------------------------------------------------------------------


class Known(msgspec.Struct, frozen=True):
    """An `hf.Current`, as it is sent to a child."""

    run_id: str
    node: str
    path: str
    visit: int
    attempt: int
    idempotency_key: str

    @classmethod
    def of(cls, current: Current) -> Known:
        return cls(*(getattr(current, name) for name in cls.__struct_fields__))

    def current(self) -> Current:
        return Current(self.run_id, self.node, self.path, self.visit, self.attempt, lambda: self.idempotency_key)


class Call(msgspec.Struct, frozen=True):
    """What the engine asks a child for."""

    code: CodeLocation
    handler: str
    args: msgspec.Raw
    """The arguments by parameter name, as one JSON object."""
    sys_path: tuple[str, ...]
    current: Known | None = None


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
