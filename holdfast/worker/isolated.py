"""Isolated bodies: where the bodies of suspects run, so that one that kills its process kills nothing else.

Owns: the spawned processes (isolated_child.py is their other end), the engine's side of each body in one, and what its
death means.
Never: forks, pickles, records calls or decides anything for the body: the process runs the ordinary executor, and
speaks to the run over its pipe, so that the engine stays the only writer.
Invariants: a process runs one body at a time. It is used again only when nothing of that body is left in it, and for a
body that needs a process of its own never. A body whose process is over, or that the engine has left, is not heard.
On crash: the pipes close with the engine, and each process kills itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

import msgspec

from holdfast.engine.ports import Attempt, OwnedRun, Releasable, settle
from holdfast.model import commands as cmd
from holdfast.model import handlers
from holdfast.model.errors import BodyDied, HoldfastError
from holdfast.model.limits import (
    ISOLATED_DEATH_SECONDS,
    ISOLATED_IDLE_SECONDS,
    ISOLATED_OVERDUE_SECONDS,
    ISOLATED_READY_SECONDS,
    ISOLATED_SPAWN_SECONDS,
)
from holdfast.model.values import decoder
from holdfast.model.views import command_line
from holdfast.worker import ending, wire
from holdfast.worker.activation import Activation
from holdfast.worker.body_life import BodyLife, LeaveReason
from holdfast.worker.spawning import Spawned, read_frame, write_frame
from holdfast.worker.time_limits import timed_out

log = logging.getLogger("holdfast.engine")
node_log = logging.getLogger("holdfast.node")

LIFE_FD = "HOLDFAST_LIFE_FD"
"""Names the pipe by whose end a process notices, without the GIL, that its engine is gone."""


class CannotBeIsolated(Exception):
    """The code of a body cannot be imported in a process."""


class NotSpawned(Exception):
    """The system gave us no process."""


class IsolatedActivation(Activation):
    """The engine's side of a suspect's body: passes its commands to its run, and answers of the run to it."""

    def __init__(
        self, attempt: Attempt, on_exit: Callable[[Activation, bool], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(attempt, on_exit, loop)
        self.over: asyncio.Future[wire.Ended] = loop.create_future()
        """Settled with its last word, or with why there is none."""
        self.over.add_done_callback(_retrieve)
        self.process: IsolatedProcess | None = None
        self._run = cast(OwnedRun, attempt.port)  # who starts bodies is in the engine's process
        self._questions: set[asyncio.Task[None]] = set()
        self._places: dict[int, Releasable] = {}
        """Places that steps of the body hold or wait for, by the number that the process gave them."""
        self._parked = False
        self._answers = 0
        self._overdue: asyncio.TimerHandle | None = None

    # --- what the process says -------------------------------------------------------------------------------------

    def received(self, message: wire.FromProcess) -> None:
        """Act on a message of the process. Once the body has ended, or was evicted, messages are dropped."""
        if self.life is BodyLife.REPORTED or self.over.done():
            return
        match message:
            case wire.Submitted():
                self._parked = message.parked and message.answers == self._answers
                done = None if message.id is None else functools.partial(self._settled, message.id)
                self.port.submit(wire.unpack(message.command), done)
            case wire.Asked():
                question = self.loop.create_task(self._reply(message.id, message.question))
                self._questions.add(question)
                question.add_done_callback(self._questions.discard)
            case wire.PlaceWanted():
                self._want_place(message)
            case wire.PlaceReleased():
                if (place := self._places.pop(message.id, None)) is not None:
                    place.release()
            case wire.Follow():
                self.port.follow_child(message.run_id)
            case wire.Progress():
                self.progress = (message.done, message.total, message.text)
            case wire.Logged():
                node_log.log(message.level, "%s", message.text, extra=message.extra)
            case wire.CannotRead():
                self.port.cannot_read(message.error.raised())
            case wire.CannotRun():
                self.over.set_exception(CannotBeIsolated(message.why))
            case wire.Ended():
                self.over.set_result(message)
            case wire.Idle():
                pass

    def _settled(self, id: int, answer: Any, error: BaseException | None) -> None:
        self._send(wire.Settled(id, error is not None, answer if error is None else None))

    def _want_place(self, wanted: wire.PlaceWanted) -> None:
        def granted(error: Exception | None) -> None:
            assert error is None or isinstance(error, HoldfastError)
            self._send(wire.Replied(wanted.id, error=None if error is None else wire.ErrorText.of(error)))

        try:
            self._places[wanted.id] = self.port.step_place(
                wanted.handler, wanted.concurrency, wanted.priority, wanted.inside, granted
            )
        except HoldfastError as e:
            granted(e)

    async def _reply(self, id: int, question: Any) -> None:
        try:
            value = await self._answer_to(question)
        except HoldfastError as e:
            self._send(wire.Replied(id, error=wire.ErrorText.of(e)))
        else:
            self._send(wire.Replied(id, msgspec.Raw(wire.encode(value))))

    async def _answer_to(self, question: Any) -> Any:
        a, port = self.attempt, self.port
        match question:
            case wire.MayBegin():
                return await port.until_it_may_begin()
            case wire.Flushed():
                return await port.flushed()
            case wire.Memory():
                return list(await port.memory(a.node, a.path, a.memory_seq, ()))
            case wire.OrderSignal():
                return await port.order_signal(question.run_id, question.name, question.payload, question.signal_id)
            case wire.OrderChild():
                inputs = _inputs(question.workflow, question.inputs)
                return await port.order_child(question.workflow, inputs, question.run_id, question.detached)
        raise AssertionError(question)

    # --- what the run says -----------------------------------------------------------------------------------------

    def _send(self, message: wire.ToProcess) -> None:
        if self.process is not None:
            self.process.send(wire.encode(message))

    def answer(self, wait_id: str, outcome: str, value: bytes) -> None:
        self._answers += 1
        self._parked = False
        self._send(wire.Answered(wait_id, outcome, value))

    @property
    def all_parked(self) -> bool:
        """Whether the body did nothing but wait when it last said something, and has no answer under way."""
        return self._parked

    @property
    def may_be_evicted(self) -> bool:
        """It leaves by itself as soon as it only waits; until then it may be at work again."""
        return False

    def leave(self, reason: LeaveReason) -> None:
        if self.life is not BodyLife.REPORTED:
            self._move_to_leaving(reason)
            self._send(wire.Leave(reason))

    def cancel(self, grace_seconds: float) -> None:
        self._move_to_cancelling("cancelled")
        if self.process is None:
            self._kill()
        else:
            self._send(wire.Cancel(grace_seconds))
            self._kill_at(grace_seconds)

    def begin(self) -> None:
        """The process keeps the time limit itself; a body that never lets it check is killed."""
        if self.life is BodyLife.STARTING:
            self.move(BodyLife.RUNNING)
        timeout = self.attempt.definition.timeout
        if timeout is not None:
            self._kill_at(timeout + self.grace_seconds)

    def _kill_at(self, seconds: float) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        self._overdue = self.loop.call_later(seconds + ISOLATED_OVERDUE_SECONDS, self._is_overdue)

    def _is_overdue(self) -> None:
        timeout = self.attempt.definition.timeout
        self._move_to_cancelling("cancelled" if timeout is None else timed_out(self.attempt.node, timeout))
        self._kill()

    def _kill(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _end(self, *, left: bool) -> bool:
        if self._overdue is not None:
            self._overdue.cancel()
        for question in self._questions:
            question.cancel()
        for place in self._places.values():
            place.release()
        self._places.clear()
        return super()._end(left=left)

    # --- how it ends -----------------------------------------------------------------------------------------------

    def has_ended(self, message: wire.Ended) -> None:
        """The body has said its last word."""
        self.report(None if message.command is None else wire.unpack(message.command))

    async def died(self, how: str) -> None:
        """Its process died. That is evidence against it unless the engine ends, too, or wanted the body to stop."""
        a = self.attempt
        await asyncio.sleep(ISOLATED_DEATH_SECONDS)
        if self.stop_reason is not None or self.life is BodyLife.LEAVING:
            ending.interrupted(self)
        elif self.port.is_suspended(a.node, a.path):  # it only waited; an answer runs it again
            ending.left(self)
        elif self.life is not BodyLife.REPORTED:
            self._end(left=False)
            self._run.body_died(cmd.BodyDied(a.node, a.path, a.attempt, how, visit=a.visit))

    def refused(self, why: str) -> None:
        """It cannot be tried in a process of its own."""
        if self.life is not BodyLife.REPORTED:
            self._end(left=False)
            self._run.hold(
                f"crash_loop: engines died while this run made no progress, and {self.attempt.handler.name} cannot be "
                f"tried in a process of its own: {why}. Correct that, then resume it: "
                f"{command_line('resume', self.port.run_id)}"
            )


def _retrieve(over: asyncio.Future[wire.Ended]) -> None:
    """Mark the outcome as seen: asyncio would warn of a process that the engine itself has killed."""
    if not over.cancelled():
        over.exception()


def _inputs(workflow: str, inputs: dict[str, bytes]) -> dict[str, Any]:
    """The inputs of a child, as its workflow's annotations read them."""
    found = handlers.find_workflow(workflow)
    annotations = {} if found is None else {p.name: p.annotation for p in found.params}
    return {name: decoder(annotations.get(name, Any))(data) for name, data in inputs.items()}


