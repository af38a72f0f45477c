"""Control flow: what a workflow function writes between its node calls: conditions, routes, phases, choices.

Owns: `when`, `route`, `routes`, `phase`, `first`, `some`, `any_of`, `skipped`, `failed`, `size`, `contains`, `is_none`,
`starts_with`, `ends_with`, `if_else`, `text`, `var`. All of them build data while the function is traced and mean
nothing elsewhere.
Never: maps and loops (maps_and_loops.py), nodes that wait (builtin_nodes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.authoring import tracing
from holdfast.authoring.refs import Ref, build, check_truth, expression, trace_error, type_of
from holdfast.model.definition import Phase
from holdfast.model.expressions import Expr, chain
from holdfast.model.validation import name_problem
from holdfast.model.values import union_members

T = TypeVar("T")


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Nodes called inside run only if the condition holds when the workflow runs; otherwise they are skipped.

    `with hf.when(order.amount > 1000): ok = approve(order)`
    """
    trace = tracing.required("hf.when", "if")
    expr = _condition(trace, condition, "hf.when")
    with trace.under(expr):
        yield


class Route:
    """A choice by value, made by `hf.route`: call it with a value to open that branch."""

    def __init__(self, trace: tracing.Trace, value: Ref) -> None:
        self._trace = trace
        self._value = value
        self._key = trace.new_route("choice")
        self._label = _label(expression(value), self._key)
        self._values: list[Any] = []
        self._ended = False

    @contextmanager
    def __call__(self, value: Any) -> Iterator[None]:
        """The branch that runs if the route's value equals this one."""
        if self._ended:
            raise trace_error("kind.otherwise() is the last branch of a route; put this one before it")
        if isinstance(value, Ref):
            raise trace_error("a branch of a route is named by a constant")
        const = expression(value, what="the branch of a route")
        if any(_same_constant(const, v) for v in self._values):
            raise trace_error(f"the route has two branches for {value!r}")
        condition = self._value == value
        self._values.append(const)
        with self._open(expression(condition), str(const)):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The branch that runs if none of the others does; the last one."""
        if self._ended:
            raise trace_error("a route has one kind.otherwise()")
        self._ended = True
        value = expression(self._value)
        match self._values:
            case []:
                expr: Expr | None = None
            case [single]:
                expr = ["ne", value, single]
            case several:
                named = [v[1] if isinstance(v, list) else v for v in several]
                expr = ["not", ["contains", ["const", named], value]]
        with self._open(expr, "otherwise"):
            yield

    @contextmanager
    def _open(self, expr: Expr | None, branch: str) -> Iterator[None]:
        with self._trace.under(expr, label=f"{self._label}={branch}", branch=(self._key, branch)):
            yield


@contextmanager
def route(value: Any) -> Iterator[Route]:
    """Exactly one branch runs: the one that names the value, or `otherwise`; the others are skipped.

    Give each branch its own names and join them with `hf.first`.
    """
    trace = tracing.required("hf.route", "if or match")
    if not isinstance(value, Ref):
        raise trace_error(f"hf.route takes a reference, not {value!r}")
    trace.check_visible(value, "hf.route")
    yield Route(trace, value)


class Routes:
    """Parallel branches, made by `hf.routes`: call it with a name to open that branch."""

    def __init__(self, trace: tracing.Trace, selected: Ref) -> None:
        self._trace = trace
        self._selected = selected
        self._id = trace.new_route("route")
        self._names: set[str] = set()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The branch that runs if the selected names contain this one; its nodes get a path of their own."""
        wrong = name_problem(name) if isinstance(name, str) else f"{name!r} is not text"
        if wrong:
            raise trace_error(f"the name of a branch {wrong}")
        if name in self._names:
            raise trace_error(f"the route has two branches called {name!r}")
        self._names.add(name)
        condition = expression(contains(self._selected, name))
        with self._trace.under(condition, label=f"{self._id}={name}", lane=f"{self._id}.{name}."):
            yield


@contextmanager
def routes(selected: Any) -> Iterator[Routes]:
    """Every branch whose name is among the selected ones runs, side by side; the others are skipped."""
    trace = tracing.required("hf.routes", "if")
    if not isinstance(selected, Ref):
        raise trace_error(f"hf.routes takes a reference to a list of names, not {selected!r}")
    trace.check_visible(selected, "hf.routes")
    yield Routes(trace, selected)


@contextmanager
def phase(name: str, after: str | None = None) -> Iterator[None]:
    """A name for the nodes called inside. It orders nothing, unless `after` names a phase that must end first."""
    trace = tracing.required("hf.phase")
    frame = trace.frame
    if frame is not trace.top:
        raise trace_error("phases belong to the workflow itself; open it around the map or loop")
    if frame.phase is not None:
        raise trace_error(f"phases do not nest: {name!r} is opened inside {frame.phase!r}")
    wrong = name_problem(name)
    if wrong:
        raise trace_error(f"the phase's name {wrong}")
    known = trace.phases.get(name)
    if known is not None and after not in (None, known.after):
        raise trace_error(f"the phase {name!r} was opened before with after={known.after!r}")
    if known is None:
        trace.phases[name] = Phase(name=name, after=after)
    frame.phase = name
    try:
        yield
    finally:
        frame.phase = None


# --- choices --------------------------------------------------------------------------------------------------------


