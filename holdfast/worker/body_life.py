"""Body life: the states of one execution of a body in this process, and the transitions between them.

Owns: `BodyLife`, its table, why a body is unwound (`LeaveReason`), and `LiveBody`, which moves along the table: begins,
is stopped, is unwound (Suspended), reports its end.
Never: makes calls or waits for the body (activation.py), says how it ended (ending.py).
Invariants: it reports once. After that nothing of it is recorded, and every call on its ctx raises.
On crash: nothing of it is stored; the next owner of the run reads the status of the node.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, Literal

from holdfast.engine.ports import Attempt
from holdfast.model.captures import captured, check_size
from holdfast.model.errors import HoldfastError, IllegalTransition, StepMismatch, Suspended
from holdfast.model.events import ErrorInfo
from holdfast.worker.failures import describe
from holdfast.worker.permissions import Permissions
from holdfast.worker.replay import Replay
from holdfast.worker.secret_values import Hidden, SecretValues
from holdfast.worker.threads import ThreadJob
from holdfast.worker.time_limits import BodyClock, StepClock
from holdfast.worker.tries import NO_STEPS, BodySteps


class BodyLife(StrEnum):
    """Where the execution of a body stands."""

    STARTING = "starting"
    """Its arguments and its recorded calls are read."""
    RUNNING = "running"
    """It is at work."""
    WAITING = "waiting"
    """Every task of it waits in a call on ctx: its node is suspended, its time limits do not count."""
    LEAVING = "leaving"
    """It is unwound without an end (`LeaveReason` says why): calls on ctx raise Suspended."""
    CANCELLING = "cancelling"
    """It was asked to stop, by its run or by a time limit: calls on ctx raise CancelledError."""
    ENDING = "ending"
    """It has returned or raised; the steps and tasks that it has started are stopped before that is reported."""
    REPORTED = "reported"
    """Its run knows how it ended, or that it was evicted. Nothing that it still does is recorded."""

    __hash__ = str.__hash__  # Enum's own is a Python function


class LeaveReason(StrEnum):
    """Why a body is unwound without an end."""

    EVICT = "evict"
    """It leaves memory: it only waits, its code does not match its recorded calls, or its run is driven elsewhere."""
    STOP = "stop"
    """The engine stops in an orderly way. A body that ends within the grace time is recorded."""
    PAUSE = "pause"
    """The run is paused; as STOP, for this run alone."""


_L = BodyLife
BODY_TRANSITIONS: Final[dict[BodyLife, frozenset[BodyLife]]] = {
    _L.STARTING: frozenset({_L.RUNNING, _L.LEAVING, _L.CANCELLING, _L.REPORTED}),
    _L.RUNNING: frozenset({_L.WAITING, _L.LEAVING, _L.CANCELLING, _L.ENDING, _L.REPORTED}),
    _L.WAITING: frozenset({_L.RUNNING, _L.LEAVING, _L.CANCELLING, _L.ENDING, _L.REPORTED}),
    _L.LEAVING: frozenset({_L.CANCELLING, _L.REPORTED}),
    _L.CANCELLING: frozenset({_L.ENDING, _L.REPORTED}),
    _L.ENDING: frozenset({_L.REPORTED}),
    _L.REPORTED: frozenset(),
}
"""Every state may go to REPORTED: the grace time is over, or the run continues without this body."""

ALIVE: Final = frozenset({_L.STARTING, _L.RUNNING, _L.WAITING})
"""The body has neither ended nor been asked to."""
OVER: Final = frozenset({_L.ENDING, _L.REPORTED})
"""The body has ended, or the engine does not wait for it."""


_RUNNING, _LEAVING, _ENDING, _REPORTED = _L.RUNNING, _L.LEAVING, _L.ENDING, _L.REPORTED
"""Members that every call is compared with: to look one up in its Enum takes as long as a call."""
_NO_REPLAY = Replay()
EMPTY: dict[Any, Any] = {}
EMPTY_SET: set[Any] = set()
"""What a body without a ctx has of everything that only calls on ctx fill; never changed."""


class LiveBody(ABC):
    """One execution of the body of an instance: where its life stands, and how it is stopped."""

    task: asyncio.Task[Any] | None = None
    thread: ThreadJob | None = None
    """The thread of a sync body."""
    grace_seconds = 0.0
    """How long what it started may take to stop."""
    life = BodyLife.STARTING
    leave_reason: LeaveReason | None = None
    """Why it is unwound, where it is."""
    stop_reason: HoldfastError | Literal["cancelled"] | None = None
    """Why it was asked to stop: its run does not want it, or the limit that it has exceeded."""
    mismatch: StepMismatch | None = None
    """How its code differs from its recorded calls, where it is unwound for that."""
    _thread_call: asyncio.Future[Any] | None = None
    _clock: BodyClock | None = None
    _grace: asyncio.TimerHandle | None = None

    replay = _NO_REPLAY
    steps: BodySteps = NO_STEPS
    """Its steps that are under way."""
    waits: dict[str, tuple[asyncio.Task[Any], asyncio.Future[tuple[str, bytes]]]] = EMPTY
    tasks: set[asyncio.Task[Any]] = EMPTY_SET
    """Tasks, other than the body's own, that have made or awaited a call on ctx and have not ended."""
    pending_commits: set[asyncio.Future[Any]] = EMPTY_SET
    vars: dict[str, bytes] = EMPTY
    secrets: SecretValues
    permissions = Permissions()
    hidden: Hidden | None = None
    """The values of secrets that the body got; None: none."""

    def __init__(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> None:
        self.attempt = attempt
        self.port = attempt.port
        self.loop = loop

    @abstractmethod
    def give_up(self) -> None:
        """The body does not stop within its grace time: continue without it."""

    @abstractmethod
    def exited(self, left: bool) -> None:
        """This execution is over. `left`: without an end."""

    # --- secrets ---------------------------------------------------------------------------------------------

    async def secret_values(self, names: Iterable[str]) -> dict[str, str]:
        """The values of secrets for this body, by name; from now on they are hidden in what it says."""
        hidden = self.hidden or Hidden()
        found: dict[str, str] = {}
        for name in names:
            if name not in found:
                found[name] = await self.secrets.value(name, self.attempt.plan.definition.name)
                hidden.add(name, found[name])
        self.hidden = hidden
        return found

    def described(self, error: BaseException) -> ErrorInfo:
        """An exception as the journal has it, without values of secrets."""
        info = describe(error)
        return info if self.hidden is None else self.hidden.error(info)

    # --- states ----------------------------------------------------------------------------------------------

    def move(self, to: BodyLife) -> None:
        """Go to another state of its life, or raise IllegalTransition."""
        if to not in BODY_TRANSITIONS[self.life]:
            what = f"the body of {self.attempt.node}@{self.attempt.path} in run {self.port.run_id}"
            raise IllegalTransition(f"{what}: {self.life} -> {to} is not a transition")
        self.life = to

    @property
    def expired(self) -> bool:
        """Whether it was asked to stop because of a limit, such as a timeout."""
        return isinstance(self.stop_reason, HoldfastError)

    @property
    def leaving(self) -> bool:
        """Whether it is unwound, or was, without an end."""
        return self.leave_reason is not None and self.stop_reason is None

    @property
    def drops_result(self) -> bool:
        """Whether what the body returns or raises is not recorded: it is evicted."""
        return self.life is _LEAVING and self.leave_reason is LeaveReason.EVICT

    def check(self) -> None:
        """Raise where the body may make no call on ctx. Every call asks this first."""
        life = self.life
        if life is _RUNNING or life in ALIVE:
            return
        if life is _LEAVING or (life is _REPORTED and self.leaving):
            raise Suspended
        raise asyncio.CancelledError

    # --- from its beginning to its report -----------------------------------------------------------------------

    def begin(self) -> None:
        """The body begins now. Its time limits count from here; time in calls on ctx that wait does not."""
        if self.life is BodyLife.STARTING:
            self.life = _RUNNING
        definition = self.attempt.definition
        if definition.timeout is not None or definition.heartbeat is not None:
            self._clock = BodyClock(
                self.loop, self.attempt.node, definition.timeout, definition.heartbeat, self._expire
            )
            self._clock.start()

    def beat(self, clock: StepClock | None = None) -> None:
        """The body is alive, and the step whose clock this is."""
        if clock is not None:
            clock.beat()
        if self._clock is not None:
            self._clock.beat()

    def captured_vars(self) -> dict[str, Any]:
        """What conditions read of the variables that this body set."""
        found: dict[str, Any] = {}
        for name, data in self.vars.items():
            for key, value in captured(data, self.attempt.plan.var_captures.get(name, ()), f"variable {name}").items():
                found[f"{name}:{key}"] = value
        check_size(found, "the variables")
        return found

    def begin_ending(self) -> None:
        """Let no call on ctx begin, stop the clock, and cancel what the body left behind."""
        self.move(_ENDING)
        self.steps.body_has_ended = True
        self._stop_clock()
        self._cancel_tasks()

    def report(self, command: Any) -> None:
        """Say how the body ended, once; None: it was evicted, and runs again when there is a reason to."""
        if self._end(left=command is None) and command is not None:
            self.port.submit(command)

    def _end(self, *, left: bool) -> bool:
        """This execution is over; False: it was over before."""
        if self.life is _REPORTED:
            return False
        self.life = _REPORTED  # as every other state may
        self._stop_clock()
        if self._grace is not None:
            self._grace.cancel()
        self.replay.body.replay = None
        if not left:
            self.abandon()
        self.exited(left)
        return True

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.pause()
            self._clock = None

    # --- being stopped -------------------------------------------------------------------------------------------

    def leave(self, reason: LeaveReason) -> None:
        """Unwind the body without ending it: Suspended at every waiting call, now and from now on."""
        if self.life is _REPORTED:
            return
        self._move_to_leaving(reason)
        for task, future in list(self.waits.values()):
            if not future.done():
                future.set_exception(Suspended())
            if task is not self.task:
                task.add_done_callback(retrieve_exception)
        if reason is LeaveReason.EVICT:
            for opening in list(self.pending_commits):
                if not opening.done():
                    opening.set_exception(Suspended())

    def _move_to_leaving(self, reason: LeaveReason) -> None:
        """Note that it is to be unwound. One that is stopped, or has ended, stays so."""
        self.leave_reason = reason
        if self.life in ALIVE:
            self.move(_LEAVING)

    def supersede(self) -> None:
        """The run continues without this body, which waits: it is cancelled, and nothing that it does is recorded."""
        self.stop_reason = self.stop_reason or "cancelled"
        if self._end(left=False) and self.task is not None:
            self.task.cancel()

    def cancel(self, grace_seconds: float) -> None:
        """Ask the body to stop; past the grace time it is given up."""
        self._move_to_cancelling("cancelled")
        self._stop_body(grace_seconds)

    def _expire(self, why: HoldfastError) -> None:
        if self.life in ALIVE or self.life is _LEAVING:
            self._move_to_cancelling(why)
            self._stop_body(self.grace_seconds)

    def _move_to_cancelling(self, reason: HoldfastError | Literal["cancelled"]) -> None:
        """Note why it is to stop, which counts also where it is ending already; the first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        if self.life in ALIVE or self.life is _LEAVING:
            self.move(BodyLife.CANCELLING)

    def _stop_body(self, grace_seconds: float) -> None:
        if self.task is not None:
            self.task.cancel()
        if self._thread_call is not None:
            self._thread_call.cancel()
        if self._grace is None:
            self._grace = self.loop.call_later(grace_seconds, self.give_up)

    def cut_off(self) -> None:
        """The grace time of an evicted body has passed: cancel it."""
        if self.task is not None:
            self.task.cancel()
        self.abandon()

    def abandon(self) -> None:
        """Stop waiting for whatever the body started and has not ended. Its tasks are cancelled, the threads of its
        steps given up."""
        self._cancel_tasks()
        self.steps.give_up()

    def _cancel_tasks(self) -> None:
        for task in self.tasks:
            task.add_done_callback(retrieve_exception)
            task.cancel()


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception of an abandoned task as retrieved, to silence asyncio's warning."""
    if not task.cancelled():
        task.exception()
