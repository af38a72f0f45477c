"""Activation: one execution of a body in this process, as its calls on ctx use it.

Owns: the body's tasks and which of them wait, its commits and waits, and suspending its node while it only waits.
Never: moves the body along its life by itself (body_life.py), decides what a report leads to (rules), says how it ended
(ending.py), records calls (replay.py), offers anything to the body (context.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping, MutableSet
from functools import partial
from typing import Any, TypeVar

from holdfast.engine.ports import Attempt
from holdfast.model import commands as cmd
from holdfast.model.current import Current
from holdfast.model.errors import (
    CorruptJournal,
    HoldfastError,
    StepMismatch,
    Suspended,
    UsageError,
)
from holdfast.model.limits import BODY_CHECK_SECONDS
from holdfast.model.naming import is_undo
from holdfast.model.views import Emitted
from holdfast.worker import call_scopes, ending, parking
from holdfast.worker.body_life import ALIVE, EMPTY, EMPTY_SET, OVER, BodyLife, LeaveReason, LiveBody, retrieve_exception
from holdfast.worker.call_scopes import BodyPart
from holdfast.worker.recorded_calls import Call, Recorded
from holdfast.worker.replay import Replay, idempotency_key
from holdfast.worker.time_limits import current_clock
from holdfast.worker.tries import BodySteps, Try

R = TypeVar("R")
_RUNNING, _WAITING = BodyLife.RUNNING, BodyLife.WAITING


_OUTSIDE = (
    "outside the tasks of its body (in a thread, or in a callback of the event loop): its calls could not be found "
    "again after a crash. Call it in the body or in a task that the body creates. A blocking function that needs ctx "
    "is a sync node: `@hf.node def work(ctx: hf.SyncContext)`"
)


class Activation(LiveBody):
    """The body of one instance, alive."""

    releases_process = False
    """It runs in a process that is released while it only waits."""
    current_class = Current
    """The testing kit has one that watches."""
    progress: tuple[float, float | None, str] | None = None
    emitted: deque[Emitted] | None = None
    """The last values that the body has shown; None: it has shown none."""
    checkpoint_read = False
    """Whether this execution of the body has read its checkpoint."""
    _check_scheduled = False
    _watched: asyncio.Future[Any] | None = None
    """What keeps the body from counting as parked; when it is done, that is checked again."""
    _settling: asyncio.Task[None] | None = None

    # a body without a ctx records nothing and waits for nothing: it shares what stays empty
    answers_before_wait: dict[str, tuple[str, bytes]] = EMPTY
    """Answers that arrived before the body began to wait for them."""
    parked: set[asyncio.Task[Any]] = EMPTY_SET
    """Tasks that wait in a call on ctx, from opening the wait until its answer."""
    ended: MutableSet[asyncio.Future[Any]] = EMPTY_SET
    """Tasks that have made or awaited a call on ctx, and have ended."""
    calls: MutableMapping[Coroutine[Any, Any, Any], Call] = EMPTY
    """The recorded calls that were made, by what is awaited for their result."""

    def __init__(
        self, attempt: Attempt, on_exit: Callable[[Activation, bool], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(attempt, loop)
        self.key = (attempt.node, attempt.path)
        self.on_exit = on_exit
        if attempt.handler.takes_ctx:
            self.replay = Replay()
            self.steps = BodySteps(attempt.node, attempt.port.run_id, loop)
            self.waits, self.answers_before_wait, self.vars = {}, {}, {}
            self.calls = weakref.WeakKeyDictionary()
            self.parked, self.pending_commits, self.tasks = set(), set(), set()

    @property
    def undoes_steps(self) -> bool:
        """Whether steps of this body are undone when the run does not end well; those of a compensation are not."""
        return self.port.compensates and not is_undo(self.attempt.node)

    def key_facts(self, step_key: str | None) -> tuple[object, ...]:
        """What distinguishes this instance, or one step in it, from every other: keys and ids are derived from it."""
        a, port = self.attempt, self.port
        facts = (port.run_id, port.key_epoch, a.node, a.path, a.visit)
        return facts if step_key is None else (*facts, step_key)

    def current(self, tried: Try | None = None) -> Current:
        """What the body, or a step of it, may know about itself where it has no ctx."""
        a, port = self.attempt, self.port
        step_key = None if tried is None else tried.call.step_key
        number = tried.number if tried is not None and tried.is_node else a.attempt
        return self.current_class(
            port.run_id, a.node, a.path, a.visit, number,
            lambda: idempotency_key(port.store_id, *self.key_facts(step_key)),
            lambda: self.stop_reason is not None or self.life in OVER or (tried is not None and tried.cancelled),
            partial(self.loop.call_soon_threadsafe, self.beat, current_clock.get()),
        )  # fmt: skip

    # --- its end -------------------------------------------------------------------------------------------

    def conclude(self, report: Callable[[], None]) -> None:
        """The body has returned or raised: report it once everything that it started has stopped."""
        is_evicted = self.drops_result and self.mismatch is None
        if is_evicted or not (self.tasks or self.steps.any_threads):
            report()
        elif self.life is not BodyLife.REPORTED:
            self._settling = self.loop.create_task(ending.settle(self, report))

    def give_up(self) -> None:
        """The body does not stop: continue without it. Its thread, if it has one, is written off, and the journal says
        so, because another process may be asked about the run."""
        if self.life is not BodyLife.REPORTED:
            lost, why = self.thread is not None and self.thread.give_up(), self.stop_reason
            if lost and isinstance(why, HoldfastError):
                self.stop_reason = type(why)(f"{why.message}; it did not stop, and its thread was given up")
            ending.interrupted(self)

    def exited(self, left: bool) -> None:
        self.on_exit(self, left)

    def read_replay(self, rows: Iterable[tuple[str, bytes]]) -> Replay:
        """The calls that earlier executions of the body have recorded. If they cannot be read, the run is released."""
        try:
            return Replay.read(rows)
        except CorruptJournal as e:
            self.port.cannot_read(e)
            raise Suspended from e

    # --- waiting -------------------------------------------------------------------------------------------

    def made(self, call: Call, awaited: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
        """Note a call; it is open until what it returned to be awaited has ended, or was dropped."""
        self.calls[awaited] = call
        return awaited

    def recall(self, call: Call) -> Recorded | None:
        """The record of a call that is awaited now; None: it is new."""
        if self.life in OVER:  # awaited by a task that the body has left behind
            raise asyncio.CancelledError
        self.joined()
        try:
            return self.replay.recall(call)
        except StepMismatch as mismatch:
            self._mismatched(mismatch)
            raise

    def _mismatched(self, mismatch: StepMismatch) -> None:
        """The body makes another call than the recorded one: from here on every call on ctx raises Suspended, and the
        run is put on hold when the body has ended, or does not end within the grace time."""
        if self.life in ALIVE:
            self.mismatch = mismatch
            self.leave(LeaveReason.EVICT)
            self._grace = self.loop.call_later(self.grace_seconds, self.give_up)

    def joined(self) -> asyncio.Task[Any]:
        """Count the calling task as a task of the body, whichever task created it: while it works, the body does."""
        task = call_scopes.running_task()
        if task is None:
            raise UsageError(f"ctx was called {_OUTSIDE}")
        if task is not self.task and task not in self.tasks:
            if task.get_loop() is not self.loop:  # nothing of this body may be touched in that thread
                raise UsageError(f"ctx was called in another event loop, {_OUTSIDE}")
            self.tasks.add(task)
            task.add_done_callback(self._task_ended)
        return task

    def begin_scope(self) -> None:
        """The running task is the body's own from here on."""
        self.replay.body.replay = self.replay
        call_scopes.begin(self.replay.body, "")

    def scope_here(self) -> str:
        """The scope of the task that makes a call on ctx."""
        task = self.joined()
        scope = call_scopes.scope_of(task)
        if scope is not None and scope.part.body is self.replay.body:
            return scope.name
        name = getattr(task.get_coro(), "__qualname__", task.get_name())
        error = UsageError(
            f"a task of {self.attempt.node} ({name}) calls ctx, and the engine did not see which task created it: its "
            "calls could not be found again after a crash. Either the event loop's task factory was replaced after the "
            "engine was opened (set it before, or let it call the factory that was there); or the task was made with "
            "asyncio.Task(...) instead of asyncio.create_task(...); or ctx belongs to another body"
        )
        self._expire(error)
        raise error

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if self.ended is EMPTY_SET:
            self.ended = weakref.WeakSet()
        self.ended.add(task)

    async def commit(self, command: Any, if_given_up: Callable[[Any], None] | None = None) -> Any:
        """Submit a command to the run and wait until it is durable. `if_given_up` is called with the answer when the
        calling task was cancelled meanwhile."""
        if self.hidden is not None:
            self.hidden.refuse(f"what {self.attempt.node} records", command)
        future: asyncio.Future[Any] = self.loop.create_future()

        def done(answer: Any, error: BaseException | None) -> None:
            if future.done():
                if future.cancelled() and error is None and if_given_up is not None:
                    if_given_up(answer)
            elif error is None:
                future.set_result(answer)
            else:  # this attempt is over: another engine owns the run, or the run is being ended
                if self.life in ALIVE:
                    self._move_to_leaving(LeaveReason.EVICT)
                future.set_exception(Suspended())

        self.port.submit(command, done)
        self.pending_commits.add(future)
        try:
            return await future
        finally:
            self.pending_commits.discard(future)

    async def open_wait(self, command: cmd.OpenWait) -> str:
        """Open a wait; its id. It is closed at once when the calling task was cancelled before it was open."""
        part = self.replay.part
        wait_id: str = await self.commit(command, lambda wait_id: self._give_up_wait(wait_id, part))
        return wait_id

    @contextlib.contextmanager
    def parking(self) -> Iterator[None]:
        """The calling task opens a wait, or has one, and does nothing else until it is answered."""
        task = self.joined()
        if self.leaving and task is not self.task:
            task.add_done_callback(retrieve_exception)
        self.check()
        self.parked.add(task)
        clock = current_clock.get()
        try:
            with contextlib.nullcontext() if clock is None else clock.paused():
                yield
        finally:
            self.parked.discard(task)
            if self.life is _WAITING:
                self.move(_RUNNING)
                if self._clock is not None:
                    self._clock.start()
            self.check_soon_if_waiting()

    async def park(self, wait_id: str) -> tuple[str, bytes]:
        """Wait for an answer; the body may be evicted meanwhile."""
        if wait_id in self.answers_before_wait:
            return self.answers_before_wait.pop(wait_id)
        self.check()
        future: asyncio.Future[tuple[str, bytes]] = self.loop.create_future()
        self.waits[wait_id] = (self.joined(), future)
        self.check_soon_if_waiting()
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up_wait(wait_id, self.replay.part)
            raise
        finally:
            self.waits.pop(wait_id, None)

    def _give_up_wait(self, wait_id: str, part: BodyPart) -> None:
        """Close a wait that a part of the body has given up. (The waits of a body that ends are closed with it.)"""
        if self.life in ALIVE:
            outcome = "superseded" if part.lost else "cancelled"
            self.port.submit(cmd.CloseWait(wait_id, outcome))

    def answer(self, wait_id: str, outcome: str, value: bytes) -> None:
        if wait_id not in self.waits:
            self.answers_before_wait[wait_id] = (outcome, value)
            return
        task, future = self.waits[wait_id]
        if not future.done():
            future.set_result((outcome, value))
            self.parked.discard(task)  # it runs in its turn

    @property
    def all_parked(self) -> bool:
        """Whether the body does nothing but wait in calls on ctx."""
        return bool(self.parked) and self.life in ALIVE and not self.steps.any_unrepeatable and self._at_work() is None

    @property
    def may_be_evicted(self) -> bool:
        """Whether nothing of the body is lost when it is evicted now."""
        return self.all_parked

    def _at_work(self) -> asyncio.Future[Any] | None:
        if self.steps.threads and (stopping := self.steps.stopping) is not None:
            return stopping
        tasks = self.tasks if self.task is None else {self.task, *self.tasks}
        return parking.at_work(tasks, self.parked)

    def check_soon_if_waiting(self, _: Any = None) -> None:
        if self.parked and not self._check_scheduled:
            self._check_scheduled = True
            self.loop.call_soon(self._suspend_if_waiting)

    def _suspend_if_waiting(self) -> None:
        """If every task of the body is blocked in a call on ctx, suspend the node and release its thread."""
        self._check_scheduled = False
        if not self.parked or self.life not in ALIVE or self.steps.any_unrepeatable:
            return
        busy = self._at_work()
        if busy is not None:
            self._check_again_after(busy)
            return
        if self.life is _RUNNING:
            self.move(_WAITING)
            if self._clock is not None:
                self._clock.pause()
        a = self.attempt
        if not self.port.is_suspended(a.node, a.path):
            suspend = cmd.SuspendNode(a.node, a.path, a.attempt, visit=a.visit)
            self.port.submit(suspend, self._suspended if self._releases_place else None)
        elif self._releases_place:
            self.leave(LeaveReason.EVICT)

    @property
    def _releases_place(self) -> bool:
        """Whether it releases its thread or process while it only waits."""
        return self.thread is not None or self.releases_process

    def _check_again_after(self, busy: asyncio.Future[Any]) -> None:
        if isinstance(busy, asyncio.Task):  # it has its turn now
            self.check_soon_if_waiting()
        elif busy is not self._watched:
            self._watched = busy
            busy.add_done_callback(self.check_soon_if_waiting)

    def _suspended(self, _: Any, error: BaseException | None) -> None:
        """Evict a body that releases its thread or process only now: one that exits while its node is RUNNING is run
        again at once."""
        if error is None and self.all_parked:
            self.leave(LeaveReason.EVICT)

    async def wait_for_thread(self) -> None:
        """Wait while the engine has lost too many threads to begin in another one."""
        while self.steps.given_up.too_many:
            await self.steps.given_up.fewer(BODY_CHECK_SECONDS)
            self.check()

    # --- a body in a thread --------------------------------------------------------------------------------

    def run_for_thread(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make a call on ctx for a body in a thread, which waits here. Where the answer may take long the thread does
        not wait: the body is evicted and runs again when the answer is there."""
        future = asyncio.run_coroutine_threadsafe(self.made_for_thread(call), self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None

    async def made_for_thread(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """The call itself, on the loop; a timeout or a cancel of the body ends it."""
        self._thread_call = asyncio.current_task()
        self.begin_scope()
        try:
            return await call()
        finally:
            self._thread_call = None
