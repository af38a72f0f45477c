"""Isolated bodies: the engine's side of a suspect's body, which runs in a process of its own.

Owns: passing its commands to its run and the run's answers to it, stopping it, and what the death of its process means.
Never: records calls or decides anything for the body: the process runs the ordinary executor (isolated_child.py), and
speaks to the run over its pipe (isolated_processes.py), so that the engine stays the only writer.
Invariant: a message of a body whose process is over, or that the engine has left, is dropped.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec

from holdfast.engine.ports import Attempt, OwnedRun, Releasable
from holdfast.model import commands as cmd
from holdfast.model import handlers
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import (
    ISOLATED_DEATH_SECONDS,
    ISOLATED_OVERDUE_SECONDS,
)
from holdfast.model.values import decoder
from holdfast.model.views import command_line
from holdfast.worker import ending, wire
from holdfast.worker.activation import Activation
from holdfast.worker.body_life import BodyLife, LeaveReason
from holdfast.worker.time_limits import timed_out

log = logging.getLogger("holdfast.engine")
node_log = logging.getLogger("holdfast.node")


class CannotBeIsolated(Exception):
    """The code of a body cannot be imported in a process."""


class IsolatedActivation(Activation):
    """The engine's side of a suspect's body: passes its commands to its run, and answers of the run to it."""

    def __init__(
        self, attempt: Attempt, on_exit: Callable[[Activation, bool], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(attempt, on_exit, loop)
        self.over: asyncio.Future[wire.Ended]
        """Settled with its last word, or with why there is none."""
        self.expect_end()
        self.send: Callable[[bytes], None] | None = None
        """Sends a frame to its process, while it has one."""
        self._run = cast(OwnedRun, attempt.port)  # who starts bodies is in the engine's process
        self._questions: set[asyncio.Task[None]] = set()
        self._places: dict[int, Releasable] = {}
        """Places that steps of the body hold or wait for, by the number that the process gave them."""
        self._parked = False
        self._answers = 0
        self._overdue: asyncio.TimerHandle | None = None

    def expect_end(self) -> None:
        """Begin to wait for its last word."""
        self.over = self.loop.create_future()
        self.over.add_done_callback(_retrieve)

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
            case wire.SecretWanted():
                return await self.secrets.value(question.name, a.plan.definition.name)
            case wire.OrderChild():
                inputs = _inputs(question.workflow, question.inputs)
                return await port.order_child(question.workflow, inputs, question.run_id, question.detached)
        raise AssertionError(question)

    # --- what the run says -----------------------------------------------------------------------------------------

    def _send(self, message: wire.ToProcess) -> None:
        if self.send is not None:
            self.send(wire.encode(message))

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
        if self.send is None:
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
