"""Graphs: random definitions, the handlers they use, and an interpreter that says what must come out.

The interpreter knows nothing of events, attempts or crashes: it walks a definition in order and computes values. Its
answer (the result, and the arguments of every body that must run) is what rules and engine are compared with.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

import holdfast as hf
from holdfast.model import handlers, validation
from holdfast.model.definition import Body, Definition, NodeDef, Param
from holdfast.model.expressions import chain, evaluate, follow
from holdfast.model.handlers import CodeLocation, Parameter, RegisteredWorkflow

INPUT = "seed"


def work(x: Any) -> dict[str, Any]:
    """What every body does: a pure function of its input, with a number to decide by and a list to map over."""
    n = zlib.crc32(msgspec.json.encode(x, order="deterministic")) % 100
    return {"n": n, "items": list(range(n % 4)), "even": n % 2 == 0}


# --- random definitions ------------------------------------------------------------------------------------------


class _Names:
    def __init__(self, composed: bool) -> None:
        self.count = 0
        self.composed = composed

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


@st.composite
def definitions(draw: st.DrawFn, size: int = 6, depth: int = 2, composed: bool = True) -> Definition:
    """`composed`: items and rounds may return more than one call's output: maps in them, nodes outside, parameters."""
    names = _Names(composed)
    nodes = draw(_nodes(names, visible=[], params=[], size=size, depth=depth))
    parts = draw(st.lists(st.sampled_from([n.id for n in nodes]), min_size=1, max_size=4, unique=True))
    result: Any = ["list", *(["node", p] for p in parts), ["size", ["list", 1, 2]]]
    definition = Definition(name="random", params=(Param(name=INPUT),), nodes=tuple(nodes), result=result)
    assert validation.check(definition) == []
    return definition


@st.composite
def _nodes(
    draw: st.DrawFn, names: _Names, visible: list[NodeDef], params: list[Any], size: int, depth: int
) -> list[NodeDef]:
    """Nodes of one scope, each referring to earlier ones of it or of the scopes around it."""
    own: list[NodeDef] = []
    for _ in range(draw(st.integers(1, size))):
        seen = [*visible, *own]
        kind = draw(st.sampled_from(["call", "call", "call", "route", "join", *(["map", "loop"] if depth else [])]))
        if kind == "route":
            own += draw(_route(names, seen, params))
        elif kind in ("call", "join"):
            own.append(draw(_call(names, seen, params, joins=kind == "join")))
        else:
            own.append(draw(_scope(kind, names, seen, params, size, depth)))
    return own


@st.composite
def _reference(draw: st.DrawFn, seen: list[NodeDef], params: list[Any]) -> Any:
    """A plain value: a field of the input, a parameter or a node's output."""
    choices: list[Any] = [["get", ["input", INPUT], "n"], *params]
    for node in seen:
        if node.kind == "call":
            choices.append(["get", ["node", node.id], "n"])
        choices.append(["node", node.id])
    return draw(st.sampled_from(choices))


@st.composite
def _data(draw: st.DrawFn, seen: list[NodeDef], params: list[Any], joins: bool) -> Any:
    if not joins:
        return draw(_reference(seen, params))
    several = draw(st.lists(_reference(seen, params), min_size=2, max_size=4))
    match draw(st.sampled_from(["list", "first", "default", "some", "dict"])):
        case "list":
            return ["list", *several]
        case "first":
            return ["first", *several]
        case "default":
            return ["first", *several, "none of them"]
        case "some":  # which of them is a matter of time, how many is not
            return ["size", ["some", draw(st.integers(1, len(several))), *several]]
    return ["dict", *(part for i, x in enumerate(several) for part in (f"k{i}", x))]


@st.composite
def _condition(draw: st.DrawFn, seen: list[NodeDef], params: list[Any]) -> Any:
    """A condition on numbers that rules have captured."""
    choices: list[Any] = [["get", ["input", INPUT], "n"]]
    choices += [p for p in params if chain(p) is not None and p[0] == "param"]
    choices += [["get", ["node", n.id], "n"] for n in seen if n.kind != "map"]
    choices += [["size", ["node", n.id]] for n in seen if n.kind == "map"]
    value = draw(st.sampled_from(choices))
    if value[0] == "param":
        compare = ["gt", ["size", value], 0] if draw(st.booleans()) else ["is_none", ["get", value, "n"]]
    else:
        compare = [draw(st.sampled_from(["lt", "ge", "ne"])), value, draw(st.integers(0, 99))]
    asked = [n.id for n in seen]
    if asked and draw(st.booleans()):
        other = draw(st.sampled_from([["skipped", ["node", draw(st.sampled_from(asked))]], ["not", compare]]))
        return [draw(st.sampled_from(["and", "or"])), compare, other]
    return compare


