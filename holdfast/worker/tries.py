"""Tries: the steps of a body that are under way: one try of each, and the thread of a sync one.

Owns: the events of a try, waiting for the thread of its function, and what becomes of that thread when the step timed
out or was cancelled.
Never: records anything (ending.py, steps.py), starts another try (steps.py).
Rule: a step that timed out ends when its thread has ended, or when the thread is given up after the grace time, so that
no try runs beside the one before it. A cancelled step ends at once and leaves its thread to the body (a race would
otherwise wait for its losers); the body's end waits for the thread (ending.py).
On crash: threads die with the process; the step runs again with the same idempotency key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model.values import encode
from holdfast.worker.recorded_calls import Call
from holdfast.worker.replay import Replay
from holdfast.worker.threads import Done, GivenUp, ThreadJob

log = logging.getLogger("holdfast.node")


class Try:
    """One try of a step, under way."""

    __slots__ = ("call", "cancelled", "is_node", "number", "repeats", "returns", "thread", "undo")

    def __init__(
        self, call: Call, number: int, *, returns: Any, is_node: bool, repeats: bool = True, undo: str = ""
    ) -> None:
        self.call = call
        self.number = number
        """From 1."""
        self.returns = returns
        """What the function is annotated with."""
        self.is_node = is_node
        self.repeats = repeats
        """Whether it may be made again when it is not known how it ended."""
        self.undo = undo
        """The place of its compensation, where it has one."""
        self.cancelled = False
        """It was asked to stop, and its thread may still run."""
        self.thread: StepThread | None = None

    def when_stopped(self, call: Callable[[], None]) -> None:
        """Call when nothing of the try is running: at once, or when its thread has ended or was given up."""
        if self.thread is None or self.thread.over.done():
            call()
        else:
            self.thread.over.add_done_callback(lambda _: call())

    def completed(self, value: Any) -> Any:
        """The event of a try that has returned this."""
        data = encode(value, self.returns, what=f"result of {self.call.name}")
        return step_event(ev.StepCompleted, self.call, self.number, output=msgspec.Raw(data), undo=self.undo)

    def failed(self, error: ev.ErrorInfo, retry_at: int) -> Any:
        """The event of a try that has failed, after which the step may be tried again."""
        return step_event(ev.StepFailed, self.call, self.number, error=error, retry_at=retry_at)


def step_event(kind: Any, call: Call, attempt: int, **fields: Any) -> Any:
    return kind(
        scope=call.scope,
        position=call.position,
        kind=call.kind,
        name=call.name,
        digest=call.digest,
        key=call.key,
        attempt=attempt,
        **fields,
    )


class BodySteps:
    """The steps of one body that are under way: their tries, and the threads of the sync ones."""

    start_thread: Callable[[Callable[[], Any], Done], ThreadJob]
    """Where sync steps run."""
    given_up: GivenUp
    """How many threads the engine has lost."""
    grace_seconds = 0.0
    """How long a thread may take to stop."""
    late: Sequence[StepThread] = ()
    """Threads that have ended after their steps were cancelled, and whose outcomes the body's end may record."""
    body_has_ended = False

    def __init__(self, node: str, run_id: str, loop: asyncio.AbstractEventLoop | None) -> None:
        self.node = node
        self.run_id = run_id
        self.loop = loop
        self.tries: set[Try] = set()
        self.threads: set[StepThread] = set()
        """Those of cancelled steps among them."""

    @property
    def any_unrepeatable(self) -> bool:
        """Whether a step is under way that must not be repeated unasked: a body that were evicted would repeat it."""
        return any(not tried.repeats for tried in self.tries)

    @property
    def stopping(self) -> asyncio.Future[bool] | None:
        """A cancelled step whose thread still runs: it must not act beside another execution of the body."""
        return next((thread.over for thread in self.threads if thread.is_cancelled), None)

    @property
    def any_threads(self) -> bool:
        """Whether the end of the body has to wait for threads, or to record what they did."""
        return bool(self.threads or self.late)

    def give_up(self) -> None:
        """Stop waiting for every thread."""
        for thread in list(self.threads):
            thread.give_up()


NO_STEPS = BodySteps("", "", None)
"""Of bodies without a ctx; it stays empty."""


class StepThread:
    """The thread of one try of a sync step."""

    def __init__(self, steps: BodySteps, replay: Replay, tried: Try, job: Callable[[], Any]) -> None:
        assert steps.loop is not None
        self.tried = tried
        self.over: asyncio.Future[bool] = steps.loop.create_future()
        """Done when the thread has ended (True) or was given up (False)."""
        self.value: Any = None
        self.error: BaseException | None = None
        self._steps = steps
        self._replay = replay
        self._loop = steps.loop
        self._calls: int | None = None
        """How many calls the body had made when the step was cancelled; None: the step is not cancelled."""
        self._timed_out = False
        self._part = replay.part
        self._grace: asyncio.TimerHandle | None = None
        self._job = steps.start_thread(job, self._ended)
        steps.threads.add(self)

    async def result(self) -> Any:
        """What the function returned. On cancellation the thread stays with the body for the grace time."""
        try:
            await asyncio.shield(self.over)
        except asyncio.CancelledError:
            self._cancelled()
            raise
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def is_cancelled(self) -> bool:
        """Whether the thread still runs although its step was cancelled."""
        return self._calls is not None

    @property
    def is_worth_recording(self) -> bool:
        """Whether the thread of a cancelled step has ended, and its outcome still belongs to what the body did: the
        step has not timed out or lost a race, and the body has made no call since. A body that continued without the
        step would not find its own calls again if the step had a result after all."""
        if self._timed_out or self._part.lost:
            return False
        return self.over.done() and self._calls == self._replay.calls

    async def outlast(self) -> bool:
        """Wait until the thread of a step that timed out has ended, True, or is given up."""
        self._timed_out = True
        await asyncio.wait([self.over])
        return self.over.result()

    def give_up(self) -> None:
        """Stop waiting for the thread; it counts as given up until its function returns."""
        if self.over.done():
            return
        lost = self._job.give_up()
        if lost and self._steps.body_has_ended:
            self._steps.tries.add(self.tried)  # it may act after the end of the body
        self._finish(ended=False)
        if lost:
            log.warning(
                "step %s of node %s, run %s, did not stop within the grace time; its thread was given up",
                self.tried.call.name, self._steps.node, self._steps.run_id,
            )  # fmt: skip

    def _cancelled(self) -> None:
        if self._calls is None:
            self._calls = self._replay.calls
            self.tried.cancelled = True
            if self.over.done():  # the step was about to get its result
                self._keep()
            else:
                self._grace = self._loop.call_later(self._steps.grace_seconds, self.give_up)

    def _ended(self, value: Any, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self._finish(ended=True)

    def _finish(self, *, ended: bool) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self.over.set_result(ended)
        self._steps.threads.discard(self)
        if self.is_cancelled and ended:
            self._keep()

    def _keep(self) -> None:
        """Keep the outcome until the body ends, and drop those that are no longer worth recording."""
        self._steps.late = [thread for thread in [*self._steps.late, self] if thread.is_worth_recording]
