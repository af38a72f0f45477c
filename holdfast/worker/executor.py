"""Executor: where node bodies run, in this process or in children of it.

Owns: one attempt as a pipeline: bind the arguments, run the body in its place (loop, thread, process), report its end.
Never: decides about retries or readiness; holds anything durable.
On crash: bodies die with the process; the next owner of the run runs them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.engine import asyncio_internals, crash_points
from holdfast.engine.ports import Attempt
from holdfast.model.current import current_body, here
from holdfast.model.errors import BodyDied, BodyEnded, HoldfastError, Suspended
from holdfast.model.handlers import Handler
from holdfast.model.limits import SYNC_THREADS
from holdfast.worker import call_scopes, ending, rehearsing, wire
from holdfast.worker.activation import Activation
from holdfast.worker.binding import Binder
from holdfast.worker.body_life import BodyLife, LeaveReason
from holdfast.worker.context import Context
from holdfast.worker.isolated import CannotBeIsolated, IsolatedActivation, IsolatedBodies
from holdfast.worker.plain_context import InlineContext
from holdfast.worker.processes import ProcessBodies
from holdfast.worker.sync_context import SyncContext
from holdfast.worker.threads import Done, GivenUp, ThreadBodies, ThreadJob

R = TypeVar("R")
Key = tuple[str, str]
"""(node, path)"""
_NONE: dict[Key, Activation] = {}
"""The bodies of a run that has none; never changed."""


class LocalExecutor:
    """Runs bodies for an engine in the same process."""

    def __init__(
        self, *, threads: int = SYNC_THREADS, processes: int | None = None, grace_seconds: float = 10.0
    ) -> None:
        self._live: dict[int, dict[Key, Activation]] = {}
        """The live bodies of each run; an empty dict stays until the run is unwound: its next body starts soon."""
        self._leaving: set[asyncio.Task[Any]] = set()
        """Bodies that were evicted or superseded and still clean up."""
        self._binders: dict[str, Binder] = {}
        self._loop: asyncio.AbstractEventLoop
        self._context = copy_context()
        self._context.run(call_scopes.current_scope.set, None)  # it may be opened in a body of another engine
        """The context in which the engine was opened: every body begins with a copy of it."""
        self._stopped = False
        self._thread_count = threads
        self._process_count = processes
        self._grace_seconds = grace_seconds
        self._threads: ThreadBodies | None = None
        self._step_threads: ThreadBodies | None = None
        """Of their own: bodies in threads wait for their steps, and could have taken all the others."""
        self._given_up = GivenUp()
        self._processes: ProcessBodies | None = None
        self._isolated: IsolatedBodies | None = None

    # --- what the engine asks ------------------------------------------------------------------------------

    def open(self, loop: asyncio.AbstractEventLoop, threads_lost: Callable[[int], None]) -> None:
        self._loop = loop
        self._given_up.on_change = threads_lost
        call_scopes.install(loop)
        asyncio_internals.shows_waits()  # so that the warning is logged when the engine opens

    def task(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        return asyncio.Task(work, loop=self._loop)

    def start(self, attempt: Attempt) -> None:
        if crash_points.hit is not None:
            crash_points.hit("body.before")
        if attempt.isolated:
            self._start_isolated(attempt)
            return
        activation = self._activation(attempt)
        if self._stopped:  # what was committed while the engine stopped begins elsewhere
            activation.leave(LeaveReason.STOP)
            ending.not_begun(activation)
            return
        run_no = attempt.port.run_no
        bodies = self._live.get(run_no)
        if bodies is None:
            bodies = self._live[run_no] = {}
        bodies[activation.key] = activation
        match attempt.handler.kind:
            case "async":
                activation.task = asyncio.Task(
                    self._run_async(activation), loop=activation.loop, name=attempt.node, context=self._context.copy()
                )
            case "inline":
                self._start_inline(activation)
            case "sync":
                self._run_sync(activation)
            case "process":
                activation.task = self.task(self._run_process(activation))

    def _start_isolated(self, attempt: Attempt) -> None:
        activation = IsolatedActivation(attempt, self._exited, self._loop)
        activation.grace_seconds = self._grace_seconds
        if self._stopped:
            activation.leave(LeaveReason.STOP)
            ending.not_begun(activation)
            return
        self._live.setdefault(attempt.port.run_no, {})[activation.key] = activation
        activation.task = self.task(self._run_isolated(activation))

    def _activation(self, attempt: Attempt) -> Activation:
        activation = Activation(attempt, self._exited, self._loop)
        activation.grace_seconds = self._grace_seconds
        if attempt.handler.takes_ctx:
            activation.start_thread = self._start_step
            activation.given_up = self._given_up
        return activation

    def _find(self, run_no: int, node: str, path: str) -> Activation | None:
        return self._live.get(run_no, _NONE).get((node, path))

    def answer(self, run_no: int, node: str, path: str, wait_id: str, outcome: str, value: bytes) -> bool:
        activation = self._find(run_no, node, path)
        if activation is None:
            return False
        activation.answer(wait_id, outcome, value)
        return True

    def is_live(self, run_no: int, node: str, path: str) -> bool:
        return (node, path) in self._live.get(run_no, _NONE)

    def all_parked(self, run_no: int, node: str, path: str) -> bool:
        activation = self._find(run_no, node, path)
        return activation is not None and activation.all_parked

    def is_idle(self, run_no: int) -> bool:
        return all(activation.may_be_evicted for activation in self._live.get(run_no, _NONE).values())

    def cancel(self, run_no: int, node: str, path: str, grace_seconds: float) -> None:
        activation = self._find(run_no, node, path)
        if activation is not None:
            activation.cancel(grace_seconds)

    def supersede(self, run_no: int, node: str, path: str) -> None:
        activation = self._find(run_no, node, path)
        if activation is not None:
            self._let_clean_up(activation)
            activation.supersede()

    def pause(self, run_no: int) -> None:
        for activation in list(self._live.get(run_no, _NONE).values()):
            # a body that must not be repeated unasked, or that runs such a step, finishes its node unless it only waits
            repeats = activation.attempt.definition.on_crash == "rerun" and not activation.must_stay
            if activation.all_parked or repeats:
                activation.leave(LeaveReason.PAUSE)

    def leave(self, run_no: int, node: str, path: str, reason: LeaveReason) -> None:
        """Unwind one body without ending it."""
        activation = self._find(run_no, node, path)
        if activation is not None:
            activation.leave(reason)

    def unwind(self, run_no: int) -> None:
        for activation in self._live.pop(run_no, _NONE).values():
            only_waits = activation.may_be_evicted
            activation.leave(LeaveReason.EVICT)
            self._let_clean_up(activation)
            if not only_waits:
                activation.loop.call_later(self._grace_seconds, activation.cut_off)
            ending.left(activation)  # its slot is free now

    def _let_clean_up(self, activation: Activation) -> None:
        if activation.task is not None:
            self._leaving.add(activation.task)
            activation.task.add_done_callback(self._leaving.discard)

    def progress(self, run_no: int) -> dict[tuple[str, str], tuple[float, float | None, str]]:
        """What bodies of a run said about how far they are."""
        found = {key: activation.progress for key, activation in self._live.get(run_no, _NONE).items()}
        return {key: progress for key, progress in found.items() if progress is not None}

    async def rehearse(
        self, attempt: Attempt, memory: Sequence[tuple[str, bytes]]
    ) -> tuple[list[str], list[str], list[str]]:
        return await rehearsing.rehearse(attempt, memory)

    async def stop(self, grace_seconds: float) -> None:
        self._stopped = True
        activations = self._all()
        for activation in activations:
            activation.leave(LeaveReason.STOP)
            if activation.thread is not None and activation.thread.give_up_unless_begun():
                ending.not_begun(activation)
        bodies = [*(a.task for a in activations if a.task is not None), *self._leaving]
        bodies += [task for a in activations for task in a.tasks]
        deadline = asyncio.get_running_loop().time() + grace_seconds
        while (self._all() or self._leaving) and asyncio.get_running_loop().time() < deadline:
            pending = [t for t in bodies if not t.done()]
            if pending:
                await asyncio.wait(pending, timeout=min(0.05, grace_seconds))
            else:
                await asyncio.sleep(0.005)
        for task in bodies:
            task.cancel()
        if bodies:
            await asyncio.wait(bodies, timeout=1.0)
        for activation in self._all():
            ending.left(activation)
        for threads in (self._threads, self._step_threads):
            if threads is not None:
                await threads.close(0.0)
        if self._processes is not None:
            await self._processes.close()
        if self._isolated is not None:
            await self._isolated.close()
        call_scopes.uninstall(self._loop)

    def _all(self) -> list[Activation]:
        return [activation for bodies in self._live.values() for activation in bodies.values()]

    def _exited(self, activation: Activation, left: bool) -> None:
        key, port = activation.key, activation.port
        bodies = self._live.get(port.run_no, _NONE)
        if bodies.get(key) is activation:
            del bodies[key]
        port.body_exited(key, left)

    # --- how a body runs -----------------------------------------------------------------------------------

    def _binder(self, handler: Handler) -> Binder:
        binder = self._binders.get(handler.name)
        if binder is None or binder.handler is not handler:
            binder = self._binders[handler.name] = Binder(handler)
        return binder

    async def _prepare(self, activation: Activation) -> tuple[list[Any], dict[str, Any]]:
        """Arguments from stored bytes, and the memory of an earlier life of the body."""
        attempt = activation.attempt
        binder, args = self._binder(attempt.handler), attempt.args
        if attempt.has_memory and attempt.handler.takes_ctx:
            await attempt.port.flushed()
            rows = await attempt.port.memory(attempt.node, attempt.path, attempt.memory_seq, args.values())
            activation.replay = activation.read_replay(rows)
        if binder.is_quick(args):
            return binder.bind(args, attempt.port.load)
        data = {name: await attempt.port.load_slowly(located) for name, located in args.items()}
        return binder.bind(data, lambda ready: ready)

    async def _run_async(self, activation: Activation) -> None:
        attempt = activation.attempt
        handler = attempt.handler
        current_body.set(handler.name)
        here.set(activation.current)
        try:
            binder = self._binder(handler)
            if attempt.has_memory or not binder.is_quick(attempt.args):
                args, kwargs = await self._prepare(activation)
            else:
                args, kwargs = binder.bind(attempt.args, attempt.port.load)
            if activation.life is BodyLife.LEAVING:
                ending.not_begun(activation)
                return
            if handler.takes_ctx:
                activation.begin_scope()
                args.insert(0, Context(activation))
            activation.begin()
            result = await handler.fn(*args, **kwargs)
        except asyncio.CancelledError:
            activation.conclude(partial(ending.interrupted, activation))
        except BaseException as e:  # noqa: BLE001 - user code may raise anything
            activation.conclude(partial(ending.failed, activation, e))
        else:
            report = partial(ending.left, activation)
            if not activation.drops_result:
                report = partial(ending.completed, activation, result)
            activation.conclude(report)
        finally:
            here.set(None)  # the activation knows its task, whose context would know the activation for ever

    def _start_inline(self, activation: Activation) -> None:
        attempt = activation.attempt
        if Binder.is_quick(attempt.args):
            self._run_inline(activation, attempt.args, attempt.port.load)
        else:
            activation.task = self.task(self._prepare_inline(activation))

    async def _prepare_inline(self, activation: Activation) -> None:
        """The whole output of a map is read first; the body itself does not wait."""
        attempt = activation.attempt
        try:
            data = {name: await attempt.port.load_slowly(located) for name, located in attempt.args.items()}
        except asyncio.CancelledError:
            ending.interrupted(activation)
        except HoldfastError as e:
            ending.failed(activation, e)
        else:
            activation.task = None
            if activation.life is BodyLife.LEAVING:
                ending.not_begun(activation)
            else:
                self._run_inline(activation, data, lambda ready: ready)

    def _run_inline(self, activation: Activation, located: dict[str, Any], load: Callable[[Any], bytes]) -> None:
        """Run a body that cannot wait to its end, on the loop. It has a context of its own, as in a task: what it sets
        there is gone when it ends."""
        handler = activation.attempt.handler
        try:
            args, kwargs = self._binder(handler).bind(located, load)
            if handler.takes_ctx:
                args.insert(0, InlineContext(activation))
            result = self._context.copy().run(_call, activation, args, kwargs)
        except asyncio.CancelledError:
            ending.interrupted(activation)
        except BaseException as e:  # noqa: BLE001 - user code may raise anything
            ending.failed(activation, e)
        else:
            ending.completed(activation, result)

    def _run_sync(self, activation: Activation) -> None:
        attempt = activation.attempt
        if attempt.has_memory or not self._binder(attempt.handler).is_quick(attempt.args):
            activation.task = self.task(self._prepare_sync(activation))
            return
        try:
            bound = self._binder(attempt.handler).bind(attempt.args, attempt.port.load)
        except HoldfastError as e:
            ending.failed(activation, e)
            return
        self._start_thread(activation, bound)

    async def _prepare_sync(self, activation: Activation) -> None:
        try:
            bound = await self._prepare(activation)
        except asyncio.CancelledError:
            ending.interrupted(activation)
            return
        except (HoldfastError, Suspended) as e:
            ending.failed(activation, e)
            return
        activation.task = None
        if activation.life is BodyLife.LEAVING:
            ending.not_begun(activation)
        else:
            self._start_thread(activation, bound)

    def _start_thread(self, activation: Activation, bound: tuple[list[Any], dict[str, Any]]) -> None:
        handler = activation.attempt.handler
        args, kwargs = bound
        ctx: SyncContext | None = None
        if handler.takes_ctx:
            ctx = SyncContext(activation)
            args.insert(0, ctx)

        def body() -> Any:
            current_body.set(handler.name)
            here.set(activation.current)
            return handler.fn(*args, **kwargs)

        def done(result: Any, error: BaseException | None) -> None:
            if error is None and not activation.drops_result:
                activation.conclude(partial(ending.completed, activation, result))
            elif error is None or (isinstance(error, Suspended) and activation.life is BodyLife.LEAVING):
                activation.conclude(partial(ending.left, activation))
            elif isinstance(error, asyncio.CancelledError):
                activation.conclude(partial(ending.interrupted, activation))
            else:
                activation.conclude(partial(ending.failed, activation, error))

        if self._threads is None:
            self._threads = ThreadBodies(self._thread_count, self._given_up)
        try:
            job: ThreadJob = self._context.copy().run(self._threads.start, body, done)
        except HoldfastError as e:
            ending.failed(activation, e)
            return
        activation.thread = job
        activation.begin()

    def _start_step(self, job: Callable[[], Any], done: Done) -> ThreadJob:
        """Run a sync function that a body calls as a step."""
        if self._step_threads is None:
            self._step_threads = ThreadBodies(self._thread_count, self._given_up)
        return self._step_threads.start(job, done)

    async def _run_process(self, activation: Activation) -> None:
        attempt = activation.attempt
        if self._processes is None:
            self._processes = ProcessBodies(self._process_count)
        try:
            data = {name: await attempt.port.load_slowly(located) for name, located in attempt.args.items()}
            body = b",".join(msgspec.json.encode(k) + b":" + v for k, v in data.items())
            if activation.life is BodyLife.LEAVING:
                ending.not_begun(activation)
                return
            activation.begin()
            result = await self._processes.run(attempt.handler, b"{" + body + b"}", current=activation.current())
        except asyncio.CancelledError:
            ending.interrupted(activation)
        except BodyEnded as ended:
            ending.completed_bytes(activation, bytes(ended.output), ended)
        except Exception as e:  # noqa: BLE001 - a process body may raise anything
            ending.failed(activation, e)
        else:
            ending.completed_bytes(activation, result)

    async def _run_isolated(self, activation: IsolatedActivation) -> None:
        if self._isolated is None:
            self._isolated = IsolatedBodies()
        try:
            order = await wire.order_of(activation.attempt, self._grace_seconds)
            if activation.life is BodyLife.LEAVING:
                ending.not_begun(activation)
                return
            activation.begin()
            try:
                activation.has_ended(await self._isolated.run(activation, order))
            except BodyDied as e:
                await activation.died(e.message)
        except asyncio.CancelledError:
            ending.interrupted(activation)
        except CannotBeIsolated as e:
            activation.refused(str(e))
        except HoldfastError as e:
            ending.failed(activation, e)


def _call(activation: Activation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    handler = activation.attempt.handler
    current_body.set(handler.name)
    here.set(activation.current)
    return handler.fn(*args, **kwargs)
