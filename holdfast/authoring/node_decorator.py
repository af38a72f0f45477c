"""Node decorator: `@hf.node`, which makes a function one unit of work.

Owns: the options of a node, its handler, and what calling it does: a node in a graph while tracing, the plain function
in a REPL or a test, an error that names `ctx.step` inside a body.
Never: runs a node durably (see engine and worker).
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload

import msgspec

from holdfast.authoring import functions, tracing
from holdfast.authoring.functions import Signature
from holdfast.authoring.refs import Ref, expression, refs_in, trace_error
from holdfast.authoring.tracing import Placed
from holdfast.model import handlers
from holdfast.model.current import BodyContext, bare_context, current_body, receiving
from holdfast.model.errors import DefinitionError, InvalidInput, TraceError, UsageError
from holdfast.model.expressions import Expr
from holdfast.model.handlers import ALIASES, Handler, Parameter, compensation_problem
from holdfast.model.policies import Retry, delay_seconds, seconds
from holdfast.model.problems import PRIORITIES, Problem, priority_problem
from holdfast.model.schemas import schema_of
from holdfast.model.secret_names import Secret, escaped, without_secrets
from holdfast.model.values import decoder, encode

P = ParamSpec("P")
R = TypeVar("R")
Ctx = TypeVar("Ctx", bound=BodyContext)
Duration = float | str | timedelta


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node; see `node`."""

    delay: float = 0.0
    retry: Retry | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    on_crash: Literal["rerun", "fail", "ask"] = "rerun"
    compensate: Any = None
    concurrency: int | None = None
    priority: int = 0
    inline: bool = False
    process: bool = False
    idempotent: bool = False


