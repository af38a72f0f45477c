"""Plain context: what every body may ask of the engine, without waiting for a commit.

Owns: who the body is, its idempotency key, its log (one line for each call), its variables, progress, what it shows,
and heartbeat; and `InlineContext`, for bodies that run on the event loop and may not wait.
Rule: what a body sets as a variable is committed with its completion or checkpoint, never at a suspension.
Rule: newlines and control characters in what a body logs are escaped: text of users and of other services reaches the
log through it, and must not be able to forge a second line or to control a terminal.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NoReturn

import msgspec

from holdfast.model import answers, handlers, texts
from holdfast.model.current import BodyContext
from holdfast.model.errors import HoldfastError, InvalidInput, UsageError
from holdfast.model.limits import EMITTED_KEPT
from holdfast.model.values import decoder, encode
from holdfast.model.views import Emitted
from holdfast.worker.activation import Activation
from holdfast.worker.recorded_calls import Call
from holdfast.worker.replay import idempotency_key
from holdfast.worker.secret_values import Hidden
from holdfast.worker.time_limits import current_clock

log = logging.getLogger("holdfast.node")


class PlainContext(BodyContext):
    """What every body may ask."""

    def __init__(self, activation: Activation, step: Call | None = None, step_attempt: int | None = None) -> None:
        self._activation = activation
        self._step_call = step
        self._step_attempt = step_attempt
        self._vars: Variables | None = None

    @property
    def run_id(self) -> str:
        return self._activation.port.run_id

    @property
    def node(self) -> str:
        return self._activation.attempt.node

    @property
    def path(self) -> str:
        return self._activation.attempt.path

    @property
    def attempt(self) -> int:
        """Which start of this node this is, from 1; in a step of a node, which try of that step."""
        return self._step_attempt or self._activation.attempt.attempt

    @property
    def visit(self) -> int:
        """Which pass through this node this is, from 1: `hf.goto` and tickets may lead to it again."""
        return self._activation.attempt.visit

    @property
    def cancelled(self) -> bool:
        """Whether the body was asked to stop. A long sync body checks it now and then."""
        return self._activation.stop_reason is not None

    @property
    def leaving(self) -> bool:
        """True in `finally` blocks that run because the body is evicted or its engine stops, not because it ends."""
        return self._activation.leaving

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this node (or step), and for no other: a receiver can act once for each key."""
        activation = self._activation
        step_key = None if self._step_call is None else self._step_call.step_key
        return idempotency_key(activation.port.store_id, *activation.key_facts(step_key))

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger bound to run, node and attempt. One call is one line: newlines and control characters are escaped.
        It never writes to the journal."""
        a = self._activation.attempt
        extra = {"run_id": self.run_id, "node": a.node, "path": a.path, "attempt": a.attempt}
        return NodeLog(log, extra, self._activation)

    @property
    def vars(self) -> Variables:
        """The run's variables: as of this activation, plus what this body sets. Committed when it completes."""
        if self._vars is None:
            self._vars = Variables(self._activation)
        return self._vars

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far the body is, to those who watch the run. Never stored."""
        self._activation.progress = (done, total, message)

    def emit(self, topic: str, value: Any) -> None:
        """Show a value to those who watch the run while the body works, such as the tokens of a model.

        It is never stored and may be lost; the last 1,000 of a live body are kept, numbered for each attempt."""
        texts.name(topic, "ctx.emit: topic")
        activation, a = self._activation, self._activation.attempt
        data = encode(value, what=f"what ctx.emit shows as {topic!r}")
        if activation.hidden is not None:
            activation.hidden.refuse(f"what {a.node} shows", data)
        shown = activation.emitted
        if shown is None:
            shown = activation.emitted = deque(maxlen=EMITTED_KEPT)
        number = shown[-1].number + 1 if shown else 1
        shown.append(Emitted(number, topic, msgspec.Raw(data), a.node, a.path, self.attempt))

    def heartbeat(self) -> None:
        """Say that the body or step is alive (needed where its node has a `heartbeat` limit)."""
        self._activation.loop.call_soon_threadsafe(self._activation.beat, current_clock.get())

    @property
    def checkpointed(self) -> Any:
        """The value of the last checkpoint, in plain JSON types, or None."""
        self._activation.checkpoint_read = True
        value = self._activation.replay.checkpoint
        return None if value is None else decoder(Any)(value)


_WAITING = frozenset(
    (
        "step",
        "map",
        "child",
        "ask",
        "receive",
        "signal",
        "sleep",
        "race",
        "now",
        "uuid",
        "random",
        "checkpoint",
        "keyed",
        "patched",
    )
)
"""Calls that end in a commit."""


class InlineContext(PlainContext):
    """For bodies with `inline=True`: they run on the event loop and may not wait."""

    def __getattr__(self, name: str) -> NoReturn:
        if name in _WAITING:
            raise UsageError(
                f"ctx.{name} waits for a commit, and a body with inline=True may not wait: remove inline=True"
            )
        raise AttributeError(name)


class Variables(MutableMapping[str, Any]):
    """`ctx.vars`: only declared names, only values of the declared type."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        workflow = handlers.find_workflow(activation.attempt.plan.definition.name)
        self._types: dict[str, Any] = {} if workflow is None else workflow.variables

    def _declared(self, name: str) -> Any:
        if name not in self._activation.attempt.plan.definition.variables:
            known = ", ".join(sorted(self._activation.attempt.plan.definition.variables)) or "none"
            raise UsageError(
                f"variable {name!r} is not declared; declared: {known}. Add it to @hf.workflow(variables=...)"
            )
        return self._types.get(name, Any)

    def __getitem__(self, name: str) -> Any:
        annotation = self._declared(name)
        data = self._activation.vars.get(name)
        if data is None:
            data = self._activation.port.variable(name)
        if data is None:
            raise KeyError(name)
        return decoder(annotation)(data)

    def __setitem__(self, name: str, value: Any) -> None:
        annotation = self._declared(name)
        self._activation.check()
        try:
            data = encode(value, annotation, what=f"variable {name}")
            decoder(annotation)(data)
        except HoldfastError as e:
            raise type(e)(f"variable {name}: {e.message}") from None
        if annotation is Any:  # of a document: only its JSON Schema says what fits
            wrong = answers.problems(self._activation.attempt.plan.definition.variables[name], data)
            if wrong:
                raise InvalidInput(f"variable {name}: {'; '.join(wrong)}")
        self._activation.vars[name] = data

    def __delitem__(self, name: str) -> None:
        raise UsageError("variables are added and changed, never deleted; set it to None")

    def __iter__(self) -> Iterator[str]:
        for name in self._activation.attempt.plan.definition.variables:
            if name in self._activation.vars or self._activation.port.variable(name) is not None:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (a tab is one), other ends of lines, marks that reorder text, and halves of characters."""


class NodeLog(logging.LoggerAdapter[logging.Logger]):
    """A logger bound to run, node and attempt."""

    def __init__(self, logger: logging.Logger, extra: dict[str, Any], body: Activation | None = None) -> None:
        super().__init__(logger, extra)
        self._body = body
        """The body that logs, whose secrets are hidden."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the line of the body, not this one
        if self._body is not None and self._body.hidden is not None:
            msg, args = _without_secrets(self._body.hidden, msg, args, kwargs), ()
        safe = _escaped(msg, args)
        if safe is None:
            super().log(level, msg, *args, **kwargs)
        else:
            super().log(level, safe, **kwargs)


def _without_secrets(hidden: Hidden, msg: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The message, and the traceback that would follow it, without the values of secrets."""
    try:
        values: Any = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
        text = str(msg) % values if args else str(msg)
    except Exception:  # noqa: BLE001 - the __str__ of what a user logs may raise anything
        text = "(a message that cannot be formatted)"
    found = kwargs.pop("exc_info", None)
    error = found if isinstance(found, BaseException) else sys.exc_info()[1] if found else None
    text = hidden.text(text)
    return text if error is None else f"{text}\n{hidden.traceback(error)}"


def _escaped(msg: object, args: tuple[Any, ...]) -> str | None:
    """The message with what is unsafe in it shown; None: nothing is, or it cannot be formatted, which logging says."""
    values: Any = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
    try:
        text = str(msg) % values if args else str(msg)
    except Exception:  # noqa: BLE001 - the __str__ of what a user logs may raise anything
        return None
    if _UNSAFE.search(text) is None:
        return None
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