# --- the processes -------------------------------------------------------------------------------------------------


class IsolatedBodies:
    """The processes of an engine's suspects. How many there are is limited by the places that their bodies take."""

    def __init__(self) -> None:
        self._processes: set[IsolatedProcess] = set()
        self._idle: list[IsolatedProcess] = []

    async def run(self, body: IsolatedActivation, order: bytes) -> wire.Ended:
        """Run a body in a process; its last word. BodyDied when its process died first, CannotBeIsolated when its code
        cannot be imported there. When cancelled, the process is killed."""
        while True:
            body.process = process = self._take(fresh=body.attempt.own_process)
            process.begin(body, order)
            try:
                ended = await asyncio.shield(body.over)
                await process.tidied()  # or the next body, which gets the place of this one, would need a new process
            except NotSpawned as e:
                log.warning("no process for a body of run %s, trying again: %s", body.port.run_id, e)
                body.over = body.loop.create_future()
                body.over.add_done_callback(_retrieve)
                await asyncio.sleep(ISOLATED_SPAWN_SECONDS)
            else:
                return ended
            finally:
                body.process = None
                process.release(body)

    def _take(self, *, fresh: bool) -> IsolatedProcess:
        while self._idle and not fresh:
            process = self._idle.pop()
            if not process.is_over:
                return process
        process = IsolatedProcess(self._is_idle)
        self._processes.add(process)
        process.gone.add_done_callback(lambda _: self._processes.discard(process))
        return process

    def _is_idle(self, process: IsolatedProcess) -> None:
        """Nothing of its last body is left in a process."""
        self._idle.append(process)
        process.end_in(ISOLATED_IDLE_SECONDS)

    async def close(self) -> None:
        """Kill every process, and with it the body that it still runs, and wait until they are gone."""
        processes = list(self._processes)
        for process in processes:
            process.end()
        if processes:
            await asyncio.wait([process.gone for process in processes], timeout=5.0)


