"""Scopes: `hf.map` and `hf.loop`, whose body is instantiated once per item or round.

Owns: tracing a body (a node, a workflow, or a plain function) into the scope's own nodes, and its parameters.
Never: conditions and choices (control_flow.py).
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Literal, NamedTuple, TypeVar, overload

from holdfast.authoring import fields, functions, tracing
from holdfast.authoring.functions import Signature
from holdfast.authoring.node_decorator import Node, argument, bound_expressions
from holdfast.authoring.refs import Ref, check_truth, expression, trace_error, type_of
from holdfast.authoring.workflows import Workflow
from holdfast.model.definition import Body
from holdfast.model.events import Failed
from holdfast.model.expressions import Expr
from holdfast.model.limits import LOOP_VISITS_MAX, MAP_LIMIT_DEFAULT
from holdfast.model.schemas import schema_of

T = TypeVar("T")
R = TypeVar("R")


@overload
def map(
    body: Callable[[T], R], over: Iterable[T], *, limit: int = MAP_LIMIT_DEFAULT, errors: Literal["fail"] = "fail"
) -> list[R]: ...
@overload
def map(
    body: Callable[[T], R], over: Iterable[T], *, limit: int = MAP_LIMIT_DEFAULT, errors: Literal["collect"]
) -> list[R | Failed]: ...
@overload
def map(
    body: Callable[Concatenate[T, ...], R],
    over: Iterable[T],
    *,
    limit: int = MAP_LIMIT_DEFAULT,
    errors: Literal["fail"] = "fail",
    **same_for_all: Any,
) -> list[R]: ...
@overload
def map(
    body: Callable[Concatenate[T, ...], R],
    over: Iterable[T],
    *,
    limit: int = MAP_LIMIT_DEFAULT,
    errors: Literal["collect"],
    **same_for_all: Any,
) -> list[R | Failed]: ...
def map(
    body: Callable[..., Any],
    over: Iterable[Any],
    *,
    limit: int = MAP_LIMIT_DEFAULT,
    errors: Literal["fail", "collect"] = "fail",
    **same_for_all: Any,
) -> Any:
    """Run a node, a workflow or a traced function once per item of a list; the list of what they return.

    At most `limit` items run at once. `errors="collect"` gives `hf.Failed` for an item that failed, instead of
    failing the map. Further keyword arguments are the same for all items: `hf.map(pick, order.items, shelf=shelf)`
    """
    trace = tracing.required("hf.map", "ctx.map")
    if errors not in ("fail", "collect"):
        raise trace_error(f"hf.map: errors={errors!r} is not 'fail' or 'collect'")
    _check_count("hf.map: limit", limit)
    items = _items(over)
    traced = _trace_body(
        trace, "map", body, fields.item(type_of(items)) if isinstance(items, Ref) else Any, same_for_all
    )
    kind = traced.annotation if errors == "fail" else Any
    return trace.add(
        fields.list_of(kind),
        traced.after,
        id=traced.scope_id,
        kind="map",
        args=traced.args,
        body=traced.body,
        over=trace.expr(items, what="hf.map(over)"),
        item=traced.item,
        limit=limit,
        errors=errors,
    )


@overload
def loop(
    body: Callable[[T], R],
    start: T,
    until: Callable[[R], Any],
    max_visits: int = LOOP_VISITS_MAX,
    at_limit: Literal["fail", "take"] = "fail",
) -> R: ...
@overload
def loop(
    body: Callable[Concatenate[T, ...], R],
    start: T,
    until: Callable[[R], Any],
    max_visits: int = LOOP_VISITS_MAX,
    at_limit: Literal["fail", "take"] = "fail",
    **same_for_all: Any,
) -> R: ...
def loop(
    body: Callable[..., Any],
    start: Any,
    until: Callable[[Any], Any],
    max_visits: int = LOOP_VISITS_MAX,
    at_limit: Literal["fail", "take"] = "fail",
    **same_for_all: Any,
) -> Any:
    """Repeat a node, a workflow or a traced function: first with `start`, then with what it returned.

    `until` is called once, with a reference to the body's result, and returns the condition to stop. After
    `max_visits` rounds the loop fails, or with `at_limit="take"` gives the last result.
    """
    trace = tracing.required("hf.loop", "while")
    if at_limit not in ("fail", "take"):
        raise trace_error(f"hf.loop: at_limit={at_limit!r} is not 'fail' or 'take'")
    _check_count("hf.loop: max_visits", max_visits)
    if not callable(until) or isinstance(until, Ref | Node | Workflow):
        raise trace_error("hf.loop: until is a function of the body's result, such as lambda r: r.score >= 8")
    traced = _trace_body(trace, "loop", body, type_of(start), same_for_all, until)
    return trace.add(
        traced.annotation,
        traced.after,
        id=traced.scope_id,
        kind="loop",
        args=traced.args,
        body=traced.body,
        start=trace.expr(start, what="hf.loop(start)"),
        until=traced.until,
        item=traced.item,
        max_visits=max_visits,
        at_limit=at_limit,
        returns=schema_of(traced.annotation),
    )


class _Traced(NamedTuple):
    """A traced body, as a part of a definition."""

    scope_id: str
    item: str
    args: dict[str, Expr]
    body: Body
    annotation: Any
    """Of the body's result."""
    until: Expr
    after: tuple[Any, ...]


