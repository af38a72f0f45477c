"""Workflows: `@hf.workflow`, which makes a function a definition.

Owns: the options of a workflow, tracing a plain function into a graph at first use, durable code as a definition with
one node, the inputs of a run by name, and a workflow called inside a graph: a child.
Never: starts runs (see engine).
Invariant: a workflow is traced once, under a lock, and its definition is valid.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from holdfast.authoring import functions, rivals, tracing
from holdfast.authoring.functions import Signature
from holdfast.authoring.node_decorator import Ctx, Duration, bound_expressions, check_function
from holdfast.authoring.refs import Ref, trace_error
from holdfast.authoring.tracing import Placed
from holdfast.model import handlers, validation
from holdfast.model.canonical import input_schema
from holdfast.model.current import current_body
from holdfast.model.definition import DEFAULT_QUEUE, Definition, NodeDef, Param, Settings
from holdfast.model.errors import DefinitionError, HoldfastError, UsageError
from holdfast.model.handlers import CHILD_OPTIONS, RESERVED_INPUTS, Handler, RegisteredWorkflow
from holdfast.model.limits import NODE_VISITS_MAX
from holdfast.model.ordering import after_phases
from holdfast.model.policies import Retry, seconds
from holdfast.model.schemas import schema_of
from holdfast.model.values import builtins

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.RLock()


class Workflow(Placed, Generic[P, R]):
    """A function as a workflow: a graph from a plain function, durable code from an async one with a ctx."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        settings: Settings,
        variables: Mapping[str, Any],
        names: dict[str, Any] | None = None,
        tickets: Mapping[str, str] | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.fn = fn
        self.name = name
        self.settings = settings
        self.variables = dict(variables)
        self.tickets = dict(tickets or {})
        self.retry = retry
        """The policy of nodes that have none of their own; of durable code that of its body."""
        self.is_code = inspect.iscoroutinefunction(fn)
        self.handler_name = functions.handler_name(fn)
        """Durable code: the handler that runs the function itself."""
        self._names = names or {}
        self._registered: RegisteredWorkflow | None = None
        functools.update_wrapper(self, fn)
        self._rival = rivals.claim(self)
        handlers.register_workflow(name, lambda: self.registered, is_strict=settings.on_code_change == "fail")
        if self.is_code:
            handlers.register(self.handler_name, lambda: self.handler)

    @property
    def definition(self) -> Definition:
        """The workflow as data; the first use traces it. Raises TraceError or DefinitionError."""
        return self.registered.definition

    @property
    def registered(self) -> RegisteredWorkflow:
        """The definition together with what only this process knows."""
        if self._registered is None:
            with _lock:
                if self._registered is None:
                    registered = self._define()
                    rivals.check(self, registered.definition, self._rival)
                    self._registered = registered
                    self._rival = None
        return self._registered

    @functools.cached_property
    def signature(self) -> Signature:
        """What the function takes without ctx, read at first use."""
        return functions.signature_of(self.fn, self._names)

    @functools.cached_property
    def handler(self) -> Handler:
        """Durable code: what the engine needs to run the function."""
        signature = self.signature
        return Handler(
            name=self.handler_name,
            fn=self.fn,
            kind="async",
            takes_ctx=True,
            params=signature.params,
            returns=signature.returns,
            fingerprint=functions.fingerprint(self.fn),
            code=functions.location(self.fn),
        )

    @property
    def source_files(self) -> list[str]:
        """The files with the code that its runs need."""
        file = functions.source_file(self.fn)
        return [file] if file else []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        trace = tracing.current()
        if trace is not None:
            child: R = self._add_child(trace, args, dict(kwargs))
            return child
        given = ", ".join([self.fn.__name__, *(f"{p.name}=..." for p in self.signature.params)])
        if current_body.get() is not None:
            raise UsageError(f"{self.name} is a workflow; inside a body start it as a child: await ctx.child({given})")
        raise UsageError(f"{self.name} is a workflow; run it with hf.run({given}), or engine.start({given})")

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @property
    def base_id(self) -> str:
        return self.name

    def child_fields(self, trace: tracing.Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What a child node of this workflow consists of, its id left out."""
        options = {name: kwargs.pop(name) for name in sorted(CHILD_OPTIONS & kwargs.keys())}
        child_signature = _without_defaults(self.signature)
        inputs = bound_expressions(trace, child_signature, self.name, args, kwargs)
        flat = [part for name, expr in inputs.items() for part in (name, expr)]
        arguments = {"workflow": self.name, "inputs": ["dict", *flat]}
        arguments |= {name: trace.expr(v, what=f"{self.name}({name})") for name, v in options.items()}
        returns = schema_of(self.signature.returns)
        return {"uses": "holdfast.child", "args": arguments, "delay": self.delay_seconds or None, "returns": returns}

    def _add_child(self, trace: tracing.Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        node_id = trace.new_id(self.base_id, self.explicit_id)
        return trace.add(self.signature.returns, self.after_refs, id=node_id, **self.child_fields(trace, args, kwargs))

    def _define(self) -> RegisteredWorkflow:
        _check_inputs(self)
        returns = self.signature.returns
        if self.is_code:
            definition = self._code_definition()
        else:
            definition, inferred = self._trace()
            returns = inferred if returns is Any else returns
        problems = validation.check(definition, find=handlers.find)
        if problems:
            raise validation.error(definition, problems)
        return RegisteredWorkflow(
            definition=definition,
            code=functions.location(self.fn),
            params=self.signature.params,
            returns=returns,
            variables=self.variables,
        )

    def _code_definition(self) -> Definition:
        signature = self.signature
        if not signature.takes_ctx:
            raise UsageError(_no_ctx(self.fn))
        body = NodeDef(
            id=self.name,
            uses=self.handler_name,
            args={p.name: ["input", p.name] for p in signature.params},
            retry=self.retry,
            returns=schema_of(signature.returns),
        )
        return self._definition(kind="code", nodes=(body,), result=["node", self.name])

    def _trace(self) -> tuple[Definition, Any]:
        """Run the function once with references; the definition, and the annotation of what it returned."""
        trace = tracing.Trace(self.name, self.variables, self.retry)
        inputs = {p.name: Ref(["input", p.name], p.annotation, trace.top) for p in self.signature.params}
        positional = [inputs.pop(p.name) for p in self.signature.params if p.positional_only]
        with tracing.tracing(trace):
            returned = self.fn(*positional, **inputs)
            result = trace.expr(returned, what="the result")
        if inspect.isawaitable(returned) and not isinstance(returned, Ref):
            raise trace_error(f"{self.fn.__qualname__} returned something to await; a graph's function is a plain one")
        tracing.check_result(trace, result, self.fn)
        nodes = after_phases(trace.top.nodes, trace.phases.values())
        definition = self._definition(
            kind="graph", nodes=nodes, result=result, phases=tuple(trace.phases.values()), variables=self._schemas()
        )
        return definition, tracing.result_annotation(returned)

    def _definition(self, **parts: Any) -> Definition:
        signature = self.signature
        params = tuple(
            Param(
                name=p.name,
                required=p.required,
                default=None if p.required else _default(self, p.name, p.annotation),
                schema=input_schema(p.annotation, f"workflow {self.name!r}, input {p.name!r}"),
            )
            for p in signature.params
        )
        parts.setdefault("variables", self._schemas())
        doc = inspect.getdoc(self.fn) or ""
        return Definition(name=self.name, params=params, tickets=self.tickets, settings=self.settings, doc=doc, **parts)

    def _schemas(self) -> dict[str, Any]:
        return {name: schema_of(kind) for name, kind in sorted(self.variables.items())}


def _default(workflow: Workflow[..., Any], name: str, annotation: Any) -> Any:
    try:
        return builtins(workflow.signature.defaults[name], annotation, what=f"the default of {name}")
    except HoldfastError as e:
        raise DefinitionError(f"workflow {workflow.name!r}: {e.message}") from None


def _without_defaults(signature: Signature) -> Signature:
    """A child applies its own defaults, those of the version that runs."""
    return Signature(
        takes_ctx=signature.takes_ctx,
        params=signature.params,
        defaults={},
        returns=signature.returns,
        python=signature.python,
    )


def _no_ctx(fn: Callable[..., Any]) -> str:
    return (
        f"{fn.__qualname__} is an async workflow without ctx: durable code takes it first, as in "
        f"'async def {fn.__name__}(ctx: hf.Context, ...)'; a graph is a plain 'def'"
    )


def _check_inputs(workflow: Workflow[..., Any]) -> None:
    if not workflow.is_code and (workflow.signature.takes_ctx or workflow.signature.takes_current):
        raise UsageError(
            f"{workflow.fn.__qualname__} takes a ctx and is a plain 'def': a graph is traced without one; write "
            f"'async def' for durable code"
        )
    for p in workflow.signature.params:
        if p.variadic:
            raise UsageError(f"workflow {workflow.name!r}: inputs have names, {p.variadic}{p.name} cannot be one")


# --- the decorator ------------------------------------------------------------------------------------------------


class WorkflowDecorator:
    """`@hf.workflow(...)`: waits for its function."""

    def __init__(
        self,
        name: str | None,
        settings: Settings,
        variables: Mapping[str, Any],
        tickets: Mapping[str, str],
        retry: Retry | None,
    ) -> None:
        self._name = name
        self._settings = settings
        self._variables = variables
        self._tickets = tickets
        self._retry = retry

    @overload
    def __call__(self, fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return _decorate(fn, self._name, self._settings, self._variables, self._tickets, self._retry)


@overload
def workflow(fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    persistence: str = "aggressive",
    on_failure: str = "fail",
    on_code_change: Literal["continue", "fail"] = "continue",
    timeout: Duration | None = None,
    priority: int = 0,
    concurrency: int | None = None,
    queue: str = DEFAULT_QUEUE,
    variables: Mapping[str, Any] | None = None,
    tickets: Mapping[str, str] | None = None,
    max_recoveries: int | None = None,
    max_visits: int = NODE_VISITS_MAX,
    retry: Retry | None = None,
) -> WorkflowDecorator: ...
def workflow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    persistence: str = "aggressive",
    on_failure: str = "fail",
    on_code_change: Literal["continue", "fail"] = "continue",
    timeout: Duration | None = None,
    priority: int = 0,
    concurrency: int | None = None,
    queue: str = DEFAULT_QUEUE,
    variables: Mapping[str, Any] | None = None,
    tickets: Mapping[str, str] | None = None,
    max_recoveries: int | None = None,
    max_visits: int = NODE_VISITS_MAX,
    retry: Retry | None = None,
) -> Any:
    """Make a function a workflow.

    A plain `def` is a graph: it runs once, at first use, with references instead of values, and the calls of nodes in
    it become the graph. An `async def` with a leading ctx is durable code. `persistence` is `aggressive`, `lazy` or
    `interval:10s`; `on_failure` is `fail`, `continue`, `compensate` or `pend:<basket>`; `timeout` counts wall time
    since the run's start; `variables` maps names to types; `concurrency` bounds the runs that are driven at once,
    over all engines of a database; `queue` names the workers that drive its runs (`holdfast worker --queue`).
    `tickets` maps the names that bodies may raise with `hf.ticket` to the nodes they lead to; `max_visits` is how often
    one node may be entered that way, the first time included. `retry` is the policy of every node that declares none;
    of durable code it is that of the body itself.
    """
    if retry is not None and not isinstance(retry, Retry):
        raise UsageError(f"@hf.workflow: retry={retry!r} is not an hf.Retry")
    settings = Settings(
        persistence=persistence,
        on_failure=on_failure,
        on_code_change=on_code_change,
        timeout=None if timeout is None else seconds(timeout),
        priority=priority,
        concurrency=concurrency,
        queue=queue,
        max_recoveries=max_recoveries,
        max_visits=max_visits,
    )
    problems = validation.check_settings(settings)
    if problems:
        listed = "; ".join(f"{p.field}: {p.message} ({p.hint})" for p in problems)
        raise DefinitionError(f"@hf.workflow: {listed}", tuple(problems))
    if fn is None:
        return WorkflowDecorator(name, settings, variables or {}, tickets or {}, retry)
    return _decorate(fn, name, settings, variables or {}, tickets or {}, retry)


def _decorate(
    fn: Callable[..., Any],
    name: str | None,
    settings: Settings,
    variables: Mapping[str, Any],
    tickets: Mapping[str, str],
    retry: Retry | None,
) -> Workflow[..., Any]:
    if isinstance(fn, Workflow):
        raise UsageError(f"{fn.name} is a workflow already")
    check_function(fn, "workflow")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"{fn.__qualname__} is a generator; a workflow returns its result (streams come from nodes)")
    names = functions.enclosing_names(fn, sys._getframe(2))
    listed = list(inspect.signature(fn).parameters)
    with_ctx = functions.takes_ctx(fn, names)
    if inspect.iscoroutinefunction(fn) and not with_ctx:
        raise UsageError(_no_ctx(fn))
    reserved = sorted(RESERVED_INPUTS & set(listed[with_ctx:]))
    if reserved:
        raise UsageError(
            f"{fn.__qualname__}: {', '.join(reserved)} cannot be an input; hf.run and engine.start keep the names "
            f"{', '.join(sorted(RESERVED_INPUTS))} for themselves"
        )
    for ticket, target in tickets.items():
        if not isinstance(ticket, str) or not isinstance(target, str):
            raise UsageError(f"{fn.__qualname__}: tickets map names to ids of nodes, as text; {target!r} is not one")
    wrong = validation.name_problem(name or fn.__name__)
    if wrong:
        raise UsageError(f"{fn.__qualname__}: the workflow's name {wrong}")
    return Workflow(fn, name or fn.__name__, settings, variables, names, tickets, retry)
