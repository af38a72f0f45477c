"""Effects: what a workflow does to the outside world, which no crash undoes.

Owns: the record of every execution and every call of one schedule, and the findings about them: done twice without an
idempotency key, done again under another key, different results of the same work.
Never: judges the database (oracle.py).

Without a list of callables each body and each step counts as one effect. A body that makes recorded calls is replayed
on purpose, so that its steps count instead. With a list, only calls of those callables count.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.run.actor import RunActor
from holdfast.engine.run.bodies import BodyPort
from holdfast.model.errors import HoldfastError
from holdfast.model.values import encode
from holdfast.testing.explorer.oracle import Broken, Oracle
from holdfast.testing.explorer.report import Finding, Kind
from holdfast.testing.simulation.faults import PowerCut
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.watched_bodies import Execution, current_execution
from holdfast.testing.simulation.world import World

R = TypeVar("R")
Instance = tuple[str, str, str, int, str]


class Call(NamedTuple):
    """One call of a named callable that reached the outside world."""

    callable: str
    instance: Instance | None
    arguments: str
    """Everything but the key."""
    key: str | None
    idempotent: bool


class Effects:
    """The outside world of one exploration; `begin` starts another schedule."""

    def __init__(
        self, oracle: Oracle, callables: dict[str, Any] | None, handlers: set[str], idempotent: set[str]
    ) -> None:
        self._oracle = oracle
        self._all_bodies = callables is None
        self._handlers = handlers
        """Nodes that were named among the effects: their bodies count."""
        self._idempotent = idempotent
        self.in_fibers = bool(callables)
        self.world: World
        self.orchestrating: set[tuple[str, str]] = set()
        """Bodies that were seen to make recorded calls."""
        self._normal: Counter[Instance] = Counter()
        self._normal_repeats: Counter[Instance] = Counter()
        """How often an attempt is repeated on purpose: a node that pended itself with `rerun`."""
        self._normal_calls: Counter[tuple[Any, ...]] = Counter()
        self._normal_scopes: Counter[tuple[Any, ...]] = Counter()
        """In how many scopes a step is run with the same arguments."""
        self._normal_keys: Counter[tuple[Any, ...]] = Counter()
        """Under how many idempotency keys: an author's key may name several equal calls."""
        self.begin()

    def begin(self) -> None:
        self.executions: dict[Instance, list[Execution]] = {}
        self.calls: list[Call] = []
        self.broken: list[Broken] = []
        self.outlived: dict[str, Finding] = {}
        """Steps that were running after their body had ended, or twice at the same time."""

    def take_as_normal(self) -> None:
        """Take this schedule, which had no fault, as the standard for the others."""
        self._normal = Counter({instance: len(lives) for instance, lives in self.executions.items()})
        self._normal_repeats = Counter({instance: _repeats(lives) for instance, lives in self.executions.items()})
        self._normal_calls = Counter((c.callable, c.instance, c.arguments) for c in self.calls)
        self._normal_scopes = Counter({what: len(_scopes(lives)) for what, lives in self._equal_steps().items()})
        self._normal_keys = Counter({what: len(_step_keys(lives)) for what, lives in self._equal_steps().items()})
        self.note_orchestrating()

    def digest(self) -> tuple[Any, ...]:
        """What the outside world has seen, to distinguish two states."""
        done = frozenset((instance, len(lives)) for instance, lives in self.executions.items())
        return (done, frozenset(Counter((c.callable, c.arguments, c.key) for c in self.calls).items()))

    # --- bodies and steps ------------------------------------------------------------------------------------------

    def begins(self, process: Process, what: str) -> None:
        """Report a start in an engine whose lease has expired: another engine may have started the same."""
        lease = process.engine.lease
        if lease.has_run_out:
            self.broken.append(Broken("I17", f"{what} began in {process.name} after the lease of {lease.engine}"))

    async def run(self, execution: Execution, make: Callable[[], Awaitable[R]]) -> R:
        if not self._counts(execution):
            return await self._live(execution, make)
        attempt = execution.attempt.attempt
        return await self.world.acts.act(
            execution.process,
            _label(execution),
            attempt,
            lambda: self._live(execution, make),
            execution.process.executor.own_death(execution.attempt),
        )

    def run_blocking(self, execution: Execution, make: Callable[[], R]) -> R:
        def live() -> R:
            self._begun(execution)
            result = make()
            execution.result = result
            return result

        if not self._counts(execution):
            return live()
        return self.world.acts.act_blocking(execution.process, _label(execution), execution.attempt.attempt, live)

    async def _live(self, execution: Execution, make: Callable[[], Awaitable[R]]) -> R:
        self._begun(execution)
        if execution.step is not None:
            self._check_beside(execution)
        execution.under_way = True
        try:
            result = await make()
        finally:
            execution.under_way = False
        if execution.step is not None:
            self._check_end(execution)
        execution.result = result
        return result

    def _counts(self, execution: Execution) -> bool:
        if not self._all_bodies:
            return execution.name in self._handlers
        is_code = execution.step is None and execution.attempt.plan.definition.kind == "code"
        return not is_code and (execution.name, execution.attempt.node) not in self.orchestrating

    def _begun(self, execution: Execution) -> None:
        if self.world.over:
            raise PowerCut
        self.executions.setdefault(execution.instance, []).append(execution)
        self._check_start(execution)

    def _check_start(self, execution: Execution) -> None:
        """Report a body whose start was not committed; a lazy run may start one, because nothing leaves it."""
        a = execution.attempt
        if not (_is_lazy(execution) or self._oracle.has_started(a.port.run_no, a.node, a.path, a.attempt)):
            self.broken.append(Broken("I14", f"the body of {a.node} ran before its start was committed"))

    def _check_beside(self, execution: Execution) -> None:
        """Report a try of a step that starts while another one is running for the same owner of the run."""
        owner = _owner(execution)
        lives = self.executions[execution.instance]
        if any(e.under_way and _owner(e) is owner for e in lives):
            self._outlives(execution, "ran beside itself")

    def _check_end(self, execution: Execution) -> None:
        """Report a step that acts after the end of its attempt, unless the run has another owner."""
        a = execution.attempt
        if self._oracle.has_ended(a.port.run_no, _owner(execution).token, (a.node, a.path, a.visit), a.attempt):
            self._outlives(execution, "acted after its body had ended")

    def _outlives(self, execution: Execution, did: str) -> None:
        who = _who(execution)
        advice = "let it end when it is cancelled: the engine waits for grace_seconds and then continues without it"
        self.outlived.setdefault(who, Finding(kind=Kind.OUTLIVES, subject=who, what=f"{who} {did}", advice=advice))

    # --- calls -----------------------------------------------------------------------------------------------------

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a callable so that every call is counted."""
        signature = _signature(function)

        def note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.world.over:
                raise PowerCut
            self.calls.append(self._call(name, signature, args, kwargs))

        if inspect.iscoroutinefunction(function):

            async def watched(*args: Any, **kwargs: Any) -> Any:
                execution = current_execution.get()
                if execution is None:
                    return await function(*args, **kwargs)

                async def apply() -> Any:
                    note(args, kwargs)
                    return await function(*args, **kwargs)

                attempt = execution.attempt.attempt
                return await self.world.acts.act(execution.process, f"call of {name}", attempt, apply)

            return watched

        def watched_blocking(*args: Any, **kwargs: Any) -> Any:
            execution = current_execution.get()
            if execution is None:
                return function(*args, **kwargs)

            def apply() -> Any:
                note(args, kwargs)
                return function(*args, **kwargs)

            attempt = execution.attempt.attempt
            return self.world.acts.act_blocking(execution.process, f"call of {name}", attempt, apply)

        return watched_blocking

    def _call(
        self, name: str, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        execution = current_execution.get()
        key, rest = _split_key(signature, args, kwargs, set() if execution is None else execution.keys)
        if key is None and execution is not None and execution.key_read:
            key = min(execution.keys)  # it was read: what the call makes of it we cannot see
        idempotent = name in self._idempotent or (execution is not None and self._is_idempotent(execution))
        instance = None if execution is None else execution.instance
        return Call(name, instance, rest, key, idempotent)

    def _is_idempotent(self, execution: Execution) -> bool:
        names = {execution.name, execution.name.rpartition(".")[2], execution.attempt.node}
        return execution.idempotent or not names.isdisjoint(self._idempotent)

    # --- findings --------------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """What was wrong with this schedule."""
        self.note_orchestrating()
        for instance, lives in self.executions.items():
            if len(lives) > 1:
                yield from self._of_instance(instance, lives)
        yield from self._of_equal_steps()
        yield from self._of_calls()
        yield from self.outlived.values()

    def note_orchestrating(self) -> None:
        """Record which bodies make recorded calls."""
        for lives in self.executions.values():
            self.orchestrating |= {(e.name, e.attempt.node) for e in lives if e.remembered}

    def _of_instance(self, instance: Instance, lives: list[Execution]) -> Iterator[Finding]:
        first = lives[0]
        keys = set().union(*(e.keys for e in lives))
        who = _who(first)
        if len(keys) > 1 and len({frozenset(e.keys) for e in lives}) > 1:
            self.broken.append(Broken("I14", f"{who} was given two idempotency keys: {', '.join(sorted(keys))}"))
        self._check_attempts(instance, lives, who)
        if not self._counts(first) or first.remembered or (first.name, first.attempt.node) in self.orchestrating:
            return
        too_often = len(lives) > max(1, self._normal[instance])
        if too_often and not self._is_idempotent(first) and not all(e.key_read for e in lives):
            yield Finding(
                kind=Kind.REPEATED,
                subject=who,
                what=f"{who} ran {len(lives)} times and did not read ctx.idempotency_key",
                advice="give the key to the service that must not act twice, or declare the node idempotent=True if "
                "repeating it is harmless, or use on_crash='fail' or 'ask'",
            )
        results = {r for e in lives if (r := _encoded(e)) is not None}
        if len(results) > 1 and too_often:
            shown = " and ".join(sorted(r.decode(errors="replace")[:80] for r in results)[:2])
            yield Finding(
                kind=Kind.DIFFERS,
                subject=who,
                what=f"{who} ran {len(lives)} times and returned different results: {shown}",
                advice="only one of them is remembered; derive the result from the input, or ask ctx.now(), "
                "ctx.random() and ctx.uuid() in durable code",
            )

    def _equal_steps(self) -> dict[tuple[Any, ...], list[Execution]]:
        """The executions of steps by what they do: function, arguments and the author's key, in any scope."""
        found: dict[tuple[Any, ...], list[Execution]] = {}
        for instance, lives in self.executions.items():
            step = lives[0].step
            if step is not None and step.digest:
                found.setdefault((*instance[:4], step.name, step.digest, step.key), []).extend(lives)
        return found

    def _of_equal_steps(self) -> Iterator[Finding]:
        """A step that runs in more scopes than without the fault was not found by the task that replays it."""
        told: set[str] = set()
        for what, lives in self._equal_steps().items():
            first = lives[0]
            assert first.step is not None
            if first.step.key is not None:
                if len(_step_keys(lives)) > max(1, self._normal_keys[what]):
                    who = f"{_who(first)} with the key {first.step.key!r}"
                    self.broken.append(Broken("I14", f"{who} ran again under another idempotency key"))
            elif len(_scopes(lives)) > max(1, self._normal_scopes[what]) and self._counts(first):
                if _who(first) in told:
                    continue
                told.add(_who(first))
                yield Finding(
                    kind=Kind.NEW_KEY,
                    subject=_who(first),
                    what=f"{_who(first)} ran {len(lives)} times under different idempotency keys, in tasks that were "
                    "created in another order when the body ran again",
                    advice="give the call a key, ctx.keyed('...').step(...), which does not depend on the task",
                )

    def _check_attempts(self, instance: Instance, lives: list[Execution], who: str) -> None:
        """An attempt is executed once; only a body with recorded calls, or an attempt that was not committed, is
        repeated."""
        bodies = [e for e in lives if e.step is None]
        if any(e.remembered or (e.name, e.attempt.node) in self.orchestrating or _is_lazy(e) for e in bodies):
            return
        if _repeats(bodies) > self._normal_repeats[instance]:
            attempt = max(e.attempt.attempt for e in bodies)
            self.broken.append(Broken("I12", f"{who} ran more than once as attempt {attempt}"))

    def _of_calls(self) -> Iterator[Finding]:
        by_what: dict[tuple[Any, ...], list[Call]] = {}
        for call in self.calls:
            by_what.setdefault((call.callable, call.instance, call.arguments), []).append(call)
        for what, calls in by_what.items():
            if len(calls) <= max(1, self._normal_calls[what]) or calls[0].idempotent:
                continue
            name, arguments = calls[0].callable, calls[0].arguments
            keys = {call.key for call in calls}
            if None in keys:
                yield Finding(
                    kind=Kind.REPEATED,
                    subject=name,
                    what=f"{name}({arguments}) was called {len(calls)} times, and nothing tells the receiver that it "
                    "is the same call",
                    advice="pass ctx.idempotency_key to it",
                )
            elif len(keys) > max(1, self._normal_calls[what]):
                yield Finding(
                    kind=Kind.NEW_KEY,
                    subject=name,
                    what=f"{name}({arguments}) was called {len(calls)} times with different keys: "
                    f"{', '.join(sorted(str(k) for k in keys))}",
                    advice="use ctx.idempotency_key, which is the same for every attempt, instead of making a key",
                )


