"""Steps: a function that a body calls through ctx.step, run once and remembered.

Owns: running it (async on the loop, sync in a thread), its retries, timeout and `on_crash` where it is a node.
Rule: a step is one event at its end; only for nodes whose `on_crash` is not rerun its start is committed first.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.authoring import code, signatures
from holdfast.authoring.workflows import Workflow
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.activation import current_body
from holdfast.model.errors import InvalidInput, NodeTimeout, OutcomeUnknown, UsageError
from holdfast.model.handlers import Handler
from holdfast.model.policies import NO_RETRY
from holdfast.model.values import decoder, encode
from holdfast.worker.failures import describe, raise_again
from holdfast.worker.memory import Call, Memo

if TYPE_CHECKING:
    from holdfast.worker.context import Context

_runners: dict[int, tuple[Any, StepRunner]] = {}


class StepRunner:
    """How one function is run as a step."""

    def __init__(self, fn: Any) -> None:
        if isinstance(fn, Workflow):
            raise UsageError(f"{fn.name} is a workflow and cannot be a step: `await ctx.child({fn.name}, ...)` runs it")
        handler = getattr(fn, "handler", None)
        self.retry, self.timeout, self.on_crash = NO_RETRY, None, "rerun"
        self.is_node = isinstance(handler, Handler)
        if isinstance(handler, Handler):
            if handler.kind == "process":
                raise UsageError(f"{handler.name} has process=True and cannot be a step: use it as a node of a graph")
            if fn.options.delay or fn.delay_seconds:
                raise UsageError(f"{handler.name} has a delay and cannot be a step: `await ctx.sleep(...)` before it")
            self.retry = fn.options.retry or NO_RETRY
            self.timeout, self.on_crash = fn.options.timeout, fn.options.on_crash
            self.fn: Callable[..., Any] = handler.fn
            self.name, self.takes_ctx, self.returns = handler.name, handler.takes_ctx, handler.returns
            self.is_async, self.inline = handler.kind == "async", handler.kind == "inline"
        elif callable(fn) and not isinstance(fn, type):
            self.fn, self.name = fn, _name(fn)
            self.takes_ctx, self.returns = _signature(fn)
            self.is_async, self.inline = inspect.iscoroutinefunction(inspect.unwrap(fn)), False
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

    async def run(self, ctx: Context, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The remembered result, or the result of running it now, decoded from what was committed."""
        memo = ctx._activation.recall(call)
        if memo is not None:
            if memo.output is not None:
                return self._decoded(memo.output)
            if memo.error is not None and memo.retry_at is None:
                raise raise_again(memo.error, f"step {call.name}")
        self._check_crash(memo, call)
        failures = memo.failures if memo is not None else 0
        if memo is not None and memo.retry_at is not None:
            await self._delay(ctx, memo.retry_at)
        while True:
            if failures and self.takes_ctx:
                await ctx._begin_again(call)
            if self.on_crash != "rerun":
                await self._commit(ctx, ev.StepStarted, call, failures + 1)
            try:
                result = await self._call(ctx, call, failures, args, kwargs)
                data = encode(result, self.returns, what=f"result of {call.name}")
            except Exception as e:
                failures += 1
                retry_at = await self._failed(ctx, call, e, failures)
                if retry_at is None:
                    raise
                await self._delay(ctx, retry_at)
                continue
            await ctx._record(call, data, failures + 1)
            return self._decoded(data)

    def _decoded(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except InvalidInput as wrong:
            raise InvalidInput(f"the result of {self.name} is not what it is annotated with: {wrong.message}") from None

    def _check_crash(self, memo: Memo | None, call: Call) -> None:
        if memo is not None and memo.started:
            raise OutcomeUnknown(
                f"step {call.name} was running when its engine died; on_crash={self.on_crash!r} forbids to repeat it"
            )

    async def _call(
        self, ctx: Context, call: Call, failures: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = (ctx._sub(call, failures + 1 if self.is_node else None), *args) if self.takes_ctx else args
        timeout = self.timeout
        limit: asyncio.Timeout | None = None
        token = current_body.set(self.name)
        try:
            if self.is_async and timeout is None:
                return await self.fn(*given, **kwargs)
            async with asyncio.timeout(timeout) as limit:
                if self.is_async:
                    return await self.fn(*given, **kwargs)
                if self.inline:
                    return self.fn(*given, **kwargs)
                if self.takes_ctx:
                    raise UsageError(f"{self.name} is sync and takes a ctx: make it async to call it as a step")
                job = functools.partial(_without_stop_iteration, self.fn, given, kwargs)
                result = await ctx._activation.run_in_thread(job)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if limit is not None and limit.expired():
                raise NodeTimeout(f"step {self.name} ran longer than its timeout of {timeout:g} s") from None
            raise
        finally:
            current_body.reset(token)

    async def _failed(self, ctx: Context, call: Call, error: Exception, failures: int) -> int | None:
        """Remember a failed try; when the next one is due, or None when there is none."""
        policy = self.retry
        info = describe(error)
        retry_at: int | None = None
        if failures < policy.attempts and policy.applies(info.kinds, info.retryable):
            delay = policy.delay_seconds(failures, f"{ctx.run_id}{call.step_key}{failures}")
            retry_at = ctx._activation.port.now() + int(delay * 1_000_000)
        await self._commit(ctx, ev.StepFailed, call, failures, error=info, retry_at=retry_at)
        return retry_at

    @staticmethod
    async def _commit(ctx: Context, kind: Any, call: Call, attempt: int, **fields: Any) -> None:
        a = ctx._activation.attempt
        event = kind(
            scope=call.scope,
            position=call.position,
            kind=call.kind,
            name=call.name,
            digest=call.digest,
            key=call.key,
            attempt=attempt,
            **fields,
        )
        ends = isinstance(event, ev.StepFailed) and event.retry_at is None
        races = ctx._activation.memory.ends_with(call) if ends else ()
        await ctx._activation.commit(cmd.RecordStep(a.node, a.path, a.attempt, event, races, visit=a.visit))

    @staticmethod
    async def _delay(ctx: Context, retry_at: int) -> None:
        activation = ctx._activation
        while (left := retry_at - activation.port.now()) > 0:
            activation.check()
            await asyncio.sleep(min(left / 1_000_000, 0.25))  # in portions: the body may be left meanwhile
        activation.check()


def unfolded(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A partial as the call that it stands for: what it holds is told apart like any other argument."""
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _name(fn: Any) -> str:
    """How the journal names a function, or an object that can be called: by its class."""
    return code.handler_name(fn if hasattr(fn, "__qualname__") else type(fn))


def _signature(fn: Any) -> tuple[bool, Any]:
    """Whether it takes a ctx, and what it returns."""
    try:
        found = signatures.read(fn, {})
    except ValueError:  # a function of C that does not tell, such as time.time
        return False, Any
    return found.takes_ctx, found.returns


def forget(fn: Any) -> None:
    """The function is not what it was: read it again when it is next a step."""
    _runners.pop(id(fn), None)


def _without_stop_iteration(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A future cannot hold StopIteration; like a generator's, it becomes a RuntimeError."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as e:
        raise RuntimeError(f"{fn.__name__} raised StopIteration") from e