class Node(Placed, Generic[P, R]):
    """A function as a unit of work. Calling it in a workflow graph adds a node; `fn` is the function itself."""

    def __init__(
        self, fn: Callable[..., Any], options: NodeOptions, name: str | None, names: dict[str, Any] | None = None
    ) -> None:
        self.fn = fn
        self.declared = options
        self.name = name or functions.handler_name(fn)
        """The handler's name, by which definitions refer to the function."""
        self.names = names or {}
        """What its annotations may name besides its globals."""
        functools.update_wrapper(self, fn)
        handlers.register(self.name, lambda: self.handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        trace = tracing.current()
        if trace is not None:
            node_id = trace.new_id(self.base_id, self.explicit_id)
            given, named, secrets = _without_secrets(trace, self.signature, args, kwargs)
            arguments = bound_expressions(trace, self.signature, self.base_id, given, named)
            options = self.definition_fields(arguments) | {"secrets": secrets}
            added: R = trace.add(
                self.signature.returns, self.after_refs, id=node_id, uses=self.name, args=arguments, **options
            )
            return added
        body = current_body.get()
        if body is not None:
            names = ", ".join([self.fn.__name__, *(p.name for p in self.signature.params)])
            raise UsageError(
                f"{self.fn.__name__} was called inside the body of {body}, where it would not be recorded: use "
                f"ctx.step({names}), or {self.fn.__name__}.fn for the plain function"
            )
        if self.signature.takes_ctx or self.signature.takes_current:
            plain: R = self.fn(bare_context(self.fn.__name__), *args, **kwargs)
            return plain
        result: R = self.fn(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def base_id(self) -> str:
        return self.name.rpartition(".")[2]

    @functools.cached_property
    def signature(self) -> Signature:
        """What the function takes without ctx, read at first use."""
        return functions.signature_of(self.fn, self.names)

    @functools.cached_property
    def handler(self) -> Handler:
        """What the engine needs to run the function."""
        signature = self.signature
        if self.declared.process:
            kind: handlers.BodyKind = "process"
        elif self.declared.inline:
            kind = "inline"
        else:
            kind = "async" if inspect.iscoroutinefunction(self.fn) else "sync"
        return Handler(
            name=self.name,
            fn=receiving(self.fn) if signature.takes_current else self.fn,
            kind=kind,
            takes_ctx=signature.takes_ctx,
            params=signature.params,
            returns=signature.returns,
            fingerprint=functions.fingerprint(self.fn),
            code=functions.location(self.fn),
            defaults=_default_expressions(signature),
            fields=_fields(self.declared),
            compensate=None if self.declared.compensate is None else self.declared.compensate.name,
            accepts_none=functions.accepts_none(signature),
        )

    def options(
        self,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        priority: int | None = None,
        on_crash: Literal["rerun", "fail", "ask"] | None = None,
    ) -> Self:
        """The same with other options for one call: `charge.options(timeout="5s", retry=hf.Retry(3))(order)`, also in
        `ctx.step(charge.options(timeout="5s"), order)`. What is not given stays as declared."""
        changes: dict[str, Any] = {"retry": retry, "priority": priority, "on_crash": on_crash}
        changes |= {"timeout": None if timeout is None else seconds(timeout)}
        changes |= {"heartbeat": None if heartbeat is None else seconds(heartbeat)}
        given = {name: value for name, value in changes.items() if value is not None}
        _check_options(f"{self.fn.__name__}.options", retry, on_crash or "rerun", priority or 0)
        configured = copy.copy(self)
        configured.declared = msgspec.structs.replace(self.declared, **given)
        return configured

    def definition_fields(self, args: Mapping[str, Expr]) -> dict[str, Any]:
        """The options as they stand in a definition, of a node that is given these arguments."""
        fields = _fields(self.declared)
        if self.delay_seconds is not None:
            fields["delay"] = self.delay_seconds or None
        undo = self.declared.compensate
        undone = {} if undo is None else handlers.compensation_fields(undo.handler, self.signature.params, args)
        return {**fields, **undone, "returns": schema_of(self.signature.returns)}


def _fields(declared: NodeOptions) -> dict[str, Any]:
    return {
        "delay": declared.delay or None,
        "retry": declared.retry,
        "timeout": declared.timeout,
        "heartbeat": declared.heartbeat,
        "on_crash": declared.on_crash,
        "concurrency": declared.concurrency,
        "priority": declared.priority,
        "idempotent": declared.idempotent,
    }


def _default_expressions(signature: Signature) -> dict[str, Expr]:
    found: dict[str, Expr] = {}
    for p in signature.params:
        if p.name in signature.defaults:
            try:
                found[p.name] = expression(signature.defaults[p.name], p.annotation, what=p.name)
            except TraceError:
                continue  # a default that only Python can hold (a sentinel): the function applies it itself
    return found


def bound_expressions(
    trace: tracing.Trace, signature: Signature, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Expr]:
    """A call's arguments by parameter name, with the defaults of those left out; "*" holds the rest of *args."""
    try:
        given = signature.python.bind(*args, **kwargs).arguments
    except TypeError as e:
        raise trace_error(f"{name}(): {e}") from None
    found: dict[str, Expr] = {}
    for p in signature.params:
        what = f"{name}({p.name})"
        if p.variadic == "*":
            extra = given.get(p.name, ())
            if extra:
                found["*"] = ["list", *(argument(trace, v, p.annotation, what) for v in extra)]
        elif p.variadic == "**":
            for key, value in given.get(p.name, {}).items():
                if key in found or key == "*":
                    raise trace_error(f"{name}(): {key!r} is given twice; rename the parameter or the keyword")
                found[key] = argument(trace, value, p.annotation, f"{name}({key})")
        elif p.name in given:
            found[p.name] = argument(trace, given[p.name], p.annotation, what)
        elif p.name in signature.defaults:
            try:
                found[p.name] = trace.expr(signature.defaults[p.name], p.annotation, what=what)
            except TraceError:
                continue  # a default that only Python can hold (a sentinel): the function applies it itself
    return found


def _without_secrets(
    trace: tracing.Trace, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, str]]:
    """A call's arguments with null in the places of secrets, and these places with the names of the secrets."""
    found: dict[str, str] = {}
    names = [p.name for p in signature.params if not p.variadic and not p.keyword_only]
    places = [*names[: len(args)], *(f"*/{i}" for i in range(len(args) - len(names)))]

    def instead(_: Secret) -> Ref:
        return Ref(None, Any, trace.frame)

    given = tuple(
        without_secrets(value, f"/{place}", found, instead) for value, place in zip(args, places, strict=True)
    )
    named = {k: without_secrets(v, f"/{escaped(k)}", found, instead) for k, v in kwargs.items()}
    return given, named, found


def argument(trace: tracing.Trace, value: Any, annotation: Any, what: str) -> Expr:
    """One argument as an expression; a constant that does not fit the parameter is refused."""
    expr = trace.expr(value, annotation, what=what)
    if annotation is not Any and not refs_in(value):
        try:
            decoder(annotation)(encode(value, annotation, what=what))
        except InvalidInput as e:
            raise trace_error(f"{what}: {e.message}") from None
    return expr


# --- the decorator ------------------------------------------------------------------------------------------------


class NodeDecorator:
    """`@hf.node(...)`: waits for its function."""

    def __init__(self, options: NodeOptions, name: str | None) -> None:
        self._options = options
        self._name = name

    @overload
    def __call__(self, fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /) -> Node[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Ctx, P], R], /) -> Node[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Node[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Node[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return _decorate(fn, self._options, self._name)


@overload
def node(fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /) -> Node[P, R]: ...
@overload
def node(fn: Callable[Concatenate[Ctx, P], R], /) -> Node[P, R]: ...
@overload
def node(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Node[P, R]: ...
@overload
def node(fn: Callable[P, R], /) -> Node[P, R]: ...
@overload
def node(
    *,
    name: str | None = None,
    delay: Duration = 0,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    heartbeat: Duration | None = None,
    on_crash: Literal["rerun", "fail", "ask"] = "rerun",
    compensate: Node[..., Any] | None = None,
    concurrency: int | None = None,
    priority: int = 0,
    inline: bool = False,
    process: bool = False,
    idempotent: bool = False,
) -> NodeDecorator: ...
def node(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    delay: Duration = 0,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    heartbeat: Duration | None = None,
    on_crash: Literal["rerun", "fail", "ask"] = "rerun",
    compensate: Node[..., Any] | None = None,
    concurrency: int | None = None,
    priority: int = 0,
    inline: bool = False,
    process: bool = False,
    idempotent: bool = False,
) -> Any:
    """Make a function a node.

    A sync body runs in a thread, `inline=True` right on the event loop (for quick ones), `process=True` in a child
    process (for CPU-bound ones; without ctx). `timeout` and `heartbeat` are seconds, a timedelta or text such as
    "20s"; they and `retry` count for one attempt. `delay` is a durable delay of the first start, from when everything
    that the node needs has completed. `compensate` is the node that undoes this one: its first parameter gets the
    output, further ones get the inputs of their names.
    `on_crash` is what happens to an attempt that a crash interrupted; `idempotent` declares that repeating it is
    harmless. `concurrency` bounds the bodies of this function that run at once, over all engines of a database.
    `name` is the handler's name in definitions (default: `module.function`); its last part is the default id of nodes.
    """
    _check_options("@hf.node", retry, on_crash, priority)
    if compensate is not None and not isinstance(compensate, Node):
        raise UsageError(f"compensate={compensate!r} is not a node; decorate it with @hf.node")
    options = NodeOptions(
        delay=delay_seconds(delay, "delay"),
        retry=retry,
        timeout=None if timeout is None else seconds(timeout),
        heartbeat=None if heartbeat is None else seconds(heartbeat),
        on_crash=on_crash,
        compensate=compensate,
        concurrency=concurrency,
        priority=priority,
        inline=inline,
        process=process,
        idempotent=idempotent,
    )
    if fn is None:
        return NodeDecorator(options, name)
    return _decorate(fn, options, name)


def _check_options(what: str, retry: Any, on_crash: str, priority: Any) -> None:
    if on_crash not in ("rerun", "fail", "ask"):
        raise UsageError(f"{what}: on_crash={on_crash!r} is not one of 'rerun', 'fail', 'ask'")
    if retry is not None and not isinstance(retry, Retry):
        raise UsageError(f"{what}: retry={retry!r} is not an hf.Retry")
    if (wrong_priority := priority_problem(priority)) is not None:
        raise UsageError(f"{what}: priority={priority!r}: {wrong_priority} ({PRIORITIES})")


def _decorate(fn: Callable[..., Any], options: NodeOptions, name: str | None) -> Node[..., Any]:
    check_function(fn, "node")
    what = f"node {fn.__qualname__}"
    names = functions.enclosing_names(fn, sys._getframe(2))
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"{what} is a generator; streams are not supported yet")
    if fn.__name__ == "<lambda>" and not name:
        raise UsageError("a lambda has no name to be found by; write a function, or give @hf.node(name=...)")
    if name is not None and (name.startswith("holdfast.") or not name.rpartition(".")[2]):
        raise UsageError(f"{what}: {name!r} cannot be a handler's name (names under 'holdfast.' are its own)")
    if name in ALIASES:
        raise UsageError(f"{what}: {name!r} is the name of a built-in handler in documents; choose another one")
    asynchronous = inspect.iscoroutinefunction(fn)
    if options.inline and (asynchronous or options.process):
        raise UsageError(f"{what}: inline=True is for quick sync functions, without process=True")
    if options.process:
        if asynchronous or functions.takes_ctx(fn, names):
            raise UsageError(f"{what}: process=True is for sync functions without ctx; the child has no journal")
        if functions.is_local(fn):
            raise UsageError(f"{what}: process=True needs a function at the top of a module, for the child to import")
    if options.compensate is not None:
        _check_compensation(what, options.compensate, functions.parameters(fn, names))
    return Node(fn, options, name, names)


def _check_compensation(what: str, undo: Node[..., Any], undone: tuple[Parameter, ...]) -> None:
    """Refuse a compensation that could not be called; otherwise this would be found when it is needed."""
    problem = compensation_problem(functions.parameters(undo.fn, undo.names), undone)
    if problem is not None:
        wrong, hint = problem
        message = f"{what}: its compensation {undo.fn.__qualname__} cannot be called: {wrong}"
        found = Problem(code="bad_compensation", field="compensate", message=message, hint=hint)
        raise DefinitionError(f"{message} ({hint})", (found,))


def check_function(fn: Any, what: str) -> None:
    """Refuse what is not a plain function: classes, methods, partials, nodes."""
    if isinstance(fn, Node):
        raise UsageError(f"{fn.name} is a node already")
    if not inspect.isfunction(fn):
        raise UsageError(f"@hf.{what} takes a function, not {fn!r}")
    first = next(iter(inspect.signature(fn).parameters), "")
    owner = fn.__qualname__.rpartition(".")[0]
    if first in {"self", "cls"} and owner and not owner.endswith("<locals>"):
        raise UsageError(f"{fn.__qualname__} is a method; a {what} is a function of a module (or a static method)")