def first(*options: T) -> T:
    """The first of these, in this order, whose nodes completed. The last may be a constant: the default."""
    trace = tracing.required("hf.first")
    if not options:
        raise trace_error("hf.first takes at least one reference")
    for option in options[:-1]:
        if not isinstance(option, Ref):
            raise trace_error(f"only the last argument of hf.first may be a constant, not {option!r}")
    if not isinstance(options[0], Ref):
        raise trace_error("hf.first takes at least one reference")
    _check_visible(trace, options, "hf.first")
    chosen: T = build("first", *options, annotation=_common_type(options))
    return chosen


def some(*options: T, n: int) -> list[T]:
    """The `n` of these that complete first, in argument order; skipped when too few are left."""
    chosen: list[T] = _some(options, n, "hf.some")
    return chosen


def any_of(*options: T) -> T:
    """The one of these that completes first."""
    earliest: T = _some(options, 1, "hf.any_of")[0]
    return earliest


def skipped(ref: Any) -> bool:
    """Whether the node was skipped; for conditions."""
    built: bool = _status("skipped", ref)
    return built


def failed(ref: Any) -> bool:
    """Whether the node failed, in a workflow that continues after failures; for conditions."""
    built: bool = _status("failed", ref)
    return built


# --- functions in expressions -----------------------------------------------------------------------------------------


def size(value: Any) -> int:
    """The number of items of a list, an object or a text."""
    _need_ref("hf.size", value)
    built: int = build("size", value, annotation=int)
    return built


def contains(whole: Any, part: Any) -> bool:
    """Whether a list has this item, an object this key, a text this part."""
    _need_ref("hf.contains", whole, part)
    built: bool = build("contains", whole, part, annotation=bool)
    return built


def is_none(value: Any) -> bool:
    """Whether the value is null: None, a missing field, or in a condition a skipped node."""
    _need_ref("hf.is_none", value)
    built: bool = build("is_none", value, annotation=bool)
    return built


def starts_with(text: Any, part: Any) -> bool:
    """Whether a text begins with another one; false for null."""
    _need_ref("hf.starts_with", text, part)
    built: bool = build("starts_with", text, part, annotation=bool)
    return built


def ends_with(text: Any, part: Any) -> bool:
    """Whether a text ends with another one; false for null."""
    _need_ref("hf.ends_with", text, part)
    built: bool = build("ends_with", text, part, annotation=bool)
    return built


def if_else(condition: Any, yes: T, no: T) -> T:
    """`yes` if the condition holds when the workflow runs, else `no`: `ship(hf.if_else(amount > 100, "air", "sea"))`

    Both are needed: a node that gets this is skipped if either refers to a node that was skipped (see `hf.first`).
    """
    trace = tracing.required("hf.if_else", "if")
    _condition(trace, condition, "hf.if_else")
    built: T = build("if", condition, yes, no, annotation=_common_type((yes, no)))
    return built


def text(template: str, *values: Any) -> str:
    """A text with each "{}" replaced by a value: `hf.text("order {}", order.id)`."""
    tracing.required("hf.text", "an f-string")
    places = template.count("{}")
    if places != len(values):
        raise trace_error(f'the text has {places} places "{{}}" for {len(values)} value(s)')
    _need_ref("hf.text", *values)
    built: str = build("text", template, *values, annotation=str)
    return built


def var(name: str) -> Any:
    """A variable that the workflow declares: `with hf.when(hf.var("verified")): …`"""
    return tracing.required("hf.var", "ctx.vars").variable(name)


def _some(options: tuple[Any, ...], n: int, what: str) -> Any:
    trace = tracing.required(what)
    for option in options:
        if not isinstance(option, Ref):
            raise trace_error(f"{what} takes references, not {option!r}")
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(options):
        raise trace_error(f"{what}: n={n!r} is not between 1 and the number of references, {len(options)}")
    _check_visible(trace, options, what)
    kind = _common_type(options)
    return build("some", n, *options, annotation=list[kind])  # type: ignore[valid-type]  # known only now


def _status(operator: str, ref: Any) -> Any:
    trace = tracing.required(f"hf.{operator}")
    link = chain(expression(ref)) if isinstance(ref, Ref) else None
    if link is None or link[0][0] != "node":
        raise trace_error(f"hf.{operator} takes what a node call returned")
    trace.check_visible(ref, f"hf.{operator}")
    leaf = Ref(list(link[0]), Any, ref._hf_frame)
    return build(operator, leaf, annotation=bool)


def _condition(trace: tracing.Trace, condition: Any, what: str) -> Expr:
    if not isinstance(condition, Ref):
        raise trace_error(
            f"{what} takes a condition on references, and this is the plain value {condition!r}: it was computed while "
            f"tracing, once, and not when the workflow runs"
        )
    check_truth(what, condition)
    return trace.expr(condition, what=what)


def _check_visible(trace: tracing.Trace, options: tuple[Any, ...], what: str) -> None:
    for option in options:
        trace.expr(option, what=what)


def _need_ref(what: str, *values: Any) -> None:
    tracing.required(what)
    if not any(isinstance(v, Ref) for v in values):
        raise trace_error(f"{what} takes a reference; for plain values use Python itself")


def _common_type(options: tuple[Any, ...]) -> Any:
    """The type that all options have; Any when they differ. A constant None changes nothing."""
    kinds = [type_of(o) for o in options if o is not None]
    first_kind = kinds[0]
    same = all(k == first_kind for k in kinds)
    if not same:
        return Any
    if any(o is None for o in options) and first_kind is not Any and type(None) not in union_members(first_kind):
        try:
            return first_kind | None
        except TypeError:
            return Any
    return first_kind


def _same_constant(a: Expr, b: Expr) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _label(expr: Expr, fallback: str) -> str:
    link = chain(expr)
    if link is None:
        return fallback
    leaf, keys = link
    return str(keys[-1] if keys else leaf[-1])
