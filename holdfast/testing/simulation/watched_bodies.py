"""Watched bodies: where bodies run in a simulated process, and how they are observed.

Owns: sync and `process=True` bodies on the loop instead of in threads and children, contexts that report to the watcher
what a body does, and `Execution`, which is one execution of a body or of a step.
Never: decides about faults (world.py) or judges what a body did (explorer/effects.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Protocol, TypeVar, cast

import msgspec

from holdfast.authoring.node_decorator import Node
from holdfast.engine.ports import Attempt, OwnedRun
from holdfast.model import commands as cmd
from holdfast.model.current import Current
from holdfast.model.errors import NotSerialisable
from holdfast.model.handlers import Handler
from holdfast.model.values import decoder, encode
from holdfast.testing.simulation.faults import Postponed, PowerCut
from holdfast.testing.simulation.fibers import Fiber, current_fiber
from holdfast.testing.simulation.virtual_loop import VirtualLoop
from holdfast.worker.activation import Activation
from holdfast.worker.binding import Binder
from holdfast.worker.context import Context
from holdfast.worker.executor import LocalExecutor
from holdfast.worker.plain_context import InlineContext
from holdfast.worker.recorded_calls import Call
from holdfast.worker.recording import RecordingContext
from holdfast.worker.steps import StepRunner
from holdfast.worker.sync_context import SyncContext
from holdfast.worker.threads import ThreadBodies
from holdfast.worker.tries import Try

R = TypeVar("R")
Done = Callable[[Any, BaseException | None], None]
_OWN = ("holdfast.handlers.waiting", "holdfast.handlers.passing")
"""The modules of built-in bodies that only wait or return their argument: they are no effects."""
_BINDERS: dict[str, Binder] = {}
"""Binders of handlers as registered; a watched one binds like the plain one, in every process of every schedule."""


class Execution:
    """One execution of a body, or of a step inside one."""

    __slots__ = (
        "attempt",
        "fn",
        "idempotent",
        "key_read",
        "keys",
        "name",
        "process",
        "remembered",
        "result",
        "step",
        "under_way",
    )

    def __init__(self, process: Any, attempt: Attempt, name: str, fn: Any, step: Call | None, idempotent: bool) -> None:
        self.process = process
        self.attempt = attempt
        self.name = name
        """The handler's name."""
        self.fn = fn
        self.step = step
        self.idempotent = idempotent
        self.key_read = False
        self.keys: set[str] = set()
        """The idempotency keys that it was given."""
        self.remembered = False
        """It made recorded calls: it is replayed on purpose, and its steps are what counts."""
        self.result: Any = None
        self.under_way = False

    @property
    def instance(self) -> tuple[str, str, str, int, str]:
        """Which body or step this is, whatever the attempt."""
        a = self.attempt
        return (a.port.run_id, a.node, a.path, a.visit, "" if self.step is None else self.step.step_key)


current_execution: ContextVar[Execution | None] = ContextVar("holdfast_current_execution", default=None)


class Watcher(Protocol):
    """Observes every body and step, and may kill the process around them."""

    in_fibers: bool
    """True if sync bodies must be able to hang in their middle."""

    def begins(self, process: Any, what: str) -> None:
        """Called when the engine starts a body or a step."""
        ...

    async def run(self, execution: Execution, make: Callable[[], Awaitable[R]]) -> R: ...
    def run_blocking(self, execution: Execution, make: Callable[[], R]) -> R: ...


# --- contexts --------------------------------------------------------------------------------------------------


class _Watched:
    """What the contexts of a simulated process have in common."""

    @property
    def idempotency_key(self) -> str:
        key: str = super().idempotency_key  # type: ignore[misc]
        execution = current_execution.get()
        if execution is not None:
            execution.key_read = True
            execution.keys.add(key)
        return key


class WatchedCurrent(_Watched, Current):
    """What `hf.current()` gives."""


class WatchedContext(_Watched, Context):
    """The ctx of async bodies."""

    def _runner(self, fn: Any) -> StepRunner:
        return WatchedRunner(StepRunner.of(fn), fn)

    def _made(self, kind: str, name: str, args: Any) -> Call:
        execution = current_execution.get()
        if execution is not None:
            execution.remembered = True
        return super()._made(kind, name, args)