class IsolatedProcess(Spawned):
    """One spawned process; a thread here reads what it says, another one writes to it."""

    def __init__(self, on_idle: Callable[[IsolatedProcess], None]) -> None:
        self._to_send: SimpleQueue[bytes | None] = SimpleQueue()
        self._on_idle = on_idle
        self._body: IsolatedActivation | None = None
        """It may have reported its end while something of it is left in the process."""
        self._ending: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self.is_over = False
        super().__init__("holdfast.worker.isolated_child")

    def begin(self, body: IsolatedActivation, order: bytes) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._body = body
        self._idle.clear()
        self.send(order)

    def send(self, frame: bytes) -> None:
        self._to_send.put(frame)

    async def tidied(self) -> None:
        """Wait a moment until nothing of a body is left that has said its last word. It may take longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ISOLATED_READY_SECONDS):
                await self._idle.wait()

    def release(self, body: IsolatedActivation) -> None:
        """The engine has done with a body: the process ends unless it is ready for another one, or has it."""
        if self._body is body:
            self.end()

    def end_in(self, seconds: float) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = self._loop.call_later(seconds, self.end)

    def end(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.is_over = True
        super().end()
        self._to_send.put(None)

    def _heard(self, message: wire.FromProcess) -> None:
        if isinstance(message, wire.Idle):
            if not self.is_over:
                self._body = None
                self._idle.set()
                self._on_idle(self)
        elif self._body is not None:
            self._body.received(message)

    def _died(self, how: str, *, spawned: bool) -> None:
        self.is_over = True
        if self._body is not None:
            body = self._body
            name = f"the process of {body.attempt.handler.name}"
            settle(body.over, None, BodyDied(f"{name} {how}") if spawned else NotSpawned(f"{name} {how}"))

    # --- in its threads --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        error: Exception = EOFError()
        try:
            with self._alive() as process:
                assert process.stdout is not None
                threading.Thread(target=self._write, args=(process,), name="holdfast-child", daemon=True).start()
                while (frame := read_frame(process.stdout)) is not None:
                    self._tell(self._heard, wire.from_process(frame))
                how = self._cause(error)
        except (OSError, MemoryError, msgspec.DecodeError) as e:
            how = self._cause(e)
        self._to_send.put(None)
        self._tell(functools.partial(self._died, how, spawned=self._process is not None))

    @contextlib.contextmanager
    def _alive(self) -> Any:
        """The process, with a pipe open for as long as this engine serves it."""
        if not sys.platform.startswith("linux"):
            yield self._spawn()
            return
        theirs, ours = os.pipe()
        try:
            try:
                process = self._spawn(pass_fds=(theirs,), env={**os.environ, LIFE_FD: str(theirs)})
            finally:
                os.close(theirs)
            yield process
        finally:
            os.close(ours)

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died: its reader says so
            while (frame := self._to_send.get()) is not None:
                write_frame(process.stdin, frame)