@st.composite
def _call(draw: st.DrawFn, names: _Names, seen: list[NodeDef], params: list[Any], joins: bool) -> NodeDef:
    after = draw(st.lists(st.sampled_from([n.id for n in seen]), max_size=2, unique=True)) if seen else []
    when = draw(st.none() | _condition(seen, params))
    uses = draw(st.sampled_from(["quick", "quick", "slow"]))
    args = {"x": draw(_data(seen, params, joins))}
    return NodeDef(id=names.new("n"), uses=f"{__name__}.{uses}", args=args, when=when, after=tuple(after))


@st.composite
def _route(draw: st.DrawFn, names: _Names, seen: list[NodeDef], params: list[Any]) -> list[NodeDef]:
    """Branches of a route and their join, exclusive or parallel."""
    condition = draw(_condition(seen, params))
    lanes = draw(st.booleans())
    label = names.new("route_")
    one = draw(_call(names, seen, params, joins=False))
    two = draw(_call(names, seen, params, joins=False))
    one = msgspec.structs.replace(one, when=condition, lane=f"{label}.a." if lanes else "")
    two = msgspec.structs.replace(two, when=["not", condition], lane=f"{label}.b." if lanes else "")
    join = NodeDef(
        id=names.new("n"), uses=f"{__name__}.quick", args={"x": ["first", ["node", one.id], ["node", two.id], None]}
    )
    return [one, two, join]