class WatchedSyncContext(_Watched, SyncContext):
    """The ctx of sync bodies, which run in fibers here."""

    def __init__(self, activation: Activation) -> None:
        super().__init__(activation)
        self._async = WatchedContext(activation)

    def _block(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        fiber = current_fiber.get()
        if fiber is None:
            return super()._block(call)
        activation = self._activation
        task = activation.loop.create_task(activation.made_for_thread(call), context=copy_context())
        task.add_done_callback(lambda _: fiber.resume())
        fiber.pause()
        return task.result()


class WatchedInlineContext(_Watched, InlineContext):
    """The ctx of bodies on the loop."""


class WatchedRunner(StepRunner):
    """A step that the watcher observes."""

    def __init__(self, plain: StepRunner, fn: Any) -> None:
        self.__dict__.update(plain.__dict__)
        self._idempotent = isinstance(fn, Node) and fn.declared.idempotent

    async def _call(self, ctx: RecordingContext, tried: Try, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        executor = WatchedExecutor.of(ctx)
        if executor.watcher is None:
            return await super()._call(ctx, tried, args, kwargs)
        attempt = ctx._activation.attempt
        executor.watcher.begins(executor.process, f"step {self.name} of {attempt.node}")
        execution = Execution(executor.process, attempt, self.name, self.fn, tried.call, self._idempotent)
        token = current_execution.set(execution)
        try:
            plain = super()._call
            return await executor.watcher.run(execution, lambda: plain(ctx, tried, args, kwargs))
        finally:
            current_execution.reset(token)


# --- places ----------------------------------------------------------------------------------------------------


class _Job:
    """A blocking call that was handed over."""

    def __init__(self) -> None:
        self.started = False
        self.wanted = True

    def give_up(self) -> bool:
        self.wanted = False
        return False  # there are no threads to be lost


class BlockingCalls:
    """Runs blocking calls on the loop, each in a callback of its own, or as fibers."""

    def __init__(self) -> None:
        self.loop: VirtualLoop
        self.fibers: list[Fiber] = []
        self.as_fiber = False

    def start(self, job: Callable[[], Any], done: Done) -> _Job:
        entry = _Job()
        context = copy_context()
        if self.as_fiber:
            fiber = Fiber(job, context, lambda f: done(f.value, f.error) if entry.wanted else None)
            self.loop.call_soon(self._begin, fiber, entry)
        else:
            self.loop.call_soon(self._run, lambda: context.run(job), entry, done)
        return entry

    def run_in_executor(self, job: Callable[[], Any], done: Done) -> object:
        """The same for what the loop is asked to run in a thread."""
        return self.start(job, done)

    def _run(self, job: Callable[[], Any], entry: _Job, done: Done) -> None:
        if not entry.wanted:
            return
        entry.started = True
        value, error = None, None
        try:
            value = job()
        except (PowerCut, Postponed):
            raise
        except BaseException as raised:  # noqa: BLE001 - user code may raise anything
            error = raised
        if entry.wanted:
            done(value, error)

    def _begin(self, fiber: Fiber, entry: _Job) -> None:
        self.fibers.append(fiber)
        entry.started = True
        fiber.resume()

    def end_fibers(self) -> None:
        """End the fibers that will never continue."""
        for fiber in self.fibers:
            fiber.kill()

    async def close(self, grace_seconds: float = 0.0) -> None:
        self.end_fibers()


class WatchedExecutor(LocalExecutor):
    """The real executor, with its bodies on the loop."""

    def __init__(self, process: Any, watcher: Watcher | None, grace_seconds: float) -> None:
        super().__init__(grace_seconds=grace_seconds)
        self.process = process
        self.watcher = watcher
        self.blocking = BlockingCalls()
        self._threads = self._step_threads = cast(ThreadBodies, self.blocking)  # the same two calls, without threads
        self._attempts: list[Attempt] = []
        self._isolated_attempts: list[Attempt] = []
        """Attempts of crash suspects: in production each has a process of its own."""

    @staticmethod
    def of(ctx: RecordingContext) -> WatchedExecutor:
        """The executor of the body that this ctx belongs to."""
        return cast(WatchedExecutor, ctx._activation.on_exit.__self__)  # type: ignore[attr-defined]

    def task(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = super().task(work)
        self.process.loop.tasks.append(task)
        return task

    def start(self, attempt: Attempt) -> None:
        handler = attempt.handler
        if not getattr(handler.fn, "__module__", "").startswith(_OWN):
            if handler.name not in _BINDERS or _BINDERS[handler.name].handler is not handler:
                _BINDERS[handler.name] = Binder(handler)
            attempt.handler = self._watched(attempt, handler)
        self._attempts.append(attempt)
        if attempt.isolated:  # a simulated process spawns none: the body runs here, and dies alone
            attempt.isolated = False
            self._isolated_attempts.append(attempt)
        if self.watcher is not None:
            self.watcher.begins(self.process, f"the body of {attempt.node}")
        super().start(attempt)
        body = self._find(attempt.port.run_no, attempt.node, attempt.path)
        if body is not None and body.task is not None:
            self.blocking.loop.tasks.append(body.task)

    def own_death(self, attempt: Attempt) -> Callable[[], None] | None:
        """What happens when the process of a crash suspect's body dies; None: the body dies with its engine."""
        if not any(isolated is attempt for isolated in self._isolated_attempts):
            return None

        def die() -> None:
            a = attempt
            body = self._find(a.port.run_no, a.node, a.path)
            if body is not None and body.attempt is a and body._end(left=False):
                cast(OwnedRun, a.port).body_died(cmd.BodyDied(a.node, a.path, a.attempt, "died", visit=a.visit))

        return die

    def dispose(self) -> None:
        """Discard everything. The garbage collector does not see attempts: what they refer to would never be freed."""
        self.blocking.end_fibers()
        self._live.clear()
        for attempt in self._attempts:
            attempt.port = attempt.handler = None  # type: ignore[assignment]
        self._attempts.clear()
        self._isolated_attempts.clear()

    def _binder(self, handler: Handler) -> Binder:
        if handler.name not in _BINDERS:  # one of the engine's own
            return super()._binder(handler)
        return _BINDERS[handler.name]

    def _activation(self, attempt: Attempt) -> Activation:
        activation = super()._activation(attempt)
        activation.current_class = WatchedCurrent
        return activation

    def _start_thread(self, activation: Activation, bound: tuple[list[Any], dict[str, Any]]) -> None:
        in_fibers = self.watcher is not None and self.watcher.in_fibers
        self.blocking.as_fiber = in_fibers or activation.attempt.handler.takes_ctx
        super()._start_thread(activation, bound)
        self.blocking.as_fiber = in_fibers

    def _watched(self, attempt: Attempt, handler: Handler) -> Handler:
        fn, watcher, takes_ctx = handler.fn, self.watcher, handler.takes_ctx
        idempotent = attempt.definition.idempotent

        def begun(args: tuple[Any, ...]) -> tuple[Execution, tuple[Any, ...]]:
            execution = Execution(self.process, attempt, handler.name, fn, None, idempotent)
            current_execution.set(execution)
            return execution, ((_watched_context(args[0]), *args[1:]) if takes_ctx else args)

        async def run(*args: Any, **kwargs: Any) -> Any:
            execution, given = begun(args)
            if watcher is None:
                return _survives(handler, await fn(*given, **kwargs))
            return _survives(handler, await watcher.run(execution, lambda: fn(*given, **kwargs)))

        def run_blocking(*args: Any, **kwargs: Any) -> Any:
            execution, given = begun(args)
            if watcher is None:
                return _survives(handler, fn(*given, **kwargs))
            return _survives(handler, watcher.run_blocking(execution, lambda: fn(*given, **kwargs)))

        is_async = handler.kind == "async"
        kind = "sync" if handler.kind == "process" else handler.kind
        return msgspec.structs.replace(handler, fn=run if is_async else run_blocking, kind=kind)


def _survives(handler: Handler, result: R) -> R:
    """Check that a result is the same after it was stored and read; production trusts it."""
    stored = encode(result, handler.returns, what="result")
    again = encode(decoder(handler.returns)(stored), handler.returns, what="result")
    if again != stored:
        raise NotSerialisable(
            f"the result of {handler.name} is not the same after it was stored and read: {stored[:80]!r} became "
            f"{again[:80]!r}. Return a type whose JSON form holds everything it is"
        )
    return result


def _watched_context(ctx: Any) -> Any:
    match ctx:
        case SyncContext():
            return WatchedSyncContext(ctx._activation)
        case InlineContext():
            return WatchedInlineContext(ctx._activation)
        case _:
            return WatchedContext(ctx._activation)
