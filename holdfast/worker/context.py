"""Context: `ctx` of async bodies.

Owns: the public calls (`ctx.step`, `ctx.map`, ...) and the story of each: replayed, or run and then recorded.
Never: decides anything about the run; every call ends in a command or a recorded result.
Rule: what a call returns is always decoded from committed bytes, also the first time.

Three faces of the same thing: `Context` for async bodies (calls are awaited), `SyncContext` (sync_context.py) for
bodies in threads (the same calls block), `InlineContext` (plain_context.py) for bodies on the loop, which may not wait.
"""

from __future__ import annotations

import asyncio
import functools
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model import handlers, texts
from holdfast.model.errors import (
    BodyEnded,
    ChildFailed,
    DeadlinePassed,
    HoldfastError,
    InvalidInput,
    OutcomeUnknown,
    StepMismatch,
    Suspended,
    UsageError,
)
from holdfast.model.limits import MAP_LIMIT_DEFAULT
from holdfast.model.naming import derived
from holdfast.model.texts import NOTHING
from holdfast.model.values import decoder, encode
from holdfast.worker import parking, racing
from holdfast.worker.asking import Asking, Deadline, Expected, Question, instant
from holdfast.worker.racing import Won
from holdfast.worker.recorded_calls import Call
from holdfast.worker.recording import RecordingContext
from holdfast.worker.secret_values import has_secrets, with_names
from holdfast.worker.steps import StepRunner, unfolded

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")
Duration = float | str | timedelta
_error = msgspec.json.Decoder(ev.ErrorInfo).decode