@st.composite
def _scope(
    draw: st.DrawFn, kind: str, names: _Names, seen: list[NodeDef], params: list[Any], size: int, depth: int
) -> NodeDef:
    scope_id = names.new(kind)
    item = ["param", scope_id, "item"]
    inside = [*params, item]
    args: dict[str, Any] = {}
    if draw(st.booleans()):
        args["extra"] = draw(_reference(seen, params))
        inside.append(["param", scope_id, "extra"])
    body = draw(_nodes(names, seen, inside, max(1, size // 2), depth - 1))
    last = NodeDef(
        id=names.new("n"), uses=f"{__name__}.quick", args={"x": ["list", ["first", ["node", body[-1].id], 0], item]}
    )
    body.append(last)
    result: Any = ["node", last.id]
    if names.composed and draw(st.booleans()):
        if draw(st.booleans()):
            body.pop()  # the result hangs on the last node itself, which may be skipped, or be a map or a loop
            result = ["node", body[-1].id]
        else:
            result = ["list", *draw(st.lists(_reference([*seen, *body], inside), min_size=1, max_size=3))]
    inner = Body(nodes=tuple(body), result=result)
    when = draw(st.none() | _condition(seen, params))
    if kind == "loop":
        decider = next((n.id for n in reversed(body) if n.kind == "call"), None)
        until: Any = ["skipped", ["node", body[-1].id]]
        if decider is not None:
            until = ["ge", ["get", ["node", decider], "n"], draw(st.integers(0, 99))]
        if draw(st.booleans()):
            until = ["or", until, draw(_condition([*seen, *body], inside))]
        return NodeDef(
            id=scope_id,
            kind="loop",
            start=draw(_reference(seen, params)),
            until=until,
            item="item",
            args=args,
            body=inner,
            max_visits=draw(st.integers(1, 3)),
            at_limit="take",
            when=when,
        )
    lists: list[Any] = [["const", [1, "two", {"n": 3}]], ["const", []], ["list", ["get", ["input", INPUT], "n"], 7]]
    lists += [["get", ["node", n.id], "items"] for n in seen if n.kind == "call"]
    lists += [["node", n.id] for n in seen if n.kind == "map"]
    over = draw(st.sampled_from(lists))
    if draw(st.booleans()):
        over = ["first", over, ["const", [9]]]
    return NodeDef(
        id=scope_id,
        kind="map",
        over=over,
        item="item",
        args=args,
        body=inner,
        limit=draw(st.integers(1, 3)),
        when=when,
        errors=draw(st.sampled_from(["fail", "fail", "collect"])),
    )


# --- handlers ----------------------------------------------------------------------------------------------------

ran: list[tuple[str, str, int, Any]] = []
"""(node, path, attempt, argument) of every body that ran in this process."""

broken: set[tuple[str, str]] = set()
"""(node, path) of bodies that fail."""


def _body(ctx: hf.Context, x: Any) -> Any:
    ran.append((ctx.node, ctx.path, ctx.attempt, x))
    if (ctx.node, ctx.path) in broken:
        raise ValueError(f"{ctx.node} is broken")
    return work(x)


@hf.node(inline=True)
def quick(ctx: hf.Context, x: Any) -> Any:
    return _body(ctx, x)


@hf.node
async def slow(ctx: hf.Context, x: Any) -> Any:
    return _body(ctx, x)


def registered(definition: Definition) -> RegisteredWorkflow:
    """A definition as a workflow that engines of this process can run."""
    workflow = RegisteredWorkflow(
        definition=definition,
        code=CodeLocation(kind="process", name=definition.name),
        params=tuple(Parameter(p.name, Any, True) for p in definition.params),
        returns=Any,
    )
    handlers.register_workflow(definition.name, lambda: workflow)
    return workflow


# --- what must come out --------------------------------------------------------------------------------------------


class Absent(Exception):
    """Something that is needed was skipped."""


class _Scope:
    def __init__(self, path: str, nodes: tuple[NodeDef, ...], outer: _Scope | None, params: dict[str, Any]) -> None:
        self.path = path
        self.nodes = {n.id: n for n in nodes}
        self.outer = outer
        self.params = params
        self.values: dict[str, Any] = {}
        self.skipped: set[str] = set()

    def home(self, node: str) -> _Scope:
        here: _Scope | None = self
        while here is not None:
            if node in here.nodes:
                return here
            here = here.outer
        raise KeyError(node)

    def param(self, owner: str, name: str) -> Any:
        here: _Scope | None = self
        while here is not None:
            if f"{owner}.{name}" in here.params:
                return here.params[f"{owner}.{name}"]
            here = here.outer
        raise KeyError(f"{owner}.{name}")


class Expected:
    """What a definition comes to: its result, and every body that runs with what it is given."""

    def __init__(self, definition: Definition, inputs: dict[str, Any], handler: Callable[[Any], Any] = work) -> None:
        self.inputs = inputs
        self.bodies: dict[tuple[str, str], Any] = {}
        self._handler = handler
        scope = self._run(".", definition.nodes, None, {})
        self.result = self._value(scope, definition.result, lenient=True)

    def _run(self, path: str, nodes: tuple[NodeDef, ...], outer: _Scope | None, params: dict[str, Any]) -> _Scope:
        scope = _Scope(path, nodes, outer, params)
        for node in nodes:  # the order of a random definition is a topological one
            if node.when is not None and not self._value(scope, node.when, lenient=True):
                scope.skipped.add(node.id)
                continue
            try:
                scope.values[node.id] = self._node(scope, node)
            except Absent:
                scope.skipped.add(node.id)
        return scope

    def _node(self, scope: _Scope, node: NodeDef) -> Any:
        if node.kind == "call":
            x = self._value(scope, node.args["x"])
            self.bodies[node.id, scope.path + node.lane] = x
            return self._handler(x)
        extra = {name: self._value(scope, e) for name, e in node.args.items()}
        shared = {f"{node.id}.{name}": value for name, value in extra.items()}
        assert node.body is not None
        if node.kind == "map":
            items = []
            for i, item in enumerate(self._value(scope, node.over)):
                params = shared | {f"{node.id}.item": item}
                inner = self._run(f"{scope.path}{node.id}.{i}.", node.body.nodes, scope, params)
                items.append(self._value(inner, node.body.result, lenient=True))
            return items
        value = self._value(scope, node.start)
        for i in range(node.max_visits):
            params = shared | {f"{node.id}.item": value}
            inner = self._run(f"{scope.path}{node.id}.{i}.", node.body.nodes, scope, params)
            value = self._value(inner, node.body.result, lenient=True)
            if self._value(inner, node.until, lenient=True):
                break
        return value

    def _value(self, scope: _Scope, expr: Any, lenient: bool = False) -> Any:
        """The value of an expression. Lenient (conditions, results): what was skipped is null."""

        def read(e: Any) -> Any:
            if e[0] == "size":
                value = read(e[1])
                return len(value) if isinstance(value, list | dict | str) else None
            link = chain(e)
            if link is not None:
                leaf, keys = link
                return follow(self._leaf(scope, leaf, lenient), keys)
            match e[0]:
                case "skipped":
                    return e[1][1] in scope.home(e[1][1]).skipped
                case "first":
                    for option in e[1:]:
                        try:
                            return self._value(scope, option)
                        except Absent:
                            continue
                    if lenient:
                        return None
                    raise Absent
                case "some":
                    there = [x for x in e[2:] if self._is_there(scope, x)]
                    if len(there) < e[1]:
                        raise Absent
                    return there[: e[1]]
            raise AssertionError(e)

        return evaluate(expr, read)

    def _is_there(self, scope: _Scope, expr: Any) -> bool:
        try:
            self._value(scope, expr)
        except Absent:
            return False
        return True

    def _leaf(self, scope: _Scope, leaf: tuple[str, ...], lenient: bool) -> Any:
        match leaf[0]:
            case "input":
                return self.inputs[leaf[1]]
            case "param":
                return scope.param(leaf[1], leaf[2])
        home = scope.home(leaf[1])
        if leaf[1] in home.skipped:
            if lenient:
                return None
            raise Absent
        return home.values[leaf[1]]
