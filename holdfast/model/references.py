"""References: what an expression means at one place of a run.

Owns: whether the nodes it refers to are there (`availability`), which events hold its values (`locate`), and its value
where rules may know it (`evaluate_captured`).
Never: loads a value; the engine loads values by located expressions.

A located expression is an expression whose leaves are facts: ["at", seq, key...] the output (or input) held by event
`seq`; ["items", seq, node, path, key...] the outputs of a map's items; ["var_at", seq, name, key...] a variable.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.model.captures import by_captures
from holdfast.model.expressions import (
    Expr,
    chain,
    evaluate,
    follow,
    nodes_of,
    operands,
    pointer,
)
from holdfast.model.statuses import NODE_SETTLED, NodeStatus

if TYPE_CHECKING:
    from holdfast.model.fold import Fold
    from holdfast.model.state import Key, NodeState, OpenScope


class Availability(Enum):
    READY = "ready"
    PENDING = "pending"
    ABSENT = "absent"
    """Skipped, or failed under `continue`: a node that needs it is skipped."""


class Instances(Protocol):
    """Instances by (node, path)."""

    def get(self, key: Key, /) -> NodeState | None: ...


class View(Protocol):
    """Where references are looked up: a run's state, or that with instances of closed scopes added."""

    @property
    def nodes(self) -> Instances: ...
    @property
    def fold(self) -> Fold: ...


UNDONE = "~output"
"""The argument of a compensation that gets the output it undoes, whatever its parameter is called."""

READY, PENDING, ABSENT = Availability.READY, Availability.PENDING, Availability.ABSENT


def lookup(state: View, scope: OpenScope, node: str) -> NodeState | None:
    """The instance that a name means inside a scope; None while it is pending."""
    here: OpenScope | None = scope
    while here is not None:
        plan = here.plan.nodes.get(node)
        if plan is not None:
            return state.nodes.get((node, here.path + plan.lane))
        here = here.parent
    return None


def availability(state: View, scope: OpenScope, expr: Expr) -> tuple[Availability, str | None]:
    """Whether everything that `expr` needs is available; if it never will be, also the node that is the cause."""
    if not isinstance(expr, list):
        return READY, None
    match expr[0]:
        case "node":
            ns = lookup(state, scope, expr[1])
            if ns is None or ns.status not in NODE_SETTLED:
                return PENDING, None
            return (READY, None) if ns.status is NodeStatus.COMPLETED else (ABSENT, expr[1])
        case "skipped" | "failed":
            ns = lookup(state, scope, expr[1][1])
            return (PENDING, None) if ns is None or ns.status not in NODE_SETTLED else (READY, None)
        case "first":
            cause = None
            for operand in expr[1:]:
                found, blame = availability(state, scope, operand)
                if found is not ABSENT:
                    return found, None
                cause = cause or blame
            return ABSENT, cause
        case "some":
            answers = [availability(state, scope, operand) for operand in expr[2:]]
            if sum(a is READY for a, _ in answers) >= expr[1]:
                return READY, None
            if sum(a is not ABSENT for a, _ in answers) >= expr[1]:
                return PENDING, None
            return ABSENT, next((blame for a, blame in answers if a is ABSENT), None)
    answer: tuple[Availability, str | None] = (READY, None)
    for operand in operands(expr):
        found, blame = availability(state, scope, operand)
        if found is PENDING:  # nothing is decided before everything has settled, also if something is absent
            return PENDING, None
        if found is ABSENT and answer[0] is READY:
            answer = (ABSENT, blame)
    return answer


def locate(state: View, scope: OpenScope, expr: Expr) -> Any:
    """The expression with its references replaced by the events that hold the values; null for what is absent."""
    if not isinstance(expr, list):
        return expr
    link = chain(expr)
    if link is not None:
        return _locate_chain(state, scope, *link)
    op = expr[0]
    match op:
        case "const":
            return expr
        case "skipped" | "failed":
            return evaluate_captured(state, scope, expr)
        case "first":
            chosen = choose_first(state, scope, expr)
            return None if chosen is None else locate(state, scope, chosen[0])
        case "some":
            return ["list", *(locate(state, scope, x) for x in _choose_some(state, scope, expr))]
        case "get":
            return deeper(locate(state, scope, expr[1]), (expr[2],))
        case "text":
            return ["text", expr[1], *(locate(state, scope, x) for x in expr[2:])]
        case "dict":
            return ["dict", *(x if i % 2 == 0 else locate(state, scope, x) for i, x in enumerate(expr[1:]))]
    return [op, *(locate(state, scope, x) for x in expr[1:])]


def choose_first(state: View, scope: OpenScope, expr: Expr) -> tuple[Expr] | None:
    """The operand that `first` means (in a tuple: a constant null is a choice too), or None when all are absent."""
    for operand in expr[1:]:
        if availability(state, scope, operand)[0] is READY:
            return (operand,)
    return None


def _choose_some(state: View, scope: OpenScope, expr: Expr) -> list[Expr]:
    """The n operands that completed earliest, in argument order. Later arrivals have higher seqs: it never changes."""

    def completed_at(operand: Expr) -> int:
        found = [lookup(state, scope, name) for name in nodes_of(operand)]
        return max((ns.output_seq for ns in found if ns is not None and ns.status is NodeStatus.COMPLETED), default=0)

    ready = [x for x in expr[2:] if availability(state, scope, x)[0] is READY]
    earliest = sorted(range(len(ready)), key=lambda i: completed_at(ready[i]))[: expr[1]]
    return [ready[i] for i in sorted(earliest)]


