"""Effects: what a workflow does to the world outside, which no crash undoes.

Owns: the record of every execution and every call of one schedule, and what is told about them: done twice without a
word to the receiver, done again under another key, different results of the same work.
Never: judges the database (oracle.py).

Without a list of callables each body and each step counts as one effect. A body that makes remembered calls is run
again on purpose, so that its steps count instead. With a list, only calls of those callables count.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from holdfast.model.errors import HoldfastError
from holdfast.model.values import encode
from holdfast.testing.explorer.findings import Finding, Kind
from holdfast.testing.explorer.oracle import Broken, Oracle
from holdfast.testing.simulation.bodies import Execution, current_execution
from holdfast.testing.simulation.faults import PowerCut
from holdfast.testing.simulation.world import World

R = TypeVar("R")
Instance = tuple[str, str, str, int, str]


class Call(NamedTuple):
    """One call of a named callable that reached the world outside."""

    callable: str
    instance: Instance | None
    arguments: str
    """Everything but the key."""
    key: str | None
    idempotent: bool


class Effects:
    """The world outside, of one exploration; `begin` starts another schedule."""

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
        """Bodies that were seen to make remembered calls."""
        self._normal: Counter[Instance] = Counter()
        self._normal_repeats: Counter[Instance] = Counter()
        """How often an attempt is run again on purpose: a node that pended itself with `rerun`."""
        self._normal_calls: Counter[tuple[Any, ...]] = Counter()
        self.begin()

    def begin(self) -> None:
        self.executions: dict[Instance, list[Execution]] = {}
        self.calls: list[Call] = []
        self.broken: list[Broken] = []

    def take_as_normal(self) -> None:
        """This schedule was undisturbed: what it did is what has to be done."""
        self._normal = Counter({instance: len(lives) for instance, lives in self.executions.items()})
        self._normal_repeats = Counter({instance: _repeats(lives) for instance, lives in self.executions.items()})
        self._normal_calls = Counter((c.callable, c.instance, c.arguments) for c in self.calls)
        self.note_orchestrating()

    def digest(self) -> tuple[Any, ...]:
        """What the world outside knows, for telling two states apart."""
        done = frozenset((instance, len(lives)) for instance, lives in self.executions.items())
        return (done, frozenset(Counter((c.callable, c.arguments, c.key) for c in self.calls).items()))

    # --- bodies and steps ------------------------------------------------------------------------------------------

    async def run(self, execution: Execution, make: Callable[[], Awaitable[R]]) -> R:
        if not self._counts(execution):
            return await self._live(execution, make)
        attempt = execution.attempt.attempt
        return await self.world.acts.act(
            execution.process, _label(execution), attempt, lambda: self._live(execution, make)
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
        result = await make()
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
        """Nothing runs whose start was not committed; a lazy run may, because nothing leaves it."""
        a = execution.attempt
        if not (_is_lazy(execution) or self._oracle.has_started(a.port.run_no, a.node, a.path, a.attempt)):
            self.broken.append(Broken("I14", f"the body of {a.node} ran before its start was committed"))

    # --- calls -----------------------------------------------------------------------------------------------------

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The callable with every call counted."""
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

    # --- what is told ----------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """What was wrong with this schedule."""
        self.note_orchestrating()
        for instance, lives in self.executions.items():
            if len(lives) > 1:
                yield from self._of_instance(instance, lives)
        yield from self._of_calls()

    def note_orchestrating(self) -> None:
        """Bodies that make remembered calls are known from now on."""
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
                advice="give the key to whoever must not act twice, or declare the node idempotent=True if repeating "
                "it is harmless, or use on_crash='fail' or 'ask'",
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

    def _check_attempts(self, instance: Instance, lives: list[Execution], who: str) -> None:
        """An attempt is one life of a body; only one that remembers calls, or that was never committed, goes on."""
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


def _repeats(lives: list[Execution]) -> int:
    """How many lives were an attempt that another one had been before."""
    attempts = [e.attempt.attempt for e in lives]
    return len(attempts) - len(set(attempts))


def _is_lazy(execution: Execution) -> bool:
    port: Any = execution.attempt.port
    held_back: bool = port.state.fold.settings.persistence != "aggressive"
    return held_back


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
    """The key among the arguments, and the other arguments as text. A key is what ctx gave, or what is called one."""
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
