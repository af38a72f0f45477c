"""Steps: a function that a body calls through ctx.step, run once and recorded.

Owns: running it (async on the loop, sync in a thread), its retries, timeout and `on_crash` where it is a node. Retries
go by the policy of the node (model/policies.py) and wait as a node's do: a short delay in memory, a longer one in a
durable timer.
Owns: what undoes a step: which compensation a node has, and what the journal must know to run it when the run does not
end well (rules/undoing.py decides that).
Rule: a step is one event at its end. Its start is committed first for nodes whose `on_crash` is not rerun, and for
nodes with a compensation in a workflow that compensates.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from holdfast.authoring import functions
from holdfast.authoring.node_decorator import Node
from holdfast.authoring.workflows import Workflow
from holdfast.engine.ports import Releasable, settle
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.current import current_body, here, receiving
from holdfast.model.errors import DefinitionError, HoldfastError, InvalidInput, OutcomeUnknown, UsageError
from holdfast.model.handlers import Handler, inputs_taken
from holdfast.model.limits import BODY_CHECK_SECONDS, RETRY_IN_MEMORY_SECONDS, SECOND
from holdfast.model.naming import derived
from holdfast.model.policies import NO_RETRY, Retry, seconds_until_retry
from holdfast.model.typecheck import compensation_mismatch
from holdfast.model.values import decoder, encode
from holdfast.worker import call_scopes
from holdfast.worker.body_life import OVER
from holdfast.worker.failures import raise_again, stored
from holdfast.worker.recorded_calls import Call, Recorded, inner_scope
from holdfast.worker.recording import RecordingContext
from holdfast.worker.secret_values import has_secrets, with_values
from holdfast.worker.time_limits import StepClock
from holdfast.worker.tries import StepThread, Try, step_event

limited_steps: ContextVar[tuple[str, ...]] = ContextVar("holdfast_limited_steps", default=())
"""The steps around what runs in this task or thread that hold a place of their node."""
_runners: dict[int, tuple[Any, StepRunner]] = {}


class StepRunner:
    """How one function is run as a step."""

    def __init__(self, fn: Any) -> None:
        if isinstance(fn, Workflow):
            raise UsageError(f"{fn.name} is a workflow and cannot be a step: `await ctx.child({fn.name}, ...)` runs it")
        handler = getattr(fn, "handler", None)
        self.retry, self.on_crash = NO_RETRY, "rerun"
        self.timeout: float | None = None
        self.heartbeat: float | None = None
        self.concurrency: int | None = None
        self.priority = 0
        self.is_node = isinstance(handler, Handler)
        self.undo: Compensation | None = None
        if isinstance(handler, Handler):
            self.undo = Compensation.of(fn)
            if handler.kind == "process":
                raise UsageError(f"{handler.name} has process=True and cannot be a step: use it as a node of a graph")
            if fn.declared.delay or fn.delay_seconds:
                raise UsageError(f"{handler.name} has a delay and cannot be a step: `await ctx.sleep(...)` before it")
            self.retry = fn.declared.retry or NO_RETRY
            self.timeout, self.heartbeat = fn.declared.timeout, fn.declared.heartbeat
            self.concurrency, self.priority = fn.declared.concurrency, fn.declared.priority
            self.on_crash = fn.declared.on_crash
            self.fn: Callable[..., Any] = handler.fn
            self.name, self.takes_ctx, self.returns = handler.name, handler.takes_ctx, handler.returns
            self.is_async, self.in_thread = handler.kind == "async", handler.kind == "sync"
        elif callable(fn) and not isinstance(fn, type):
            self.name = _name(fn)
            self.takes_ctx, takes_current, self.returns = _signature(fn)
            self.fn = receiving(fn) if takes_current else fn
            self.is_async = inspect.iscoroutinefunction(inspect.unwrap(fn))
            self.in_thread = not self.is_async
        else:
            raise UsageError(f"ctx.step takes a function or a node, not {fn!r}")
        self._decode = decoder(self.returns)

    @classmethod
    def of(cls, fn: Any) -> StepRunner:
        found = _runners.get(id(fn))
        if found is None or found[0] is not fn:
            found = _runners[id(fn)] = (fn, cls(fn))
            if len(_runners) > 10_000:  # lambdas made in a loop; forget the oldest
                del _runners[next(iter(_runners))]
        return found[1]

    async def run(self, ctx: RecordingContext, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The recorded result, or the result of running it now, decoded from what was committed."""
        recorded = ctx._activation.recall(call)
        if recorded is not None:
            if recorded.output is not None:
                return self._decoded(recorded.output)
            if recorded.error is not None and recorded.retry_at is None:
                raise raise_again(recorded.error, f"step {call.name}")
        self._check_crash(recorded, call)
        failures = recorded.failures if recorded is not None else 0
        undo = None
        if self.undo is not None and ctx._activation.undoes_steps:
            undo = self.undo.of_call(call, args, kwargs)
        tries = ctx._activation.steps.tries
        if recorded is not None and recorded.retry_at is not None:
            await self._until_retry(ctx, call, failures, recorded.retry_at, recorded.error, recorded.wait_id)
        while True:
            if failures and self.takes_ctx:
                await ctx._begin_again(call)
            if self.in_thread:
                await ctx._activation.wait_for_thread()
            tried = self.attempt(call, failures + 1, "" if undo is None else undo.place)
            place = None if self.concurrency is None else await self._place(ctx, self.concurrency)
            failure: ev.ErrorInfo | None = None
            try:
                if self.on_crash != "rerun" or undo is not None:
                    repeats = self.on_crash == "rerun"
                    await self._commit(ctx, ev.StepStarted, call, failures + 1, undo=undo, repeats=repeats)
                if not ctx._activation.port.may_begin:
                    await ctx._activation.port.until_it_may_begin()
                    ctx._activation.check()  # the body may have been left meanwhile
                tries.add(tried)
                result = await self._call(ctx, tried, args, kwargs)
                data = encode(result, self.returns, what=f"result of {call.name}")
            except Exception as e:  # noqa: BLE001 - user code; what is raised in its place is decided below
                failures += 1
                failure = ctx._activation.described(e)
                retry_at = await self._failed(ctx, call, failure, failures)
            finally:
                tries.discard(tried)
                if self.on_crash != "rerun":  # the body may be evicted again
                    ctx._activation.check_soon_if_waiting()
                if place is not None:
                    tried.when_stopped(place.release)
            if failure is not None:
                if retry_at is None:  # from the journal, as a replay raises it
                    raise raise_again(stored(failure), f"step {call.name}")
                await self._until_retry(ctx, call, failures, retry_at, failure)
                continue
            await ctx._record(call, data, failures + 1, undo=tried.undo)
            if ctx._activation.life in OVER:  # it is recorded; the task that awaits it is to end
                raise asyncio.CancelledError
            return self._decoded(data)

    def attempt(self, call: Call, number: int, undo: str = "") -> Try:
        repeats = self.on_crash == "rerun"
        return Try(call, number, returns=self.returns, is_node=self.is_node, repeats=repeats, undo=undo)

    def _decoded(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except InvalidInput as wrong:
            raise InvalidInput(f"the result of {self.name} is not what it is annotated with: {wrong.message}") from None

    def _check_crash(self, recorded: Recorded | None, call: Call) -> None:
        if recorded is not None and recorded.started:
            raise OutcomeUnknown(
                f"step {call.name} was running when its engine died; on_crash={self.on_crash!r} forbids to repeat it"
            )

    async def _call(self, ctx: RecordingContext, tried: Try, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_secrets(args, kwargs):
            args, kwargs = await with_values(ctx._activation.secret_values, args, kwargs)
        given = (ctx._sub(tried.call, tried.number if self.is_node else None), *args) if self.takes_ctx else args
        clock: StepClock | None = None
        token = current_body.set(self.name)
        was_here = here.set(functools.partial(ctx._activation.current, tried))
        was_limited = limited_steps.set((*limited_steps.get(), self.name)) if self.concurrency is not None else None
        around = call_scopes.enter(inner_scope(tried.call))
        try:
            if self.timeout is None and self.heartbeat is None:
                return await self._result(ctx, tried, given, kwargs)
            clock = StepClock(ctx._activation.loop, self.timeout, self.heartbeat)
            async with clock.scope:
                with clock.running():
                    return await self._result(ctx, tried, given, kwargs)
        except TimeoutError:
            why = None if clock is None else clock.expired(self.name)
            if why is None:
                raise
            if tried.thread is not None and not await tried.thread.outlast():
                why = type(why)(f"{why.message}; it did not stop, and its thread was given up")
            raise why from None
        finally:
            call_scopes.leave(around)
            if was_limited is not None:
                limited_steps.reset(was_limited)
            here.reset(was_here)
            current_body.reset(token)

    async def _result(self, ctx: RecordingContext, tried: Try, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function where it belongs: on the loop, or in a thread."""
        if self.is_async:
            return await self.fn(*given, **kwargs)
        if not self.in_thread:
            return self.fn(*given, **kwargs)
        if self.takes_ctx:
            raise UsageError(f"{self.name} is sync and takes a ctx: make it async to call it as a step")
        job = functools.partial(_without_stop_iteration, self.fn, given, kwargs)
        tried.thread = StepThread(ctx._activation.steps, ctx._activation.replay, tried, job)
        result = await tried.thread.result()
        return await result if inspect.isawaitable(result) else result

    async def _place(self, ctx: RecordingContext, concurrency: int) -> Releasable:
        """Wait for a place among the bodies and steps of this node, over all runs and engines."""
        activation = ctx._activation
        a = activation.attempt
        inside = limited_steps.get() if a.definition.concurrency is None else (a.handler.name, *limited_steps.get())
        granted: asyncio.Future[None] = activation.loop.create_future()
        place = activation.port.step_place(
            self.name, concurrency, self.priority, inside, functools.partial(settle, granted, None)
        )
        try:
            while not granted.done():
                await asyncio.wait([granted], timeout=BODY_CHECK_SECONDS)
                activation.check()
            granted.result()
        except BaseException:
            place.release()
            raise
        return place

    async def _failed(self, ctx: RecordingContext, call: Call, info: ev.ErrorInfo, failures: int) -> int | None:
        """Record a failed try; when the next one is due, or None if it was the last."""
        seed = _retry_seed(ctx, call, failures)
        delay = seconds_until_retry(self.retry, failures, info.kinds, info.retryable, seed, info.retry_after)
        retry_at = None if delay is None else ctx._activation.port.now() + int(delay * SECOND)
        await self._commit(ctx, ev.StepFailed, call, failures, error=info, retry_at=retry_at)
        return retry_at

    async def _until_retry(
        self,
        ctx: RecordingContext,
        call: Call,
        failures: int,
        retry_at: int,
        error: ev.ErrorInfo | None,
        wait_id: str | None = None,
    ) -> None:
        """Wait until the next try of a step that has failed. A delay over RETRY_IN_MEMORY_SECONDS is a wait with a
        durable timer, during which the body may be evicted; `wait_id`: it was opened in an earlier life of the body.

        What is left of the delay is never more than the policy says: the wall clock may have been set back since."""
        activation = ctx._activation
        if wait_id is not None:
            with activation.parking():
                await activation.park(wait_id)
            return
        now = activation.port.now()
        delay = self.retry.delay_seconds(failures, _retry_seed(ctx, call, failures))
        if error is not None and error.retry_after is not None:
            delay = max(delay, min(error.retry_after, self.retry.max_delay))
        left = min(retry_at - now, int(delay * SECOND))
        if left <= RETRY_IN_MEMORY_SECONDS * SECOND:
            await asyncio.sleep(max(0, left) / SECOND)
            activation.check()
            return
        a, placed = activation.attempt, activation.replay.placed(call, ends=False)
        about = {"name": call.name, "attempt": failures + 1}
        wait = cmd.OpenWait(
            a.node, a.path, a.attempt, ev.STEP_RETRY, placed, now + left, None, about, left, visit=a.visit
        )
        with activation.parking():
            await activation.park(await activation.open_wait(wait))

    @staticmethod
    async def _commit(ctx: RecordingContext, kind: Any, call: Call, attempt: int, **fields: Any) -> None:
        a = ctx._activation.attempt
        event = step_event(kind, call, attempt, **fields)
        ends = isinstance(event, ev.StepFailed) and event.retry_at is None
        races = ctx._activation.replay.ends_with(call) if ends else ()
        await ctx._activation.commit(cmd.RecordStep(a.node, a.path, a.attempt, event, races, visit=a.visit))


def _retry_seed(ctx: RecordingContext, call: Call, failures: int) -> str:
    """What the jitter of a delay is derived from: the same in every life of the body."""
    return f"{ctx.run_id}{call.step_key}{failures}"


def unfolded(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A partial as the call that it stands for: its arguments are recorded like any other."""
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _name(fn: Any) -> str:
    """How the journal names a function, or an object that can be called: by its class."""
    return functions.handler_name(fn if hasattr(fn, "__qualname__") else type(fn))


def _signature(fn: Any) -> tuple[bool, bool, Any]:
    """Whether it takes a ctx, whether an `hf.Current`, and what it returns."""
    try:
        found = functions.signature_of(fn, {})
    except ValueError:  # a C function without a signature, such as time.time
        return False, False, Any
    return found.takes_ctx, found.takes_current, found.returns


def forget(fn: Any) -> None:
    """The function is not what it was: read it again when it is next a step."""
    _runners.pop(id(fn), None)


def _without_stop_iteration(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A future cannot hold StopIteration; like a generator's, it becomes a RuntimeError."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as e:
        raise RuntimeError(f"{fn.__name__} raised StopIteration") from e


# --- compensations ----------------------------------------------------------------------------------------------------

_NO_NAME = re.compile(r"[.@#~\x00-\x1f]")


def _as_stored(retry: Retry | None) -> Retry | None:
    """A policy as the journal gives it back: 0.0 where its author wrote 0."""
    return None if retry is None else msgspec.json.decode(msgspec.json.encode(retry), type=Retry)


class Compensation(msgspec.Struct, frozen=True, kw_only=True):
    """How steps of one node are undone."""

    node: str
    uses: str
    retry: Retry | None
    accepts_none: bool
    idempotent: bool
    timeout: float | None
    heartbeat: float | None
    on_crash: Literal["rerun", "fail", "ask"]
    concurrency: int | None
    taken: tuple[str, ...]
    """Parameters of the step that the compensation takes as well."""
    signature: inspect.Signature
    annotations: dict[str, Any]

    @classmethod
    def of(cls, node: Node[..., Any]) -> Compensation | None:
        """The compensation of a node, if it has one. DefinitionError: it could never be called."""
        undo = node.declared.compensate
        if undo is None:
            return None
        if mismatch := compensation_mismatch(undo.handler, node.handler):
            raise DefinitionError(f"{node.name}: its compensation {undo.name} cannot be called: {mismatch}")
        return cls(
            node=_NO_NAME.sub("_", node.base_id),
            uses=undo.name,
            retry=_as_stored(undo.declared.retry),
            accepts_none=functions.accepts_none(undo.signature),
            idempotent=undo.declared.idempotent,
            timeout=undo.declared.timeout,
            heartbeat=undo.declared.heartbeat,
            on_crash=undo.declared.on_crash,
            concurrency=undo.declared.concurrency,
            taken=inputs_taken(undo.signature.params, node.signature.params),
            signature=node.signature.python,
            annotations={p.name: p.annotation for p in node.signature.params},
        )

    def of_call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ev.StepUndo:
        """What undoes one step, known from its start on."""
        return ev.StepUndo(
            node=self.node,
            place=derived("", call.step_key, size=8),
            uses=self.uses,
            retry=self.retry,
            accepts_none=self.accepts_none,
            idempotent=self.idempotent,
            timeout=self.timeout,
            heartbeat=self.heartbeat,
            on_crash=self.on_crash,
            concurrency=self.concurrency,
            inputs=self._inputs(call, args, kwargs) if self.taken else {},
        )

    def _inputs(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, msgspec.Raw]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise InvalidInput(f"step {call.name}: {e}") from None
        bound.apply_defaults()
        try:
            return {
                name: msgspec.Raw(encode(bound.arguments[name], self.annotations[name], what=name))
                for name in self.taken
            }
        except HoldfastError as e:
            why = f"its compensation takes an argument that cannot be kept: {e.message}"
            raise InvalidInput(f"step {call.name}: {why}") from None