def _locate_chain(state: View, scope: OpenScope, leaf: tuple[str, ...], keys: tuple[str | int, ...]) -> Any:
    match leaf[0]:
        case "node":
            ns = lookup(state, scope, leaf[1])
            if ns is None or ns.status is not NodeStatus.COMPLETED:
                return None
            if not ns.virtual:
                return ["at", ns.output_seq, *keys]
            if ns.counters is not None and ns.plan.definition.kind == "loop":
                return deeper(ns.counters.carry, keys)
            return ["items", ns.output_seq, ns.node, ns.path, *keys]
        case "input":
            return ["at", state.fold.input_seq, leaf[1], *keys]
        case "var":
            seq = state.fold.vars.get(leaf[1])
            return None if seq is None else ["var_at", seq, leaf[1], *keys]
    return deeper(_locate_param(state, scope, leaf[1], leaf[2]), keys)


def _locate_param(state: View, scope: OpenScope, scope_id: str, name: str) -> Any:
    here = _scope_named(scope, scope_id)
    owner, outside = here.owner, here.parent
    assert owner is not None
    assert outside is not None
    d = owner.plan.definition
    if name != d.item:
        return locate(state, outside, d.args[name])
    if d.kind == "map":
        return item_at(state, outside, d.over, here.key)
    if here.key == 0:
        return locate(state, outside, d.start)
    assert owner.counters is not None
    return owner.counters.carry


def item_at(state: View, scope: OpenScope, over: Expr, index: int) -> Any:
    """Item `index` of the list that a map runs over, located."""
    if isinstance(over, list):
        match over[0]:
            case "list":
                return locate(state, scope, over[1 + index])
            case "const":
                return ["const", over[1][index]]
            case "first":
                chosen = choose_first(state, scope, over)
                return None if chosen is None else item_at(state, scope, chosen[0], index)
    return deeper(locate(state, scope, over), (index,))


def _scope_named(scope: OpenScope, scope_id: str) -> OpenScope:
    here: OpenScope | None = scope
    while here is not None and here.plan.owner != scope_id:
        here = here.parent
    assert here is not None, f"no enclosing scope {scope_id}"
    return here


def deeper(located: Any, keys: tuple[str | int, ...]) -> Any:
    """A part of a located expression."""
    for i, key in enumerate(keys):
        if not isinstance(located, list):
            return None  # a field of a constant, of null too
        match located[0]:
            case "at" | "items" | "var_at":
                return [*located, *keys[i:]]
            case "const":
                return ["const", follow(located[1], keys[i:])]
            case "dict" if key in located[1::2]:
                # a loop whose rounds pass on a field must not carry every earlier round
                located = located[2 + 2 * located[1::2].index(key)]
            case "list" if isinstance(key, int) and 0 <= key < len(located) - 1:
                located = located[1 + key]
            case _:
                located = ["get", located, key]
    return located


class ParamsUnknown(Exception):
    """A condition reads a scope's parameter that the engine has not provided yet."""

    def __init__(self, scope_path: str) -> None:
        super().__init__(scope_path)
        self.scope_path = scope_path


def evaluate_captured(state: View, scope: OpenScope, expr: Expr) -> Any:
    """The value of a condition, from captured values alone."""
    inputs = state.fold.input_captured

    def read(e: Expr) -> Any:
        if e[0] == "captured":
            _, kind, home, name = e
            return inputs.get(name) if kind == "input" else _captured(state, scope, kind, home, name)
        by_name = by_captures(e)
        if by_name is not e:
            return evaluate(by_name, read)
        match e[0]:
            case "skipped" | "failed":
                ns = lookup(state, scope, e[1][1])
                asked = NodeStatus.SKIPPED if e[0] == "skipped" else NodeStatus.FAILED
                return ns is not None and ns.status is asked
            case "first":
                chosen = choose_first(state, scope, e)
                return None if chosen is None else evaluate_captured(state, scope, chosen[0])
        return [evaluate_captured(state, scope, x) for x in _choose_some(state, scope, e)]

    return evaluate(expr, read)


def _captured(state: View, scope: OpenScope, kind: str, home: str, name: str) -> Any:
    match kind:
        case "node":
            ns = lookup(state, scope, home)
            return None if ns is None or ns.status is not NodeStatus.COMPLETED else ns.captured.get(name)
        case "var":
            return state.fold.vars_captured.get(name)
    here = _scope_named(scope, home)
    if here.params is None:
        raise ParamsUnknown(here.path)
    return here.params.get(name)


def inputs_of(args: dict[str, Any]) -> tuple[tuple[str, int, str], ...]:
    """(parameter, seq, pointer) for each stored value that located arguments are made of: what NodeStarted records."""
    found: list[tuple[str, int, str]] = []
    for param, located in args.items():
        stack = [located]
        while stack:
            e = stack.pop()
            if not isinstance(e, list) or not e:
                continue
            if e[0] == "at":
                found.append((param, e[1], pointer(tuple(e[2:]))))
            elif e[0] in {"items", "var_at"}:
                found.append((param, e[1], pointer(tuple(e[4:] if e[0] == "items" else e[2:]))))
            else:
                stack.extend(reversed(operands(e)))
    return tuple(found)