def _step_keys(lives: list[Execution]) -> set[str]:
    return {life.step.step_key for life in lives if life.step is not None}


def _scopes(lives: list[Execution]) -> set[str]:
    return {life.step.scope for life in lives if life.step is not None}


def _repeats(lives: list[Execution]) -> int:
    """How many executions repeated an earlier attempt."""
    attempts = [e.attempt.attempt for e in lives]
    return len(attempts) - len(set(attempts))


def _is_lazy(execution: Execution) -> bool:
    return _owner(execution).state.fold.settings.persistence != "aggressive"


def _owner(execution: Execution) -> RunActor:
    """The run as driven by the engine that started this body or step."""
    port = execution.attempt.port
    assert isinstance(port, BodyPort)
    return port.actor


def _label(execution: Execution) -> str:
    return f"body of {_place(execution)}" if execution.step is None else f"step {execution.name} of {_place(execution)}"


def _who(execution: Execution) -> str:
    if execution.step is not None:
        return f"step {execution.name} of {_place(execution)}"
    return f"the body of {execution.attempt.node}"


def _place(execution: Execution) -> str:
    a = execution.attempt
    return a.node if a.path == "." else f"{a.node}@{a.path}"


def _encoded(execution: Execution) -> bytes | None:
    if execution.result is None:
        return None
    try:
        return encode(execution.result, what="result")
    except HoldfastError:
        return None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _split_key(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], keys: set[str]
) -> tuple[str | None, str]:
    """The key among the arguments, and the other arguments as text. A key is what ctx gave, or an argument named so."""
    named: list[tuple[str, Any]] = [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]
    if signature is not None:
        with contextlib.suppress(TypeError):
            named = list(signature.bind(*args, **kwargs).arguments.items())
    found: str | None = None
    rest: list[str] = []
    for name, value in named:
        text = value if isinstance(value, str) else repr(value)
        is_ours = any(key in text for key in keys)
        if found is None and (is_ours or "idempot" in name.lower() or name.lower().endswith("key")):
            found = text
        elif name != "self":
            rest.append(f"{name}={value!r}")
    return found, ", ".join(rest)