def _trace_body(
    trace: tracing.Trace,
    kind: Literal["map", "loop"],
    body: Any,
    item_type: Any,
    same_for_all: dict[str, Any],
    until: Callable[[Any], Any] | None = None,
) -> _Traced:
    signature, base = _signature(kind, body)
    item = signature.first()
    if item is None:
        raise trace_error(f"hf.{kind}: {base} has no parameter for the {'item' if kind == 'map' else 'value'}")
    single = isinstance(body, Node | Workflow)
    scope_id = trace.new_id(base, body.explicit_id if single else "")
    args = _shared_arguments(trace, kind, signature, base, same_for_all)
    with trace.scope(scope_id) as frame:
        declared = item.annotation if item.annotation is not Any else item_type
        value = Ref(["param", scope_id, item.name], declared, frame)
        shared = {
            name: Ref(["param", scope_id, name], _declared(signature, name, given), frame)
            for name, given in same_for_all.items()
        }
        if isinstance(body, Node):
            bound = bound_expressions(trace, signature, base, (value,), shared)
            options = body.definition_fields(bound)
            returned = trace.add(signature.returns, id=scope_id, uses=body.name, args=bound, **options)
        elif isinstance(body, Workflow):
            returned = trace.add(signature.returns, id=scope_id, **body.child_fields(trace, (value,), shared))
        else:
            returned = _call(kind, base, body, signature, value, shared)
        result = trace.expr(returned, what=f"the result of {base}")
        if not frame.nodes:
            raise trace_error(f"hf.{kind}: {base} calls no node; decorate it with @hf.node, or call one in it")
        annotation = returned._hf_annotation if isinstance(returned, Ref) else signature.returns
        ends = None if until is None else _until(trace, frame, until, result, annotation)
    after = body.after_refs if single else ()
    return _Traced(scope_id, item.name, args, Body(nodes=tuple(frame.nodes), result=result), annotation, ends, after)


def _signature(kind: str, body: Any) -> tuple[Signature, str]:
    """What the body takes, and the name its scope is called by."""
    if isinstance(body, Node | Workflow):
        return body.signature, body.base_id
    if isinstance(body, Ref) or not callable(body):
        raise trace_error(f"hf.{kind} takes a node, a workflow or a function, not {body!r}")
    name = getattr(body, "__name__", kind)
    if not inspect.isfunction(body) or inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body):
        raise trace_error(f"hf.{kind}: {name} is not a plain function; decorate it with @hf.node")
    signature = functions.signature_of(body, functions.enclosing_names(body, sys._getframe(3)))
    if signature.takes_ctx or signature.takes_current:
        raise trace_error(f"hf.{kind}: {name} takes a ctx; decorate it with @hf.node")
    return signature, kind if name == "<lambda>" else name


def _shared_arguments(
    trace: tracing.Trace, kind: str, signature: Signature, base: str, given: dict[str, Any]
) -> dict[str, Expr]:
    found: dict[str, Expr] = {}
    for name, value in given.items():
        p = signature.param(name)
        if p is None:
            raise trace_error(f"hf.{kind}: {base} has no parameter {name!r}")
        found[name] = argument(trace, value, p.annotation, f"{base}({name})")
    return found


def _declared(signature: Signature, name: str, given: Any) -> Any:
    p = signature.param(name)
    return p.annotation if p is not None and p.annotation is not Any else type_of(given)


def _call(kind: str, base: str, body: Any, signature: Signature, value: Any, shared: dict[str, Any]) -> Any:
    try:
        signature.python.bind(value, **shared)
    except TypeError as e:
        raise trace_error(f"hf.{kind}: {base}(): {e}") from None
    return body(value, **shared)


def _until(
    trace: tracing.Trace, frame: tracing.Frame, until: Callable[[Any], Any], result: Expr, annotation: Any
) -> Expr:
    frame.closed_by = "until"
    ends = until(Ref(result, annotation, frame))
    if not isinstance(ends, Ref):
        raise trace_error(f"hf.loop: until must return a condition on the body's result, not {ends!r}")
    check_truth("hf.loop: until", ends)
    return trace.expr(ends, what="until")


def _items(over: Any) -> Any:
    if isinstance(over, Ref | builtins.list | tuple):
        return over
    if isinstance(over, range):
        return builtins.list(over)
    raise trace_error(f"hf.map runs over a reference or a list, not {type(over)}")


def _check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise trace_error(f"{what}={expression(value)!r} is not a whole number above 0")
