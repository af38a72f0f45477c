"""Pipeline: one attempt from its arguments to its end, for each kind of body.

Owns: binding the arguments, running the body in its place (loop, thread, process, a suspect's own process), reporting
its end, and the pools of threads and processes.
Never: knows which bodies are alive (executor.py); decides about retries or readiness; holds anything durable.
On crash: bodies die with the process; the next owner of the run runs them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.engine.ports import Attempt
from holdfast.model.current import current_body, here
from holdfast.model.errors import BodyDied, BodyEnded, HoldfastError, Suspended
from holdfast.model.handlers import Handler
from holdfast.model.secret_names import put_in
from holdfast.worker import call_scopes, ending, wire
from holdfast.worker.activation import Activation
from holdfast.worker.binding import Binder
from holdfast.worker.body_life import BodyLife
from holdfast.worker.context import Context
from holdfast.worker.isolated import CannotBeIsolated, IsolatedActivation
from holdfast.worker.isolated_processes import IsolatedBodies
from holdfast.worker.permissions import Permissions
from holdfast.worker.plain_context import InlineContext
from holdfast.worker.processes import ProcessBodies
from holdfast.worker.sync_context import SyncContext
from holdfast.worker.threads import Done, GivenUp, ThreadBodies, ThreadJob

R = TypeVar("R")


class BodyPipeline:
    """Runs a body to its end, in the place that its kind asks for."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, threads: int, processes: int | None, grace_seconds: float, permissions: Permissions) -> None:
        self._permissions = permissions
        self._binders: dict[str, Binder] = {}
        self._context = copy_context()
        self._context.run(call_scopes.current_scope.set, None)  # it may be opened in a body of another engine
        """The context in which the engine was opened: every body begins with a copy of it."""
        self._thread_count = threads
        self._process_count = processes
        self._grace_seconds = grace_seconds
        self._threads: ThreadBodies | None = None
        self._step_threads: ThreadBodies | None = None
        """Of their own: bodies in threads wait for their steps, and could have taken all the others."""
        self._given_up = GivenUp()
        self._processes: ProcessBodies | None = None
        self._isolated: IsolatedBodies | None = None

    async def close_pools(self) -> None:
        """End the threads and processes."""
        for threads in (self._threads, self._step_threads):
            if threads is not None:
                await threads.close(0.0)
        if self._processes is not None:
            await self._processes.close()
        if self._isolated is not None:
            await self._isolated.close()

    def task(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        return asyncio.Task(work, loop=self._loop)

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
        if _is_quick(attempt):
            return binder.bind(args, attempt.port.load)
        return binder.bind(await self._arguments(activation), lambda ready: ready)

    async def _arguments(self, activation: Activation) -> dict[str, bytes]:
        """The encoded arguments of a body, with the values of secrets in their places. Reads beside the loop."""
        attempt = activation.attempt
        data = {name: await attempt.port.load_slowly(located) for name, located in attempt.args.items()}
        if not attempt.definition.secrets:
            return data
        values = await activation.secret_values(attempt.definition.secrets.values())
        return put_in(data, attempt.definition.secrets, values)

    async def _run_async(self, activation: Activation) -> None:
        attempt = activation.attempt
        handler = attempt.handler
        current_body.set(handler.name)
        here.set(activation.current)
        try:
            binder = self._binder(handler)
            if attempt.has_memory or not _is_quick(attempt):
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
        if _is_quick(attempt):
            self._run_inline(activation, attempt.args, attempt.port.load)
        else:
            activation.task = self.task(self._prepare_inline(activation))

    async def _prepare_inline(self, activation: Activation) -> None:
        """The whole output of a map, and secrets, are read first; the body itself does not wait."""
        try:
            data = await self._arguments(activation)
        except asyncio.CancelledError:
            ending.interrupted(activation)
        except Exception as e:  # noqa: BLE001 - the port has put the run on hold if it was a bug of ours
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
        if attempt.has_memory or not _is_quick(attempt):
            activation.task = self.task(self._prepare_sync(activation))
            return
        try:
            bound = self._binder(attempt.handler).bind(attempt.args, attempt.port.load)
        except Exception as e:  # noqa: BLE001 - as above
            ending.failed(activation, e)
            return
        self._start_thread(activation, bound)

    async def _prepare_sync(self, activation: Activation) -> None:
        try:
            bound = await self._prepare(activation)
        except asyncio.CancelledError:
            ending.interrupted(activation)
            return
        except (Exception, Suspended) as e:  # noqa: BLE001 - as above
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
            data = await self._arguments(activation)
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
            order = await wire.order_of(activation.attempt, self._grace_seconds, self._permissions)
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
        except Exception as e:  # noqa: BLE001 - as above
            ending.failed(activation, e)


def _is_quick(attempt: Attempt) -> bool:
    """Whether the arguments of a body can be read on the loop: from few rows, and none of them a secret."""
    return not attempt.definition.secrets and Binder.is_quick(attempt.args)


def _call(activation: Activation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    handler = activation.attempt.handler
    current_body.set(handler.name)
    here.set(activation.current)
    return handler.fn(*args, **kwargs)