class Context(RecordingContext):
    """The first parameter of an async body. Calls on it that return a value are recorded: when the body runs again
    after a crash they return at once what they returned before."""

    def keyed(self, key: str) -> Context:
        """The next call goes by this name instead of its position: `ctx.keyed("charge").step(charge, order)`."""
        if not isinstance(key, str) or not key or any("\ud800" <= c <= "\udfff" for c in key):
            raise UsageError(f"ctx.keyed: {key!r} is not a key; use a text that is not empty")
        copy = type(self)(self._activation, self._step_call, self._step_attempt)
        copy._key = key
        return copy

    @overload
    def step(
        self, fn: Callable[Concatenate[Any, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(self, fn: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def step(self, fn: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a function (or a node, with its retries and timeout) once and record its result."""
        if type(fn) is functools.partial:
            fn, args, kwargs = unfolded(fn, args, kwargs)
        runner = self._runner(fn)
        shown = with_names(args, kwargs) if has_secrets(args, kwargs) else (args, kwargs)
        call = self._made("step", runner.name, shown)
        return self._activation.made(call, runner.run(self, call, args, kwargs))

    def map(
        self, fn: Callable[[T], Any], items: Iterable[T], *, limit: int = MAP_LIMIT_DEFAULT, **kwargs: Any
    ) -> Coroutine[Any, Any, list[Any]]:
        """Run a step for every item, at most `limit` at once; the list of the results, in order."""
        function, first, kwargs = unfolded(fn, (), kwargs)
        runner = self._runner(function)
        listed = [(*first, item) for item in items]
        if limit < 1:
            raise UsageError("ctx.map: limit must be at least 1")
        call = self._made("map", runner.name, None)
        return self._activation.made(call, self._map(runner, call, listed, limit, kwargs))

    async def _map(
        self, runner: StepRunner, parent: Call, given: list[tuple[Any, ...]], limit: int, kwargs: dict[str, Any]
    ) -> list[Any]:
        replay = self._activation.replay
        calls = [replay.item(parent, i, "map", runner.name, (args, kwargs)) for i, args in enumerate(given)]
        results: list[Any] = [None] * len(given)
        waiting = iter(range(len(given)))

        async def lane() -> None:
            for i in waiting:
                item_ctx = type(self)(self._activation, step_attempt=self._step_attempt)
                results[i] = await runner.run(item_ctx, calls[i], given[i], kwargs)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(limit, len(given))):
                    group.create_task(lane())
        except BaseExceptionGroup as group_error:
            raise _first_of(group_error) from None
        return results

    def sleep(self, duration: Duration | datetime) -> Coroutine[Any, Any, None]:
        """Wait, durably: the run costs a row while it sleeps. Seconds, '1h', a timedelta, or a datetime."""
        call = self._made("sleep", "sleep", None)
        return self._activation.made(call, self._sleep(call, duration))

    async def _sleep(self, call: Call, duration: Duration | datetime) -> None:
        now = self._activation.port.now()
        until = instant(duration, now, "ctx.sleep")
        await self._wait(call, "timer", until, lasts=None if isinstance(duration, datetime) else until - now)

    @overload
    def ask(
        self, question: str, *, schema: type[T], about: Any = None, **options: Unpack[Asking]
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def ask(
        self, question: str, *, schema: Any = None, about: Any = None, **options: Unpack[Asking]
    ) -> Coroutine[Any, Any, Any]: ...
    def ask(
        self, question: str, *, schema: Any = None, about: Any = None, **options: Unpack[Asking]
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person, and wait for the answer; the run costs a row meanwhile.

        `about` is what they are shown beside the question. `schema` is the type of the answer (or a JSON Schema): an
        answer that does not fit is refused and the question stays open. It goes to `assignee`, or into `basket`.
        Past its `deadline` it is answered with `default`; without one the call raises DeadlinePassed. `remind` brings a
        reminder again and again; `escalate` hands it on: `hf.Escalate("2d", assignee="boss")`."""
        question_asked = Question.of(question, schema, about, **options)
        call = self._made("ask", "ask", (question, about))
        return self._activation.made(call, self._ask(call, question_asked))

    async def _ask(self, call: Call, question: Question) -> Any:
        until, lasts = question.until(self._activation.port.now())
        outcome, value = await self._wait(call, "input", until, about=question.about, lasts=lasts)
        if outcome == "deadline":
            raise DeadlinePassed(f"the question was not answered in time: {question.text}")
        return decoder(question.annotation)(value)

    @overload
    def receive(
        self, name: str, *, schema: type[T], deadline: Deadline | None = None, default: Any = NOTHING
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def receive(
        self, name: str, *, schema: Any = None, deadline: Deadline | None = None, default: Any = NOTHING
    ) -> Coroutine[Any, Any, Any]: ...
    def receive(
        self, name: str, *, schema: Any = None, deadline: Deadline | None = None, default: Any = NOTHING
    ) -> Coroutine[Any, Any, Any]:
        """Wait for a signal, `run.signal(name, payload)`; one that came before is there already. Past its `deadline` it
        is `default`; without one the call raises DeadlinePassed."""
        expected = Expected.of(name, schema, deadline, default)
        call = self._made("receive", name, None)
        return self._activation.made(call, self._receive(call, expected))

    async def _receive(self, call: Call, expected: Expected) -> Any:
        until, lasts = expected.until(self._activation.port.now())
        outcome, value = await self._wait(call, "signal", until, about=expected.about, lasts=lasts)
        if outcome == "deadline":
            raise DeadlinePassed(f"the signal {expected.name!r} was not received in time")
        return decoder(expected.annotation)(value)

    def signal(self, run: str, name: str, payload: Any = None, *, id: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a signal to another run, once. The same `id` is the same signal, however often it is sent."""
        texts.name(run, "ctx.signal: run")
        texts.name(name, "ctx.signal: name")
        if id is not None:
            texts.question(id, "ctx.signal: id")
        call = self._made("signal", name, (run, payload, id))
        return self._activation.made(call, self._signal(call, run, name, payload, id))

    async def _signal(self, call: Call, run: str, name: str, payload: Any, signal_id: str | None) -> None:
        activation = self._activation
        recorded = activation.recall(call)
        if recorded is not None and recorded.output is not None:
            return
        key = signal_id or derived("key_", *activation.key_facts(call.step_key), size=15)
        data = encode(payload, what=f"the payload of signal {name!r}")
        message_id = await activation.port.order_signal(run, name, data, key)
        a = activation.attempt
        event = ev.StepCompleted(
            call.scope, call.position, call.kind, call.name, call.digest, msgspec.Raw(b"null"), call.key
        )
        await activation.commit(
            cmd.SendSignal(a.node, a.path, a.attempt, event, run, message_id, name, data, visit=a.visit)
        )

    def child(
        self, workflow: Any, /, *, run_id: str | None = None, detached: bool = False, **inputs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Start another workflow as a run of its own and wait for its result (or, detached, only start it)."""
        name = workflow if isinstance(workflow, str) else getattr(workflow, "name", None)
        if not isinstance(name, str):
            raise UsageError(f"ctx.child takes a workflow, not {workflow!r}")
        call = self._made("child", name, (inputs, run_id, detached))
        return self._activation.made(call, self._child(call, name, run_id, detached, inputs))

    async def _child(self, call: Call, name: str, run_id: str | None, detached: bool, inputs: dict[str, Any]) -> Any:
        order: cmd.NewChild | None = None
        if self._activation.replay.is_new(call):
            order = await self._activation.port.order_child(name, inputs, run_id, detached)
        outcome, value = await self._wait(call, "child", child=order)
        if outcome == "started":
            return decoder(str)(value)
        if outcome == "completed":
            return _child_result(value, name, run_id or "")
        error = _error(value)
        child = error.run_id or run_id or ""  # a journal of before does not say it
        raise ChildFailed(f"{_child_name(name, child)} has {outcome}: {error.message}", run_id=child, error=error)

    def race(self, *calls: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, Won[T]]:
        """Make several calls at once; the first to end wins, and the others are stopped. If it raised, so does this.

            index, page = await ctx.race(ctx.step(fetch, url), ctx.sleep("1h"))    # a time limit that survives a crash

        Takes calls on ctx, or coroutines made of such calls. The winner is recorded; the waits of the others are
        closed, their children cancelled, their steps cancelled (a sync one ends in its thread, unheard). A signal or an
        answer is used only by the winner; but a coroutine of several calls may have received one before it loses.
        """
        return racing.enter(self, calls)

    async def _wait(
        self,
        call: Call,
        kind: str,
        until: int | None = None,
        child: cmd.NewChild | None = None,
        about: dict[str, Any] | None = None,
        lasts: int | None = None,
    ) -> tuple[str, bytes]:
        activation = self._activation
        recorded = activation.recall(call)
        if recorded is not None and recorded.outcome is not None:
            assert recorded.output is not None
            return recorded.outcome, recorded.output
        a = activation.attempt
        with activation.parking():
            wait_id = None if recorded is None else recorded.wait_id
            if wait_id is None:
                placed = activation.replay.placed(call)
                wait_id = await activation.open_wait(
                    cmd.OpenWait(a.node, a.path, a.attempt, kind, placed, until, child, about, lasts, visit=a.visit)
                )
                if child is not None and child.attach and child.run_id is not None:
                    activation.port.follow_child(child.run_id)
            return await activation.park(wait_id)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The time, recorded."""
        return self._remember("now", lambda: datetime.fromtimestamp(self._activation.port.now() / 1e6, UTC), datetime)

    def uuid(self) -> Coroutine[Any, Any, uuid.UUID]:
        """A random UUID, recorded."""
        return self._remember("uuid", uuid.uuid4, uuid.UUID)

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number from 0 to 1, recorded."""
        return self._remember("random", random.random, float)

    def _remember(self, kind: str, make: Callable[[], R], annotation: Any) -> Coroutine[Any, Any, R]:
        call = self._made(kind, kind, None)
        return self._activation.made(call, self._remembered(call, make, annotation))

    async def _remembered(self, call: Call, make: Callable[[], R], annotation: Any) -> R:
        recorded = self._activation.recall(call)
        if recorded is not None and recorded.output is not None:
            return decoder(annotation)(recorded.output)  # type: ignore[no-any-return]
        data = encode(make(), annotation, what=f"ctx.{call.kind}()")
        await self._record(call, data)
        return decoder(annotation)(data)  # type: ignore[no-any-return]

    def patched(self, name: str) -> bool:
        """Whether this run goes the new way, where the code has changed since some runs began. It is not awaited.

            if ctx.patched("check fraud"):  # a step that runs in flight have not made
                await ctx.step(check_fraud, order)

        A body that gets to this line for the first time goes the new way; one that has recorded calls behind it goes
        the old one. The first answer of an instance is recorded by its name, takes no
        position, and is the same ever after."""
        activation, a = self._activation, self._activation.attempt
        activation.check()
        texts.name(name, "ctx.patched: name")
        replay = activation.replay
        known = replay.patches.get(name)
        if known is None:
            known = replay.patches[name] = not replay.unread()
            # Not awaited: commands of a body are decided in order, so that no later call is durable without it.
            said = msgspec.Raw(b"true" if known else b"false")
            event = ev.StepCompleted(f"patched {name}", 0, "patched", name, "", said)
            activation.port.submit(cmd.RecordStep(a.node, a.path, a.attempt, event, (), visit=a.visit))
        return known

    async def checkpoint(self, value: Any) -> None:
        """Close the memory before this point: when the body runs again, `ctx.checkpointed` is this value and nothing
        before it is read. A loop without an end has a checkpoint in each round. No other call on ctx may be under way,
        in any task: its result would be forgotten."""
        activation, a = self._activation, self._activation.attempt
        activation.check()
        data = encode(value, what="checkpoint")
        parking.check_checkpoint(
            activation.joined(), activation.task, activation.tasks, activation.calls, activation.ended
        )
        number = activation.replay.checkpoints + 1
        command = cmd.Checkpoint(
            a.node, a.path, a.attempt, data, number, activation.vars, activation.captured_vars(),
            dict(activation.replay.patches), visit=a.visit,
        )  # fmt: skip
        activation.replay.close(data)  # what is called from now on is committed after it
        activation.checkpoint_read = True
        await activation.commit(command)

    def _runner(self, fn: Any) -> StepRunner:
        return StepRunner.of(fn)


def _child_result(data: bytes, workflow: str, run_id: str) -> Any:
    found = handlers.find_workflow(workflow)
    try:
        return decoder(Any if found is None else found.returns)(data)
    except InvalidInput as wrong:
        what = f"the result of {_child_name(workflow, run_id)} is not what that is annotated with"
        raise InvalidInput(f"{what}: {wrong.message}") from None


def _child_name(workflow: str, run_id: str) -> str:
    """A child as messages name it."""
    return f"child {run_id} of workflow {workflow}" if run_id else f"a child of workflow {workflow}"


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended a map: being left outweighs a ticket or a pend, that a failure, a failure the cancelling it caused."""
    flat: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop(0)
        if isinstance(error, BaseExceptionGroup):
            stack[:0] = error.exceptions
        else:
            flat.append(error)
    for kind in (Suspended, BodyEnded, StepMismatch, OutcomeUnknown, HoldfastError, Exception):
        for error in flat:
            if isinstance(error, kind):
                return error
    return flat[0]
