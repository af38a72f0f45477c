"""Activation: one life of a body in this process, from its start until it ended or was left.

Owns: the body's tasks, which of them wait, leaving (Suspended), timeouts and heartbeats, and what it reports.
Never: decides what a report leads to (rules), remembers calls (memory.py), offers anything to the body (context.py).
Invariants: it reports once. After it was left it reports nothing, and every call on its ctx raises Suspended.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.engine import dying
from holdfast.engine.protocols import Attempt
from holdfast.model import commands as cmd
from holdfast.model.captures import captured, check_size
from holdfast.model.errors import HeartbeatLost, HoldfastError, NodeTimeout, Suspended, TicketRaised
from holdfast.model.values import encode
from holdfast.worker.failures import describe
from holdfast.worker.memory import Memory
from holdfast.worker.threads import ThreadJob

R = TypeVar("R")
_NO_MEMORY = Memory()
_EMPTY: dict[Any, Any] = {}
_EMPTY_SET: set[Any] = set()


class Activation:
    """The body of one instance, alive."""

    task: asyncio.Task[Any] | None = None
    thread: ThreadJob | None = None
    """The thread of a sync body."""
    leaving = False
    cancelled = False
    reported = False
    stopping = False
    """Left because the engine stops: it says so."""
    progress: tuple[float, float | None, str] | None = None
    tasks_seen = 0
    checkpoint_read = False
    """Whether this life of the body has looked at its checkpoint."""
    _thread_call: asyncio.Future[Any] | None = None
    _why: HoldfastError | None = None
    _deadline: asyncio.TimerHandle | None = None
    _heartbeat: asyncio.TimerHandle | None = None
    _grace: asyncio.TimerHandle | None = None
    _since = 0.0
    _grace_seconds = 0.0
    _left_seconds: float | None = None

    # a body without a ctx has nothing to remember or to wait for: it shares what stays empty
    memory = _NO_MEMORY
    waits: dict[str, asyncio.Future[tuple[str, bytes]]] = _EMPTY
    early: dict[str, tuple[str, bytes]] = _EMPTY
    """Answers that came before the body began to wait for them."""
    callers: dict[asyncio.Task[Any], str] = _EMPTY
    """Tasks that ever called ctx, and the scope of each."""
    parked: set[asyncio.Task[Any]] = _EMPTY_SET
    opening: set[asyncio.Future[Any]] = _EMPTY_SET
    vars: dict[str, bytes] = _EMPTY

    def __init__(self, attempt: Attempt, on_gone: Callable[[Activation, bool], None]) -> None:
        self.attempt = attempt
        self.port = attempt.port
        self.key = (attempt.port.run_no, attempt.node, attempt.path)
        self.on_gone = on_gone
        self.loop = asyncio.get_running_loop()
        if attempt.handler.takes_ctx:
            self.memory = Memory()
            self.waits, self.early, self.callers, self.vars = {}, {}, {}, {}
            self.parked, self.opening = set(), set()

    # --- reports -------------------------------------------------------------------------------------------

    def completed(self, result: Any, raised: TicketRaised | None = None) -> None:
        """The body returned, or raised a ticket with this as its output."""
        a = self.attempt
        if self._why is not None:  # too late: that attempt is over, whatever it still brought
            self.interrupted()
            return
        try:
            data = encode(result, a.handler.returns, what="result")
        except HoldfastError as e:
            self.failed(e)
            return
        self.completed_bytes(data, raised)

    def completed_bytes(self, data: bytes, raised: TicketRaised | None = None) -> None:
        if dying.at is not None:
            dying.at("body.after")
        a = self.attempt
        try:
            kept = captured(data, a.captures, f"the output of {a.node}") if a.captures else {}
            kept_vars = self.captured_vars() if self.vars else {}
        except HoldfastError as e:
            self.failed(e)
            return
        target, ticket = (None, None) if raised is None else (raised.target, raised.ticket)
        self.report(
            cmd.CompleteNode(a.node, a.path, a.attempt, data, kept, self.vars, kept_vars, target, ticket, visit=a.visit)
        )

    def captured_vars(self) -> dict[str, Any]:
        """What conditions read of the variables that this body set."""
        found: dict[str, Any] = {}
        for name, data in self.vars.items():
            for key, value in captured(data, self.attempt.plan.var_captures.get(name, ()), f"variable {name}").items():
                found[f"{name}:{key}"] = value
        check_size(found, "the variables")
        return found

    def failed(self, error: BaseException) -> None:
        """The body raised."""
        a = self.attempt
        raised = _ticket_in(error)
        if raised is not None and (self.stopping or not self.leaving):
            self.completed(raised.output, raised)
            return
        if self._why is not None:  # what it raised is how it stopped; why it had to is what counts
            self.interrupted()
        elif self.cancelled:
            self.report(cmd.DropNode(a.node, a.path, a.attempt, visit=a.visit))
        elif self.leaving:
            self.left()
        else:
            self.report(cmd.FailNode(a.node, a.path, a.attempt, describe(error), visit=a.visit))

    def interrupted(self) -> None:
        """The body's task was cancelled: by us, for a reason, or by itself."""
        a = self.attempt
        if self._why is not None:
            self.report(cmd.FailNode(a.node, a.path, a.attempt, describe(self._why), visit=a.visit))
        elif self.cancelled:
            self.report(cmd.DropNode(a.node, a.path, a.attempt, visit=a.visit))
        elif self.leaving:
            self.left()
        else:
            self.failed(RuntimeError("the body cancelled itself"))

    def left(self) -> None:
        """The body has gone without an end. An orderly stop says so; otherwise there is nobody to tell."""
        a = self.attempt
        if self.stopping and a.definition.on_crash == "rerun":
            self.report(cmd.StopNode(a.node, a.path, a.attempt, visit=a.visit))
        else:
            self.report(None)

    def report(self, command: Any) -> None:
        """The one word about how the body ended; None: it was left, and runs again when there is a reason to."""
        if self._end(left=command is None) and command is not None:
            self.port.tell(command)

    def _end(self, *, left: bool) -> bool:
        """This life is over; False: it was over before."""
        if self.reported:
            return False
        self.reported = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._grace is not None:
            self._grace.cancel()
        self.on_gone(self, left)
        return True

    # --- waiting -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every call on ctx asks this first."""
        if self.leaving or self.reported:
            raise Suspended
        if self.cancelled or self._why is not None:
            raise asyncio.CancelledError

    async def commit(self, command: Any) -> Any:
        """Tell the run something and wait until it is durable."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def done(answer: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(answer)
            else:  # our attempt is over: somebody else has the run, or it is being ended
                self.leaving = True
                future.set_exception(Suspended())

        self.port.tell(command, done)
        self.opening.add(future)
        try:
            return await future
        finally:
            self.opening.discard(future)

    async def park(self, wait_id: str) -> tuple[str, bytes]:
        """Wait for an answer; the body may be left meanwhile."""
        if wait_id in self.early:
            return self.early.pop(wait_id)
        if self.thread is not None:  # a thread does not wait: it is given back, and the body runs again later
            self.leaving = True
            raise Suspended
        future: asyncio.Future[tuple[str, bytes]] = self.loop.create_future()
        self.waits[wait_id] = future
        task = asyncio.current_task()
        assert task is not None
        self.parked.add(task)
        self._pause()
        try:
            return await future
        except asyncio.CancelledError:
            if not (self.leaving or self.cancelled or self._why):  # the body gave this wait up by itself
                self.port.tell(cmd.CloseWait(wait_id, "cancelled"))
            raise
        finally:
            self.parked.discard(task)
            self.waits.pop(wait_id, None)
            self._unpause()

    def about_to_park(self) -> None:
        """The calling task opens a wait and does nothing else until it is answered."""
        task = asyncio.current_task()
        assert task is not None
        self.parked.add(task)

    def answer(self, wait_id: str, outcome: str, value: bytes) -> None:
        future = self.waits.get(wait_id)
        if future is None:
            self.early[wait_id] = (outcome, value)
        elif not future.done():
            future.set_result((outcome, value))

    @property
    def expired(self) -> bool:
        """Whether the body was told to stop because of a timeout or a missing heartbeat."""
        return self._why is not None

    @property
    def all_parked(self) -> bool:
        """Whether every task that ever called ctx waits in such a call."""
        alive = [task for task in self.callers if not task.done()]
        return bool(alive) and all(task in self.parked for task in alive)

    def task_ended(self, _: asyncio.Task[Any]) -> None:
        """A task that called ctx has ended: perhaps all that is left of the body waits now."""
        if not self.reported and self.all_parked:
            a = self.attempt
            self.port.tell(cmd.SuspendNode(a.node, a.path, a.attempt, visit=a.visit))

    # --- a body in a thread --------------------------------------------------------------------------------

    def run_for_thread(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make a call on ctx for a body in a thread, which waits here. Where the answer may take long the thread does
        not wait: the body is left and runs again when the answer is there."""
        future = asyncio.run_coroutine_threadsafe(self.made_for_thread(call), self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None

    async def made_for_thread(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """The call itself, on the loop; a timeout or a cancel of the body ends it."""
        self._thread_call = asyncio.current_task()
        try:
            return await call()
        finally:
            self._thread_call = None
            self.callers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]

    # --- being stopped -------------------------------------------------------------------------------------

    def leave(self, *, stopping: bool = False) -> None:
        """Leave the body without ending it: Suspended at every waiting call, now and from now on."""
        self.leaving = True
        self.stopping = stopping
        for future in list(self.waits.values()):
            if not future.done():
                future.set_exception(Suspended())
        if not stopping:
            for opening in list(self.opening):
                if not opening.done():
                    opening.set_exception(Suspended())

    def supersede(self) -> None:
        """The run has gone on without this body, which waits: it is cancelled, and nobody hears what it still says."""
        self.cancelled = True
        if self._end(left=False) and self.task is not None:
            self.task.cancel()

    def cancel(self, grace_seconds: float) -> None:
        """Ask the body to stop; past the grace time it is given up."""
        self.cancelled = True
        self._stop_body(grace_seconds)

    def _expire(self, why: HoldfastError, grace_seconds: float) -> None:
        if not self.reported and self._why is None:
            self._why = why
            self._stop_body(grace_seconds)

    def _stop_body(self, grace_seconds: float) -> None:
        if self.task is not None:
            self.task.cancel()
        if self._thread_call is not None:
            self._thread_call.cancel()
        if self._grace is None:
            self._grace = self.loop.call_later(grace_seconds, self.give_up)

    def give_up(self) -> None:
        """The body does not stop: go on without it. Its thread, if it has one, is written off."""
        if not self.reported:
            if self.thread is not None:
                self.thread.give_up()
            self.interrupted()

    # --- time ----------------------------------------------------------------------------------------------

    def start_clock(self, grace_seconds: float) -> None:
        """Timeout and heartbeat count from here; time spent waiting does not count."""
        definition = self.attempt.definition
        if definition.timeout is not None or definition.heartbeat is not None:
            self._left_seconds = definition.timeout
            self._grace_seconds = grace_seconds
            self._unpause()

    def _pause(self) -> None:
        if not self.all_parked:
            return
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            assert self._left_seconds is not None
            self._left_seconds -= self.loop.time() - self._since

    def _unpause(self) -> None:
        if self._heartbeat is None:
            self.beat()
        if self._left_seconds is not None and self._deadline is None and not self.reported:
            self._since = self.loop.time()
            limit = self.attempt.definition.timeout
            why = NodeTimeout(f"{self.attempt.node} ran longer than its timeout of {limit:g} s")
            self._deadline = self.loop.call_later(max(0.0, self._left_seconds), self._expire, why, self._grace_seconds)

    def beat(self) -> None:
        """The body is alive."""
        limit = self.attempt.definition.heartbeat
        if limit is None or self.reported:
            return
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        why = HeartbeatLost(f"{self.attempt.node} did not call ctx.heartbeat() for {limit:g} s")
        self._heartbeat = self.loop.call_later(limit, self._expire, why, self._grace_seconds)


def _ticket_in(error: BaseException) -> TicketRaised | None:
    """The ticket that a body raised, perhaps in tasks of its own, whose group then holds nothing else."""
    if isinstance(error, BaseExceptionGroup):
        tickets, others = error.split(TicketRaised)
        return None if tickets is None or others is not None else _ticket_in(tickets.exceptions[0])
    return error if isinstance(error, TicketRaised) else None
